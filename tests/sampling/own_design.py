"""A design as a user may write it: no relation of ours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace import Draw, Profile
from fedpace.checks import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Halves:
    """Draw the even or the odd of those present, all of them, by the toss of a coin."""

    weights: FloatArray
    present: NDArray[np.bool_]

    @property
    def sides(self) -> list[IntArray]:
        there = np.flatnonzero(self.present)
        return [side for side in (there[::2], there[1::2]) if side.size]

    @property
    def shares(self) -> FloatArray:
        shares = np.where(self.present, self.weights, 0.0)
        shares /= shares.sum()
        return shares

    def draw(self, rng: np.random.Generator) -> Draw:
        sides = self.sides
        clients = sides[int(rng.integers(len(sides)))]
        return Draw(clients, len(sides) * self.shares[clients])

    def expected_round_time(self, times: ArrayLike) -> float:
        return float(np.mean([np.asarray(times)[side].max() for side in self.sides]))

    def variance_term(self, profile: Profile) -> float:
        return float(len(self.sides) * np.sum((self.shares * profile.grad_norms) ** 2))

    def among(self, present: NDArray[np.bool_]) -> Halves:
        return Halves(self.weights, self.present & present[: self.n])

    @property
    def n(self) -> int:
        return self.weights.size

    @property
    def largest_weight(self) -> float:
        return float(len(self.sides) * self.shares.max())


def halves(profile: Profile, k: int) -> Halves:
    """Return the design for a fleet; K is not used."""
    return Halves(profile.weights, np.ones(profile.n, np.bool_))
