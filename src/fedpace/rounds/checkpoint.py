"""A journal on disk: one file, replaced whole after every round."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fedpace.errors import InputError
from fedpace.files import write_through
from fedpace.rounds.history import Row
from fedpace.rounds.journal import Found
from fedpace.rounds.state import State

ARRAYS = ("parameters", "asked", "answered")
INTEGERS = {"clients", "bytes_down", "bytes_up", "missing", "refused"}
UNREADABLE = (OSError, ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile, zlib.error)


class Checkpoint:
    """Keep the model, the rows, who answers and the random streams of a run in one file.

    The file is written beside its place, flushed to the disk and moved there, so that after a
    crash at any moment it holds the last finished round, whole. Estimates of the fleet are not
    kept apart: they follow from the rows.

    Parameters
    ----------
    path : Path
        The file; it is read if it is there.
    about : dict of JSON values
        What the run is; a file of another run is refused.

    Attributes
    ----------
    notes : dict of JSON values
        What else is to be remembered of the run; written with the next round.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path = path
        self.about = about
        self.notes: dict[str, Any] = {}
        self._phases: dict[str, _Phase] = {}
        if path.exists():
            self._read()

    def resume(self, phase: str) -> Found | None:
        """Return how far the phase had got, or None if it had not begun."""
        found = self._phases.get(phase)
        if found is None:
            return None
        return Found(found.state, [_row(json.loads(line)) for line in found.lines], found.rng)

    def record(
        self, phase: str, state: State, row: Row, rng: np.random.Generator | None = None
    ) -> None:
        """Write the round to the disk."""
        kept = self._phases.get(phase, _Phase())
        kept.state, kept.lines = state, [*kept.lines, json.dumps(_values(row))]
        kept.rng = {} if rng is None else dict(rng.bit_generator.state)
        self._phases[phase] = kept
        self._write()

    def remove(self) -> None:
        """Remove the file of a run that is finished and stored."""
        self.path.unlink(missing_ok=True)

    def _write(self) -> None:
        phases = [
            {
                "name": name,
                "round": phase.state.round,
                "seconds": phase.state.seconds,
                "ended": phase.state.ended,
                "rng": phase.rng,
            }
            for name, phase in self._phases.items()
        ]
        arrays = {
            f"{name}-{i}": getattr(phase.state, name)
            for i, phase in enumerate(self._phases.values())
            for name in ARRAYS
        }
        rows = {
            f"rows-{i}": np.frombuffer("\n".join(phase.lines).encode(), dtype=np.uint8)
            for i, phase in enumerate(self._phases.values())
        }
        about = np.array(json.dumps({"about": self.about, "notes": self.notes, "phases": phases}))
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, about=about, **arrays, **rows)
        write_through(self.path, buffer.getvalue())

    def _read(self) -> None:
        try:
            # From memory: of a file that is none, np.load would leave the handle open.
            with np.load(io.BytesIO(self.path.read_bytes()), allow_pickle=False) as file:
                about = json.loads(str(file["about"]))
                self.notes = about["notes"]
                for i, entry in enumerate(about["phases"]):
                    arrays = {name: file[f"{name}-{i}"] for name in ARRAYS}
                    state = State(
                        round=entry["round"],
                        seconds=entry["seconds"],
                        ended=entry["ended"],
                        **arrays,
                    )
                    lines = file[f"rows-{i}"].tobytes().decode().split("\n")
                    self._phases[entry["name"]] = _Phase(state, lines, entry["rng"])
        except UNREADABLE as error:
            raise InputError(
                f"{self.path}: cannot be read as a checkpoint: {error}; remove it to begin anew"
            ) from None
        if about["about"] != json.loads(json.dumps(self.about)):
            raise InputError(
                f"{self.path}: is the checkpoint of another run; give another place, or remove it"
            )


class _Phase:
    """What is kept of a phase; rows as lines of JSON, each made once."""

    def __init__(
        self,
        state: State | None = None,
        lines: list[str] | None = None,
        rng: dict[str, Any] | None = None,
    ) -> None:
        self.state = State(np.empty(0), 0, 0.0) if state is None else state
        self.lines = lines or []
        self.rng = rng or {}


def _values(row: Row) -> list[Any]:
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in row]


def _row(values: list[Any]) -> Row:
    return Row._make(
        np.array(value, dtype=np.int64 if name in INTEGERS else np.float64)
        if isinstance(value, list)
        else value
        for name, value in zip(Row._fields, values, strict=True)
    )
