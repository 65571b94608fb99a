"""Finished runs on disk: one file each, named by a hash of what determines its numbers."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import platform
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import fedpace
from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.files import UNREADABLE, hold_lock, load_arrays, make_folder, write_text, write_through
from fedpace.lookup import fingerprint
from fedpace.profile import Profile
from fedpace.samplers.pilots import RATIO, RatioEstimate
from fedpace.studies.study import OWN, Study
from fedpace.training.history import CLIENTS, History, Row, pack_rows, unpack_rows

if TYPE_CHECKING:
    from fedpace.training.training import Outcome

# Fields that change no number.
NAMES = {"name", "title", "paper", "paper_loss"}
# Seconds; a run is a few hundred kilobytes.
LONGEST_WRITE = 3600.0
# Arrays of a profile.
COLUMNS = ("weights", "times", "grad_norms")
# Fields of earlier versions.
REMOVED = [("devices", "slower")]


class Job(NamedTuple):
    """A run to be done."""

    scheme: str
    seed: int

    def __str__(self) -> str:
        return f"{self.scheme}, seed {self.seed}"

    @property
    def file_name(self) -> str:
        """A name for files of this run."""
        return f"{self.scheme.replace('/', '-').replace(':', '-')}-seed{self.seed}"


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A finished run as read from disk.

    `q` is None for a design without probabilities, `parameters` unless they were saved.
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
    """The file of a run cannot be read; the run has to be repeated."""


class DamagedRunWarning(UserWarning):
    """The file of a run cannot be read and was skipped."""


def run_key(study: Study, scheme: str, seed: int) -> str:
    """Return a hash of everything that determines a run's numbers, the version included."""
    return _key(_identity(study, scheme, seed))


@dataclass(frozen=True)
class Store:
    """The runs in a directory.

    Files are written atomically and survive a power loss. A file's name is the run's key and a
    checksum of the contents. Several processes may write at the same time.
    """

    directory: Path

    def find(self, key: str) -> Path | None:
        """Return the file of a run, or None."""
        return next(iter(sorted(self._folder.glob(f"{key}-*.npz"))), None)

    def save(self, study: Study, scheme: str, seed: int, outcome: Outcome) -> Path:
        """Store a finished run."""
        contents = pack_run(study, scheme, seed, outcome)
        return self.save_packed(run_key(study, scheme, seed), contents)

    def save_packed(self, key: str, contents: bytes) -> Path:
        """Store a packed run, and return when it is on the disk."""
        path = make_folder(self._folder, "--out") / f"{key}-{_hash(contents, 16)}.npz"
        write_through(path, contents, temporary=self._folder / f".{key}-{os.getpid()}.part")
        return path

    def load(self, path: Path) -> StoredRun:
        """Read a run back, or raise DamagedRunError."""
        key, _, checksum = path.stem.rpartition("-")
        try:
            contents = path.read_bytes()
            if checksum != _hash(contents, 16):
                raise DamagedRunError(f"{path}: does not match its checksum")
            return _unpack(contents, key)
        except UNREADABLE as error:
            raise DamagedRunError(f"{path}: cannot be read as a run: {error}") from error

    def remove(self, path: Path) -> None:
        """Remove a damaged file."""
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"{path}: cannot be removed: {error.strerror}; remove it") from error

    def keys(self) -> set[str]:
        """Return the keys of all stored runs, without opening a file."""
        return {_key_of(path) for path in self._folder.glob("*.npz")}

    def runs(
        self, warn: Callable[[str], None] | None = None, *, keys: Container[str] | None = None
    ) -> Iterator[StoredRun]:
        """Read all runs, or those with the given keys, in the order of file names.

        Damaged files are skipped and reported to `warn`, or as DamagedRunWarning.
        """
        seen: set[str] = set()
        for path in sorted(self._folder.glob("*.npz")):
            key = _key_of(path)
            # A second file is the same run from a machine that rounds differently.
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
        """Remove the temporary files of killed processes."""
        for path in self._folder.glob(".*.part"):
            with contextlib.suppress(OSError):
                if _is_left_behind(path):
                    path.unlink(missing_ok=True)
        for path in self._folder.glob(".*.lock"):
            with contextlib.suppress(InputError), hold_lock(path, "a run"):
                pass  # removes it, unless another process holds it

    def claim(self, key: str) -> contextlib.AbstractContextManager[None]:
        """Lock a run; raises InUseError if another process is doing it."""
        return hold_lock(make_folder(self._folder, "--out") / f".{key}.lock", f"the run {key}")

    @property
    def _folder(self) -> Path:
        return self.directory / "runs"


def _identity(study: Study, scheme: str, seed: int) -> list[Any]:
    """Return what determines a run's numbers: settings other than the defaults, and own files."""
    settings = study.model_dump(mode="json", exclude_defaults=True)
    numbers = {name: value for name, value in settings.items() if name not in NAMES}
    if study.sampling.knobs:  # those of other schemes have no effect
        sampling = {name: x for name, x in numbers.pop("sampling").items() if name != "knobs"}
        mine = study.sampling.knobs.get(scheme)
        numbers |= ({"sampling": sampling} if sampling else {}) | ({"knobs": mine} if mine else {})
    for section in OWN:  # the file's text counts, not its folder
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


def _is_left_behind(path: Path) -> bool:
    """Return whether the process that wrote a file is gone, or the file is old."""
    if time.time() - path.stat().st_mtime > LONGEST_WRITE:
        return True
    process = path.stem.rpartition("-")[2]
    if os.name == "nt" or not process.isdecimal():  # on Windows, os.kill would end the process
        return False
    try:
        os.kill(int(process), 0)
    except OSError as error:  # others than this: the process belongs to another user
        return isinstance(error, ProcessLookupError)
    return False


def pack_run(
    study: Study, scheme: str, seed: int, outcome: Outcome, *, save: bool = False
) -> bytes:
    """Return a finished run as bytes, with `save` including the trained parameters.

    The same run always gives the same bytes.
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
        **pack_rows(outcome.history.rows),
        **{f"profile_{name}": getattr(outcome.profile, name) for name in COLUMNS},
    }
    if (q := outcome.design.columns().get("q")) is not None:
        arrays["q"] = q
    if save:
        arrays["parameters"] = outcome.parameters
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def rows_of(contents: bytes) -> list[Row]:
    """Return the rounds of a packed run, without the row of the initial model."""
    return unpack_rows(load_arrays(contents))[1:]


def _unpack(contents: bytes, key: str) -> StoredRun:
    arrays = load_arrays(contents)
    about = json.loads(str(arrays["about"]))
    # Compared as stored, not as parsed: other versions have other fields.
    if key != _key(about["identity"]):
        raise ValueError("it holds another run than its name says")
    json.dumps(about, ensure_ascii=False).encode()  # refuses what could not be written to a report
    version, _, scheme, seed, _ = about["identity"]
    if not (isinstance(scheme, str) and type(seed) is int and isinstance(version, str)):
        raise ValueError(f"scheme, seed and version are no such: {about['identity']!r:.80}")
    for section, field in REMOVED:
        if about["study"].get(section, {}).pop(field, None) is not None:
            raise ValueError(f"it was made with {section}.{field}, which no longer exists")
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
        history=History(unpack_rows(arrays)),
        q=arrays.get("q"),
        profile=Profile(**columns, beta_over_alpha=about["beta_over_alpha"]),
        ratio=None if ratio is None else RatioEstimate(**ratio),
        parameters=arrays.get("parameters"),
    )


def write_record(out: Path, study: Study, schemes: Sequence[str], seeds: Sequence[int]) -> None:
    """Write study.json: the configuration, the versions, and the command to run it again."""
    packages = {name: version(name) for name in ("numpy", "scipy", "pydantic")}
    python = {"python": platform.python_version(), "platform": platform.platform()}
    record = {
        "study": study.model_dump(mode="json"),
        "schemes": list(schemes),
        "seeds": [seeds[0], seeds[-1]],
        "command": shlex.join(["fedpace", *sys.argv[1:]]),
        "versions": {"fedpace": fedpace.__version__} | packages | python,
    }
    path = make_folder(out, "--out") / "study.json"
    write_text(path, json.dumps(record, indent=2) + "\n", follow=False)
