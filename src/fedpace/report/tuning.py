"""Tune every scheme alike, by successive halving, and compare the winners on other seeds."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
import resource
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpace.errors import InputError
from fedpace.files import make_folder, write_text
from fedpace.lookup import find
from fedpace.registry import METHODS
from fedpace.report.time_to_target import costs_of, ratio_interval, time_interval, times_of
from fedpace.seeds import Seeds
from fedpace.studies.runner import run_study
from fedpace.studies.store import Store, StoredRun
from fedpace.studies.study import Study, change

# Factors of the study's learning rate, and of its local steps.
RATES, STEPS = (0.1, 0.3, 1.0, 3.0, 10.0), (1.0, 0.3, 0.1)
# Schemes that are compared as they are, and the mark of asynchronous training.
UNTUNED, ASYNCHRONOUS = ("pace",), " (asynchronous)"
# Values of schemes' own knobs that are tried, the paper's first; functions get K.
KNOBS: Mapping[str, Mapping[str, Callable[[int], Sequence[float]]]] = {
    "oort": {"percentile": lambda _: (10.0, 30.0, 80.0)},
    "pow-d": {"d": lambda k: (2 * k, 3 * k, 5 * k)},
    "tifl": {"tiers": lambda _: (5, 3, 10)},
    "fedau": {"longest": lambda _: (50, 10, 500)},
    "fedstale": {"beta": lambda _: (0.5, 1.0, 0.2)},
    "flanp": {"accuracy": lambda _: (0.25, 0.1, 0.5)},
    "fedcs": {"deadline": lambda _: (0.5, 0.25, 1.0)},
    "pisces": {"bound": lambda k: (k, 2, 2 * k)},
    "fedasync": {"mixing": lambda _: (0.6, 0.3, 0.9)},
    "malenia": {"gradients": lambda k: (k, 2 * k, 4 * k)},
    "rennala": {"gradients": lambda k: (k, max(k // 4, 1), 4 * k)},
    "ringmaster": {"threshold": lambda k: (k, max(k // 4, 1), 4 * k)},
}
STEPPING = ("ringleader", "malenia", "rennala", "ringmaster", "rescaled", "ace", "ca2fl")
SCALES = (1.0, 0.3, 0.1)
BUFFERED = ("fedbuff", "weighted", "uniform", "ca2fl", "area")
# In each rung the best third goes on, for three times as long.
KEPT, RUNGS = 3, 3


class Trial(NamedTuple):
    """Settings of a scheme, the place among the trials, and how it did: less is better."""

    settings: tuple[str, ...]
    result: tuple[float, ...] = ()


def trials(study: Study, scheme: str, count: int) -> list[Trial]:
    """Return `count` settings of a scheme, the study's own first, the others drawn at random.

    They are all combinations of five rates, three numbers of local steps and the knobs.
    """
    name, mode = _parse_candidate(scheme)
    training = study.training
    kind, _, rate = training.schedule.partition(":")
    first, *others = rate.split(":")
    rates = [":".join([kind, f"{float(first) * x:g}", *others]) for x in RATES]
    steps = dict.fromkeys(max(round(study.local_steps * x), 1) for x in STEPS)
    options = [
        [f"training.schedule={each}" for each in rates],
        [f"training.local_steps={each}" for each in steps],
    ]
    knobs = {knob: values(training.k) for knob, values in KNOBS.get(name, {}).items()}
    if name in STEPPING:
        knobs["scale"] = SCALES
    if mode and name in BUFFERED:
        knobs["buffer"] = tuple(dict.fromkeys((training.k, max(training.k // 2, 1), 2, 1)))
    options += [[f"sampling.knobs.{name}.{knob}={x}" for x in xs] for knob, xs in knobs.items()]
    every = list(itertools.product(*options))
    own = next(each for each in every if f"training.schedule={rates[2]}" in each)
    others_drawn = [each for each in every if each != own]
    order = Seeds(0).stream("trials").permutation(len(others_drawn))[: count - 1]
    return [Trial(own), *(Trial(others_drawn[place]) for place in order)]


def tune(
    study: Study,
    scheme: str,
    seeds: Sequence[int],
    directory: Path,
    *,
    count: int,
    processes: int | None = None,
    scheduler: str | None = None,
) -> Trial:
    """Return the best trial by successive halving; stored runs are not repeated.

    All trials run for a ninth of the study's longest time, the best third of them for a third, and
    the best of those for all of it. First is who reaches the target with most seeds, then in least
    time, then who has the least loss at the end.
    """
    name, mode = _parse_candidate(scheme)
    left, seconds = trials(study, scheme, count), _longest(study)
    for rung in range(RUNGS):
        end = seconds / KEPT ** (RUNGS - 1 - rung)
        judged = []
        for trial in left:
            tried = change(study, [*trial.settings, *mode, f"stop.seconds={end!r}"])
            run_study(tried, [name], seeds, directory, processes=processes, scheduler=scheduler)
            judged.append(trial._replace(result=_result(tried, name, seeds, directory)))
        left = sorted(judged, key=lambda trial: trial.result)[: math.ceil(len(judged) / KEPT)]
        if rung == 0 and len(left) == 1:
            break
    return left[0]


def compare_tuned(
    study: Study,
    schemes: Sequence[str],
    directory: Path,
    *,
    tuning_seeds: Sequence[int],
    seeds: Sequence[int],
    count: int,
    say: Callable[[str], None] = print,
    **how: Any,
) -> Path:
    """Tune each scheme, run the winners with `seeds`, and return the CSV of the cell.

    Everything is in a folder of `directory` that is named after the cell, and the same call
    continues what was interrupted.
    """
    if shared := set(tuning_seeds) & set(seeds):
        got = f"{sorted(shared)} for both; give others"
        raise InputError(f"seeds must not be those of the tuning, got {got}")
    place = make_folder(directory / cell_name(study), "--out")
    winners: dict[str, tuple[str, ...]] = {}
    for scheme in schemes:
        name, mode = _parse_candidate(scheme)
        if name in UNTUNED:
            winners[scheme] = ()
        else:
            how_tuned = {"count": count, **how}
            winners[scheme] = tune(
                study, scheme, tuning_seeds, place / "tuning", **how_tuned
            ).settings
        say(f"{place.name}: {scheme}: {' '.join(winners[scheme]) or 'as it is'}")
        final = change(study, [*winners[scheme], *mode])
        run_study(final, [name], seeds, place / "runs", **how)
        used = (
            resource.getrusage(resource.RUSAGE_SELF),
            resource.getrusage(resource.RUSAGE_CHILDREN),
        )
        hours = sum(each.ru_utime + each.ru_stime for each in used) / 3600
        say(f"{hours:.3f} CPU hours in this process and those that have ended")
    write_text(place / "winners.json", json.dumps(winners, indent=1))
    return export(place)


def export(place: Path) -> Path:
    """Write the final runs of a cell as one CSV, a line per scheme, and return its path."""
    path = place / "winners.json"
    if not path.is_file():
        raise InputError(f"{place}: must hold a compared cell, got no {path.name}; run it first")
    winners = json.loads(path.read_text(encoding="utf-8"))
    runs = list(Store(place / "runs").runs())
    mine = {scheme: [run for run in runs if _scheme(run) == scheme] for scheme in winners}
    times = {scheme: times_of(those).gross for scheme, those in mine.items() if those}
    ours = [scheme for scheme in times if _parse_candidate(scheme)[0] in UNTUNED]
    lines = []
    for scheme, gross in times.items():
        costs, mean = costs_of(mine[scheme]), time_interval(gross.values())
        line: dict[str, Any] = {
            "cell": place.name, "scheme": scheme, "settings": " ".join(winners[scheme]),
            "seeds": len(gross), "reached": sum(map(math.isfinite, gross.values())),
            "seconds": mean.value, "seconds_low": mean.low, "seconds_high": mean.high,
        }  # fmt: skip
        for other in ours:
            ratio = ratio_interval(times[other], gross)
            key = f"{other}_over_it"
            line |= {key: ratio.value, f"{key}_low": ratio.low, f"{key}_high": ratio.high}
        line |= {
            "accuracy": costs.accuracy.value, "slow_accuracy": costs.slow_accuracy.value,
            "device_seconds": costs.device_seconds.value, "down_mb": costs.down.value,
            "up_mb": costs.up.value,
        }  # fmt: skip
        lines.append(line)
    text = io.StringIO()
    writer = csv.DictWriter(text, lines[0] if lines else ["cell"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in line.items()} for line in lines)
    write_text(place.with_suffix(".csv"), text.getvalue())
    return place.with_suffix(".csv")


def cell_name(study: Study) -> str:
    """Return a short name of a study and its devices, for a folder."""
    devices = study.devices
    text = f"{study.name}-{devices.availability}-{devices.correlation:+g}"
    return re.sub(r"[^A-Za-z0-9+-]+", "-", text)


def check_candidates(schemes: Sequence[str]) -> None:
    """Refuse unknown schemes, before any run."""
    for scheme in schemes:
        find(_parse_candidate(scheme)[0], METHODS, argument="--schemes", group="fedpace.schemes")


def _parse_candidate(scheme: str) -> tuple[str, list[str]]:
    """Return the name of a scheme, and the settings of its mode."""
    asynchronous = scheme.endswith(ASYNCHRONOUS)
    mode = ["training.mode=asynchronous"] if asynchronous else []
    return scheme.removesuffix(ASYNCHRONOUS), mode


def _scheme(run: StoredRun) -> str:
    return run.scheme + ASYNCHRONOUS * (run.study.training.mode == "asynchronous")


def _longest(study: Study) -> float:
    if study.stop.seconds is None or study.stop.loss is None:
        got = f"seconds {study.stop.seconds} and loss {study.stop.loss}; set both"
        raise InputError(
            f"{study.name}: a study to tune for must have stop.seconds and a loss, got {got}"
        )
    return study.stop.seconds


def _result(study: Study, name: str, seeds: Sequence[int], directory: Path) -> tuple[float, ...]:
    runs = [
        run for run in Store(directory).runs()
        if run.study == study and run.scheme == name and run.seed in seeds
    ]  # fmt: skip
    times = [
        run.history.time_to(loss=study.stop.loss, sustained=study.stop.sustained) for run in runs
    ]
    lasts = [run.history.rows[-1].loss for run in runs]
    missed = sum(not math.isfinite(each) for each in times) + len(seeds) - len(runs)
    counted = [min(each, _longest(study)) for each in times]
    losses = [each if math.isfinite(each) else math.inf for each in lasts]
    return float(missed), float(np.sum(counted)), float(np.sum(losses))


def _cell(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else ""
    return value
