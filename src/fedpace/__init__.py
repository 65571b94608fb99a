"""Reach a federated-learning target sooner in wall-clock time, by choosing whom to draw."""

from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.sampling.bound import (
    convergence_bound,
    predicted_rounds,
    predicted_time,
    variance_term,
)
from fedpace.sampling.design import Design, Draw, Everyone, WithReplacement
from fedpace.sampling.max_time import solve_max_time
from fedpace.sampling.mean_time import solve_mean_time
from fedpace.sampling.plan import Prediction, plan
from fedpace.sampling.round_time import (
    expected_round_time,
    mean_round_time,
    round_time_gradient,
)
from fedpace.sampling.schemes import SCHEMES
from fedpace.sampling.solution import Solution

__version__ = "0.1.0"

__all__ = [
    "SCHEMES",
    "Design",
    "Draw",
    "Everyone",
    "InputError",
    "Prediction",
    "Profile",
    "Solution",
    "WithReplacement",
    "convergence_bound",
    "expected_round_time",
    "mean_round_time",
    "plan",
    "predicted_rounds",
    "predicted_time",
    "round_time_gradient",
    "solve_max_time",
    "solve_mean_time",
    "variance_term",
]
