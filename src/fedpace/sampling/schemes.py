"""Profile → Design: the schemes that are compared."""

from typing import Any, Protocol

import numpy as np

from fedpace.checks import FloatArray, positive_count
from fedpace.errors import InputError, Named
from fedpace.lookup import found
from fedpace.profile import Profile
from fedpace.sampling.design import Design, Everyone, WithReplacement
from fedpace.sampling.max_time import solve_max_time
from fedpace.sampling.mean_time import solve_mean_time
from fedpace.sampling.tiered import Tiered
from fedpace.sampling.tiers import solve_tiers


class Scheme(Protocol):
    """A function from what is known of the fleet to a way to draw."""

    def __call__(self, profile: Profile, k: int, *, max_weight: float | None = None) -> Design:
        """Return the design for K = `k` draws a round.

        `max_weight` caps p_i / (K q_i); schemes with nothing to choose take no notice.
        """


def full(profile: Profile, k: int, *, max_weight: float | None = None) -> Design:
    """Everyone takes part in every round; `k` is not used."""
    return Everyone(profile.weights)


def uniform(profile: Profile, k: int, *, max_weight: float | None = None) -> Design:
    """q_i = 1/N."""
    return WithReplacement(np.full(profile.n, 1 / profile.n), k, profile.weights)


def weighted(profile: Profile, k: int, *, max_weight: float | None = None) -> Design:
    """q_i = p_i: every draw weighs 1/K."""
    return WithReplacement(profile.weights, k, profile.weights)


def statistical(profile: Profile, k: int, *, max_weight: float | None = None) -> Design:
    """q_i ∝ p_i G_i: the fewest rounds, whatever they last [Luo22, Cor. 1]."""
    return _mean_time_design(profile, np.ones(profile.n), k, max_weight)  # equal times


def optimal_mean(profile: Profile, k: int, *, max_weight: float | None = None) -> Design:
    """Least predicted time with the mean-time surrogate: the paper's scheme [Luo22, P3]."""
    return _mean_time_design(profile, profile.times, k, max_weight)


def _mean_time_design(
    profile: Profile, times: FloatArray, k: int, max_weight: float | None
) -> Design:
    fleet = (profile.weights, times, profile.grad_norms, profile.beta_over_alpha)
    solution = solve_mean_time(*fleet, max_weight=max_weight, k=positive_count("k", k))
    return WithReplacement(solution.q, k, profile.weights, solution=solution)


def optimal_max(profile: Profile, k: int, *, max_weight: float | None = None) -> Design:
    """Least predicted time with the exact expected round time [Luo22, P2]."""
    fleet = (profile.weights, profile.times, profile.grad_norms, profile.beta_over_alpha)
    solution = solve_max_time(*fleet, k, max_weight=max_weight)
    return WithReplacement(solution.q, k, profile.weights, solution=solution)


def optimal_tiers(profile: Profile, k: int, *, max_weight: float | None = None) -> Design:
    """Least predicted time of rounds whose clients are of like speed: see `solve_tiers`."""
    fleet = (profile.weights, profile.times, profile.grad_norms, profile.beta_over_alpha)
    found = solve_tiers(*fleet, k, max_weight=max_weight)
    parts = (found.tiers, found.chances, found.inclusion)
    return Tiered(*parts, profile.weights, k=k, solution=found)


# Packages name their schemes and samplers in this group of entry points.
GROUP = "fedpace.schemes"
SCHEMES: dict[str, Scheme] = Named("scheme", {
    "full": full,
    "uniform": uniform,
    "weighted": weighted,
    "statistical": statistical,
    "optimal-mean": optimal_mean,
    "optimal-max": optimal_max,
    "optimal-tiers": optimal_tiers,
})  # fmt: skip


def needs_counts_only(scheme: Scheme) -> bool:
    """Tell whether a scheme looks at sample counts alone: no gradient norms, no times.

    A scheme of your own says so with `my_scheme.needs_counts_only = True`; else it is taken to
    need all, and its first rounds are for learning.
    """
    return scheme in (full, uniform, weighted) or getattr(scheme, "needs_counts_only", False)


def scheme_named(name: object, *, argument: str = "scheme") -> Scheme:
    """Return the scheme of that name: see `fedpace.lookup.found` for names of your own.

    >>> scheme_named("uniform") is SCHEMES["uniform"]
    True
    """
    value: Any = found(name, SCHEMES, argument=argument, group=GROUP)
    if is_scheme(value):
        return value  # type: ignore[no-any-return]
    raise InputError(
        f"{argument} must be a function from a profile to a design, got '{name}', a "
        f"{type(value).__name__}; a sampler needs a run: see fedpace run"
    )


def is_scheme(value: object) -> bool:
    """Tell a scheme from a sampler, a class of samplers, and what is neither."""
    return callable(value) and not isinstance(value, type) and not hasattr(value, "observe")
