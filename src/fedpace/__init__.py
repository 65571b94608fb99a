"""Reach a federated-learning target sooner in wall-clock time, by choosing whom to draw."""

from importlib import import_module
from typing import Any

from fedpace.data.shards import Shards, Split
from fedpace.errors import InputError, TooFewClientsError
from fedpace.estimation.pace import Pace
from fedpace.estimation.pilots import Piloted
from fedpace.estimation.policy import Pilots, WarmUp, sampler_for
from fedpace.estimation.solve import Solve
from fedpace.profile import Profile
from fedpace.rounds.backend import Backend, Evaluation, Reply, Task
from fedpace.rounds.memory import Memory
from fedpace.rounds.rows import History, Row
from fedpace.rounds.run import Run, train
from fedpace.rounds.sampler import Known, Phase, Plan, Sampler
from fedpace.rounds.schedules import constant, inverse
from fedpace.rounds.server import Adam, Average, Server, Yogi
from fedpace.rounds.simulator import Simulator
from fedpace.rounds.stopping import Stop
from fedpace.rounds.training import Outcome
from fedpace.sampling.bound import (
    convergence_bound,
    predicted_rounds,
    predicted_time,
    variance_term,
)
from fedpace.sampling.design import Among, Design, Draw, Everyone, WithReplacement
from fedpace.sampling.max_time import solve_max_time
from fedpace.sampling.mean_time import solve_mean_time
from fedpace.sampling.plan import Prediction, plan
from fedpace.sampling.round_time import (
    expected_round_time,
    mean_round_time,
)
from fedpace.sampling.schemes import SCHEMES, Scheme
from fedpace.sampling.solution import Solution
from fedpace.sampling.tiered import Systematic, Tiered
from fedpace.sampling.tiers import solve_tiers
from fedpace.seeds import Seeds
from fedpace.times.round_times import Presence, RoundTimes, Steady, Varying

__version__ = "0.1.0"

__all__ = [
    "SCHEMES", "Adam", "Among", "Average", "Backend", "Design", "Draw", "Evaluation", "Everyone",
    "History", "InputError", "Known", "Memory", "Outcome", "Pace", "Phase", "Piloted", "Pilots",
    "Plan", "Prediction", "Presence", "Profile", "Reply", "RoundTimes", "Row", "Run", "Sampler",
    "Scheme", "Seeds", "Server", "Shards", "Simulator", "Solution", "Solve", "Split",
    "Steady", "Stop", "Systematic", "Task", "Tiered", "TooFewClientsError",
    "Varying", "WarmUp", "WithReplacement", "Yogi", "compare", "constant", "convergence_bound",
    "expected_round_time", "inverse", "mean_round_time", "plan", "predicted_rounds",
    "predicted_time", "sampler_for", "solve_max_time", "solve_mean_time",
    "solve_tiers", "train", "variance_term",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load `compare`, which needs the extras sim and report, where it is asked for."""
    if name == "compare":
        return import_module("fedpace.comparison").compare
    raise AttributeError(f"module 'fedpace' has no attribute '{name}'")
