"""Finished runs on disk: one file each, named by what determines its numbers."""

import contextlib
import hashlib
import io
import json
import os
import time
import warnings
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fedpace
from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.estimation.pilots import RATIO
from fedpace.estimation.ratio import RatioEstimate
from fedpace.files import UNREADABLE, held, made_folder, write_through
from fedpace.lookup import fingerprint
from fedpace.profile import Profile
from fedpace.rounds.rows import CLIENTS, History, Row, packed_rows, unpacked_rows
from fedpace.rounds.training import Outcome
from fedpace.studies.study import OWN, Study

# What names a configuration without changing a number.
NAMES = {"name", "title", "paper", "paper_loss"}
# Seconds. A run is a few hundred kilobytes: no write takes longer.
LONGEST_WRITE = 3600.0
# What is kept of a profile besides β/α.
COLUMNS = ("weights", "times", "grad_norms")


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A finished run as read from disk.

    `q` is None for a design without probabilities, `parameters` where they were not to be saved.
    """

    study: Study
    scheme: str
    seed: int
    version: str
    ended: str
    history: History
    q: FloatArray | None
    profile: Profile
    ratio: RatioEstimate | None
    parameters: FloatArray | None = None


class DamagedRunError(Exception):
    """A run's file cannot be read back; the run has to be done again."""


class DamagedRunWarning(UserWarning):
    """A run's file cannot be read back and was left out."""


def run_key(study: Study, scheme: str, seed: int) -> str:
    """Return a hash of everything that determines a run's numbers, the version included."""
    return _key(_identity(study, scheme, seed))


@dataclass(frozen=True)
class Store:
    """The runs in a directory.

    A file is flushed to the disk beside its place and moved there: it is whole or absent even after
    a loss of power. Its name is the run's key and a checksum of the contents, which shows damage of
    any kind. Several processes may write at once: each has its own file until the move.
    """

    directory: Path

    def find(self, key: str) -> Path | None:
        """Return the file of a run, or None."""
        return next(iter(sorted(self._folder.glob(f"{key}-*.npz"))), None)

    def save(self, study: Study, scheme: str, seed: int, outcome: Outcome) -> Path:
        """Store a finished run at once."""
        contents = packed_run(study, scheme, seed, outcome)
        return self.save_packed(run_key(study, scheme, seed), contents)

    def save_packed(self, key: str, contents: bytes) -> Path:
        """Store a run that was packed elsewhere, and return when the disk has it."""
        path = self._folder / f"{key}-{_hash(contents, 16)}.npz"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            remedy = "choose another place, and give the same command again"
            problem = f"cannot be written: {error.strerror}"
            raise InputError(f"{self._folder}: {problem}; {remedy}") from error
        write_through(path, contents, temporary=self._folder / f".{key}-{os.getpid()}.part")
        return path

    def load(self, path: Path) -> StoredRun:
        """Read a run back, or raise DamagedRunError."""
        key, _, checksum = path.stem.rpartition("-")
        try:
            contents = path.read_bytes()
            if checksum != _hash(contents, 16):
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
        """Return the keys of all stored runs; no file is opened."""
        return {_key_of(path) for path in self._folder.glob("*.npz")}

    def runs(
        self, warn: Callable[[str], None] | None = None, *, keys: Container[str] | None = None
    ) -> Iterator[StoredRun]:
        """Read every run once, or those of some keys, in the order of the files' names.

        Files that cannot be read are left out and reported to `warn`, or as DamagedRunWarning.
        """
        seen: set[str] = set()
        for path in sorted(self._folder.glob("*.npz")):
            key = _key_of(path)
            # One seen is the same run, from a machine that rounds differently.
            if key in seen or (keys is not None and key not in keys):
                continue
            try:
                run = self.load(path)
            except DamagedRunError as error:
                if warn is None:
                    warnings.warn(str(error), DamagedRunWarning, stacklevel=2)
                else:
                    warn(str(error))
                continue
            seen.add(key)
            yield run

    def tidy(self) -> None:
        """Remove what processes that were killed while writing have left."""
        for path in self._folder.glob(".*.part"):
            with contextlib.suppress(OSError):
                if _left_behind(path):
                    path.unlink(missing_ok=True)
        for path in self._folder.glob(".*.lock"):
            with contextlib.suppress(InputError), held(path, "a run"):
                pass  # which removes it, unless another process holds it

    def claimed(self, key: str) -> contextlib.AbstractContextManager[None]:
        """Keep other processes from doing a run meanwhile; InUseError where one of them does."""
        return held(made_folder(self._folder, "--out") / f".{key}.lock", f"the run {key}")

    @property
    def _folder(self) -> Path:
        return self.directory / "runs"


def _identity(study: Study, scheme: str, seed: int) -> list[Any]:
    """Return what determines a run's numbers: settings that are not the usual ones, and files."""
    settings = study.model_dump(mode="json", exclude_defaults=True)
    numbers = {name: value for name, value in settings.items() if name not in NAMES}
    if study.sampling.knobs:  # those of other schemes change nothing
        sampling = {name: x for name, x in numbers.pop("sampling").items() if name != "knobs"}
        mine = study.sampling.knobs.get(scheme)
        numbers |= ({"sampling": sampling} if sampling else {}) | ({"knobs": mine} if mine else {})
    for section in OWN:  # wherever the file is, its text counts
        if source := numbers.get(section, {}).get("source"):
            numbers[section] = numbers[section] | {"source": source.rpartition("/")[2]}
    own = {
        name.rpartition("/")[2] if name in study.own_names else name: mark
        for name in (scheme, study.training.server, *study.own_names)
        if (mark := fingerprint(name))
    }
    return [fedpace.__version__, numbers, scheme, seed, own]


def _hash(contents: bytes, digits: int) -> str:
    return hashlib.sha256(contents).hexdigest()[:digits]


def _key(identity: list[Any]) -> str:
    return _hash(json.dumps(identity, sort_keys=True).encode(), 20)


def _key_of(path: Path) -> str:
    return path.stem.rpartition("-")[0]


def _left_behind(path: Path) -> bool:
    """Tell whether a file was abandoned: its process is gone, or it is older than any write."""
    if time.time() - path.stat().st_mtime > LONGEST_WRITE:
        return True
    process = path.stem.rpartition("-")[2]
    if os.name == "nt" or not process.isdecimal():  # on Windows, asking would end the process
        return False
    return not _alive(int(process))


def _alive(process: int) -> bool:
    if os.name == "nt":  # there, asking would end the process
        return True
    try:
        os.kill(process, 0)
    except OSError as error:  # any other: the process is another user's
        return not isinstance(error, ProcessLookupError)
    return True


def packed_run(
    study: Study, scheme: str, seed: int, outcome: Outcome, *, save: bool = False
) -> bytes:
    """Return a finished run as the bytes of a file; the same run gives the same bytes.

    With `save`, the trained parameters are in it.
    """
    about: dict[str, Any] = {
        "identity": _identity(study, scheme, seed),
        "study": study.model_dump(mode="json"),
        "ended": outcome.state.ended,
        "notes": dict(outcome.notes),
        "beta_over_alpha": outcome.profile.beta_over_alpha,
    }
    arrays = {
        "about": np.array(json.dumps(about)),
        **packed_rows(outcome.history.rows),
        **{f"profile_{name}": getattr(outcome.profile, name) for name in COLUMNS},
    }
    if (q := getattr(outcome.design, "q", None)) is not None:
        arrays["q"] = q
    if save:
        arrays["parameters"] = outcome.state.parameters
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def rows_of(contents: bytes) -> list[Row]:
    """Return the rounds of a packed run, without the row that it began with."""
    with np.load(io.BytesIO(contents), allow_pickle=False) as file:
        return unpacked_rows(dict(file))[1:]


def _unpacked(contents: bytes, key: str) -> StoredRun:
    with np.load(io.BytesIO(contents), allow_pickle=False) as file:
        arrays = dict(file)
    about = json.loads(str(arrays["about"]))
    # What the file says, not what Study makes of it: later versions may know other fields.
    if key != _key(about["identity"]):
        raise ValueError("it holds another run than its name says")
    json.dumps(about, ensure_ascii=False).encode()  # or it could not be written anywhere
    version, _, scheme, seed, _ = about["identity"]
    if not (isinstance(scheme, str) and type(seed) is int and isinstance(version, str)):
        raise ValueError(f"scheme, seed and version are no such: {about['identity']!r:.80}")
    columns = {name: arrays[f"profile_{name}"] for name in COLUMNS}
    ratio = about["notes"].get(RATIO)
    last = max(arrays[name].max(initial=0) for name in CLIENTS if name in arrays)
    if last >= columns["weights"].size:
        raise ValueError(f"it holds client {last}, who is not in its profile")
    return StoredRun(
        study=Study.model_validate(about["study"]),
        scheme=scheme,
        seed=seed,
        version=version,
        ended=about["ended"],
        history=History(unpacked_rows(arrays)),
        q=arrays.get("q"),
        profile=Profile(**columns, beta_over_alpha=about["beta_over_alpha"]),
        ratio=None if ratio is None else RatioEstimate(**ratio),
        parameters=arrays.get("parameters"),
    )
