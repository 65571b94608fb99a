"""Many short trainings on the cores of this machine, kept in a CSV file, so that one can go on."""

from __future__ import annotations

import csv
import math
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedpace import BaseSampler, Seeds, train
from fedpace.servers.build import server_for
from fedpace.studies.build import parsed_schedule, run_with, simulator, stop_rule
from fedpace.studies.study import load_study


class Trial(NamedTuple):
    """One training: a setup with changes, a seed, and what to draw by.

    `scheme` is a name, or the name of one of `made`, which returns a sampler for K.
    """

    setup: str
    changes: tuple[str, ...]
    case: str
    scheme: str
    seed: int


class Result(NamedTuple):
    first: float
    sustained: float
    rounds: int
    ended: str


Makers = dict[str, Callable[[int], BaseSampler]]
FIELDS = ("setup", "case", "scheme", "seed", *Result._fields)


def run_trial(trial: Trial, made: Makers) -> Result:
    with threadpool_limits(1):
        study = load_study(trial.setup, trial.changes)
        backend = simulator(study, trial.seed)
        if trial.scheme in made:
            drawn_by = made[trial.scheme](study.training.k)
            outcome = train(
                backend,
                drawn_by,
                server=server_for(study.training.server, drawn_by),
                schedule=parsed_schedule(study.training.schedule),
                stop=stop_rule(study),
                seeds=Seeds(trial.seed),
            )
        else:
            outcome = run_with(backend, study, trial.scheme, trial.seed)
    history, loss = outcome.history, study.stop.loss
    return Result(
        history.time_to(loss=loss),
        history.time_to(loss=loss, sustained=True),
        outcome.state.round,
        outcome.state.ended,
    )


def run_all(
    trials: Iterable[Trial], made: Makers, file: Path, *, processes: int, minutes: float
) -> list[tuple[Trial, Result]]:
    """Run what the file does not hold yet, for some minutes; return all that is known."""
    known = dict(_read(file))
    wanted = list(trials)
    missing = [trial for trial in wanted if _key(trial) not in known]
    deadline = time.monotonic() + 60 * minutes
    with ProcessPoolExecutor(processes) as pool:
        jobs = {pool.submit(run_trial, trial, made): trial for trial in missing}
        for count, job in enumerate(as_completed(jobs), 1):
            trial, result = jobs[job], job.result()
            known[_key(trial)] = result
            _append(file, trial, result)
            print(f"{count}/{len(missing)}", *_key(trial), f"{result.first:.0f} s", flush=True)
            if time.monotonic() > deadline:
                pool.shutdown(cancel_futures=True)
                break
    return [(trial, known[_key(trial)]) for trial in wanted if _key(trial) in known]


def parsed_options(
    about: str, *, setups: Iterable[str], seeds: int, out: str, modes: Iterable[str] = ()
) -> Namespace:
    """Return what was asked for on the command line; a choice between `modes` where there are."""
    parser = ArgumentParser(description=about.splitlines()[0])
    if modes := list(modes):
        parser.add_argument("--mode", choices=modes, default=modes[0])
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--setups", default=",".join(setups))
    parser.add_argument("--out", type=Path, default=Path(out))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no run after this")
    return parser.parse_args()


def mean(values: Sequence[float]) -> str:
    """Return the mean of those that arrived, and how many did not."""
    arrived = [value for value in values if math.isfinite(value)]
    lost = len(values) - len(arrived)
    text = f"{np.mean(arrived):.0f}" if arrived else "–"
    return f"{text} ({lost} not reached)" if lost else text


def _key(trial: Trial) -> tuple[str, ...]:
    return (trial.setup, trial.case, trial.scheme, str(trial.seed))


def _read(file: Path) -> Iterable[tuple[tuple[str, ...], Result]]:
    if not file.exists():
        return
    with file.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            result = Result(
                float(row["first"]), float(row["sustained"]), int(row["rounds"]), row["ended"]
            )
            yield (row["setup"], row["case"], row["scheme"], row["seed"]), result


def _append(file: Path, trial: Trial, result: Result) -> None:
    new = not file.exists()
    with file.open("a", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        if new:
            writer.writerow(FIELDS)
        writer.writerow([*_key(trial), *result])
