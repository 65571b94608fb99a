"""What a solver returns, and how far a point can be from the global optimum of P2."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from fedpace.checks import FloatArray, IntArray, number
from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.sampling.bound import sorted_round_time

Status: TypeAlias = Literal["converged", "iteration-limit"]

# Floors that leave less than this to distribute leave nothing: q = p.
NOTHING_LEFT = 1e-12
CAP_REMEDY = "give the largest weight that one draw may have, or leave it out"


@dataclass(frozen=True, eq=False)
class Solution:
    """Hold the probabilities that minimise a predicted time, and how sure that is.

    Attributes
    ----------
    q : array of N
        Probabilities: positive, sum to 1, and with `max_weight` at least p_i / (K w_max).
    objective : float
        Predicted time T (S + c), in seconds times the unit of S; its ratios matter.
    status : "converged" or "iteration-limit"
        With "iteration-limit" q is valid and the best found, but `residual` is not small.
    iterations : int
        Evaluations of the scalar equation (mean time), or majorise–minimise steps (max time).
    residual : float
        Σ_i q_i |∂ log J/∂q_i − λ|: changing every probability by up to a factor 1 ± δ
        lowers the objective by no more than the fraction residual · δ, to first order.
    gap : float
        The objective is proven to be at most (1 + gap) times the global minimum.
    """

    q: FloatArray
    objective: float
    status: Status
    iterations: int
    residual: float
    gap: float


def weight_floors(profile: Profile, k: int, max_weight: float | None) -> FloatArray | None:
    """Return the least probabilities p_i / (K w_max) that keep p_i / (K q_i) ≤ w_max."""
    if max_weight is None:
        return None
    check_cap("max_weight", max_weight, k)
    return profile.weights / (k * max_weight)


def check_cap(name: str, max_weight: float, k: int) -> None:
    """Refuse a cap that is no number, or below 1/K, which no probabilities can keep."""
    max_weight = number(name, max_weight, CAP_REMEDY)
    if not max_weight >= (1 - NOTHING_LEFT) / k:
        raise InputError(
            f"{name} must be at least 1/k = {1 / k:g}, got {max_weight:g}; "
            "the weights of K clients sum to 1 on average"
        )


def residual(
    q: FloatArray,
    importance: FloatArray,
    relative_times: FloatArray,
    c: float,
    floors: FloatArray | None,
    most: FloatArray | None = None,
) -> float:
    """Return the first-order optimality residual of A (S + c), A = Σ q_i times_i.

    A client at its floor counts only as far as it would rather have more, and one at its `most`
    as far as it would rather have less.
    """
    ratio = importance / q
    spread = float(ratio @ importance) + c
    ratio *= ratio
    ratio /= -spread
    ratio += relative_times / float(q @ relative_times)
    if floors is None:
        ratio -= float(q @ ratio)
        return float(q @ np.abs(ratio, out=ratio))
    low = q <= floors * (1 + NOTHING_LEFT)
    high = np.zeros_like(low) if most is None else q >= most * (1 - NOTHING_LEFT)
    free = ~(low | high)
    if not free.any():
        return 0.0
    ratio -= float(q[free] @ ratio[free]) / float(q[free].sum())
    blocked = (low & (ratio > 0)) | (high & (ratio < 0))
    ratio[blocked] = 0
    return float(q @ np.abs(ratio, out=ratio))


# Clients merge while their times differ by less than this fraction of the round time.
FINEST_MERGE = 0.01
# More groups than this make the programme slow; the merge is widened until there are fewer.
MOST_GROUPS = 96
# Cells of the grid between two groups' cumulative probabilities at the point to certify.
CELLS_PER_GROUP = 40
# Evaluations of h, and the relative tightness of the chord bound that ends them.
MOST_EVALUATIONS = 24
CHORD_TIGHTNESS = 2e-3


def certify(
    importance: FloatArray,
    times: FloatArray,
    c: float,
    k: int,
    floors: FloatArray | None,
    q: FloatArray,
    objective: float,
) -> tuple[float, list[FloatArray]]:
    """Return a lower bound on T (S + c) over the simplex, and points worth descending from.

    Parameters
    ----------
    importance : array of N, > 0, sums to 1
        a_i, sorted by time; so are the other arrays.
    times, c, k, floors
        t_i, c in units of (Σ a)², K, and the least probabilities, if any.
    q, objective
        The best point known: the grid is finest around it.
    """
    member = _merge(times, sorted_round_time(q, times, k))
    chain = _chain(importance, times, k, floors, q, member)
    if chain.importance.size == 1:
        return float(times[0]) * (1 + c), [importance]
    paths: list[FloatArray] = []

    def h(y: float) -> float:
        value, share = _shortest_path(chain, y)
        split = share[member] * (importance / chain.importance[member])
        paths.append(split / split.sum())
        return value + y * c

    return _least_over_y(h, float(times[0]) ** 2 / objective, objective / (1 + c) ** 2), paths


class _Chain(NamedTuple):
    """Merged clients, and the grid of cumulative probabilities with the K-th powers."""

    importance: FloatArray
    gaps: FloatArray
    last: float
    floors: FloatArray
    grid: FloatArray
    below: FloatArray
    power: FloatArray


def _merge(times: FloatArray, round_time: float) -> IntArray:
    """Give a number to each group of clients with neighbouring times."""
    width = FINEST_MERGE
    while True:
        # log(1 + t/T) is linear in t below T and logarithmic above: absolute, then relative.
        scale = np.log1p(times / round_time)
        _, member = np.unique(np.floor(scale / width), return_inverse=True)
        if member[-1] < MOST_GROUPS:
            return member
        width *= 1.25


def _chain(
    importance: FloatArray,
    times: FloatArray,
    k: int,
    floors: FloatArray | None,
    q: FloatArray,
    member: IntArray,
) -> _Chain:
    first = np.flatnonzero(np.diff(member, prepend=-1))
    least_times = times[first]
    cdf = np.minimum(np.cumsum(np.add.reduceat(q, first)), 1.0)
    grid = _grid(cdf, k)
    return _Chain(
        importance=np.add.reduceat(importance, first),
        gaps=np.diff(least_times),
        last=float(least_times[-1]),
        floors=np.zeros(first.size) if floors is None else np.add.reduceat(floors, first),
        grid=grid,
        below=np.concatenate([[0.0], grid[:-1]]),
        power=np.exp(k * np.log(grid)),
    )


def _grid(cdf: FloatArray, k: int) -> FloatArray:
    """Return ascending values in (0, 1], the last of them 1.

    Fine where the path to certify runs, and geometric towards both ends: C^K varies on the
    scale 1/K below 1, and fast clients may share very little.
    """
    knots = np.concatenate([[0.0], cdf[:-1], [1.0]])
    steps = np.arange(1, CELLS_PER_GROUP + 1) / CELLS_PER_GROUP
    along_path = knots[:-1, None] + np.diff(knots)[:, None] * steps
    ends = np.geomspace(1e-4 / k, 1, 800)
    grid = np.unique(np.concatenate([along_path.ravel(), 1 - ends[:-1], ends, [1.0]]))
    grid = grid[(grid > 0) & (grid <= 1)]
    distinct: FloatArray = grid[np.append(np.diff(grid) > 1e-13, True)]
    return distinct


def _shortest_path(chain: _Chain, y: float) -> tuple[float, FloatArray]:
    """Return a lower bound on min T + y S, and the groups' shares along the path."""
    costs = y * chain.importance**2
    value = _where_allowed(costs[0], chain.grid, chain.floors[0])
    value -= chain.gaps[0] * chain.power
    origins: list[IntArray] = []
    for cost, floor, gap in zip(costs[1:-1], chain.floors[1:-1], chain.gaps[1:], strict=True):
        value, origin = _step(value, chain, cost, floor)
        value -= gap * chain.power
        origins.append(origin)
    value += _where_allowed(costs[-1], 1 - chain.below, chain.floors[-1])
    at = int(np.argmin(value))
    bound = chain.last + float(value[at])
    path = [at]
    for origin in reversed(origins):
        path.append(int(origin[path[-1]]))
    cdf = np.concatenate([[0.0], chain.grid[path[::-1]], [1.0]])
    # A step within one cell has no width on the grid; give it a sliver of its cell.
    shares = np.maximum(np.diff(cdf), 1e-9)
    return bound, shares / shares.sum()


def _where_allowed(cost: float, width: FloatArray, floor: float) -> FloatArray:
    return np.where(width >= floor * (1 - 1e-12), cost / width, np.inf)


def _step(
    value: FloatArray, chain: _Chain, cost: float, floor: float
) -> tuple[FloatArray, IntArray]:
    """Return min_{j' ≤ j} value[j'] + cost / (grid[j] − below[j']) for every j, and j'.

    cost/width is convex in the width, so the best j' does not fall as j rises (Monge): rows
    at every other position search only between the answers of their neighbours. All rows of
    one level are searched at once; a level costs O(grid).
    """
    size = value.size
    result = np.empty(size)
    origin = np.empty(size, dtype=np.int64)
    stride = 1 << (size - 1).bit_length()
    while stride:
        rows = np.arange(stride - 1, size, 2 * stride)
        left, right = rows - stride, rows + stride
        low = np.where(left >= 0, origin[np.maximum(left, 0)], 0)
        high = np.where(right < size, origin[np.minimum(right, size - 1)], size - 1)
        high = np.minimum(high, rows)
        low = np.minimum(low, high)
        length = high - low + 1
        start = np.cumsum(length) - length
        candidate = np.arange(int(length.sum())) - np.repeat(start - low, length)
        width = np.repeat(chain.grid[rows], length) - chain.below[candidate]
        total = value[candidate] + _where_allowed(cost, width, floor)
        if rows.size:
            least = np.minimum.reduceat(total, start)
            hits = np.flatnonzero(total == np.repeat(least, length))
            result[rows] = least
            origin[rows] = candidate[hits[np.searchsorted(hits, start)]]
        stride >>= 1
    return result, origin


def _least_over_y(h: Callable[[float], float], low: float, high: float) -> float:
    """Return a lower bound on h(y)² / (4 y) over [low, high], for a concave h.

    The chord below h is α + β y, and (α + β y)² / (4 y) is least at y = α/β: evaluate h
    there, where the bound is lowest, until chords and values agree.
    """
    values = {y: h(y) for y in (low, max(high, low * (1 + 1e-9)))}
    while True:
        points = sorted(values)
        pairs = itertools.pairwise(points)
        bound, y, gap = min(_chord_bound(a, values[a], b, values[b]) for a, b in pairs)
        reached = min(value**2 / (4 * point) for point, value in values.items())
        if bound >= reached * (1 - CHORD_TIGHTNESS) or len(values) == MOST_EVALUATIONS or not gap:
            return bound
        values[y] = h(y)


def _chord_bound(a: float, at_a: float, b: float, at_b: float) -> tuple[float, float, bool]:
    """Return the least of the chord bound on [a, b], where to look next, and whether to."""
    if not b > a * (1 + 1e-9):
        return min(at_a**2 / (4 * a), at_b**2 / (4 * b)), a, False
    slope = (at_b - at_a) / (b - a)
    level = at_a - slope * a
    y = min(max(level / slope, a), b) if slope > 0 else b
    bound = (level + slope * y) ** 2 / (4 * y)
    # Points that fall on an end would repeat an evaluation; the middle of the logs is new.
    inside = a * (b / a) ** 0.1 < y < b / (b / a) ** 0.1
    return bound, y if inside else float(np.sqrt(a * b)), True
