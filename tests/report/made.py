"""Runs for the tests: made up where the numbers must be known, real where they must be real."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedpace.profile import Profile
from fedpace.report.setups import setups_of
from fedpace.report.summary import Summary, summarise
from fedpace.samplers.pilots import RatioEstimate
from fedpace.studies.build import run_one
from fedpace.studies.store import Store, StoredRun
from fedpace.studies.study import Study
from fedpace.training.history import History, Row
from tests.studies.tiny import tiny_study

# What sets the study apart from the tiny one.
CHANGES = (
    "name=small", "stop.loss=1.75", "stop.rounds=25", "paper.uniform=30.0",
    "paper.optimal-mean=10.0",
)  # fmt: skip
SCHEMES = (
    "full", "uniform", "weighted", "statistical", "optimal-mean", "optimal-max", "optimal-tiers",
)  # fmt: skip
# phase, round, seconds, loss, accuracy
Line = tuple[str, int, float, float, float]
START: Line = ("train", 0, 0.0, 2.0, 1.0)


def small_study(folder: Path, *overrides: str) -> Study:
    return tiny_study(folder, *CHANGES, *overrides)


def store_real_runs(folder: Path, *overrides: str, seeds: int = 3) -> None:
    study = small_study(folder, *overrides)
    for scheme in SCHEMES:
        for seed in range(seeds):
            Store(folder).save(study, scheme, seed, run_one(study, scheme, seed))


def real_summary(folder: Path) -> Summary:
    return summarise(setups_of(Store(folder).runs())[0])


def made_run(
    study: Study,
    scheme: str,
    seed: int,
    lines: Sequence[Line],
    *,
    version: str = "1",
    ratio: RatioEstimate | None = None,
) -> StoredRun:
    """Return a run that went as the lines say, with two clients of S_0 = 4."""
    rows = [Row(*line, 0.0, 0.0) for line in lines]
    profile = Profile([0.5, 0.5], [1.0, 4.0], [3.0, 1.0])
    q = None if scheme == "full" else np.array([0.75, 0.25])
    return StoredRun(study, scheme, seed, version, "rounds", History(rows), q, profile, ratio)


def arriving(study: Study, scheme: str, seed: int, seconds: float, *, rounds: int = 1) -> StoredRun:
    """Return a run without pilots that reaches the loss 1.75 after so many seconds."""
    return made_run(study, scheme, seed, [START, ("train", rounds, seconds, 1.7, 0.5)])


def missing(study: Study, scheme: str, seed: int) -> StoredRun:
    """Return a run that never reaches the loss 1.75."""
    return made_run(study, scheme, seed, [START, ("train", 1, 9.0, 1.9, 0.3)])


def sustaining(
    study: Study, scheme: str, seed: int, touched: float, sustained: float = math.inf
) -> StoredRun:
    """Return a run that touches the loss 1.75, loses it, and sustains it later, or never."""
    third = sustained if math.isfinite(sustained) else touched + 1
    run = made_run(
        study,
        scheme,
        seed,
        [
            START,
            ("train", 1, touched, 1.7, 0.5),
            ("train", 2, touched + 0.5, 1.8, 0.6),
            ("train", 3, third, 1.7, 0.6),
            ("train", 4, third + 1, 1.6, 0.6),
        ],
    )
    means = (math.nan, 1.9, 1.85, *((1.75, 1.74) if math.isfinite(sustained) else (1.8, 1.76)))
    rows = [
        row._replace(sustained_loss=mean) for row, mean in zip(run.history.rows, means, strict=True)
    ]
    return replace(run, history=History(rows))
