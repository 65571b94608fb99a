"""Curvature of the loss along the way, and the length of the mean update.

All updates are divided by their learning rate, so that they estimate −E ∇F_i along the local steps.
Only inner products are needed; they are computed from sketches of 256 numbers, whatever the size of
the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError
from fedpace.training.updates import RoundUpdates, latest_of_each, places_of, replace_rows

ONE = np.float64(1.0)
# Numbers in a sketch: inner products are off by about 1/√256 of the product of the lengths.
SKETCH = 256
# Sketches of larger models use this many parameters, in runs that a processor reads at once.
LARGE, SKETCHED, RUN = 2**20, 2**16, 16
# Clients whose latest update is remembered: the latest drawn.
REMEMBERED = 1024
# c in units of the least second moment: before any measurement, and its limits.
PRIOR_RATIO, RATIO_LIMITS = 1.0, (0.1, 3.0)
# Pairs of updates that weigh as much as the prior.
PRIOR_PAIRS = 10.0
# Forgetting factors per round.
KEPT_BEND, KEPT_LENGTH = 0.97, 0.8


class Curvature(TypedDict):
    """Sketches of the clients' latest updates, the latest last, and what was measured.

    `updates` and `models` are sketches of a client's latest update and of the model that it
    began with. `bend` and `moved` are sums over `pairs` pairs of updates, and their ratio is the
    curvature; `length` is ‖Σ p_i Δ_i‖².
    """

    clients: IntArray
    updates: FloatArray
    models: FloatArray
    bend: float
    moved: float
    pairs: float
    length: float


def empty_curvature() -> Curvature:
    """Return the state before the first reply."""
    none, rows = np.empty(0, dtype=np.int64), np.empty((0, SKETCH))
    return Curvature(
        clients=none, updates=rows, models=rows, bend=0.0, moved=0.0, pairs=0.0, length=0.0
    )


def compare_updates(curvature: Curvature, updates: RoundUpdates) -> Curvature:
    """Compare each reply with the client's previous one.

    For two updates of one client, Δ_i at w and Δ'_i at w', ⟨Δ_i − Δ'_i, w' − w⟩ / ‖w' − w‖² is the
    curvature of F_i along the way, free of the differences between clients. Pairs have the weights
    of the updates. If a client replies twice in one step, both replies are compared with the one
    before, and the later is remembered.
    """
    draw = updates.draw
    with np.errstate(all="ignore"):
        sketch = sketch_of(updates.parameters.size)
        parts = zip(updates.reply.updates[:, sketch.chosen], updates.scales, strict=True)
        found = [sketch.add_up(update, rate) for update, rate in parts]
        directions = np.array(found).reshape(-1, SKETCH)
        models = _sketch_each(updates.models)
    fine = np.isfinite(directions).all(axis=1) & np.isfinite(models).all(axis=1)
    places = places_of(draw.clients, curvature["clients"])
    again = np.flatnonzero((places >= 0) & fine)
    way = models[again] - curvature["models"][places[again]]
    change = curvature["updates"][places[again]] - directions[again]
    weights = draw.weights[again]
    kept = np.ones(curvature["clients"].size, dtype=np.bool_)
    kept[places[places >= 0]] = False
    latest = slice(-REMEMBERED, None)
    new = np.flatnonzero(fine)
    new = new[latest_of_each(draw.clients[new])]
    return Curvature(
        clients=np.append(curvature["clients"][kept], draw.clients[new])[latest],
        updates=replace_rows(curvature["updates"], kept, directions[new])[latest],
        models=replace_rows(curvature["models"], kept, models[new])[latest],
        bend=KEPT_BEND * curvature["bend"] + float(weights @ np.vecdot(change, way)),
        moved=KEPT_BEND * curvature["moved"] + float(weights @ np.vecdot(way, way)),
        pairs=KEPT_BEND * curvature["pairs"] + again.size,
        length=curvature["length"],
    )


def mean_direction(curvature: Curvature, weights: FloatArray) -> FloatArray:
    """Return the sketch of Σ p_i h_i over the remembered updates, as if they were of all."""
    share = weights[curvature["clients"]]
    if not share.size:
        return np.zeros(SKETCH)
    mean: FloatArray = (share / share.sum()) @ curvature["updates"]
    return mean


def update_length(curvature: Curvature, weights: FloatArray) -> Curvature:
    """Estimate ‖Σ p_i Δ_i‖² from the latest update of each client, smoothed over rounds.

    `weights` are p_i of all clients. Unseen clients count as the mean of the others.
    """
    weights = weights[curvature["clients"]]
    if not weights.size:
        return curvature
    mean = (weights / weights.sum()) @ curvature["updates"]
    now, before = float(mean @ mean), curvature["length"]
    length = KEPT_LENGTH * before + (1 - KEPT_LENGTH) * now if before else now
    return Curvature(**{**curvature, "length": length})


class MeasuredRatio(NamedTuple):
    """c = ‖Δ̄‖² / (η λ), in units of the second moment of a step, and the pairs behind it."""

    c: float
    pairs: float


def measured_ratio(state: Curvature, learning_rate: float) -> MeasuredRatio:
    """Return c of P3 for the next rounds, from the measured curvature λ.

    A step u at rate η gains η ‖Δ̄‖² and loses η² λ E‖u‖²/2. To first order, rounds of T seconds
    gain most per second where T (E‖u‖² + 2 ‖Δ̄‖²/(η λ)) is least, and the constant is c. The noise
    of one step remains in the next ones and must be undone: it counts twice, which halves c. With a
    curvature that is not positive, c is ∞.
    """
    if not state["moved"] > 0 or not state["length"] > 0:
        return MeasuredRatio(np.nan, 0.0)
    curvature = state["bend"] / state["moved"]
    if not curvature > 0:
        return MeasuredRatio(np.inf, state["pairs"])
    return MeasuredRatio(state["length"] / (learning_rate * curvature), state["pairs"])


def check_ratio(c: object) -> None:
    """Refuse a given c that is not a positive number."""
    if c is not None and not (isinstance(c, int | float) and 0 < c < math.inf):
        got = f"{c!r:.40}; leave it out to have it measured"
        raise InputError(f"c_over_s0 must be positive and finite, got {got}")


def shrink_ratio(
    c: float,
    pairs: float,
    unit: float,
    *,
    given: float | None = None,
    limits: tuple[float, float] = RATIO_LIMITS,
) -> tuple[float, str]:
    """Return c over `unit`, the least second moment, and the reason; `given` overrides it.

    With few pairs, c is shrunk towards 1.
    """
    if given is not None:
        return given, "as given"
    if math.isnan(c) or not pairs:
        return PRIOR_RATIO, "nothing measured yet"
    trust = pairs / (pairs + PRIOR_PAIRS)
    ratio = PRIOR_RATIO * min(max(c / (unit * PRIOR_RATIO), 1e-6), 1e6) ** trust
    least, most = limits
    return min(max(ratio, least), most), f"measured on {pairs:.0f} pairs of updates"


def _sketch_each(vectors: Sequence[FloatArray]) -> FloatArray:
    """Return one sketch per row; a vector that occurs several times is sketched once."""
    different = {id(each): each for each in vectors}
    sketches = {name: sketch_of(each.size)(each) for name, each in different.items()}
    return np.array([sketches[id(each)] for each in vectors]).reshape(-1, SKETCH)


@lru_cache(maxsize=4)
def sketch_of(size: int) -> Sketch:
    """Return the sketch for vectors of this size, always the same one."""
    return Sketch(size)


class Sketch:
    """Sum the entries of a vector in 256 cells, with random signs.

    The inner product of two sketches is that of the vectors on average.

    >>> sketch = Sketch(3)
    >>> float(sketch(np.array([3.0, 0.0, 4.0])) @ sketch(np.array([1.0, 1.0, 0.0])))
    3.0
    """

    def __init__(self, size: int) -> None:
        rng = np.random.default_rng(size)
        self.chosen: slice | IntArray = slice(None)
        scale = 1.0
        count = size
        if size > LARGE:  # a run at random from each of equal parts: no layer is left out
            edges = np.linspace(0, -(-size // RUN), SKETCHED // RUN + 1).astype(np.int64)
            runs = rng.integers(edges[:-1], edges[1:])
            chosen = (RUN * runs[:, None] + np.arange(RUN)).ravel()
            self.chosen = chosen[chosen < size]
            count = self.chosen.size
            scale = np.sqrt(size / count)
        few = count <= SKETCH
        self._cells = np.arange(count) if few else rng.integers(SKETCH, size=count)
        self._signs = np.full(count, scale) if few else scale * rng.choice([-1.0, 1.0], count)

    def __call__(self, vector: NDArray[np.floating[Any]]) -> FloatArray:
        """Return the sketch of a vector."""
        return self.add_up(vector[self.chosen])

    def add_up(self, chosen: NDArray[np.floating[Any]], scale: np.float64 = ONE) -> FloatArray:
        """Return the sketch of vector / scale from the entries that are `chosen`."""
        signed = self._signs * (chosen / scale)
        return np.asarray(np.bincount(self._cells, signed, SKETCH), dtype=np.float64)
