"""Runs as devices would give them, made up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedpace.checks import FloatArray, IntArray
from fedpace.profile import Profile
from fedpace.report.setups import Setup, setups_of
from fedpace.sampling.schemes import SCHEMES
from fedpace.studies.store import Store, StoredRun
from fedpace.studies.study import Study, load_study
from fedpace.training.checkpoint import State
from fedpace.training.history import History, Row
from fedpace.training.training import Outcome

MEASURED = ("network.how=namespaces", "network.time_scale=0.2")
BYTES = 100_000


def measured_study(*overrides: str) -> Study:
    return load_study("prototype", [*MEASURED, *overrides])


def measured_run(
    study: Study,
    scheme: str,
    seed: int = 0,
    *,
    times: FloatArray | None = None,
    rounds: int = 60,
    pilot_rounds: int = 25,
    chance: float = 0.97,
    computing: float = 0.05,
) -> StoredRun:
    """Return a run of clients with these times, of which each reply comes with this chance."""
    rng = np.random.default_rng(seed)
    times = np.linspace(0.1, 1.5, 40)[::-1] if times is None else times
    profile = Profile(np.full(times.size, 1 / times.size), times, np.ones(times.size))
    adaptive = scheme in ("statistical", "optimal-mean", "optimal-max")
    q = 1 / times if adaptive else np.ones(times.size)
    pilots = ("pilot-uniform", "pilot-weighted") if adaptive and pilot_rounds else ()
    rows = [Row(pilots[0] if pilots else "train", 0, 0.0, 3.2, 0.04, 0.0, 0.0)]
    for phase in (*pilots, "train"):
        first = pilot_rounds if pilots and phase == "train" else 0
        count = pilot_rounds if phase != "train" else rounds
        for number in range(first + 1, first + count + 1):
            chances = q / q.sum() if phase == "train" else np.full(times.size, 1 / times.size)
            drawn = np.unique(rng.choice(times.size, study.training.k, p=chances))
            if scheme == "full":
                drawn = np.arange(times.size)
            rows.append(
                _round(study, rng, rows[-1], phase, number, drawn, times, chance, computing)
            )
    return StoredRun(study, scheme, seed, "1", "rounds", History(rows), q / q.sum(), profile, None)


def _round(
    study: Study,
    rng: np.random.Generator,
    before: Row,
    phase: str,
    number: int,
    drawn: IntArray,
    times: FloatArray,
    chance: float,
    computing: float,
) -> Row:
    came = rng.random(drawn.size) < chance
    clients, missing = drawn[came], drawn[~came]
    seconds = times[clients] * rng.lognormal(0.0, 0.05, clients.size)
    lasted = float(seconds.max(initial=2.0 if missing.size else 0.0))
    loss = 1.0 + 2.2 / (1 + 0.15 * number)
    estimate = loss * float(rng.lognormal(0.0, 0.2))
    assert study.network is not None
    every = study.network.evaluate_every
    evaluated = every > 0 and number % every == 0
    return Row(
        phase,
        number,
        before.seconds + lasted,
        loss if evaluated else estimate,
        0.7 - 0.2 * loss + 0.2 if evaluated else math.nan,
        math.nan,
        lasted,
        clients,
        np.full(clients.size, 1 / drawn.size),
        seconds,
        np.ones(clients.size),
        loss_estimate=estimate,
        losses=np.full(clients.size, estimate),
        computing_seconds=np.minimum(computing, seconds),
        bytes_down=np.full(clients.size, BYTES),
        bytes_up=np.full(clients.size, 2 * BYTES),
        missing=missing,
        refused=missing[:1] if number % 10 == 0 else missing[:0],
    )


def measured_setup(
    *overrides: str, schemes: Sequence[str] = tuple(SCHEMES), seeds: int = 2
) -> Setup:
    study = measured_study(*overrides)
    runs = [measured_run(study, scheme, seed) for scheme in schemes for seed in range(seeds)]
    (setup,) = setups_of(runs)
    return setup


def store_measured_runs(folder: Path, *overrides: str, schemes: Sequence[str]) -> None:
    study = measured_study(*overrides)
    for scheme in schemes:
        run = measured_run(study, scheme)
        state = State(np.zeros(1), 60, run.history.rows[-1].seconds, "rounds")
        design = SCHEMES["uniform"](run.profile, study.training.k)
        Store(folder).save(study, scheme, 0, Outcome(run.history, state, design, run.profile))
