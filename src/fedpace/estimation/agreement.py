"""What steps tell of the loss: how long the mean update is, and how fast it bends.

All updates are divided by their learning rate, so that they estimate −E ∇F_i along the way of
the local steps. What counts are inner products; they are taken between sketches, of a few hundred
numbers whatever the model's size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypedDict

import numpy as np

from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError
from fedpace.rounds.seen import Seen, latest_of_each, places_of, renewed

# Numbers in a sketch: inner products are off by about 1/√256 of the product of the lengths.
SKETCH = 256
# Of a larger model, this many parameters are looked at.
LOOKED_AT = 2**20
# Clients whose latest update is remembered; where there are more, the latest drawn.
REMEMBERED = 1024
# c in units of the least second moment: where nothing is measured yet, and its limits.
FIRST_LEAN, LEAST_LEAN, LARGEST_LEAN = 1.0, 0.1, 3.0
# So many pairs of updates weigh as much as what is believed before.
BELIEF = 10.0
# How much of what was measured counts in the next round.
KEPT_BEND, KEPT_LENGTH = 0.97, 0.8


class Agreement(TypedDict):
    """What is remembered of clients, the latest last, and what was measured.

    `updates` and `models` are sketches of a client's latest update and of the model that it
    began with. `bend` and `moved` are sums whose ratio is the curvature; `pairs` how many pairs
    of updates of one client they hold; `length` is ‖Σ p_i Δ_i‖².
    """

    clients: IntArray
    updates: FloatArray
    models: FloatArray
    bend: float
    moved: float
    pairs: float
    length: float


def no_agreement() -> Agreement:
    """Return the state before the first reply."""
    nothing = np.empty((0, SKETCH))
    nobody = np.empty(0, dtype=np.int64)
    return Agreement(
        clients=nobody, updates=nothing, models=nothing, bend=0.0, moved=0.0, pairs=0.0, length=0.0
    )


def compared(agreement: Agreement, seen: Seen) -> Agreement:
    """Compare each reply with the client's one before.

    Between two updates of one client, Δ_i at w and Δ'_i at w', ⟨Δ_i − Δ'_i, w' − w⟩ over
    ‖w' − w‖² is the curvature of F_i along the way, free of the differences between clients.
    The pairs are weighted as the updates are. Of two replies of a client in one step, both are
    compared with the one before, and the later is remembered.
    """
    draw = seen.draw
    with np.errstate(all="ignore"):
        updates = _sketches(list(seen.directions))
        models = _sketches(seen.models)
    fine = np.isfinite(updates).all(axis=1) & np.isfinite(models).all(axis=1)
    places = places_of(draw.clients, agreement["clients"])
    again = np.flatnonzero((places >= 0) & fine)
    way = models[again] - agreement["models"][places[again]]
    change = agreement["updates"][places[again]] - updates[again]
    weights = draw.weights[again]
    kept = np.ones(agreement["clients"].size, dtype=np.bool_)
    kept[places[places >= 0]] = False
    latest = slice(-REMEMBERED, None)
    new = np.flatnonzero(fine)
    new = new[latest_of_each(draw.clients[new])]
    return Agreement(
        clients=np.append(agreement["clients"][kept], draw.clients[new])[latest],
        updates=renewed(agreement["updates"], kept, updates[new])[latest],
        models=renewed(agreement["models"], kept, models[new])[latest],
        bend=KEPT_BEND * agreement["bend"] + float(weights @ np.vecdot(change, way)),
        moved=KEPT_BEND * agreement["moved"] + float(weights @ np.vecdot(way, way)),
        pairs=KEPT_BEND * agreement["pairs"] + again.size,
        length=agreement["length"],
    )


def with_length(agreement: Agreement, weights: FloatArray) -> Agreement:
    """Measure ‖Σ p_i Δ_i‖² anew from the latest update of each client, smoothed over rounds.

    `weights` are p_i of all clients. Those not yet seen count as the mean of the others.
    """
    weights = weights[agreement["clients"]]
    if not weights.size:
        return agreement
    mean = (weights / weights.sum()) @ agreement["updates"]
    now, before = float(mean @ mean), agreement["length"]
    length = KEPT_LENGTH * before + (1 - KEPT_LENGTH) * now if before else now
    return Agreement(**{**agreement, "length": length})


class Measured(NamedTuple):
    """c = ‖Δ̄‖² / (η λ), in units of the second moment of a step, and how many pairs tell it."""

    c: float
    pairs: float


def measured_ratio(agreement: Agreement, learning_rate: float) -> Measured:
    """Return what the next steps bear.

    A step u at rate η gains η ‖Δ̄‖² and loses η² λ E‖u‖²/2 to the curvature λ. So rounds of T
    seconds gain most per second, to first order, where T (E‖u‖² + 2 ‖Δ̄‖²/(η λ)) is least, and
    the constant is c of P3. Noise of one step is still there in the next ones, and has to be
    undone: we count it twice, which halves c. A curvature that is not positive bears anything.
    """
    if not agreement["moved"] > 0 or not agreement["length"] > 0:
        return Measured(np.nan, 0.0)
    curvature = agreement["bend"] / agreement["moved"]
    if not curvature > 0:
        return Measured(np.inf, agreement["pairs"])
    return Measured(agreement["length"] / (learning_rate * curvature), agreement["pairs"])


def check_lean(c: object) -> None:
    """Refuse a given c that is not a positive number."""
    if c is not None and not (isinstance(c, int | float) and 0 < c < math.inf):
        got = f"{c!r:.40}; leave it out to have it measured"
        raise InputError(f"c_over_s0 must be positive and finite, got {got}")


def leaning(
    c: float, pairs: float, unit: float, *, given: float | None = None
) -> tuple[float, str]:
    """Return c in units of `unit`, the least second moment, and why; `given` comes before."""
    if given is not None:
        return given, "as given"
    if math.isnan(c) or not pairs:
        return FIRST_LEAN, "nothing measured yet"
    trust = pairs / (pairs + BELIEF)
    lean = FIRST_LEAN * min(max(c / (unit * FIRST_LEAN), 1e-6), 1e6) ** trust
    told = f"measured on {pairs:.0f} pairs of updates"
    return min(max(lean, LEAST_LEAN), LARGEST_LEAN), told


def _sketches(vectors: Sequence[FloatArray]) -> FloatArray:
    """Return a sketch of each, a row each; one that is there several times is sketched once."""
    different = {id(each): each for each in vectors}
    sketches = {name: sketch_of(each.size)(each) for name, each in different.items()}
    return np.array([sketches[id(each)] for each in vectors]).reshape(-1, SKETCH)


@lru_cache(maxsize=4)
def sketch_of(size: int) -> Sketch:
    """Return the sketch for vectors of a given size, always the same."""
    return Sketch(size)


class Sketch:
    """Add up the entries of a vector in a few cells, with random signs.

    Inner products of sketches are those of the vectors on average.

    >>> sketch = Sketch(3)
    >>> float(sketch(np.array([3.0, 0.0, 4.0])) @ sketch(np.array([1.0, 1.0, 0.0])))
    3.0
    """

    def __init__(self, size: int) -> None:
        rng = np.random.default_rng(size)
        self._chosen: slice | IntArray = slice(None)
        scale = 1.0
        if size > LOOKED_AT:
            self._chosen = np.sort(rng.choice(size, LOOKED_AT, replace=False))
            scale = np.sqrt(size / LOOKED_AT)
        count = min(size, LOOKED_AT)
        few = count <= SKETCH
        self._cells = np.arange(count) if few else rng.integers(SKETCH, size=count)
        self._signs = np.full(count, scale) if few else scale * rng.choice([-1.0, 1.0], count)

    def __call__(self, vector: FloatArray) -> FloatArray:
        """Return the sketch."""
        signed = self._signs * vector[self._chosen]
        return np.asarray(np.bincount(self._cells, signed, SKETCH), dtype=np.float64)
