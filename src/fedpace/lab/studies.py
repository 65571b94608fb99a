"""What a server knows of a study without holding its data."""

from __future__ import annotations

import numpy as np

from fedpace.data.shards import Shards, Split
from fedpace.data.synthetic import PAPER_SIZES
from fedpace.errors import InputError
from fedpace.models.model import Model
from fedpace.studies.experiment import model
from fedpace.studies.study import OwnSection, Study, SyntheticSection

PIXELS = 28 * 28


def client_count(study: Study) -> int:
    """Return how many clients a study has."""
    section = study.data
    if isinstance(section, SyntheticSection) and section.sizes == "paper":
        return len(PAPER_SIZES)
    return section.clients


def model_of(study: Study) -> Model:
    """Return what clients train, from the shape of their data alone."""
    section = study.data
    if isinstance(section, OwnSection):
        raise InputError(
            f"{study.name}: data.kind must be known to devices, got own; set it to synthetic, "
            "mnist or emnist-lower"
        )
    features = section.features if isinstance(section, SyntheticSection) else PIXELS
    nothing = Shards(
        np.empty((0, features), dtype=np.float32), np.empty(0, dtype=np.int64), np.zeros(2, int)
    )
    return model(study, Split(nothing, nothing))
