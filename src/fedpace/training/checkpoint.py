"""The state of a run, and checkpoints: the complete state in one file."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError
from fedpace.files import UNREADABLE, load_arrays, write_through
from fedpace.training.backend import NO_CLIENTS, NO_VALUES
from fedpace.training.callbacks import Callback, RunInfo
from fedpace.training.history import Row, join_rows, pack_rows, unpack_rows

STRUCTURE = "structure"


class State(NamedTuple):
    """The model, its rounds and seconds, and the states of sampler and server.

    `ended` is why training ended, and `phase` the name of the current one. `asked` and `answered`
    count the rounds in which each client was drawn, and in which its reply was accepted; clients
    beyond their end count 0. `often` is the share of the latest draws with each client, and `draws`
    the draws per round, where shares are limited. `models` are those that a later phase may begin
    with. In asynchronous training, `sent` counts tasks, `owed` is the weight that each client is
    owed, and `running` the running mean of the models.
    """

    parameters: FloatArray
    round: int
    seconds: float
    ended: str = ""
    phase: str = ""
    asked: IntArray = NO_CLIENTS
    answered: IntArray = NO_CLIENTS
    models: Mapping[str, Any] = {}
    sampler: Any = None
    server: Any = None
    sent: int = 0
    owed: FloatArray = NO_VALUES
    often: FloatArray = NO_VALUES
    draws: float = 1.0
    running: Any = None

    @property
    def handed_out(self) -> FloatArray:
        """The model to evaluate and hand out: the running mean if it is better, or the latest."""
        mean = self.running is not None and self.running["handed_out"]
        return np.asarray(self.running["mean"] if mean else self.parameters, dtype=np.float64)


def pack(value: Any) -> dict[str, NDArray[Any]]:
    """Return a value of plain types and arrays as named arrays, without pickling.

    >>> arrays = pack({"seen": np.array([1, 2]), "rounds": 3})
    >>> unpack(arrays)
    {'seen': array([1, 2]), 'rounds': 3}
    """
    arrays: dict[str, NDArray[Any]] = {}
    structure = _describe(value, arrays)
    return {STRUCTURE: np.array(json.dumps(structure)), **arrays}


def unpack(arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Return the value that `pack` was given."""
    return _restore(json.loads(str(arrays[STRUCTURE])), arrays)


def _describe(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Return the value as JSON, with tags for containers; arrays are added to `arrays`."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        name = f"array-{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):  # no NamedTuple
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_describe(each, arrays) for each in value]}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _describe(each, arrays) for key, each in value.items()}}
    raise InputError(
        f"state must consist of numbers, text, None, lists, dicts and arrays, got "
        f"{type(value).__name__}; store its parts as these"
    )


def _restore(value: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "array":
        return arrays[inner]
    if kind == "dict":
        return {key: _restore(each, arrays) for key, each in inner.items()}
    parts = [_restore(each, arrays) for each in inner]
    return parts if kind == "list" else tuple(parts)


# Bytes of the digest at the end of the file, which shows damage of any kind.
DIGEST = 32


class Found(NamedTuple):
    """A stored run: its rows, the state after the last, and the generator's state."""

    state: State
    rows: Sequence[Row]
    rng: dict[str, Any]


class Checkpoint(Callback):
    """Keep the state, the rows and the random generator of a run in one file.

    The file is written under another name, flushed to the disk and moved into place, so that after
    a crash at any moment it holds a finished round. Writing happens in the background; synchronous
    training waits for it after every round.

    Parameters
    ----------
    path : Path
        The file; it is read if it exists.
    about : dict of JSON values
        Identifies the run; a file of another run is refused.

    Attributes
    ----------
    notes : dict of JSON values
        More to remember of the run; written with the next round.
    live : dict of functions that return JSON values
        The same for what changes: each is called when a round is written, and its value goes to
        `notes` under its name.
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
        self._writer = BackgroundWriter(self._write)
        if path.exists():
            self._read()

    def resume(self) -> Found | None:
        """Return what is stored of the run, or None if it had not begun."""
        return self._found

    def on_start(self, run: RunInfo, rows: Sequence[Row]) -> None:
        """Store the row of the initial model, unless the run resumes from here."""
        if self._found is None:
            for row in rows:
                self.on_row(run, row)

    def on_row(self, run: RunInfo, row: Row) -> None:
        """Write the round in the background, unless a newer one comes first.

        The error of an earlier write is raised here.
        """
        if run.state is None or run.rng is None:
            raise InputError("a checkpoint must be in the process of its run; pass it to `train`")
        state, rng = run.state, run.rng
        self.notes |= {name: value() for name, value in self.live.items()}
        about = {"about": self.about, "notes": self.notes, "rng": rng.bit_generator.state}
        arrays = pack(state._asdict())
        # Copied, as samplers and servers may change their state in place.
        kept = {f"state-{name}": array.copy() for name, array in arrays.items()}
        self._rows.append(row)
        self._count += 1
        self._writer.submit((self._count, {"about": np.array(json.dumps(about)), **kept}))

    def flush(self) -> None:
        """Return when the latest round is on the disk, or raise why it is not."""
        self._writer.wait()

    def remove(self) -> None:
        """Remove the file of a run that is finished and stored."""
        self.path.unlink(missing_ok=True)

    def _write(self, recorded: tuple[int, dict[str, NDArray[Any]]]) -> None:
        """Write a state with the rows up to it; new rows are packed and added."""
        count, arrays = recorded
        new = count - len(self._packed.get("phase", ()))
        self._packed = join_rows(self._packed, pack_rows(self._rows[:new]))
        del self._rows[:new]
        rows = {f"rows-{name}": array for name, array in self._packed.items()}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays, **rows)
        contents = buffer.getvalue()
        write_through(self.path, contents, _digest(contents))

    def _read(self) -> None:
        try:
            arrays = load_arrays(_whole(self.path.read_bytes()))
            record = json.loads(str(arrays["about"]))
            about, self.notes = record["about"], dict(record["notes"])
            state = State(**unpack(_part("state", arrays)))
            if min(state.asked.min(initial=0), state.answered.min(initial=0)) < 0:
                raise ValueError("counts of clients must not be negative")
            rows = unpack_rows(_part("rows", arrays))
            self._count, self._packed = len(rows), pack_rows(rows)
            self._found = Found(state, rows, record["rng"])
        except UNREADABLE as error:
            raise InputError(
                f"{self.path}: cannot be read as a checkpoint: {error}; remove it to start again"
            ) from None
        if about != json.loads(json.dumps(self.about)):
            raise InputError(
                f"{self.path}: is the checkpoint of another run; give another place, or remove it"
            )


def _digest(contents: bytes) -> bytes:
    return hashlib.sha256(contents).digest()


def _whole(contents: bytes) -> bytes:
    """Return the contents without their digest, or raise if it does not match."""
    contents, digest = contents[:-DIGEST], contents[-DIGEST:]
    if digest != _digest(contents):
        raise ValueError("it does not match its checksum")
    return contents


def _part(part: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    named = ((name.partition("-"), array) for name, array in arrays.items())
    return {name: array for (first, _, name), array in named if first == part}


Item = TypeVar("Item")
# Seconds to rest after each second of work, to leave most of the machine to others.
REST = 4


class BackgroundWriter(Generic[Item]):
    """Call a function with the newest item, in a thread of its own; older items are skipped.

    The thread ends when nothing is left to do, and the process does not end before it.

    Parameters
    ----------
    work : function of an item
        Called with one item at a time; the last submitted item is never skipped.

    Examples
    --------
    >>> done = []
    >>> writer = BackgroundWriter(done.append)
    >>> for item in range(1000):
    ...     writer.submit(item)
    >>> writer.wait()
    >>> done[-1], done == sorted(done)
    (999, True)
    """

    def __init__(self, work: Callable[[Item], object]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._newest: list[Item] = []  # one or none
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._hurry = threading.Event()

    def submit(self, item: Item) -> None:
        """Process the item unless a newer one comes first; raise an earlier error."""
        with self._lock:
            self._newest = [item]
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fedpace-writer")
                self._thread.start()
        self._raise()

    def wait(self) -> None:
        """Return when the newest item is done, or raise its error."""
        thread = self._thread
        if thread is not None:
            self._hurry.set()
            thread.join()
            self._hurry.clear()
        self._raise()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._newest:
                    self._thread = None
                    return
                item = self._newest.pop()
            begin = time.monotonic()
            try:
                self._work(item)
            except Exception as error:  # raised in the caller
                self._error = error
            self._hurry.wait(REST * (time.monotonic() - begin))

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
