"""Finished runs on disk: one file each, named by what determines its numbers."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fedpace
from fedpace.errors import InputError
from fedpace.estimation.adaptive import Outcome
from fedpace.estimation.ratio import RatioEstimate
from fedpace.profile import FloatArray, Profile
from fedpace.rounds.history import LISTS, History, Row
from fedpace.sampling.design import WithReplacement
from fedpace.studies.study import Study

NUMBERS = (
    "round", "seconds", "loss", "accuracy", "expected_round_seconds", "round_seconds",
)  # fmt: skip


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


def run_key(study: Study, scheme: str, seed: int) -> str:
    """Return a hash of everything that determines a run's numbers, the version included."""
    settings = study.model_dump(mode="json", exclude={"name", "title", "paper"})
    text = json.dumps([fedpace.__version__, settings, scheme, seed], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Store:
    """The runs in a directory.

    A file is written beside its place, flushed to the disk and moved there, so that it is whole
    or absent even after a loss of power. Its name ends in a checksum of its contents, so that
    damage of any kind is seen.
    """

    directory: Path

    def find(self, key: str) -> Path | None:
        """Return the file of a run, if it is there."""
        return next(iter(sorted(self._folder.glob(f"{key}-*.npz"))), None)

    def save(self, study: Study, scheme: str, seed: int, outcome: Outcome) -> Path:
        """Store a finished run at once."""
        contents = _packed(study, scheme, seed, outcome)
        self._folder.mkdir(parents=True, exist_ok=True)
        key = run_key(study, scheme, seed)
        path = self._folder / f"{key}-{_checksum(contents)}.npz"
        temporary = self._folder / f".{key}-{os.getpid()}.part"
        try:
            with temporary.open("wb") as file:
                file.write(contents)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}; make room") from error
        finally:
            temporary.unlink(missing_ok=True)
        return path

    def load(self, path: Path) -> Run:
        """Read a run back, or raise DamagedRunError."""
        try:
            contents = path.read_bytes()
            if path.stem.rpartition("-")[2] != _checksum(contents):
                raise DamagedRunError(f"{path}: does not match its checksum")
            return _unpacked(contents)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise DamagedRunError(f"{path}: {error}") from error

    def runs(self) -> Iterator[Run]:
        """Read all runs that can be read, in the order of their files' names."""
        for path in sorted(self._folder.glob("*.npz")):
            yield self.load(path)

    @property
    def _folder(self) -> Path:
        return self.directory / "runs"


def _checksum(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()[:16]


def _packed(study: Study, scheme: str, seed: int, outcome: Outcome) -> bytes:
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
        "offsets": np.cumsum([0, *(row.clients.size for row in rows)]),
        **{name: np.array([getattr(row, name) for row in rows]) for name in NUMBERS},
        **{name: np.concatenate([getattr(row, name) for row in rows]) for name in LISTS},
        "profile_weights": outcome.profile.weights,
        "profile_times": outcome.profile.times,
        "profile_grad_norms": outcome.profile.grad_norms,
    }
    if isinstance(outcome.design, WithReplacement):
        arrays["q"] = outcome.design.q
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _unpacked(contents: bytes) -> Run:
    with np.load(io.BytesIO(contents), allow_pickle=False) as file:
        arrays = dict(file)
    about = json.loads(str(arrays["about"]))
    offsets = arrays["offsets"]
    numbers = zip(*(arrays[name].tolist() for name in NUMBERS), strict=True)
    rows = [
        Row(str(phase), *values, *(arrays[name][start:end] for name in LISTS))
        for phase, values, start, end in zip(
            arrays["phase"], numbers, offsets[:-1], offsets[1:], strict=True
        )
    ]
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
