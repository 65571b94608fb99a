"""The data of a device: its own shard, loaded or generated on the device."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fedpace
from fedpace.backends.local import LocalSteps, LocalTrainer
from fedpace.data.shards import Shards, Split
from fedpace.errors import InputError
from fedpace.files import lock_folder, write_whole
from fedpace.seeds import Seeds
from fedpace.studies.build import model, split
from fedpace.studies.study import OwnSection, Study


def job_of(study: Study, seed: int, names: list[str]) -> dict[str, Any]:
    """Return the description of a run for devices: study, seed, and the clients' names."""
    return {
        "version": fedpace.__version__,
        "study": study.model_dump(mode="json"),
        "seed": seed,
        "clients": {name: client for client, name in enumerate(names)},
    }


class OwnShard:
    """Prepare the device of a name for jobs; its samples are kept from one job to the next.

    Without `folder` the device generates all shards and keeps its own. The devices of a lab share a
    machine that cannot hold all data once per device: the first writes all shards to `folder`.

    A study may name Python code: `file.py:name` or `module:name`. The server sends the study, so
    that code runs only if it is in a file or module of `allow`.
    """

    def __init__(self, name: str, folder: Path | None = None, *, allow: Sequence[str] = ()) -> None:
        self._name = name
        self._folder = folder
        self._allow = allow
        self._held: tuple[str, Split] | None = None

    def __call__(self, job: dict[str, Any]) -> LocalTrainer:
        """Return the trainer for a job."""
        study, seed, client = self._read(job)
        key = f"{_data_key(study, seed)}-{client:04d}"
        if self._held is None or self._held[0] != key:
            self._held = None  # before the next is loaded
            self._held = key, self._own(study, seed, client)
        data, how = self._held[1], study.training
        steps = LocalSteps(
            study.local_steps, how.batch, how.weight_decay, how.clip, how.optimiser, how.proximal
        )
        privacy = None if study.privacy is None else study.privacy.made
        return LocalTrainer(data, model(study, data), Seeds(seed), client, steps, privacy=privacy)

    def _read(self, job: dict[str, Any]) -> tuple[Study, int, int]:
        if job.get("version") != fedpace.__version__:
            raise InputError(
                f"the server must have fedpace {fedpace.__version__} as this device has, got "
                f"{job.get('version')}; install the same version on both"
            )
        try:
            study = Study.model_validate(job["study"])
            check_sources(study, self._allow)
            return study, int(job["seed"]), int(job["clients"][self._name])
        except InputError:
            raise
        except (LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InputError(
                f"job must be a study's, got {error!r:.200}; see fedpace lab"
            ) from None

    def _own(self, study: Study, seed: int, client: int) -> Split:
        if self._folder is None:
            return _copy_shard(split(study, seed), client)
        path = self._folder / f"{_data_key(study, seed)}-{client:04d}.npz"
        if not path.exists():
            with lock_folder(self._folder):
                if not path.exists():
                    _write_shards(study, seed, self._folder)
        return _read_shard(path)


def check_sources(study: Study, allow: Sequence[str]) -> None:
    """Refuse a study that names Python code outside the files and modules of `allow`."""
    model = study.model
    named = {"model": model.source, "loss": model.loss, "metric": model.metric}
    if isinstance(study.data, OwnSection):
        named["data"] = study.data.source
    for what, name in named.items():
        # Losses and metrics without a colon are fedpace's own.
        if name is None or (what in ("loss", "metric") and ":" not in name):
            continue
        if not any(_allows(each, name) for each in allow):
            place = name.rpartition(":")[0] or name
            raise InputError(
                f"{what} must not be Python code that the server names, got {name!r:.120}; if it "
                f"may run on this device, join with: --allow {place[:100]!r}"
            )


def _allows(allowed: str, name: str) -> bool:
    """Return whether `allowed`, a path, a module or one name in it, holds what a name refers to.

    >>> _allows("clients.py", "./clients.py:make"), _allows("my.module", "my.module:make")
    (True, True)
    >>> _allows("clients.py:make", "clients.py:make"), _allows("clients.py:make", "clients.py:it")
    (True, False)
    >>> _allows("clients.py", "other/clients.py:make"), _allows("my", "my.module:make")
    (False, False)
    """
    place, _, what = name.rpartition(":")
    if not place.endswith(".py"):
        return allowed in (place or name, name)
    file, _, only = allowed.rpartition(":") if ".py:" in allowed else (allowed, "", what)
    return only == what and Path(place).resolve() == Path(file).resolve()


def _data_key(study: Study, seed: int) -> str:
    """Return a hash of everything that determines the samples of all clients."""
    drawn = seed if study.data.seed is None else study.data.seed
    text = json.dumps([fedpace.__version__, study.data.model_dump(mode="json"), drawn])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write_shards(study: Study, seed: int, folder: Path) -> None:
    whole = split(study, seed)
    for client in range(whole.train.n):
        own = _copy_shard(whole, client)
        path = folder / f"{_data_key(study, seed)}-{client:04d}.npz"
        arrays = {f"{part}_x": shards.x for part, shards in own._asdict().items()}
        arrays |= {f"{part}_y": shards.y for part, shards in own._asdict().items()}
        write_whole(path, lambda part, arrays=arrays: np.savez(part, **arrays))  # type: ignore[misc]


def _read_shard(path: Path) -> Split:
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    parts = ((arrays[f"{part}_x"], arrays[f"{part}_y"]) for part in Split._fields)
    return Split(*(Shards.from_clients([x], [y]) for x, y in parts))


def _copy_shard(whole: Split, client: int) -> Split:
    """Copy one client's samples, so that the others' can be freed."""
    own = (each.client(client) for each in whole)
    return Split(*(Shards(each.x.copy(), each.y.copy(), each.offsets) for each in own))
