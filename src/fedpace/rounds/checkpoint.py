"""A journal remembers finished rounds; a checkpoint does so in one file, replaced whole."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedpace.errors import InputError
from fedpace.files import UNREADABLE, write_through
from fedpace.rounds.behind import Behind
from fedpace.rounds.rows import Row, joined_rows, packed_rows, unpacked_rows
from fedpace.rounds.state import State, packed, unpacked

# Bytes at the end of the file: a digest of what comes before, which shows damage of any kind.
DIGEST = 32


class Found(NamedTuple):
    """How far a run had got: its rows, the state after the last, and the generator's state."""

    state: State
    rows: Sequence[Row]
    rng: dict[str, Any]


class Journal(Protocol):
    """Remembers finished rounds, so that a run goes on where it was ended.

    One that can write behind also has `record_soon`, as `record` but it does not wait, and `safe`,
    which returns when all is safe. Steps without a barrier are then recorded so.
    """

    def resume(self) -> Found | None:
        """Return how far the run had got, or None if it had not begun."""

    def record(self, state: State, row: Row, rng: np.random.Generator) -> None:
        """Keep a finished round; return when it is safe."""


class Checkpoint:
    """Keep the whole state, the rows and the random generator of a run in one file.

    The file is written beside its place, flushed to the disk and moved there, so that after a
    crash at any moment it holds a finished round, whole: the last one that was recorded, or with
    `record_soon` the last one whose writing had ended.

    Parameters
    ----------
    path : Path
        The file; it is read if it exists.
    about : dict of JSON values
        What the run is; a file of another run is refused.

    Attributes
    ----------
    notes : dict of JSON values
        What else is to be remembered of the run; written with the next round.
    live : dict of functions that return JSON values
        The same, for what changes: each is called when a round is written, and its value is then
        in `notes` under its name.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path = path
        self.about = about
        self.notes: dict[str, Any] = {}
        self.live: dict[str, Callable[[], Any]] = {}
        self._found: Found | None = None
        self._count = 0
        self._packed: dict[str, NDArray[Any]] = {}
        self._rows: list[Row] = []  # those that are not packed yet
        self._behind = Behind(self._write)
        if path.exists():
            self._read()

    def resume(self) -> Found | None:
        """Return how far the run had got, or None if it had not begun."""
        return self._found

    def record(self, state: State, row: Row, rng: np.random.Generator) -> None:
        """Write the round to the disk."""
        self.record_soon(state, row, rng)
        self.safe()

    def record_soon(self, state: State, row: Row, rng: np.random.Generator) -> None:
        """Have the round written in the background, unless a newer one comes first.

        The error of an earlier writing is raised here.
        """
        self.notes |= {name: told() for name, told in self.live.items()}
        about = {"about": self.about, "notes": self.notes, "rng": rng.bit_generator.state}
        arrays = packed(state._asdict())
        # Copied, as a sampler or a server of somebody else's may change its state in place.
        kept = {f"state-{name}": array.copy() for name, array in arrays.items()}
        self._rows.append(row)
        self._count += 1
        self._behind.submit((self._count, {"about": np.array(json.dumps(about)), **kept}))

    def safe(self) -> None:
        """Return when the latest round is on the disk, or raise why it is not."""
        self._behind.wait()

    def remove(self) -> None:
        """Remove the file of a run that is finished and stored."""
        self.path.unlink(missing_ok=True)

    def _write(self, recorded: tuple[int, dict[str, NDArray[Any]]]) -> None:
        """Write a state with the rows up to it; those that are new are packed and added."""
        count, arrays = recorded
        new = count - len(self._packed.get("phase", ()))
        self._packed = joined_rows(self._packed, packed_rows(self._rows[:new]))
        del self._rows[:new]
        rows = {f"rows-{name}": array for name, array in self._packed.items()}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays, **rows)
        contents = buffer.getvalue()
        write_through(self.path, contents, _digest(contents))

    def _read(self) -> None:
        try:
            # From memory: of a file that is none, np.load would leave the handle open.
            with np.load(io.BytesIO(_whole(self.path.read_bytes())), allow_pickle=False) as file:
                arrays = dict(file)
            record = json.loads(str(arrays["about"]))
            about, self.notes = record["about"], record["notes"]
            state = State(**unpacked(_part("state", arrays)))
            rows = unpacked_rows(_part("rows", arrays))
            self._count, self._packed = len(rows), packed_rows(rows)
            self._found = Found(state, rows, record["rng"])
        except UNREADABLE as error:
            raise InputError(
                f"{self.path}: cannot be read as a checkpoint: {error}; remove it to begin anew"
            ) from None
        if about != json.loads(json.dumps(self.about)):
            raise InputError(
                f"{self.path}: is the checkpoint of another run; give another place, or remove it"
            )


def _digest(contents: bytes) -> bytes:
    return hashlib.sha256(contents).digest()


def _whole(contents: bytes) -> bytes:
    """Return the contents without their digest, or say that they are not what was written."""
    contents, digest = contents[:-DIGEST], contents[-DIGEST:]
    if digest != _digest(contents):
        raise ValueError("it does not match its checksum")
    return contents


def _part(part: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    named = ((name.partition("-"), array) for name, array in arrays.items())
    return {name: array for (first, _, name), array in named if first == part}
