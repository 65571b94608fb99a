"""The field in one table and one figure, and whether `pace` is first, cell by cell.

    fedpace run field --schemes uniform,weighted,… --seeds 5 --out field
    python benchmarks/field.py field --figure docs/results/field.png

Time is that to the sustained target, the mean of the last ten, and counts everything. A run that
never gets there counts with its longest time, so that ratios of such schemes are too small or too
large, and is said to be not reached. Runs end at the target loss; the target accuracy is one that
comes before.
"""

from __future__ import annotations

import math
from argparse import ArgumentParser
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from fedpace.registry import is_biased
from fedpace.report.time_to_target import Interval, mean_interval, ratio_interval
from fedpace.studies.store import Store
from fedpace.training.history import SUSTAINED, History

if TYPE_CHECKING:
    from fedpace.report.charts import Figure

TITLES = {
    "simulation-1": "Setup 1: logistic regression, Synthetic(1, 1)",
    "prototype-simulated": "Letters: logistic regression, EMNIST",
    "small-cnn": "CNN: one convolution, MNIST",
}
# Those that uniform sampling has reached when it is at the target loss.
ACCURACY = {"simulation-1": 0.70, "prototype-simulated": 0.60, "small-cnn": 0.85}
REFERENCE, OURS = "uniform", "pace"
ASYNCHRONOUS = " (asynchronous)"
# The ratios that the figure shows.
SHOWN = (0.025, 11.0)
TICKS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5)


Target = Literal["loss", "accuracy"]


class Cell(NamedTuple):
    task: str
    availability: str
    correlation: float


class Run(NamedTuple):
    """Seconds until the target loss, the target accuracy, and the end; and how it ended.

    One that ended at the target loss before it had the accuracy counts with that end.
    """

    loss: float
    accuracy: float
    end: float
    last_accuracy: float
    slow: float

    def counted(self, target: Target = "loss") -> float:
        return min(self.to(target), self.end)

    def to(self, target: Target) -> float:
        return self.loss if target == "loss" else self.accuracy


# By cell and scheme, then by seed.
Runs = dict[Cell, dict[str, dict[int, Run]]]


def read(folder: Path) -> Runs:
    found: Runs = defaultdict(lambda: defaultdict(dict))
    for run in Store(folder).runs():
        study, last = run.study, run.history.rows[-1]
        cell = Cell(study.name, study.devices.availability, study.devices.correlation)
        scheme = run.scheme + ASYNCHRONOUS * study.training.asynchronous
        found[cell][scheme][run.seed] = Run(
            run.history.time_to(loss=study.stop.loss, sustained=True),
            time_to_accuracy(run.history, ACCURACY[study.name]),
            last.seconds,
            last.accuracy,
            last.slow_accuracy,
        )
    return found


def time_to_accuracy(history: History, target: float) -> float:
    """Return when the mean of the last ten accuracies is at the target; ∞ if never."""
    rows = [row for row in history.rows if row.round and not row.phase.startswith("pilot")]
    for at in range(SUSTAINED, len(rows) + 1):
        if np.mean([row.accuracy for row in rows[at - SUSTAINED : at]]) >= target:
            return rows[at - 1].seconds
    return math.inf


def relative(
    runs: Runs, task: str, scheme: str, target: Target = "loss"
) -> tuple[Interval, int, int]:
    """Return the geometric mean over cells and seeds, how many arrived, and of how many."""
    logs, arrived, count = [], 0, 0
    for cell, schemes in runs.items():
        if cell.task != task:
            continue
        for seed, run in schemes.get(scheme, {}).items():
            count += 1
            arrived += math.isfinite(run.to(target))
            base = schemes.get(REFERENCE, {}).get(seed)
            if base is not None and math.isfinite(min(run.to(target), base.to(target))):
                logs.append(math.log(run.counted(target) / base.counted(target)))
    found = mean_interval(logs)
    value, low, high = (math.exp(x) for x in (found.value, found.low, found.high))
    bound = "≥" if arrived < count else ""
    return Interval(value, low, high, found.seeds, bound), arrived, count


def schemes_of(runs: Runs) -> list[str]:
    """Return all schemes: synchronous first, then asynchronous, each in the order of speed."""
    every = {scheme for schemes in runs.values() for scheme in schemes}
    tasks = tasks_of(runs)

    def speed(scheme: str) -> float:
        values = [math.log(relative(runs, task, scheme)[0].value) for task in tasks]
        return float(np.nanmean(values)) if np.isfinite(values).any() else math.inf

    return sorted(every, key=lambda scheme: (scheme.endswith(ASYNCHRONOUS), speed(scheme)))


def tasks_of(runs: Runs) -> list[str]:
    there = {cell.task for cell in runs}
    return [task for task in TITLES if task in there]


def marked(scheme: str) -> str:
    name = scheme.removesuffix(ASYNCHRONOUS)
    text = f"**{scheme}**" if name == OURS else scheme
    return f"{text} †" if is_biased(name) else text


def with_interval(found: Interval) -> str:
    """Return a ratio, with its interval where there is more than one run."""
    several = math.isfinite(found.low)
    return f"{found.value:.2f}" + f" ({found.low:.2f}–{found.high:.2f})" * several


def table(runs: Runs) -> str:
    tasks = tasks_of(runs)
    titles = [f"{TITLES[task].partition(':')[0]}: loss | accuracy | at the end" for task in tasks]
    lines = [f"| † biased | {' | '.join(titles)} |", "|---|" + "---:|" * (3 * len(tasks))]
    for scheme in schemes_of(runs):
        cells = []
        for task in tasks:
            cells += [ratio(runs, task, scheme, "loss"), ratio(runs, task, scheme, "accuracy")]
            ends = [
                (run.last_accuracy, run.slow)
                for cell, each in runs.items()
                for run in each.get(scheme, {}).values()
                if cell.task == task
            ]
            cells.append("{:.2f}, {:.2f}".format(*np.nanmean(ends, axis=0)) if ends else "–")
        lines.append(f"| {marked(scheme)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def ratio(runs: Runs, task: str, scheme: str, target: Target) -> str:
    """Return the time next to uniform sampling's, and how many never got there."""
    found, arrived, count = relative(runs, task, scheme, target)
    if not count:
        return "–"
    shown = with_interval(found) if target == "loss" else f"{found.value:.2f}"
    lost = f"; {count - arrived}/{count} not" if arrived < count else ""
    return f"{found.bound} {shown}{lost}".strip() if arrived else f"none of {count}"


def mean_of(found: dict[int, Run]) -> str:
    lost = sum(not math.isfinite(run.loss) for run in found.values())
    value = np.mean([run.counted() for run in found.values()])
    return f"≥ {value:.0f} ({lost} not reached)" if lost else f"{value:.0f}"


def cells(runs: Runs, *, asynchronous: bool) -> str:
    """Return, for each cell, pace against the best of the others."""
    end = ASYNCHRONOUS if asynchronous else ""
    ours = OURS + end
    lines = [
        f"| task | there | correlation | uniform, s | {ours}, s | best other, s | pace / best |",
        "|---|---|---:|---:|---:|---|---|",
    ]
    first = counted = 0
    for cell in sorted(runs, key=lambda each: (list(TITLES).index(each.task), *each[1:])):
        schemes = runs[cell]
        others = {
            name: those
            for name, those in schemes.items()
            if name.endswith(ASYNCHRONOUS) == asynchronous and name != ours
        }
        if ours not in schemes or not others:
            continue
        best = min(
            others, key=lambda name: np.mean([run.counted() for run in others[name].values()])
        )
        found = ratio_interval(
            {seed: run.counted() for seed, run in schemes[ours].items()},
            {seed: run.counted() for seed, run in others[best].items()},
        )
        counted += 1
        first += found.value < 1
        mark = "" if found.value < 1 else " **no**"
        uniform = mean_of(schemes[REFERENCE]) if REFERENCE in schemes else "–"
        lines.append(
            f"| {cell.task} | {cell.availability.partition(':')[0]} | {cell.correlation:+.0f} | "
            f"{uniform} | {mean_of(schemes[ours])} | {best.removesuffix(ASYNCHRONOUS)} "
            f"{mean_of(others[best])} | "
            f"{with_interval(found)}{mark} |"
        )
    return "\n".join([*lines, "", f"First in {first} of {counted} cells."])


def draw(runs: Runs, path: Path) -> None:
    from fedpace.report.charts import save

    save(path, *(_panel(runs, task) for task in tasks_of(runs)))


def _panel(runs: Runs, task: str) -> Figure:
    """Return a dot and an interval per scheme, on one scale for all tasks."""
    import altair as alt

    from fedpace.report.charts import Figure, chart_of, numbers

    schemes, rows = schemes_of(runs), []
    for scheme in schemes:
        found, arrived, count = relative(runs, task, scheme)
        if not count or not math.isfinite(found.value):
            continue
        name = scheme.removesuffix(ASYNCHRONOUS)
        low, high = numbers([found.low, found.high])
        rows.append({
            "scheme": scheme, "value": found.value, "low": low, "high": high,
            "colour": "#0072B2" if name == OURS else "#D55E00" if is_biased(name) else "#444444",
            "all": arrived == count, "shape": "circle" if arrived else "triangle-right",
            "missed": "" if arrived == count else f"{count - arrived}/{count}",
        })  # fmt: skip
    base = chart_of("field")
    y = alt.Y("scheme:N", title=None, sort=schemes, scale=alt.Scale(domain=schemes))
    scale = alt.Scale(type="log", domain=list(SHOWN), nice=False)
    axis = alt.Axis(values=list(TICKS), format="~g")
    x = alt.X("value:Q", title="time to target / uniform's", scale=scale, axis=axis)
    colour = alt.Color("colour:N", scale=None)
    fill = alt.condition("datum.all", alt.Fill("colour:N", scale=None), alt.value("white"))
    shape = alt.Shape("shape:N", scale=None)
    chart = alt.layer(
        alt.Chart(alt.InlineData(values=[{}])).mark_rule().encode(x=alt.datum(1)),
        base.mark_rule(strokeWidth=1.8, clip=True).encode(
            x=alt.X("low:Q", scale=scale), x2=alt.X2("high"), y=y, color=colour
        ),
        base.mark_point(size=45, clip=True).encode(x=x, y=y, color=colour, fill=fill, shape=shape),
        base.mark_text(align="right", dx=-3, fontSize=9).encode(
            x=alt.value("width"), y=y, text=alt.Text("missed:N")
        ),
        height=18 * len(schemes),
    )
    return Figure(
        name="field",
        title=TITLES[task],
        chart=chart,
        data={"field": rows},
        note="Left is sooner. Orange: biased. Bars: 95 % over cells and seeds. Open: some runs "
        "never reached the target, grey how many (triangle: all); they count with the longest run.",
    )


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    runs = read(options.folder)
    print(table(runs), "\n\nSynchronous:\n")
    print(cells(runs, asynchronous=False), "\n\nAsynchronous:\n")
    print(cells(runs, asynchronous=True))
    if options.figure:
        draw(runs, options.figure)


if __name__ == "__main__":
    main()
