"""Adaptive client sampling for Flower federations."""

from fedpace.errors import MissingExtraError

try:
    import flwr.serverapp.strategy as _  # noqa: F401
except ImportError as error:
    raise MissingExtraError(
        "fedpace.flower needs Flower 1.22 or newer; install it with: pip install 'fedpace[flower]'"
    ) from error

from fedpace.backends.privacy import Privacy
from fedpace.flower.backend import StartArguments
from fedpace.flower.client import GradientNorms, answer_query, measure_mod, privacy_mod
from fedpace.flower.nodes import Node
from fedpace.flower.strategy import AdaptiveSampling
from fedpace.samplers.build import Pilots, WarmUp

# Names until version 0.1, which ClientApps in the field still import.
described, measured, private = answer_query, measure_mod, privacy_mod

__all__ = [
    "AdaptiveSampling", "GradientNorms", "Node", "Pilots", "Privacy", "StartArguments", "WarmUp",
    "answer_query", "measure_mod", "privacy_mod",
]  # fmt: skip
