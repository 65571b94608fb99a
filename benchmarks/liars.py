"""What do clients of forty gain by lying, and what does that cost the others?

A simulated fleet whose replies pass the border of remote clients: forty clients of Synthetic(1, 1),
K = 10, 100 rounds, or as many updates asynchronously; times learned. The first liar would be, if
honest, among the ten that are drawn most, and further liars are those next to it. Printed are the
first liar's share of the rounds, the liars' weight, the final loss over the honest clients' data,
and the mean seconds of a round after the 30th, each the mean over seeds.

    OPENBLAS_NUM_THREADS=1 python benchmarks/liars.py --seeds 5
    OPENBLAS_NUM_THREADS=1 python benchmarks/liars.py --servers clip,trimmed,krum --lies honest,-10
    OPENBLAS_NUM_THREADS=1 python benchmarks/liars.py --lies honest,-10 --mode asynchronous
    OPENBLAS_NUM_THREADS=1 python benchmarks/liars.py --lies honest,samples --liars 5
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from tables import print_table

from fedpace import Seeds, Simulator, Stop, WarmUp, sampler_for, train
from fedpace.backends.remote import roster
from fedpace.backends.remote.screening import BadReplyError, Border, Claims, FirstReplies
from fedpace.checks import FloatArray
from fedpace.servers.build import server_for
from fedpace.studies.build import simulator
from fedpace.studies.study import load_study
from fedpace.times.round_times import Presence
from fedpace.training.backend import Evaluation, Reply, Task, join_replies
from fedpace.training.share_limit import LARGEST_SHARE
from fedpace.training.stopping import inverse
from fedpace.training.updates import length_of

N, K, ROUNDS, WARM_UP = 40, 10, 100, 3
SETTINGS = ("data.sizes=power-law", "data.clients=40", "data.samples=8000", "data.smallest=50")
SCHEMES = ("optimal-mean", "pace")


def same(_: int, value: float) -> float:
    return value


class Lie(NamedTuple):
    """What a liar makes of its reply in a round, and of its sample count."""

    name: str
    scale: Callable[[int, float], float] = same
    seconds: Callable[[int, float], float] = same
    norm: float | None = None
    samples: int = 1
    refresh: int | None = 10


def at_once(_: int, __: float) -> float:
    return 1e-3


def then_slow(round_index: int, seconds: float) -> float:
    return 1e-3 if round_index < 30 else 10 * seconds


LIES = (
    Lie("honest"),
    Lie("zeros after 1 ms", scale=lambda _, __: 0.0, seconds=at_once),
    Lie("work, but after 1 ms", seconds=at_once),
    Lie("norm 1e308", norm=1e308),
    Lie("norm 1e-40", norm=1e-40),
    Lie("100 times its samples", samples=100),
    Lie("1e37 times its update, at first", scale=lambda i, one: one if i else 1e37),
    Lie("-10 times its update", scale=lambda _, __: -10.0),
    Lie("fast for 30 rounds, then ten times slower", seconds=then_slow),
    Lie("the same, never solved again", seconds=then_slow, refresh=None),
)


class Remote(Simulator):
    """A simulated fleet with liars, whose replies are screened as those of remote clients."""

    lie: Lie
    liars: list[int]
    largest_share = LARGEST_SHARE

    @property
    def n(self) -> int:
        return self.data.train.n

    def lying(self, lie: Lie, liars: int = 1) -> Remote:
        self.lie = lie
        sizes = self.data.train.sizes
        order = np.argsort(sizes / np.sqrt(self.times.usual))
        self.liars = order[-self.n // 4 :][:liars].tolist()
        self._rounds = dict[int, int]()
        self.screen_with(Border())
        claims = {str(i): int(size) for i, size in enumerate(sizes)}
        for liar in self.liars:
            claims[str(liar)] *= lie.samples
        self._claimed = roster.Roster(samples=claims, together=roster.MOST_TOGETHER).weights
        return self

    def screen_with(self, border: Border) -> None:
        """Judge by this border from now on; what is held is lost, as in a restart."""
        self.border, self._first = border, FirstReplies[Reply](border)

    @property
    def weights(self) -> FloatArray:
        return self._claimed

    def collect(self, count: int | None = None) -> Reply:
        reply = super().collect(count)
        updates, seconds, norms = (
            reply.updates.copy(),
            reply.seconds.copy(),
            reply.grad_norms.copy(),
        )
        for i in np.flatnonzero(np.isin(reply.clients, self.liars)).tolist():
            lie, now = self.lie, self._rounds[int(reply.clients[i])]
            updates[i] *= lie.scale(now, 1.0)
            seconds[i] = lie.seconds(now, seconds[i])
            norms[i] = norms[i] if lie.norm is None else lie.norm
        said = reply._replace(updates=updates, seconds=seconds, grad_norms=norms)
        if count is None:
            return self._screened(said)._replace(waited=float(seconds.max(initial=0.0)))
        came = {int(client): said.of(place) for place, client in enumerate(said.clients)}
        judged = self._first.release(came, reachable=range(self.n))
        held = np.array(self._first.clients, dtype=np.int64)
        if not judged:
            empty = said._replace(
                clients=said.clients[:0],
                updates=updates[:0],
                seconds=seconds[:0],
                grad_norms=norms[:0],
            )
            return empty._replace(waited=reply.lasted, held=held)
        joined = join_replies(judged, waited=reply.lasted)
        fine = self._screened(joined)._replace(waited=reply.lasted, held=held)
        missing = np.setdiff1d(joined.clients, fine.clients)
        return fine._replace(missing=missing, refused=missing)

    def present(self, round_index: int, seconds: float) -> Presence:
        there = super().present(round_index, seconds)
        if held := self._first.clients:
            mask = (
                np.ones(self.n, dtype=np.bool_) if there.clients is None else there.clients.copy()
            )
            if mask.sum() > mask[held].sum():
                mask[held] = False
            return Presence(mask, there.waited)
        return there

    def submit(self, task: Task) -> None:
        self._rounds |= dict.fromkeys(task.clients.tolist(), task.round_index)
        super().submit(task)

    def _screened(self, reply: Reply) -> Reply:
        border, fine = self.border, []
        clients, updates = reply.clients.tolist(), reply.updates.copy()
        norms, seconds = reply.grad_norms.copy(), reply.seconds.copy()
        said = zip(clients, updates, norms.tolist(), seconds.tolist(), strict=True)
        border.meet(Claims(i, length_of(u), g, None, s) for i, u, g, s in said)
        for i, client in enumerate(clients):
            try:
                length = length_of(updates[i])
                updates[i] *= border.update(client, length)
                norms[i] = border.grad_norm(client, float(norms[i]), length)
                seconds[i] = border.took(client, float(seconds[i]))
                fine.append(i)
            except BadReplyError:
                border.forget(client)
        return reply._replace(
            clients=reply.clients[fine],
            updates=updates[fine],
            seconds=seconds[fine],
            grad_norms=norms[fine],
        )

    def honest_loss(self, parameters: FloatArray) -> float:
        """Return the loss over the samples of all clients but the liars."""
        train_data = self.data.train
        every = self.model.losses(parameters, self._whole_train_x, train_data.y)
        owner = np.repeat(np.arange(self.n), train_data.sizes)
        return float(every[~np.isin(owner, self.liars)].mean(dtype=np.float64))

    def evaluate(self, parameters: FloatArray, *, due: bool = True) -> Evaluation | None:
        del parameters, due
        return None


class Found(NamedTuple):
    share: float
    weight: float
    loss: float
    seconds: float


def run(scheme: str, lie: Lie, seed: int, server: str, options: Namespace) -> Found:
    study = load_study("simulation-1", [*SETTINGS, "devices.known=false"])
    plain = simulator(study, seed)
    fleet = Remote(
        plain.data, plain.model, plain.times, plain.seeds,
        local_steps=20, batch=24, times_known=False,
    ).lying(lie, options.liars)  # fmt: skip
    if options.mode == "asynchronous":
        mode: dict[str, Any] = {"mode": options.mode, "at_once": K}
        sampler = sampler_for(scheme, K, mode=options.mode, times_known=False)
        stop = Stop(seconds=options.seconds, rounds=100 * ROUNDS, blind=True)
    else:
        cap: dict[str, Any] = {} if scheme == "pace" else {"max_weight": 1.0}
        refresh = lie.refresh if scheme != "pace" else 10
        sampler = sampler_for(scheme, K, learn=WarmUp(WARM_UP), refresh=refresh, **cap)
        mode, stop = {}, Stop(rounds=ROUNDS, blind=True)
    outcome = train(
        fleet, sampler, schedule=inverse(0.1), stop=stop,
        seeds=Seeds(seed), server=server_for(server, sampler), **mode,
    )  # fmt: skip
    rows = outcome.history.rows[1:]
    share = np.mean([fleet.liars[0] in (*row.clients, *row.missing) for row in rows])
    weight = fleet.weights[fleet.liars].sum()
    seconds = np.mean([row.round_seconds for row in rows[30:]])
    loss = fleet.honest_loss(outcome.state.parameters)
    return Found(float(share), float(weight), loss, float(seconds))


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--most-samples", type=float, default=roster.MOST_SAMPLES)
    parser.add_argument("--together", type=float, default=roster.MOST_TOGETHER)
    parser.add_argument("--schemes", default=",".join(SCHEMES))
    parser.add_argument("--servers", default="auto")
    parser.add_argument("--lies", default="", help="those whose names hold one of these words")
    parser.add_argument("--liars", type=int, default=1)
    parser.add_argument("--mode", default="synchronous", choices=["synchronous", "asynchronous"])
    parser.add_argument("--seconds", type=float, default=60.0, help="of an asynchronous run")
    options = parser.parse_args()
    roster.MOST_SAMPLES, roster.MOST_TOGETHER = options.most_samples, options.together
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    for scheme in options.schemes.split(","):
        for server in options.servers.split(","):
            rows = []
            for lie in LIES:
                if not any(word in lie.name for word in options.lies.split(",")):
                    continue
                if lie.refresh is None and (scheme == "pace" or options.mode == "asynchronous"):
                    continue
                found = [run(scheme, lie, seed, server, options) for seed in seeds]
                share, weight, loss, seconds = np.mean(found, axis=0)
                parts = (f"{100 * each:.0f} %" for each in (share, weight))
                rows.append((lie.name, *parts, f"{loss:.3f}", f"{seconds:.2f}"))
            print(f"\n{scheme}, server {server}, {options.mode}, liars: {options.liars}")
            heads = ("lie", "share of rounds", "weight", "final loss", "seconds a round")
            print_table(heads, rows)


if __name__ == "__main__":
    main()
