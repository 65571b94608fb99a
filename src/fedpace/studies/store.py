"""Finished runs on disk: one file each, named by what determines its numbers."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedpace
from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.estimation.adaptive import Outcome
from fedpace.estimation.ratio import RatioEstimate
from fedpace.files import write_through
from fedpace.profile import Profile
from fedpace.rounds.backend import NOBODY, NOTHING
from fedpace.rounds.history import LISTS, History, Row
from fedpace.sampling.design import WithReplacement
from fedpace.studies.study import Study

NUMBERS = (
    "round", "seconds", "loss", "accuracy", "expected_round_seconds", "round_seconds",
    "loss_estimate",
)  # fmt: skip

# What names a configuration without changing a number.
NAMES = {"name", "title", "paper", "paper_loss"}
# Whatever reading a file that is no run may raise.
UNREADABLE = (
    OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, NotImplementedError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip
# Seconds. A run is a few hundred kilobytes: whoever has not written them by now is gone.
LONGEST_WRITE = 3600.0


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run as read from disk; `q` is None for full participation."""

    study: Study
    scheme: str
    seed: int
    version: str
    ended: str
    history: History
    q: FloatArray | None
    profile: Profile
    ratio: RatioEstimate | None


class DamagedRunError(Exception):
    """A run's file cannot be read back; the run has to be done again."""


class DamagedRunWarning(UserWarning):
    """A run's file cannot be read back and was left out."""


def run_key(study: Study, scheme: str, seed: int) -> str:
    """Return a hash of everything that determines a run's numbers, the version included."""
    return _key(fedpace.__version__, study.model_dump(mode="json"), scheme, seed)


@dataclass(frozen=True)
class Store:
    """The runs in a directory.

    A file is written beside its place, flushed to the disk and moved there, so that it is whole
    or absent even after a loss of power. Its name is the key of the run and a checksum of the
    contents, so that damage of any kind is seen. Several processes may write at once: each has
    its own file until the move, and the same run moved twice is the same run.
    """

    directory: Path

    def find(self, key: str) -> Path | None:
        """Return the file of a run, if it is there."""
        return next(iter(sorted(self._folder.glob(f"{key}-*.npz"))), None)

    def save(self, study: Study, scheme: str, seed: int, outcome: Outcome) -> Path:
        """Store a finished run at once."""
        return self.save_packed(
            run_key(study, scheme, seed), packed_run(study, scheme, seed, outcome)
        )

    def save_packed(self, key: str, contents: bytes) -> Path:
        """Store a run that was packed elsewhere, and return when the disk has it."""
        path = self._folder / f"{key}-{_checksum(contents)}.npz"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"{self._folder}: cannot be written: {error.strerror}; choose another place, and "
                "give the same command again"
            ) from error
        write_through(path, contents, self._folder / f".{key}-{os.getpid()}.part")
        return path

    def load(self, path: Path) -> Run:
        """Read a run back, or raise DamagedRunError."""
        key, _, checksum = path.stem.rpartition("-")
        try:
            contents = path.read_bytes()
            if checksum != _checksum(contents):
                raise DamagedRunError(f"{path}: does not match its checksum")
            return _unpacked(contents, key)
        except UNREADABLE as error:
            raise DamagedRunError(f"{path}: cannot be read as a run: {error}") from error

    def remove(self, path: Path) -> None:
        """Remove a damaged file."""
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"{path}: cannot be removed: {error.strerror}; remove it") from error

    def keys(self) -> set[str]:
        """Return the keys of all runs that are there; no file is opened."""
        return {_key_of(path) for path in self._folder.glob("*.npz")}

    def runs(
        self, warn: Callable[[str], None] | None = None, *, keys: Container[str] | None = None
    ) -> Iterator[Run]:
        """Read every run once, or those of some keys, in the order of the files' names.

        A file that cannot be read is told to `warn`, a DamagedRunWarning by default, and left out.
        """
        seen: set[str] = set()
        for path in sorted(self._folder.glob("*.npz")):
            key = _key_of(path)
            if keys is not None and key not in keys:
                continue
            if key in seen:  # the same run, from a machine that rounds differently
                continue
            try:
                run = self.load(path)
            except DamagedRunError as error:
                (warn or _warn)(str(error))
                continue
            seen.add(key)
            yield run

    def tidy(self) -> None:
        """Remove what processes that were killed while writing have left."""
        for path in self._folder.glob(".*.part"):
            with contextlib.suppress(OSError):
                if _left_behind(path):
                    path.unlink(missing_ok=True)

    @property
    def _folder(self) -> Path:
        return self.directory / "runs"


def _key(version: str, settings: Mapping[str, Any], scheme: str, seed: int) -> str:
    numbers = {name: value for name, value in settings.items() if name not in NAMES}
    if numbers.get("network") is None:  # simulated, as all runs were before there was a network
        numbers.pop("network", None)
    text = json.dumps([version, numbers, scheme, seed], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _key_of(path: Path) -> str:
    return path.stem.rpartition("-")[0]


def _checksum(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()[:16]


def _warn(message: str) -> None:
    warnings.warn(message, DamagedRunWarning, stacklevel=3)


def _left_behind(path: Path) -> bool:
    """Tell whether nobody writes this file: its process is gone, or it is older than any write."""
    if time.time() - path.stat().st_mtime > LONGEST_WRITE:
        return True
    process = path.stem.rpartition("-")[2]
    if os.name == "nt" or not process.isdecimal():  # on Windows, asking would end the process
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except OSError:  # another user's process
        return False
    return False


def packed_run(study: Study, scheme: str, seed: int, outcome: Outcome) -> bytes:
    """Return a finished run as the bytes of a file; the same run gives the same bytes."""
    rows = outcome.history.rows
    about: dict[str, Any] = {
        "study": study.model_dump(mode="json"),
        "scheme": scheme,
        "seed": seed,
        "version": fedpace.__version__,
        "ended": outcome.state.ended,
        "ratio": None if outcome.ratio is None else outcome.ratio._asdict(),
        "beta_over_alpha": outcome.profile.beta_over_alpha,
    }
    arrays = {
        "about": np.array(json.dumps(about)),
        "phase": np.array([row.phase for row in rows]),
        **{name: np.array([getattr(row, name) for row in rows]) for name in NUMBERS},
        **_lists(rows),
        "profile_weights": outcome.profile.weights,
        "profile_times": outcome.profile.times,
        "profile_grad_norms": outcome.profile.grad_norms,
    }
    if isinstance(outcome.design, WithReplacement):
        arrays["q"] = outcome.design.q
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _lists(rows: Sequence[Row]) -> dict[str, NDArray[Any]]:
    """Return the lists of all rows end to end, and where each row's begin.

    Lists that are as long as `clients` share its offsets; empty ones are left out.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for name in LISTS:
        lists = [getattr(row, name) for row in rows]
        offsets = np.cumsum([0, *map(len, lists)])
        if name == "clients":
            arrays["offsets"] = offsets
        elif offsets[-1] == 0:
            continue
        elif (offsets != arrays["offsets"]).any():
            arrays[f"{name}-offsets"] = offsets
        arrays[name] = np.concatenate(lists)
    return arrays


def _list(arrays: Mapping[str, NDArray[Any]], name: str, row: int) -> NDArray[Any]:
    if name not in arrays:
        return NOBODY if name in ("missing", "refused", "bytes_down", "bytes_up") else NOTHING
    start, end = arrays.get(f"{name}-offsets", arrays["offsets"])[row : row + 2].tolist()
    return arrays[name][start:end]


def _unpacked(contents: bytes, key: str) -> Run:
    with np.load(io.BytesIO(contents), allow_pickle=False) as file:
        arrays = dict(file)
    about = json.loads(str(arrays["about"]))
    # From what the file says, not through Study: later versions may know other fields.
    if key != _key(about["version"], about["study"], about["scheme"], about["seed"]):
        raise ValueError("it holds another run than its name says")
    unknown = np.full(len(arrays["phase"]), np.nan)
    columns = {name: arrays.get(name, unknown).tolist() for name in NUMBERS}
    rows = []
    for i, phase in enumerate(arrays["phase"]):
        fields: dict[str, Any] = {name: columns[name][i] for name in NUMBERS}
        fields |= {name: _list(arrays, name, i) for name in LISTS}
        rows.append(Row(phase=str(phase), **fields))
    profile = Profile(
        arrays["profile_weights"],
        arrays["profile_times"],
        arrays["profile_grad_norms"],
        about["beta_over_alpha"],
    )
    return Run(
        study=Study.model_validate(about["study"]),
        scheme=about["scheme"],
        seed=about["seed"],
        version=about["version"],
        ended=about["ended"],
        history=History(rows),
        q=arrays.get("q"),
        profile=profile,
        ratio=None if about["ratio"] is None else RatioEstimate(**about["ratio"]),
    )
