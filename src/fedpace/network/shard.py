"""What a device holds: its own shard, loaded or generated here, and nobody else's."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

import fedpace
from fedpace.data.shards import Shards, Split
from fedpace.errors import InputError
from fedpace.files import locked, write_whole
from fedpace.rounds.local import LocalSteps, LocalTrainer
from fedpace.seeds import Seeds
from fedpace.studies.experiment import model, split
from fedpace.studies.study import Study


def job_of(study: Study, seed: int, names: list[str]) -> dict[str, Any]:
    """Return what devices are told of a run: the study, the seed, and who is which client."""
    return {
        "version": fedpace.__version__,
        "study": study.model_dump(mode="json"),
        "seed": seed,
        "clients": {name: client for client, name in enumerate(names)},
    }


class OwnShard:
    """Prepare the device of a name for jobs; its samples are kept from one job to the next.

    The devices of a lab share a machine, and not all of them can hold all images at once: the
    first deals the shards out into `folder`, for all. Without a folder, the device deals out by
    itself, and drops what is not its own.
    """

    def __init__(self, name: str, folder: Path | None = None) -> None:
        self._name = name
        self._folder = folder
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
            how.local_steps, how.batch, how.weight_decay, how.clip, how.optimiser, how.proximal
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
            return study, int(job["seed"]), int(job["clients"][self._name])
        except (LookupError, TypeError, ValueError, ValidationError) as error:
            raise InputError(
                f"job must be a study's, got {error!r:.200}; see fedpace lab"
            ) from None

    def _own(self, study: Study, seed: int, client: int) -> Split:
        if self._folder is None:
            return _alone(split(study, seed), client)
        path = self._folder / f"{_data_key(study, seed)}-{client:04d}.npz"
        if not path.exists():
            with locked(self._folder):
                if not path.exists():
                    _deal_out(study, seed, self._folder)
        return _loaded(path)


def _data_key(study: Study, seed: int) -> str:
    """Return what determines the samples of all clients, as a short hash."""
    drawn = seed if study.data.seed is None else study.data.seed
    text = json.dumps([fedpace.__version__, study.data.model_dump(mode="json"), drawn])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _deal_out(study: Study, seed: int, folder: Path) -> None:
    whole = split(study, seed)
    for client in range(whole.train.n):
        own = _alone(whole, client)
        path = folder / f"{_data_key(study, seed)}-{client:04d}.npz"
        arrays = {f"{part}_x": shards.x for part, shards in own._asdict().items()}
        arrays |= {f"{part}_y": shards.y for part, shards in own._asdict().items()}
        write_whole(path, lambda part, arrays=arrays: np.savez(part, **arrays))  # type: ignore[misc]


def _loaded(path: Path) -> Split:
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    parts = ((arrays[f"{part}_x"], arrays[f"{part}_y"]) for part in Split._fields)
    return Split(*(Shards.from_clients([x], [y]) for x, y in parts))


def _alone(whole: Split, client: int) -> Split:
    """Copy one client's samples, so that the others' can be dropped."""
    own = (each.client(client) for each in whole)
    return Split(*(Shards(each.x.copy(), each.y.copy(), each.offsets) for each in own))
