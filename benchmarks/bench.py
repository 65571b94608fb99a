"""Small tasks of our own, on which constants are chosen: how soon is `pace`, and who is sooner?

    python benchmarks/bench.py --schemes pace --modes asynchronous --seeds 2 --out bench.jsonl
    python benchmarks/bench.py --search --minutes 30 --out bench.jsonl
    python benchmarks/bench.py --table --out bench.jsonl

The first runs `pace` as it comes on every task. `--search` looks for the best of each rival over
updates per step, five learning rates and local steps: a run is given up once it is later than the
best rival so far, and the best few of the first seed run on the others. Results are kept by task,
configuration, seed and `--tag`, which is by default a digest of the code for `pace` and fixed for
rivals; the same command goes on from there.

The time of a run is when the loss is first at the target and the mean over the updates of the next
five rounds, K each, is at most the target too.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from bench_tasks import HELD_OUT, TASKS, TUNING, BenchTask, target_of
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

import fedpace
from fedpace import Seeds, Stop, sampler_for
from fedpace.samplers.build import WarmUp
from fedpace.servers.build import server_for
from fedpace.training.asynchronous import AsynchronousTraining
from fedpace.training.synchronous import SynchronousTraining
from fedpace.training.training import Training

# Rounds of K updates over which the mean loss must stay at the target, and that a run may take.
STAY, MOST_ROUNDS = 5, 1500
# Seconds of this machine that a run may take.
PATIENCE = 10.0
SYNCHRONOUS, ASYNCHRONOUS = "synchronous", "asynchronous"
RIVALS = {
    ASYNCHRONOUS: ("weighted", "fedbuff"),
    SYNCHRONOUS: ("weighted", "optimal-tiers", "optimal-mean", "oort", "tifl", "flanp"),
}
FACTORS = (1.0, 3.0, 0.3, 10.0, 0.1)
STEPS = (10, 2, 5, 20, 1, 50)
OURS = ("samplers", "servers", "training", "sampling")


class Config(NamedTuple):
    """How a task is trained: `steps` is E, 0 for the task's own, and `buffer` B, 0 for the default.

    `schedule` replaces the task's own.
    """

    scheme: str
    mode: str = ASYNCHRONOUS
    buffer: int = 0
    factor: float = 1.0
    steps: int | str = 0
    schedule: str = ""


class Found(NamedTuple):
    """Seconds until the target is kept and first touched, and what it took."""

    seconds: float
    touched: float
    updates: int
    ended: str
    slow: float
    cpu: float


class Watch:
    """Follow the losses of a run, and say when it has kept the target."""

    def __init__(self, target: float, updates: int) -> None:
        self._target, self._wanted = target, updates
        self.seconds, self.losses, self.updates = [0.0], [math.inf], [0]
        self.touched = math.inf
        self.kept = math.inf
        self._begin = 1

    def add(self, seconds: float, loss: float, updates: int) -> None:
        self.seconds.append(seconds)
        self.losses.append(loss)
        self.updates.append(self.updates[-1] + updates)
        if loss <= self._target:
            self.touched = min(self.touched, seconds)
        while self._begin < len(self.losses):
            first = self._begin
            if self.losses[first] > self._target:
                self._begin += 1
            elif self.updates[-1] - self.updates[first - 1] < self._wanted:
                return
            else:
                counts = np.diff(self.updates[first - 1 :])
                mean = float(counts @ np.array(self.losses[first:])) / counts.sum()
                if mean <= self._target:
                    self.kept = self.seconds[first]
                    return
                self._begin += 1


def training_of(task: BenchTask, config: Config, seed: int, limit: float) -> Training:
    steps: Any = config.steps or task.steps
    auto = steps == "auto"
    backend = task.backend(seed, config.factor, task.steps if auto else steps)
    settings: dict[str, Any] = {}
    if config.mode == ASYNCHRONOUS:
        settings["buffer"] = config.buffer or None
    if config.scheme not in ("pace", "oort", "tifl", "flanp", "weighted", "fedbuff"):
        settings["learn"] = WarmUp(3)
    if auto:
        settings["knobs"] = {"local_steps": "auto"}
    sampler = sampler_for(
        config.scheme, task.k, mode=config.mode, times_known=task.known, **settings
    )
    scheduled = task if not config.schedule else task.__class__(
        **{**task.__dict__, "schedule": config.schedule}
    )  # fmt: skip
    common: dict[str, Any] = {
        "server": server_for("auto", sampler),
        "schedule": scheduled.rate_at(config.factor),
        "stop": Stop(seconds=limit),
        "seeds": Seeds(seed),
    }
    if config.mode == SYNCHRONOUS:
        return SynchronousTraining(backend, sampler, **common)
    return AsynchronousTraining(backend, sampler, at_once=task.k, **common)


def run(task: BenchTask, config: Config, seed: int, limit: float = math.inf) -> Found:
    """Train until the target is kept, or `limit` simulated seconds are over."""
    begin = time.process_time()
    target, first, least = target_of(task, seed)
    began = time.process_time()
    watch = Watch(target, STAY * task.k)
    # As long again as the limit: whoever touches it just before must stay for a while.
    training = training_of(task, config, seed, min(2 * limit, task.seconds))
    ended, weight = "", np.zeros(training.backend.weights.size)
    while not training.ended:
        with np.errstate(all="ignore"):
            rows = training.advance()
        for row in rows:
            watch.add(row.seconds, row.loss, row.clients.size)
            np.add.at(weight, row.clients, row.weights)
        if watch.kept < math.inf:
            ended = "kept"
        elif rows and not rows[-1].loss < first + 1e3 * (first - least):
            ended = "diverged"
        elif rows and rows[-1].seconds > limit and watch.touched > limit:
            ended = "late"
        elif watch.updates[-1] > MOST_ROUNDS * task.k:
            ended = "updates"
        elif len(watch.losses) % 20 == 0 and time.process_time() - began > PATIENCE:
            ended = "cpu"
        if ended:
            break
    usual = training.backend.times.usual  # type: ignore[attr-defined]
    slowest = np.argsort(-usual)[: math.ceil(usual.size / 5)]
    p = training.backend.weights
    slow = float(weight[slowest].sum() / weight.sum() / p[slowest].sum()) if weight.sum() else 0.0
    cpu = time.process_time() - begin
    return Found(
        watch.kept, watch.touched, watch.updates[-1], ended or training.ended, round(slow, 3),
        round(cpu, 2),
    )  # fmt: skip


class Store:
    """Results by task, configuration, seed and tag, a line each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found: dict[tuple[Any, ...], Found] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                key, value = json.loads(line)
                self.found[_key(*key)] = Found(*value)

    def get(
        self, task: BenchTask, config: Config, seed: int, tag: str, limit: float = math.inf
    ) -> Found:
        """Return the result, stored or new; a run given up earlier than now is run again."""
        key = _key(task.name, list(config), seed, tag)
        found = self.found.get(key)
        if found is not None and not (found.ended == "late" and limit == math.inf):
            return found
        with threadpool_limits(1):
            found = run(task, config, seed, limit)
        self.found[key] = found
        with self._path.open("a") as file:
            file.write(json.dumps([[task.name, list(config), seed, tag], list(found)]) + "\n")
        return found


def _key(task: str, config: Iterable[Any], seed: int, tag: str) -> tuple[Any, ...]:
    return task, Config(*config), seed, tag


def code_tag() -> str:
    """Return a digest of the code that decides what `pace` does."""
    root = Path(fedpace.__file__).parent
    files = sorted(path for part in OURS for path in (root / part).rglob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files))
    return digest.hexdigest()[:8]


def mean_of(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs)) if logs else math.nan


def configs_of(task: BenchTask, scheme: str, mode: str) -> Iterator[list[Config]]:
    """Yield groups of configurations to try, each around the best of those before."""
    buffers = (
        (0,) if mode == SYNCHRONOUS else tuple(dict.fromkeys((1, max(task.k // 3, 1), task.k)))
    )
    yield [Config(scheme, mode, buffers[0], f, e) for e in (task.steps, 5) for f in FACTORS[:3]]
    yield [Config(scheme, mode, b, math.nan, 0) for b in buffers[1:]]
    yield [Config(scheme, mode, -1, math.nan, e) for e in STEPS]
    yield [Config(scheme, mode, -1, f, 0) for f in FACTORS]


def search(task: BenchTask, store: Store, options: Namespace, deadline: float) -> None:
    """Find the best of every rival: coordinates in turn, then the best three on all seeds."""
    best_of_task = math.inf
    for mode, schemes in RIVALS.items():
        for scheme in schemes:
            tried: dict[Config, float] = {}
            for group in configs_of(task, scheme, mode):
                best = min(tried, key=lambda each: tried[each], default=None)
                for each in group:
                    if best is not None:
                        each = each._replace(
                            buffer=best.buffer if each.buffer < 0 else each.buffer,
                            factor=best.factor if math.isnan(each.factor) else each.factor,
                            steps=each.steps or best.steps,
                        )
                    if each in tried or time.monotonic() > deadline:
                        continue
                    limit = 1.15 * min([*tried.values(), 1.3 * best_of_task])
                    tried[each] = store.get(task, each, 0, options.rivals, limit).seconds
            for each in sorted(tried, key=lambda each: tried[each])[: options.finalists]:
                for seed in range(1, options.seeds):
                    if tried[each] < math.inf and time.monotonic() < deadline:
                        store.get(task, each, seed, options.rivals)
            best_of_task = min([best_of_task, *tried.values()])


def best_rivals(
    task: BenchTask, store: Store, options: Namespace
) -> dict[str, tuple[float, Config]]:
    """Return the best mean time of each rival, over all seeds, and its configuration."""
    best: dict[str, tuple[float, Config]] = {}
    groups: dict[Config, dict[int, float]] = {}
    for (name, config, seed, tag), found in store.found.items():
        if name == task.name and tag == options.rivals and seed < options.seeds:
            groups.setdefault(config, {})[seed] = found.seconds
    for config, times in groups.items():
        if len(times) < options.seeds or not all(map(math.isfinite, times.values())):
            continue
        mean = mean_of(times.values())
        name = f"{config.scheme} {config.mode[:5]}"
        if mean < best.get(name, (math.inf, config))[0]:
            best[name] = mean, config
    return best


def table(
    tasks: Iterable[BenchTask], store: Store, options: Namespace, configs: list[Config]
) -> None:
    """Print the times of `configs`, and of the best rival where one is known."""
    tags = options.tags.split(",") if options.tags else [options.tag]
    columns = list(itertools.product(tags, configs))
    print(f"| task | {' | '.join(_short(t, c) for t, c in columns)} | best rival |")
    print(f"|---|{'---:|' * (len(columns) + 1)}")
    means: dict[int, list[float]] = {}
    for task in tasks:
        cells, times = [], []
        for tag, config in columns:
            runs = [store.found.get((task.name, config, s, tag)) for s in range(options.seeds)]
            done = [run for run in runs if run is not None]
            times.append(mean_of(r.seconds for r in done) if done else math.nan)
            text = ", ".join(
                f"{r.seconds:.3g}" if math.isfinite(r.seconds) else r.ended for r in done
            )
            cells.append(text)
        rivals = best_rivals(task, store, options)
        name = min(rivals, key=lambda each: rivals[each][0], default="")
        for place, value in enumerate(times):
            if name and value > 0:
                means.setdefault(place, []).append(rivals[name][0] / min(value, task.seconds))
                cells[place] += f" ({rivals[name][0] / value:.2f})"
        found = rivals.get(name)
        text = "" if found is None else f"{found[0]:.3g} {name} {_short('', found[1])}"
        print(f"| {task.name} | {' | '.join(cells)} | {text} |")
    for first, second in itertools.combinations(range(len(columns)), 2):
        ratios = []
        for task in tasks:
            a, b = (
                [
                    store.found.get((task.name, columns[i][1], s, columns[i][0]))
                    for s in range(options.seeds)
                ]
                for i in (first, second)
            )
            for x, y in zip(a, b, strict=True):
                if x and y:
                    ratios.append(min(x.seconds, task.seconds) / min(y.seconds, task.seconds))
        if ratios:
            print(
                f"{_short(*columns[first])} over {_short(*columns[second])}: {mean_of(ratios):.3f} "
                f"({min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} runs)"
            )
    for place, ratios in means.items():
        mean, worst = mean_of(ratios), min(ratios)
        print(f"best rival over {_short(*columns[place])}: {mean:.2f}, worst {worst:.2f}")


def _short(tag: str, config: Config) -> str:
    parts = [config.scheme, config.mode[:5]]
    parts += [f"B={config.buffer}"] if config.buffer else []
    parts += [f"×{config.factor:g}"] if config.factor != 1 else []
    parts += [f"E={config.steps}"] if config.steps else []
    parts += [config.schedule] if config.schedule else []
    return " ".join([*parts, tag]).strip()


def parsed() -> Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--schemes", default="pace")
    parser.add_argument("--modes", default=ASYNCHRONOUS)
    parser.add_argument("--steps", default="0", help="local steps: numbers, or auto")
    parser.add_argument("--factors", default="1")
    parser.add_argument("--buffers", default="0")
    parser.add_argument("--schedules", default="")
    parser.add_argument("--tasks", default="tuning", help="tuning, held-out, all, or names")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("bench.jsonl"))
    parser.add_argument("--tag", default=code_tag())
    parser.add_argument("--tags", default="", help="compare these in the table")
    parser.add_argument("--rivals", default="rivals")
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--finalists", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--minutes", type=float, default=60.0)
    return parser.parse_args()


def main() -> None:
    options = parsed()
    groups: Mapping[str, Iterable[BenchTask]] = {
        "tuning": TUNING, "held-out": HELD_OUT, "all": TASKS.values(),
    }  # fmt: skip
    tasks = groups.get(options.tasks) or [TASKS[name] for name in options.tasks.split(",")]
    store, deadline = Store(options.out), time.monotonic() + 60 * options.minutes
    configs = [
        Config(scheme, mode, int(b), float(f), e if e == "auto" else int(e), schedule)
        for scheme in options.schemes.split(",")
        for mode in options.modes.split(",")
        for b in options.buffers.split(",")
        for f in options.factors.split(",")
        for e in options.steps.split(",")
        for schedule in options.schedules.split(",")
    ]
    if not options.table:
        for task in tasks:
            if options.search:
                search(task, store, options, deadline)
                continue
            for config, seed in itertools.product(configs, range(options.seeds)):
                if time.monotonic() < deadline:
                    store.get(task, config, seed, options.tag)
    table(tasks, store, options, configs)


if __name__ == "__main__":
    main()
