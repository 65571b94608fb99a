"""The same loop over a Flower federation."""

from fedpace.errors import MissingExtraError

try:
    import flwr.serverapp.strategy as _  # noqa: F401
except ImportError as error:
    raise MissingExtraError(
        "fedpace.flower needs Flower 1.22 or newer; install it with: pip install 'fedpace[flower]'"
    ) from error

from fedpace.estimation.policy import Pilots, WarmUp
from fedpace.flower.client import GradientNorms, described, measured
from fedpace.flower.grid_backend import Training
from fedpace.flower.private import private
from fedpace.flower.strategy import AdaptiveSampling
from fedpace.rounds.privacy import Privacy

__all__ = [
    "AdaptiveSampling", "GradientNorms", "Pilots", "Privacy", "Training", "WarmUp", "described",
    "measured", "private",
]  # fmt: skip
