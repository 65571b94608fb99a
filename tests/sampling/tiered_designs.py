"""Tiered designs to test with, and all their draws by another way than theirs."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from fedpace import Tiered
from fedpace.checks import FloatArray

# Inclusion probabilities are multiples of 1/GRID, so the draw changes at multiples of it only.
GRID = 64


class Case(NamedTuple):
    """One draw that can come: its probability, its tier, and the weights of all clients in it."""

    chance: float
    tier: int
    weights: FloatArray


@st.composite
def designs(draw: st.DrawFn, most: int = 8) -> Tiered:
    """Draw partitions, chances and inclusion probabilities of which some are 1."""
    n = draw(st.integers(1, most))
    count = draw(st.integers(1, n))
    tiers = np.array(
        draw(st.permutations([*range(count), *range(count)][:n] + [0] * (n - 2 * count)))
    )
    parts = st.integers(1, GRID) | st.just(GRID)
    inclusion = np.array(draw(st.lists(parts, min_size=n, max_size=n)))
    for g in range(count):
        members = np.flatnonzero(tiers == g)
        if inclusion[members].sum() < GRID:
            inclusion[members[0]] = GRID
    sizes = st.floats(0.01, 1.0)
    chances = np.array(draw(st.lists(sizes, min_size=count, max_size=count)))
    weights = np.array(draw(st.lists(sizes, min_size=n, max_size=n)))
    return Tiered(tiers, chances / chances.sum(), inclusion / GRID, weights / weights.sum())


def all_cases(design: Tiered) -> list[Case]:
    """Return the draw for each of GRID equally likely u, in each tier, from the definition."""
    return [
        Case(chance / GRID, tier, _weights(design, tier, (step + 0.5) / GRID))
        for tier, chance in enumerate(design.chances.tolist())
        for step in range(GRID)
    ]


def _weights(design: Tiered, tier: int, u: float) -> FloatArray:
    weights = np.zeros(design.n)
    begin = 0.0
    for i in np.flatnonzero(design.tiers == tier).tolist():
        end = begin + float(design.inclusion[i])
        if math.ceil(begin - u) < math.ceil(end - u):  # an integer j with begin ≤ u + j < end
            weights[i] = design.weights[i] / (design.chances[tier] * design.inclusion[i])
        begin = end
    return weights
