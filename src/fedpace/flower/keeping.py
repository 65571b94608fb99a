"""What is kept of a run: its rows while it goes on, its checkpoint, and the run for a report."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedpace.estimation.adaptive import Outcome, Pilots
from fedpace.flower.job import Job
from fedpace.flower.records import Layout
from fedpace.flower.settings import Settings
from fedpace.rounds.checkpoint import Checkpoint
from fedpace.rounds.journal import Found, Journal
from fedpace.rounds.rows import Row
from fedpace.rounds.state import State
from fedpace.rounds.stopping import Stop


@dataclass(frozen=True)
class Until(Stop):
    """Stop as usual, but go on where nobody measured the loss."""

    def reason(self, row: Row) -> str | None:
        """Return why training ends after this row, or None; an infinite loss always ends it."""
        known = row._replace(loss=sys.float_info.max) if np.isnan(row.loss) else row
        return super().reason(known)


class Kept:
    """A journal that also shows the rows while they come."""

    def __init__(self, inner: Journal | None) -> None:
        self.rows: list[Row] = []
        self.state = State(np.empty(0), 0, 0.0)  # the latest: who was asked, and who answered
        self._inner = inner
        self._resumed: set[str] = set()

    def resume(self, phase: str) -> Found | None:
        """Return how far the phase had got, if there is a checkpoint."""
        found = None if self._inner is None else self._inner.resume(phase)
        if found is not None and phase not in self._resumed:
            self.rows += found.rows
            self.state = found.state
        self._resumed.add(phase)
        return found

    def record(
        self, phase: str, state: State, row: Row, rng: np.random.Generator | None = None
    ) -> None:
        """Keep a finished round."""
        self.rows.append(row)
        self.state = state
        if self._inner is not None:
            self._inner.record(phase, state, row, rng)


def checkpoint_of(settings: Settings, layout: Layout) -> Checkpoint | None:
    """Return the file that the run is kept in, with what was in it."""
    if settings.checkpoint is None:
        return None
    arrays = [[*each] for each in zip(layout.names, layout.shapes, strict=True)]
    return Checkpoint(Path(settings.checkpoint), settings.about() | {"arrays": arrays})


def stored(out: Path, settings: Settings, job: Job, clients: int, outcome: Outcome) -> Path:
    """Add a finished run to a directory, where `fedpace report` finds it; return its file."""
    # Only here, so that Pydantic is not needed otherwise.
    from fedpace.studies.store import Store
    from fedpace.studies.study import Study

    pilots = settings.pilots
    target = settings.target_loss
    # A warm-up has no thresholds, but a study has at least one.
    thresholds = list(pilots.thresholds) if isinstance(pilots, Pilots) else [target or 0.0]
    sections = {
        "name": "flower",
        "title": f"Flower federation of {clients} clients",
        "data": {"kind": "own", "clients": clients},
        "training": {"k": settings.k},
        "sampling": {"max_weight": settings.max_weight, "c_over_s0": settings.c_over_s0},
        "pilots": {"thresholds": thresholds, "rounds": pilots.rounds},
        "stop": {"loss": target, "accuracy": settings.target_accuracy, "rounds": job.rounds},
        "network": {
            "how": "flower",
            "deadline": settings.deadline,
            "evaluate_every": job.evaluate_every,
        },
    }
    study = Study.model_validate(sections)
    return Store(out).save(study, settings.scheme, settings.seed, outcome)
