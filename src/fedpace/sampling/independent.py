"""Independent draws: each client takes part with a probability of its own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace.checks import (
    FloatArray,
    one_per_client,
    positive_column,
    positive_count,
    refuse_first,
    shares,
)
from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.sampling.design import Among, BaseDesign, Draw, normalise, present_clients
from fedpace.sampling.solvers.solution import Solution

# Sums of probabilities this close to an integer are treated as that integer.
NEAR_INTEGER = 1e-9
# Newton's steps on a piecewise linear function within a bracket; it ends by itself after a few.
NEWTON_STEPS = 300
# A smaller step no longer changes the sum in float64.
SAME = 1e-15


@dataclass(frozen=True, eq=False)
class Independent(BaseDesign):
    """Let client i take part with probability π_i, independently, weighted by p_i / π_i.

    A draw has Σ π_i = K clients on average. One without any client is repeated, and the weights are
    multiplied by 1 − P_0, P_0 = Π (1 − π_i), which keeps it unbiased. So rounds have K / (1 − P_0).

    Parameters
    ----------
    inclusion : array of N, in (0, 1]
        π_i; their sum is at least 1.
    weights : array of N
        p_i.
    k : int ≥ 1, optional
        K; by default the nearest integer to Σ π_i.
    solution : Solution, optional
        The result of the solver that found the probabilities.

    Examples
    --------
    >>> design = Independent([1.0, 0.5, 0.5], weights=[0.5, 0.25, 0.25])
    >>> draw = design.draw(np.random.default_rng(0))
    >>> draw.clients, draw.weights
    (array([0, 1, 2]), array([0.5, 0.5, 0.5]))
    >>> design.expected_round_time([1.0, 2.0, 3.0])  # 1 · ¼ + 2 · ¼ + 3 · ½
    2.25
    """

    inclusion: FloatArray
    weights: FloatArray
    k: int
    solution: Solution | None

    def __init__(
        self,
        inclusion: ArrayLike,
        weights: ArrayLike,
        *,
        k: int | None = None,
        solution: Solution | None = None,
    ) -> None:
        p = shares(weights)
        pi = one_per_client("inclusion", positive_column("inclusion", inclusion), p.size)
        refuse_first("inclusion", pi, pi > 1 + NEAR_INTEGER, "be at most 1", "draw a client once")
        if (total := float(pi.sum())) < 1 - NEAR_INTEGER:
            remedy = "raise the probabilities: too many draws would have no client"
            raise InputError(f"inclusion must sum to at least 1, got {total:g}; {remedy}")
        pi = np.minimum(pi, 1.0)
        pi.setflags(write=False)
        k = round(total) if k is None else positive_count("k", k)
        for name, value in (("inclusion", pi), ("weights", p), ("k", k), ("solution", solution)):
            object.__setattr__(self, name, value)

    @property
    def n(self) -> int:
        """The number of clients."""
        return self.weights.size

    @property
    def q(self) -> FloatArray:
        """The share of each client in all draws: π_i over their sum."""
        return normalise(self.inclusion)

    @cached_property
    def somebody(self) -> float:
        """1 − P_0, the probability that a draw has a client."""
        return -float(np.expm1(log_absent(self.inclusion).sum()))

    @property
    def largest_weight(self) -> float:
        """The largest (1 − P_0) p_i / π_i."""
        return self.somebody * float((self.weights / self.inclusion).max())

    def draw(self, rng: np.random.Generator) -> Draw:
        """Draw until there is a client; as Σ π_i ≥ 1, two draws in three have one."""
        clients = np.empty(0, dtype=np.int64)
        while not clients.size:
            clients = np.flatnonzero(rng.random(self.n) < self.inclusion)
        return Draw(clients, self.somebody * self.weights[clients] / self.inclusion[clients])

    def expected_round_time(self, times: ArrayLike) -> float:
        """Return the exact expected slowest, given that there is a client: see `sorted_slowest`."""
        t = one_per_client("times", positive_column("times", times), self.n)
        order = np.argsort(t)
        return sorted_slowest(self.inclusion[order], t[order]).mean / self.somebody

    def variance_term(self, profile: Profile) -> float:
        """Return S = K ((1 − P_0) Σ a_i² / π_i − Σ a_i²) + Σ a_i² with a_i = p_i G_i.

        As for every design, S is K times the variance of the step, plus the squared length of
        its mean, for updates that are orthogonal to each other.
        """
        squares = (profile.weights * profile.grad_norms) ** 2
        added = self.somebody * (1 / self.inclusion - 1) - (1 - self.somebody)
        return float(squares @ (1 + self.k * added))

    def second_moment(self, updates: ArrayLike) -> float:
        """Return E‖Σ weights_i Δ_i‖², exactly, for the updates Δ_i, of shape (N, P).

        It is (1 − P_0) (‖Σ p_i Δ_i‖² + Σ p_i² (1/π_i − 1) ‖Δ_i‖²).
        """
        rows = self.weights[:, None] * np.asarray(updates, dtype=np.float64)
        mean = rows.sum(axis=0)
        own = (1 / self.inclusion - 1) @ (rows**2).sum(axis=1)
        return self.somebody * float(mean @ mean + own)

    def among(self, present: ArrayLike) -> BaseDesign:
        """Return draws among the clients present, still K on average, or all if they are fewer.

        π is multiplied by a common factor, but is at most 1, and at least so large that no weight
        exceeds the largest of the full design.
        """
        clients = present_clients(present, self.weights)
        weights, total = normalise(self.weights[clients]), min(self.k, clients.size)
        largest = max(float((self.weights / self.inclusion).max()), 1 / total)
        floors = np.minimum(weights / largest, 1.0)
        inclusion = clip_to_sum(self.inclusion[clients], floors, total).values
        return Among(Independent(inclusion, weights, k=self.k), clients, self.n)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return shares of draws, aggregation weights and inclusion probabilities."""
        weights = self.somebody * self.weights / self.inclusion
        return {"q": self.q, "aggregation_weight": weights, "inclusion": self.inclusion}


class Slowest(NamedTuple):
    """E[slowest], 0 if there is no client, and its derivatives; for clients sorted by time.

    `nonempty` are those of the probability that there is a client, `somebody`.
    """

    mean: float
    gradient: FloatArray
    somebody: float
    nonempty: FloatArray


def log_absent(inclusion: FloatArray) -> FloatArray:
    """Return log(1 − π), −∞ where π = 1."""
    with np.errstate(divide="ignore"):
        return np.log1p(-inclusion)


def sorted_slowest(inclusion: FloatArray, times: FloatArray) -> Slowest:
    """Return the expected slowest of independent draws, for clients sorted by time.

    With P_i = Π_{j ≥ i} (1 − π_j), the probability that no client from i on takes part,

        E[slowest] = Σ_i (t_i − t_{i−1}) (1 − P_i),    t_0 = 0,
        ∂E/∂π_j    = Σ_{i ≤ j} (t_i − t_{i−1}) P_i / (1 − π_j).

    P_i = 0 up to the slowest client with π = 1, whose own derivative has the product of the others.

    >>> sorted_slowest(np.array([0.5, 0.5]), np.array([1.0, 3.0])).mean
    1.75
    """
    gaps = np.diff(times, prepend=0.0)
    logs = log_absent(inclusion)
    certain = np.flatnonzero(inclusion == 1)
    absent = np.cumsum(logs[::-1])[::-1]  # log P_i
    mean = -float(np.expm1(absent) @ gaps)
    gradient, nonempty = np.zeros_like(times), np.zeros_like(times)
    if not certain.size:
        gradient = np.cumsum(np.exp(absent) * gaps) / (1 - inclusion)
        nonempty = np.exp(absent[0] - logs)
        return Slowest(mean, gradient, -float(np.expm1(absent[0])), nonempty)
    last = int(certain[-1])
    after = last + 1
    slower = np.exp(absent[after:]) * gaps[after:]
    first = int(certain[-2]) + 1 if certain.size > 1 else 0
    logs[last] = 0.0
    without = np.exp(np.cumsum(logs[first:][::-1])[::-1])  # P_i but for the last certain client
    gradient[last] = float(without[: after - first] @ gaps[first:after])
    gradient[after:] = np.cumsum(slower) / (1 - inclusion[after:])
    if certain.size == 1:
        nonempty[last] = without[0]
    return Slowest(mean, gradient, 1.0, nonempty)


class Bounded(NamedTuple):
    """Values max(l_i, min(s b_i, 1)), and s."""

    values: FloatArray
    scale: float


def clip_to_sum(
    shape: FloatArray, floors: FloatArray | None, total: float, guess: float | None = None
) -> Bounded:
    """Return max(l_i, min(s b_i, 1)) with the s that gives them this sum; b_i may be infinite.

    Newton's method: the sum is piecewise linear in s and rises with it. Without floors it is
    concave, and s rises to the root; with floors s is kept in a bracket.

    >>> clip_to_sum(np.array([8.0, 1.0, 1.0]), None, 2.0).values
    array([1. , 0.5, 0.5])
    """
    if total >= shape.size * (1 - SAME):
        return Bounded(np.ones_like(shape), np.inf)
    if floors is None:
        scale = _scale(shape, total)
        return Bounded(np.minimum(scale * shape, 1.0), scale)
    if (least := float(floors.sum())) >= total * (1 - SAME):
        return Bounded(floors * (total / least), 0.0)
    low, high = 0.0, np.inf
    scale = guess or _scale(shape, total)
    steps = 0
    while True:
        steps += 1
        values = np.clip(scale * shape, floors, 1.0)
        over = float(values.sum()) - total
        low, high = (low, scale) if over > 0 else (scale, high)
        moving = float(shape[(values > floors) & (values < 1)].sum())
        better = scale - over / moving if moving > 0 else np.nan
        found = abs(better - scale) <= SAME * scale or over == 0 or low >= high * (1 - SAME)
        if found or steps == NEWTON_STEPS:
            return Bounded(values, scale)
        if not low < better < high:
            middle = np.sqrt(low * high) if low > 0 else scale / 4
            better = 4 * scale if high == np.inf else middle
        scale = float(better)


def _scale(shape: FloatArray, total: float) -> float:
    """Return s with Σ min(s b_i, 1) = total: clients only ever join those at 1."""
    full = np.flatnonzero(np.isinf(shape))
    rest = shape.copy()
    while True:
        rest[full] = 0.0
        scale = (total - full.size) / float(rest.sum())
        joined = np.flatnonzero(rest >= 1 / scale)
        if not joined.size or joined.size + full.size >= total:  # no room is left, up to rounding
            return scale
        full = np.concatenate([full, joined])
