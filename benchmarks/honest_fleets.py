"""Is an honest client ever refused? Random fleets without a liar, whose replies are all screened.

Fleets of 5 to 100 clients, a tenth to all of them at work, in rounds and asynchronously. Drawn at
random are also the sizes, from equal to heavy-tailed, with clients of one to three samples; the
labels, from mixed to one class a client, of which one may be rare; features larger by up to a
factor of ten either way; speeds with a heavy tail, one client a thousand times faster; absences;
the scheme, the server, the clients' optimiser, batch, local steps, and a learning rate that is
constant, falls or rises; a restart. A fleet whose loss ends higher than it began has diverged,
and is counted apart.

    OPENBLAS_NUM_THREADS=1 python benchmarks/honest_fleets.py --fleets 1000
"""

from __future__ import annotations

import json
import math
from argparse import ArgumentParser
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from liars import LIES, Remote
from tables import print_table

from fedpace import Seeds, Shards, Split, Stop, WarmUp, sampler_for, train
from fedpace.backends.remote.screening import BadReplyError, Border
from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError
from fedpace.models.networks import Logistic
from fedpace.servers.build import server_for
from fedpace.times.availability import with_availability
from fedpace.times.round_times import BaseTimes, Steady
from fedpace.training.stopping import Schedule, constant, inverse

FEATURES, CLASSES = 20, 10
Random = np.random.Generator


class Seen(NamedTuple):
    """The factors of the updates that were accepted, and the reasons of the others."""

    factors: list[float]
    refused: list[str]


class Watching(Border):
    """Count what is judged, and what is refused or shortened."""

    def __init__(self, memory: Any = None, seen: Seen | None = None) -> None:
        super().__init__(memory)
        self.seen = Seen([], []) if seen is None else seen

    def update(self, client: int, norm: float) -> float:
        try:
            factor = super().update(client, norm)
        except BadReplyError as error:
            self.seen.refused.append(f"client {client}: {error}")
            raise
        self.seen.factors.append(factor)
        return factor


class Fleet(NamedTuple):
    """What was drawn, for the table, and what it makes."""

    about: dict[str, Any]
    backend: Remote
    schedule: Schedule
    updates: int


def sizes(rng: Random, n: int) -> tuple[str, IntArray]:
    kind = str(rng.choice(["equal", "heavy-tailed", "tiny"]))
    if kind == "equal":
        return kind, np.full(n, int(rng.integers(5, 100)))
    if kind == "tiny":
        return kind, rng.integers(1, 4, n)
    return kind, np.clip(10 * (1 + rng.pareto(1.2, n)), 1, 3000).astype(np.int64)


def labels(rng: Random, counts: IntArray) -> tuple[str, list[IntArray]]:
    n, kind = counts.size, str(rng.choice(["mixed", "dirichlet", "one class", "rare class"]))
    if kind == "mixed":
        shares = np.full((n, CLASSES), 1 / CLASSES)
    elif kind == "dirichlet":
        shares = rng.dirichlet(np.full(CLASSES, 0.1), n)
    else:
        shares = np.eye(CLASSES)[rng.integers(0, CLASSES - 1, n)]
        if kind == "rare class":
            shares = np.eye(CLASSES)[np.zeros(n, dtype=np.int64)]
            shares[int(rng.integers(n))] = np.eye(CLASSES)[-1]
    drawn = [rng.choice(CLASSES, m, p=p) for m, p in zip(counts.tolist(), shares, strict=True)]
    return kind, drawn


def clients(rng: Random, n: int) -> tuple[dict[str, Any], Split]:
    size_kind, counts = sizes(rng, n)
    label_kind, ys = labels(rng, counts)
    centres = rng.normal(size=(CLASSES, FEATURES)) * rng.choice([0.3, 1.0, 3.0])
    scaled = bool(rng.random() < 0.3)
    scales = 10 ** rng.uniform(-1, 1, n) if scaled else np.ones(n)
    xs = [
        s * (centres[y] + rng.normal(size=(y.size, FEATURES)))
        for s, y in zip(scales, ys, strict=True)
    ]
    held = Shards.from_clients([x[:1] for x in xs], [y[:1] for y in ys])
    about = {"sizes": size_kind, "labels": label_kind, "features": "scaled" if scaled else "alike"}
    return about, Split(Shards.from_clients(xs, ys), held)


def speeds(rng: Random, n: int, seeds: Seeds) -> tuple[dict[str, Any], BaseTimes]:
    kind = str(rng.choice(["equal", "lognormal", "pareto", "one fast"]))
    usual: FloatArray = {
        "equal": np.ones(n),
        "lognormal": rng.lognormal(0, 1.5, n),
        "pareto": 1 + rng.pareto(1.0, n),
        "one fast": np.r_[1e-3, rng.lognormal(0, 0.5, n - 1)],
    }[kind]
    away = bool(rng.random() < 0.3)
    times: BaseTimes = Steady(np.minimum(usual, 1e3))
    return {"speeds": kind, "absences": away}, (
        with_availability("markov:30:10", times, seeds) if away else times
    )


def rates(rng: Random) -> tuple[str, Schedule]:
    kind, rate = str(rng.choice(["constant", "inverse", "warm-up"])), 10 ** rng.uniform(-2.5, -0.3)
    if kind == "warm-up":
        steps = int(rng.integers(5, 50))
        return kind, lambda r: rate * min(1.0, (r + 1) / steps)
    return kind, constant(rate) if kind == "constant" else inverse(rate)


def fleet(seed: int) -> Fleet:
    rng, seeds = np.random.default_rng(seed), Seeds(seed)
    n = round(5 * 20 ** rng.random())
    data_about, data = clients(rng, n)
    time_about, times = speeds(rng, n, seeds)
    rate_kind, schedule = rates(rng)
    asynchronous = bool(rng.random() < 0.6)
    k = max(1, round(n * rng.uniform(0.1, 1)))
    servers = ["auto", "average", "clip:2", "adam:0.05"]
    about = {
        "mode": "asynchronous" if asynchronous else "synchronous",
        "clients": n,
        "at work": k,
        "scheme": str(rng.choice(["uniform", "pace"])),
        "server": str(rng.choice(servers)),
        "optimiser": str(rng.choice(["sgd", "momentum:0.9", "adam"])),
        "local steps": int(rng.choice([1, 5, 20, 50])),
        "batch": int(rng.choice([1, 8, 32])),
        "rate": rate_kind,
        "restart": bool(rng.random() < 0.3),
        **data_about,
        **time_about,
    }
    backend = Remote(
        data, Logistic(FEATURES, CLASSES), times, seeds, times_known=False,
        local_steps=about["local steps"], batch=about["batch"], optimiser=about["optimiser"],
    ).lying(LIES[0], 0)  # fmt: skip
    return Fleet(about, backend, schedule, min(20 * n, 600))


class Restarting:
    """Go on with what a checkpoint remembers of the border, in the middle of a run."""

    def __init__(self, backend: Remote, at: int) -> None:
        self.backend, self.at = backend, at

    def __call__(self, row: Any) -> None:
        if row.round == self.at:
            old = self.backend.border
            assert isinstance(old, Watching)
            self.backend.screen_with(Watching(json.loads(json.dumps(old.memory)), old.seen))


def run(made: Fleet, seed: int) -> tuple[Seen, bool]:
    """Train; return what was judged, and whether the fleet has diverged."""
    about, backend = made.about, made.backend
    backend.screen_with(Watching())
    k, asynchronous = about["at work"], about["mode"] == "asynchronous"
    mode: dict[str, Any] = {"mode": about["mode"], "at_once": k} if asynchronous else {}
    rounds = max(10, made.updates // k)
    learn = {} if asynchronous else {"learn": WarmUp(2)}
    sampler = sampler_for(
        about["scheme"],
        k,
        mode=about["mode"],
        times_known=False,
        **learn,  # type: ignore[arg-type]
    )
    before = backend.honest_loss(backend.initial())
    callbacks = [Restarting(backend, rounds // 2)] if about["restart"] else []
    with np.errstate(all="ignore"):
        outcome = train(
            backend, sampler, schedule=made.schedule, stop=Stop(rounds=rounds, blind=True),
            seeds=Seeds(seed), server=server_for(about["server"], sampler),
            callbacks=callbacks, **mode,
        )  # fmt: skip
        after = backend.honest_loss(outcome.state.parameters)
    border = backend.border
    assert isinstance(border, Watching)
    return border.seen, not math.isfinite(after) or after > before


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--fleets", type=int, default=1000)
    parser.add_argument("--first-seed", type=int, default=0)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    for seed in range(options.first_seed, options.first_seed + options.fleets):
        made = fleet(seed)
        try:
            (factors, refused), diverged = run(made, seed)
        except InputError as error:
            print(f"{seed}: {error}; {made.about}", flush=True)
            counts["not run"] += 1
            continue
        kind, shortened = "diverged" if diverged else "learning", [x for x in factors if x < 1]
        counts[f"{kind} fleets"] += 1
        counts[f"{kind}: updates judged"] += len(factors) + len(refused)
        counts[f"{kind}: updates shortened"] += len(shortened)
        counts[f"{kind}: fleets with one"] += bool(shortened)
        counts[f"{kind}: updates refused"] += len(refused)
        if shortened or refused:
            least = f"by {1 / min(shortened):.1f} at most" if shortened else ""
            print(f"{seed} ({kind}): {len(shortened)} shortened {least}, {len(refused)} refused "
                  f"{refused[:1]} of {len(factors)}; {made.about}", flush=True)  # fmt: skip
    print_table(("of honest fleets", ""), [(k, f"{v:,}") for k, v in sorted(counts.items())])


if __name__ == "__main__":
    main()
