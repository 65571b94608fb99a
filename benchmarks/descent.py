"""General-purpose descent on P3 and P2 with SciPy: SLSQP, and L-BFGS-B on a softmax.

Both minimise log J with its analytic gradient, for clients sorted by time. K = 1 is P3.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from line_search import feasible, repair
from scipy.optimize import minimize

from fedpace.checks import FloatArray

RANDOM_STARTS = 3
STEP_LIMIT = 15_000


class Problem(NamedTuple):
    """Minimise T(q) (Σ a_i² / q_i + c), T the expected slowest of K draws; t ascending."""

    importance: FloatArray
    times: FloatArray
    c: float
    k: int

    def log_objective(self, q: FloatArray) -> tuple[float, FloatArray]:
        """Return log J and its gradient, or ∞ where a line search left the domain."""
        below = np.minimum(np.cumsum(q)[:-1], 1)
        gaps = np.diff(self.times)
        round_time = self.times[-1] - below**self.k @ gaps
        slopes = self.k * below ** (self.k - 1) * gaps
        time_gradient = np.append(-np.cumsum(slopes[::-1])[::-1], 0.0)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            ratio = self.importance / q
            spread = ratio @ self.importance + self.c
            gradient = time_gradient / round_time - ratio**2 / spread
        if not (0 < spread < np.inf and np.isfinite(gradient).all()):
            return np.inf, np.zeros_like(q)
        return float(np.log(round_time) + np.log(spread)), gradient

    def objective(self, q: FloatArray) -> float:
        """Return J."""
        return float(np.exp(self.log_objective(q)[0]))


class Found(NamedTuple):
    """The best valid q of a way, and whether the way itself says it succeeded."""

    q: FloatArray
    success: bool


def slsqp(problem: Problem) -> Found:
    """Run SLSQP from q ∝ a, in variables x_i = q_i / a_i of equal size, Σ a_i x_i = 1."""
    importance = problem.importance

    def scaled(x: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = problem.log_objective(importance * x)
        return value, importance * gradient

    result = minimize(
        scaled,
        np.ones_like(importance),
        jac=True,
        method="SLSQP",
        bounds=[(1e-9, None)] * importance.size,
        constraints={
            "type": "eq",
            "fun": lambda x: importance @ x - 1,
            "jac": lambda _: importance,
        },
        options={"maxiter": 1000, "ftol": 1e-13},
    )
    q = importance * result.x
    return Found(repair(q), bool(result.success) and feasible(q))


def softmax_descent(problem: Problem, rng: np.random.Generator) -> Found:
    """Run L-BFGS-B on the logits of q from several starts, and keep the best."""
    found = [_from_start(problem, start) for start in _starts(problem, rng)]
    best = min(found, key=lambda each: problem.objective(each.q))
    return Found(best.q, any(each.success for each in found))


def _starts(problem: Problem, rng: np.random.Generator) -> list[FloatArray]:
    """Return logits: uniform, statistical, Corollary 2, and random ones."""
    statistical = np.log(problem.importance)
    random = rng.normal(size=(RANDOM_STARTS, statistical.size))
    mean_time = statistical - np.log(problem.times) / 2
    return [np.zeros_like(statistical), statistical, mean_time, *(statistical + random)]


def _from_start(problem: Problem, start: FloatArray) -> Found:
    def from_logits(logits: FloatArray) -> tuple[float, FloatArray]:
        q = _softmax(logits)
        value, gradient = problem.log_objective(q)
        return value, q * (gradient - q @ gradient)

    result = minimize(
        from_logits,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": STEP_LIMIT, "maxfun": STEP_LIMIT, "ftol": 1e-15, "gtol": 1e-9},
    )
    return Found(_softmax(result.x), bool(result.success))


def _softmax(logits: FloatArray) -> FloatArray:
    shape = np.exp(logits - logits.max())
    return np.asarray(shape / shape.sum(), dtype=np.float64)
