"""What a setup is called: by its own name as long as it is that setup, else by what it is."""

from __future__ import annotations

from functools import lru_cache

from fedpace.data.synthetic import PAPER_SIZES
from fedpace.studies.study import ImagesSection, Study, SyntheticSection, load_study, setups

MODELS = {"logistic": "logistic regression", "lenet5": "LeNet-5", "small-cnn": "a small CNN"}
POOLS = {"mnist": "MNIST", "emnist-lower": "EMNIST letters"}
# What makes a study another setup; how it samples and stops does not.
TOLD = ("data", "model", "devices")
TOLD_OF_TRAINING = ("k", "local_steps", "batch", "schedule", "weight_decay", "optimiser")


def published(study: Study) -> bool:
    """Tell whether a study is the setup of its name, as far as that is one of fedpace's.

    Only then the paper's figures stand beside it.
    """
    return study.name not in setups() or _told(study) == _told(_setup(study.name))


def title_of(study: Study) -> str:
    """Return a study's own title, or one made of its configuration where that was changed.

    >>> title_of(load_study("simulation-1", ["training.k=3", "data.sizes=power-law"]))
    'simulation-1, changed: logistic regression, Synthetic(1, 1), N = 100, K = 3'
    """
    if study.title and published(study):
        return study.title
    clients = _clients(study)
    known = [] if clients is None else [f"N = {clients}"]
    what = ", ".join([_model(study), _data(study), *known, f"K = {study.training.k}"])
    return f"{study.name}, changed: {what}" if study.name in setups() else f"{study.name}: {what}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> plural(1, "seed"), plural(2, "seed")
    ('1 seed', '2 seeds')
    """
    return f"{count:,} {noun}" + "s" * (count != 1)


@lru_cache
def _setup(name: str) -> Study:
    return load_study(name)


def _told(study: Study) -> tuple[object, ...]:
    training = (getattr(study.training, name) for name in TOLD_OF_TRAINING)
    return (*(getattr(study, name) for name in TOLD), *training)


def _model(study: Study) -> str:
    if study.model.source is None:
        return MODELS[study.model.kind]
    return study.model.source.rpartition(":")[2].partition("-")[0]


def _data(study: Study) -> str:
    if isinstance(study.data, SyntheticSection):
        return f"Synthetic({study.data.alpha:g}, {study.data.beta:g})"
    return POOLS[study.data.kind] if isinstance(study.data, ImagesSection) else "own data"


def _clients(study: Study) -> int | None:
    if isinstance(study.data, SyntheticSection) and study.data.sizes == "paper":
        return len(PAPER_SIZES)
    return study.data.clients
