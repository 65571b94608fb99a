"""What is kept of a run: its checkpoint, and the finished run for a report."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpace.estimation.policy import Pilots
from fedpace.files import held
from fedpace.flower.records import Layout
from fedpace.flower.settings import Settings
from fedpace.remote.roster import Roster
from fedpace.rounds.checkpoint import Checkpoint
from fedpace.rounds.training import Outcome

if TYPE_CHECKING:
    from fedpace.flower.grid_backend import GridBackend

# What is usual in replies is kept under this name.
SCREEN = "screen"


class FleetCheckpoint(Checkpoint):
    """A checkpoint that also keeps who is who, and what is usual in replies."""

    def __init__(
        self, path: Path, about: dict[str, Any], given: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(path, about)
        known = {name: self.notes[name] for name in ("names", "samples") if name in self.notes}
        self.roster = Roster(**known, given=given)
        self.live = {
            "names": lambda: self.roster.names,
            "samples": lambda: self.roster.samples,
        }

    def keep(self, backend: GridBackend) -> None:
        """Keep what a backend learns of replies, from the next round on."""
        self.live[SCREEN] = lambda: backend.memory

    @property
    def memory(self) -> dict[str, Any] | None:
        """What was usual in replies."""
        return self.notes.get(SCREEN)


def alone_with(checkpoint: str | Path | None) -> AbstractContextManager[None]:
    """Hold the place of a checkpoint; a second server that wants it is told who has it."""
    if checkpoint is None:
        return nullcontext()
    path = Path(checkpoint)
    return held(path.with_name(f".{path.name}.lock"), f"checkpoint {path}")


def checkpoint_of(settings: Settings, layout: Layout) -> FleetCheckpoint | None:
    """Return the file that the run is kept in, with what was in it."""
    if settings.checkpoint is None:
        return None
    arrays = [[*each] for each in zip(layout.names, layout.shapes, strict=True)]
    about = settings.about() | {"arrays": arrays}
    return FleetCheckpoint(Path(settings.checkpoint), about, settings.given)


def stored(
    out: Path,
    settings: Settings,
    outcome: Outcome,
    *,
    rounds: int,
    clients: int,
    scheme: str | None = None,
) -> Path:
    """Add a finished run to a directory, where `fedpace report` finds it; return its file.

    `scheme` is the name of another strategy's run.
    """
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
        "privacy": None if settings.privacy is None else asdict(settings.privacy),
        "network": {
            "how": "flower",
            "deadline": settings.deadline,
            "evaluate_every": settings.evaluate_every if settings.fraction_evaluate else 0,
        },
    }  # fmt: skip
    study = Study.model_validate(sections)
    return Store(out).save(study, scheme or settings.scheme_name, settings.seed, outcome)
