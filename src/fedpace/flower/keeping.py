"""What is kept of a run: its checkpoint, and the finished run for a report."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fedpace.estimation.policy import Pilots
from fedpace.flower.records import Layout
from fedpace.flower.settings import Settings
from fedpace.remote.roster import Roster
from fedpace.rounds.checkpoint import Checkpoint
from fedpace.rounds.rows import Row
from fedpace.rounds.state import State
from fedpace.rounds.training import Outcome


class FleetCheckpoint(Checkpoint):
    """A checkpoint that also keeps who is who."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        super().__init__(path, about)
        self.roster = Roster(**self.notes)

    def record(self, state: State, row: Row, rng: np.random.Generator) -> None:
        """Write the round to the disk, with names and sample counts."""
        self.notes = {"names": self.roster.names, "samples": self.roster.samples}
        super().record(state, row, rng)


def checkpoint_of(settings: Settings, layout: Layout) -> FleetCheckpoint | None:
    """Return the file that the run is kept in, with what was in it."""
    if settings.checkpoint is None:
        return None
    arrays = [[*each] for each in zip(layout.names, layout.shapes, strict=True)]
    return FleetCheckpoint(Path(settings.checkpoint), settings.about() | {"arrays": arrays})


def stored(out: Path, settings: Settings, outcome: Outcome, *, rounds: int, clients: int) -> Path:
    """Add a finished run to a directory, where `fedpace report` finds it; return its file."""
    # Only here, so that Pydantic is not needed otherwise.
    from fedpace.studies.store import Store
    from fedpace.studies.study import Study

    pilots = settings.learning
    warm_up = None if isinstance(pilots, Pilots) else pilots.rounds
    sections = {
        "name": "flower",
        "title": f"Flower federation of {clients} clients",
        "data": {"kind": "own", "clients": clients},
        "training": {
            "k": settings.k, "server": settings.server_name, "mode": settings.mode,
            "buffer": settings.buffer,
        },
        "sampling": {
            "max_weight": settings.cap, "c_over_s0": settings.c_over_s0,
            "refresh": settings.refresh, "warm_up": warm_up,
        },
        "pilots": asdict(pilots) if warm_up is None else None,
        "stop": {
            "loss": settings.target_loss, "accuracy": settings.target_accuracy, "rounds": rounds,
        },
        "network": {
            "how": "flower",
            "deadline": settings.deadline,
            "evaluate_every": settings.evaluate_every if settings.fraction_evaluate else 0,
        },
    }  # fmt: skip
    study = Study.model_validate(sections)
    return Store(out).save(study, settings.scheme_name, settings.seed, outcome)
