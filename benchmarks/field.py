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
from typing import Literal, NamedTuple

import numpy as np

from fedpace.report.intervals import Interval, mean_interval, ratio_interval
from fedpace.rivals import is_biased
from fedpace.rounds.rows import SUSTAINED, History
from fedpace.studies.store import Store

TITLES = {
    "simulation-1": "Setup 1: logistic regression, Synthetic(1, 1)",
    "prototype-simulated": "Letters: logistic regression, EMNIST",
    "small-cnn": "CNN: one convolution, MNIST",
}
# Those that uniform sampling has reached when it is at the target loss.
ACCURACY = {"simulation-1": 0.70, "prototype-simulated": 0.60, "small-cnn": 0.85}
REFERENCE, OURS = "uniform", "pace"
NO_BARRIER = " (no barrier)"
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
        scheme = run.scheme + NO_BARRIER * study.training.asynchronous
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
    """Return all schemes: rounds first, then without a barrier, each in the order of speed."""
    every = {scheme for schemes in runs.values() for scheme in schemes}
    tasks = tasks_of(runs)

    def speed(scheme: str) -> float:
        values = [math.log(relative(runs, task, scheme)[0].value) for task in tasks]
        return float(np.nanmean(values)) if np.isfinite(values).any() else math.inf

    return sorted(every, key=lambda scheme: (scheme.endswith(NO_BARRIER), speed(scheme)))


def tasks_of(runs: Runs) -> list[str]:
    there = {cell.task for cell in runs}
    return [task for task in TITLES if task in there]


def marked(scheme: str) -> str:
    name = scheme.removesuffix(NO_BARRIER)
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


def cells(runs: Runs, *, barrier: bool) -> str:
    """Return, for each cell, pace against the best of the others."""
    end = "" if barrier else NO_BARRIER
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
            if name.endswith(NO_BARRIER) != barrier and name != ours
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
            f"{uniform} | {mean_of(schemes[ours])} | {best.removesuffix(NO_BARRIER)} "
            f"{mean_of(others[best])} | "
            f"{with_interval(found)}{mark} |"
        )
    return "\n".join([*lines, "", f"First in {first} of {counted} cells."])


def draw(runs: Runs, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    tasks, schemes = tasks_of(runs), schemes_of(runs)
    places = {scheme: -at - 0.7 * scheme.endswith(NO_BARRIER) for at, scheme in enumerate(schemes)}
    figure, panels = plt.subplots(
        1, len(tasks), sharey=True, figsize=(3.6 * len(tasks) + 1.6, 0.3 * len(schemes) + 1.4)
    )
    for panel, task in zip(np.atleast_1d(panels), tasks, strict=True):
        panel.axvline(1, color="#999999", linewidth=0.8, zorder=0)
        for scheme in schemes:
            found, arrived, count = relative(runs, task, scheme)
            if not count or not math.isfinite(found.value):
                continue
            name = scheme.removesuffix(NO_BARRIER)
            colour = "#0072B2" if name == OURS else "#D55E00" if is_biased(name) else "#444444"
            y, whole = places[scheme], arrived == count
            if math.isfinite(found.low):
                panel.plot([found.low, found.high], [y, y], color=colour, linewidth=1.4)
            dot = "o" if arrived else ">"
            panel.plot(found.value, y, dot, color=colour, mfc=colour if whole else "white", ms=5.5)
            if not whole:
                panel.annotate(
                    f"{count - arrived}/{count}",
                    (1.0, y),
                    xycoords=("axes fraction", "data"),
                    xytext=(-3, 0),
                    textcoords="offset points",
                    va="center",
                    ha="right",
                    fontsize=7,
                    color="#666666",
                )
        panel.set_xscale("log")
        panel.set_xlim(*SHOWN)
        panel.set_xticks(TICKS, [f"{x:g}" for x in TICKS])
        panel.minorticks_off()
        panel.set_title(TITLES[task], fontsize=9)
        panel.set_xlabel("time to target / uniform's", fontsize=9)
        panel.grid(axis="x", color="#e5e5e5", linewidth=0.6)
        panel.set_axisbelow(True)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    panels = np.atleast_1d(panels)
    panels[0].set_yticks([places[each] for each in schemes], schemes, fontsize=8.5)
    for label, scheme in zip(panels[0].get_yticklabels(), schemes, strict=True):
        if scheme.removesuffix(NO_BARRIER) == OURS:
            label.set_fontweight("bold")
            label.set_color("#0072B2")
        elif is_biased(scheme.removesuffix(NO_BARRIER)):
            label.set_color("#D55E00")
    figure.text(
        0.01,
        0.01,
        "Left is sooner. Orange: biased. Bars: 95 % over cells and seeds.\n"
        "Open: some runs never got there, grey how many (▷ all); they count with the longest run.",
        fontsize=8,
    )
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    runs = read(options.folder)
    print(table(runs), "\n\nWith a barrier:\n")
    print(cells(runs, barrier=True), "\n\nWithout a barrier:\n")
    print(cells(runs, barrier=False))
    if options.figure:
        draw(runs, options.figure)


if __name__ == "__main__":
    main()
