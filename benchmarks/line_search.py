"""The paper's way to P3: fix M = Σ q_i t_i, solve a convex problem, and search M on a grid.

For fixed M the problem is: minimise Σ a_i² / q_i subject to Σ q_i = 1, Σ q_i t_i = M. It does
not depend on c, so one search serves every c. M is a parameter, so CVXPY canonicalises once.
"""

# CVXPY says that it is typed, but its functions are not.
# mypy: disable-error-code="attr-defined,no-untyped-call"

from __future__ import annotations

import warnings
from typing import Literal, NamedTuple, TypeAlias

import cvxpy as cp
import numpy as np

from fedpace.checks import FloatArray

Form: TypeAlias = Literal["as written", "rescaled"]

# Σ q may miss 1 by this much.
SUM_TOLERANCE = 1e-9
# A repair lifts what is smaller than this fraction of the largest probability.
LEAST_FRACTION = 1e-12


class GridPoint(NamedTuple):
    """What the convex solver said for one M, and q exactly as it returned it."""

    status: str
    q: FloatArray | None

    @property
    def infeasible_optimal(self) -> bool:
        """Whether the solver called a point optimal that is no vector of probabilities."""
        return self.status == "optimal" and self.q is not None and not feasible(self.q)


class Choice(NamedTuple):
    """The grid point with the least objective, and the least objective after repairs."""

    objective: float
    feasible: bool
    repaired: float


def search(
    importance: FloatArray, times: FloatArray, points: int, form: Form = "rescaled"
) -> list[GridPoint]:
    """Solve for M at `points` equidistant values inside [t_1, t_N].

    "as written" has the variables q; "rescaled" has x_i = q_i / a_i, which are all of the
    same size and which a user finds who wonders why the solver is inaccurate. At the ends
    of the interval only one client has q_i > 0, so they are left out.
    """
    problem, level, q = _problem(importance, times, form)
    grid = np.linspace(times.min(), times.max(), points + 2)[1:-1]
    return [_solve(problem, level, q, value) for value in grid]


def choose(grid: list[GridPoint], importance: FloatArray, times: FloatArray, c: float) -> Choice:
    """Return what the search is worth for one c."""
    solved = [point.q for point in grid if point.q is not None]
    objectives = [mean_time_objective(q, importance, times, c) for q in solved]
    best = int(np.argmin(objectives))
    repaired = min(mean_time_objective(repair(q), importance, times, c) for q in solved)
    return Choice(objectives[best], feasible(solved[best]), repaired)


def mean_time_objective(
    q: FloatArray, importance: FloatArray, times: FloatArray, c: float
) -> float:
    """Return (Σ q_i t_i) (Σ a_i² / q_i + c)."""
    with np.errstate(divide="ignore"):  # q_i = 0 costs infinitely much, as it should
        return float((q @ times) * (np.sum(importance**2 / q) + c))


def feasible(q: FloatArray) -> bool:
    """Return whether q is a vector of positive probabilities."""
    return bool(q.min() > 0 and abs(float(q.sum()) - 1) <= SUM_TOLERANCE)


def repair(q: FloatArray) -> FloatArray:
    """Clip q from below and make it sum to 1."""
    clipped = np.maximum(q, LEAST_FRACTION * float(q.max()))
    return np.asarray(clipped / clipped.sum(), dtype=np.float64)


def _problem(
    importance: FloatArray, times: FloatArray, form: Form
) -> tuple[cp.Problem, cp.Parameter, cp.Expression]:
    unit = np.ones_like(importance) if form == "as written" else importance
    x = cp.Variable(importance.size)
    level = cp.Parameter()
    q = cp.multiply(unit, x)
    variance = cp.sum(cp.multiply(importance**2 / unit, cp.inv_pos(x)))
    return cp.Problem(cp.Minimize(variance), [cp.sum(q) == 1, times @ q == level]), level, q


def _solve(problem: cp.Problem, level: cp.Parameter, q: cp.Expression, value: float) -> GridPoint:
    level.value = value
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the status says the same
            problem.solve(solver=cp.CLARABEL)
    except cp.SolverError:
        return GridPoint("error", None)
    found = None if q.value is None else np.array(q.value, dtype=np.float64)
    return GridPoint(str(problem.status), found)
