"""The fleets that every benchmark uses, in units where the least variance term S_0 is 1."""

from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from fedpace.checks import FloatArray

Times: TypeAlias = Literal["exponential", "log-normal"]
TIMES: tuple[Times, ...] = get_args(Times)


class Fleet(NamedTuple):
    """What the solvers take: p_i, t_i and G_i with Σ p_i G_i = 1, so that c is in units of S_0."""

    weights: FloatArray
    times: FloatArray
    grad_norms: FloatArray

    @property
    def importance(self) -> FloatArray:
        """a_i = p_i G_i."""
        return self.weights * self.grad_norms


def heavy_fleet(n: int, seed: int) -> Fleet:
    """Draw p ~ Pareto(1.2) + 0.01, which a few clients dominate, G ~ lognormal(0, ½), t ~ Exp(1).

    G is not divided by Σ p G: c is not in units of S_0 but as it is given.
    """
    rng = np.random.default_rng(seed)
    weights = rng.pareto(1.2, n) + 0.01
    grad_norms = rng.lognormal(0, 0.5, n)
    return Fleet(weights / weights.sum(), rng.exponential(size=n) + 1e-4, grad_norms)


def make_fleet(n: int, kind: Times, seed: int) -> Fleet:
    """Draw t ~ Exp(1) or log-normal, p from a power law with exponent 2.5, and log-normal G."""
    rng = np.random.default_rng(seed)
    times = rng.exponential(size=n) if kind == "exponential" else rng.lognormal(size=n)
    weights = 1 + rng.pareto(1.5, size=n)
    weights /= weights.sum()
    grad_norms = rng.lognormal(size=n)
    grad_norms /= weights @ grad_norms
    return Fleet(weights, times, grad_norms)
