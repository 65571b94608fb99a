"""The cost of a round against the number of clients N, the draws K and the model's size.

    OPENBLAS_NUM_THREADS=1 .venv/bin/python benchmarks/rounds_scaling.py [--plot FILE]

Draw, train, aggregate and record; evaluation on all data is O(samples) by nature, and measured in
rounds.py.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median

import numpy as np
from tables import print_table, seconds

from fedpace import (
    SCHEMES,
    Seeds,
    Shards,
    Simulator,
    Solve,
    Split,
    Steady,
    Stop,
    SynchronousTraining,
    constant,
)
from fedpace.models.networks import Logistic

SAMPLES_PER_CLIENT = 2


def round_seconds(n: int = 100, k: int = 10, features: int = 60, repeats: int = 15) -> float:
    """Return the median seconds of a round, after one to warm up: the first solves, too."""
    rng = np.random.default_rng(0)
    count = n * SAMPLES_PER_CLIENT
    x = rng.normal(size=(count, features)).astype(np.float32)
    shards = Shards(x, rng.integers(10, size=count), np.arange(n + 1) * SAMPLES_PER_CLIENT)
    times = Steady(rng.exponential(size=n) + 1e-3)
    model = Logistic(features, 10, np.float32)
    backend = Simulator(Split(shards, shards), model, times, Seeds(0))
    # Blind: without evaluations. A warm-up that never ends: the sampler learns in every round.
    sampler, stop = Solve(SCHEMES["optimal-mean"], k, warm_up=10**9), Stop(blind=True)
    run = SynchronousTraining(
        backend, sampler, schedule=constant(0.01), stop=stop, seeds=Seeds(0), evaluate_every=0
    )
    spent = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        backend.submit(run.draw())
        run.complete(backend.collect())
        spent.append(time.perf_counter() - began)
    return median(spent[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    sweeps = {
        "clients, N": {n: round_seconds(n=n) for n in (10**3, 10**4, 10**5, 10**6)},
        "draws per round, K": {k: round_seconds(n=10_000, k=k) for k in (1, 10, 100, 1000)},
        "parameters": {10 * (f + 1): round_seconds(features=f) for f in (9, 99, 999, 4999)},
    }
    for name, points in sweeps.items():
        base = next(iter(points.values()))
        rows = [[f"{at:,}", seconds(v), f"{v / base:.2f}"] for at, v in points.items()]
        print_table([name, "round", "times the first"], rows)
    if options.plot:
        draw_sweeps(sweeps, options.plot)


def draw_sweeps(sweeps: dict[str, dict[int, float]], path: Path) -> None:
    import altair as alt

    from fedpace.report.charts import Figure, chart_of, log_position, records, save

    times = [1e3 * value for points in sweeps.values() for value in points.values()]
    up = alt.Y("ms:Q", title="ms per round, without evaluation", **log_position(times))
    figures = [
        Figure(
            name="sweep",
            title=name,
            chart=chart_of("sweep")
            .mark_line(point={"color": "#D55E00"}, color="#D55E00")
            .encode(x=alt.X("at:Q", title=name, **log_position(points)), y=up)
            .properties(height=200),
            data={"sweep": records(at=list(points), ms=[1e3 * value for value in points.values()])},
        )
        for name, points in sweeps.items()
    ]
    save(path, *figures)


if __name__ == "__main__":
    main()
