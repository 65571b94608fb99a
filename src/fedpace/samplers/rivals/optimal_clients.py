"""Optimal client sampling: all clients train, and those with the largest updates send them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpace.checks import FloatArray, positive_count
from fedpace.sampling.design import Draw, Everyone
from fedpace.training.backend import Reply
from fedpace.training.sampler import BaseSampler, SamplerContext

# Iterations of AOCS that redistribute probability above 1.
STEPS = 4


def optimal_inclusion(norms: FloatArray, m: int) -> FloatArray:
    """Return the probabilities of least variance with which m clients send [Chen22, Eq. 7].

    With u ascending and l the largest number with 0 < m + l − n ≤ Σ_{j ≤ l} u_j / u_l:
    π_i = (m + l − n) u_i / Σ_{j ≤ l} u_j for i ≤ l, and 1 for the others.

    >>> optimal_inclusion(np.array([1.0, 1.0, 1.0, 9.0]), 2)
    array([0.33333333, 0.33333333, 0.33333333, 1.        ])
    """
    n = norms.size
    if m >= n:
        return np.ones(n)
    order = np.argsort(norms, kind="stable")
    u = norms[order]
    sums = np.cumsum(u)
    places = m - n + np.arange(1, n + 1)
    # As products, since u_l may be 0.
    fits = np.flatnonzero((places > 0) & (places * u <= sums * (1 + 1e-12)))
    last = int(fits[-1])
    inclusion = np.ones(n)
    total = sums[last]
    part = places[last] * u[: last + 1] / total if total > 0 else places[last] / (last + 1)
    inclusion[order[: last + 1]] = np.minimum(part, 1.0)
    return inclusion


def approximate_inclusion(norms: FloatArray, m: int) -> FloatArray:
    """Approximate `optimal_inclusion` from sums, for secure aggregation [Chen22, Alg. 2].

    >>> approximate_inclusion(np.array([1.0, 1.0, 1.0, 9.0]), 2)
    array([0.33333333, 0.33333333, 0.33333333, 1.        ])
    """
    n, total = norms.size, float(norms.sum())
    if m >= n or total == 0:
        return np.full(n, min(m / n, 1.0))
    inclusion = np.minimum(1.0, m * norms / total)
    for _ in range(STEPS):
        free = inclusion < 1
        held = float(inclusion[free].sum())
        scale = (m - n + int(free.sum())) / held if held > 0 else 0.0
        if scale <= 1:
            break
        inclusion[free] = np.minimum(1.0, scale * inclusion[free])
    return inclusion


@dataclass(frozen=True)
class OptimalClients(BaseSampler):
    """Train all clients; client i sends its update with a probability by its norm [Chen22].

    u_i = p_i ‖Δ_i‖ gives π_i, K in sum; each client sends with probability π_i, independently,
    weighted by p_i / π_i: unbiased. Only uploads are saved: a round lasts as long as its slowest
    client, as with full participation.

    Source: TMLR 2022; the approximation (AOCS) as in SamuelHorvath/FL-optimal-client-sampling.
    Differs from it: a client's time is one number, so the time of an upload is never saved.

    Parameters
    ----------
    k : int ≥ 1
        Updates sent, on average.
    approximate : bool
        AOCS instead of OCS.
    """

    k: int
    approximate: bool = False

    def __post_init__(self) -> None:
        positive_count("k", self.k)

    def design(self, state: None, context: SamplerContext) -> Everyone:  # noqa: ARG002
        """Return full participation: all clients train."""
        return Everyone(context.weights)

    def choose(self, state: None, draw: Draw, reply: Reply, rng: np.random.Generator) -> Draw:  # noqa: ARG002
        """Return the clients that send."""
        weights = draw.weights[np.searchsorted(draw.clients, reply.clients)]
        norms = weights * np.linalg.norm(reply.updates, axis=1)
        norms[~np.isfinite(norms)] = 0.0
        rule = approximate_inclusion if self.approximate else optimal_inclusion
        inclusion = rule(norms, self.k)
        sends = rng.random(inclusion.size) < inclusion
        return Draw(reply.clients[sends], weights[sends] / inclusion[sends], draw.tier)
