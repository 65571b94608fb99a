"""Differential privacy of clients: clipping, Gaussian noise, and the ε that results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedpace.checks import FloatArray, IntArray, number
from fedpace.errors import InputError, MissingExtraError, needs
from fedpace.training.history import Row

# Default δ, the probability with which ε may fail to hold.
DELTA = 1e-5


@dataclass(frozen=True)
class Privacy:
    """Norm clipping with Gaussian noise, by the client: Δ ← Δ min(1, C / ‖Δ‖) + N(0, (σ C)² I).

    Parameters
    ----------
    clip : float > 0
        C, the largest norm of an update before the noise.
    noise : float ≥ 0
        σ, the standard deviation of the noise on each number, over C. 0 means no noise, and ε = ∞.
    """

    clip: float
    noise: float

    def __post_init__(self) -> None:
        if not 0 < number("privacy.clip", self.clip, "give 1.0") < np.inf:
            raise InputError(f"privacy.clip must be positive, got {self.clip:g}; give 1.0")
        if not 0 <= number("privacy.noise", self.noise, "give 1.0") < np.inf:
            raise InputError(f"privacy.noise must be 0 or more, got {self.noise:g}; give 1.0")

    def release(self, update: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Return the update that the client sends; noise only if it is not finite.

        >>> Privacy(clip=1.0, noise=0.0).release(np.array([3.0, 4.0]), np.random.default_rng(0))
        array([0.6, 0.8])
        """
        with np.errstate(over="ignore", invalid="ignore"):
            length = float(np.linalg.norm(update))
            scale = min(1.0, self.clip / length) if length > 0 else 1.0
            short = update * scale if np.isfinite(length) else np.zeros_like(update)
        return short + rng.normal(0.0, self.noise * self.clip, update.size)

    def released_norm(self, released: FloatArray, *, steps: int, rate: float) -> float:
        """Return the gradient norm implied by a released update: ‖Δ‖ / (E η).

        It depends only on what the server receives anyway, so that it costs no privacy.
        """
        return float(np.linalg.norm(released)) / (steps * rate if rate > 0 else 1.0)


def times_asked(rows: Iterable[Row]) -> IntArray:
    """Return how often each client was asked; each time it may have sent an update."""
    asked = [each for row in rows for each in (row.clients, row.missing, row.left_out)]
    return np.bincount(np.concatenate([np.empty(0, np.int64), *asked]).astype(np.int64))


def epsilon(noise: float, times: int, delta: float = DELTA) -> float:
    """Return ε at δ of a client that sent `times` updates, by dp-accounting.

    Neighbouring datasets differ in any or all samples of a client, so that its update may change by
    2 C: this is the Gaussian mechanism with noise σ/2, composed `times` times. There is no
    amplification by sampling, as the server knows which clients it drew.

    >>> epsilon(0.0, 3), epsilon(8.0, 0)
    (inf, 0.0)
    """
    if times == 0:
        return 0.0
    if noise == 0:
        return float("inf")
    with needs("privacy accounting needs dp-accounting", "privacy"):
        from dp_accounting.dp_event import GaussianDpEvent, SelfComposedDpEvent
        from dp_accounting.pld import PLDAccountant
    accountant = PLDAccountant()
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(noise / 2), times))
    return float(accountant.get_epsilon(delta))


def describe_epsilon(
    noise: float, rows_of_runs: Iterable[Iterable[Row]], delta: float = DELTA
) -> str:
    """Describe ε of the client that was asked most often in one of these runs."""
    most = max((int(times_asked(rows).max(initial=0)) for rows in rows_of_runs), default=0)
    asked = f"the client asked most often in a run, {most:,} times, has"
    try:
        found = epsilon(noise, most, delta)
    except MissingExtraError as error:
        return f"{asked} no ε here: {error}"
    return f"{asked} ε = {found:.3g} at δ = {delta:g}, for any change of its samples"
