"""Schemes: functions from a profile to a design."""

from typing import Any, Protocol

import numpy as np

from fedpace.adapt import optional
from fedpace.checks import FloatArray, positive_count
from fedpace.errors import InputError, Named
from fedpace.lookup import find
from fedpace.profile import Profile
from fedpace.sampling.design import BaseDesign, Design, Everyone, WithReplacement
from fedpace.sampling.independent import Independent
from fedpace.sampling.solvers.independent import solve_independent
from fedpace.sampling.solvers.max_time import solve_max_time
from fedpace.sampling.solvers.mean_time import solve_mean_time
from fedpace.sampling.solvers.tiers import solve_tiers
from fedpace.sampling.tiers import Tiered


class Scheme(Protocol):
    """A function from what is known about the clients to a design."""

    def __call__(self, profile: Profile, k: int, *, max_weight: float | None = None) -> Design:
        """Return the design for K = `k` draws a round.

        `max_weight` caps p_i / (K q_i); schemes without free parameters ignore it.
        """


class BuiltInScheme(Scheme, Protocol):
    """A scheme of fedpace, whose designs subclass `BaseDesign`."""

    def __call__(self, profile: Profile, k: int, *, max_weight: float | None = None) -> BaseDesign:
        """Return the design for K = `k` draws a round."""


def full(profile: Profile, k: int, *, max_weight: float | None = None) -> BaseDesign:
    """Full participation; `k` is not used."""
    return Everyone(profile.weights)


def uniform(profile: Profile, k: int, *, max_weight: float | None = None) -> BaseDesign:
    """q_i = 1/N."""
    return WithReplacement(np.full(profile.n, 1 / profile.n), k, profile.weights)


def weighted(profile: Profile, k: int, *, max_weight: float | None = None) -> BaseDesign:
    """q_i = p_i: every draw weighs 1/K."""
    return WithReplacement(profile.weights, k, profile.weights)


def statistical(profile: Profile, k: int, *, max_weight: float | None = None) -> BaseDesign:
    """q_i ∝ p_i G_i: the fewest rounds, regardless of their duration [Luo22, Cor. 1]."""
    return _mean_time_design(profile, np.ones(profile.n), k, max_weight)  # equal times


def optimal_mean(profile: Profile, k: int, *, max_weight: float | None = None) -> BaseDesign:
    """Least predicted time with the mean-time surrogate: the paper's scheme [Luo22, P3]."""
    return _mean_time_design(profile, profile.times, k, max_weight)


def _mean_time_design(
    profile: Profile, times: FloatArray, k: int, max_weight: float | None
) -> BaseDesign:
    fleet = (profile.weights, times, profile.grad_norms, profile.beta_over_alpha)
    solution = solve_mean_time(*fleet, max_weight=max_weight, k=positive_count("k", k))
    return WithReplacement(solution.q, k, profile.weights, solution=solution)


def optimal_max(profile: Profile, k: int, *, max_weight: float | None = None) -> BaseDesign:
    """Least predicted time with the exact expected round time [Luo22, P2]."""
    fleet = (profile.weights, profile.times, profile.grad_norms, profile.beta_over_alpha)
    solution = solve_max_time(*fleet, k, max_weight=max_weight)
    return WithReplacement(solution.q, k, profile.weights, solution=solution)


def optimal_tiers(profile: Profile, k: int, *, max_weight: float | None = None) -> BaseDesign:
    """Least predicted time with rounds of clients of similar speed: see `solve_tiers`."""
    fleet = (profile.weights, profile.times, profile.grad_norms, profile.beta_over_alpha)
    solution = solve_tiers(*fleet, k, max_weight=max_weight)
    parts = (solution.tiers, solution.chances, solution.inclusion)
    return Tiered(*parts, profile.weights, k=k, solution=solution)


def optimal_independent(profile: Profile, k: int, *, max_weight: float | None = None) -> BaseDesign:
    """Least predicted time if each client takes part by itself: see `solve_independent`."""
    fleet = (profile.weights, profile.times, profile.grad_norms, profile.beta_over_alpha)
    solution = solve_independent(*fleet, k, max_weight=max_weight)
    return Independent(solution.inclusion, profile.weights, k=k, solution=solution)


# Entry-point group for schemes and samplers of other packages.
GROUP = "fedpace.schemes"
SCHEMES: dict[str, BuiltInScheme] = Named("scheme", {
    "full": full,
    "uniform": uniform,
    "weighted": weighted,
    "statistical": statistical,
    "optimal-mean": optimal_mean,
    "optimal-max": optimal_max,
    "optimal-tiers": optimal_tiers,
    "optimal-independent": optimal_independent,
})  # fmt: skip


def needs_counts_only(scheme: Scheme) -> bool:
    """Return whether a scheme uses sample counts only: no gradient norms, no times.

    Set `my_scheme.needs_counts_only = True` for a scheme of your own. Otherwise fedpace assumes
    that it needs everything, and estimates that in the first rounds.
    """
    return scheme in (full, uniform, weighted) or optional(scheme, "needs_counts_only", False)


def scheme_named(name: object, *, argument: str = "scheme") -> Scheme:
    """Return the scheme with that name; see `fedpace.lookup.found` for names of your own.

    >>> scheme_named("uniform") is SCHEMES["uniform"]
    True
    """
    value: Any = find(name, SCHEMES, argument=argument, group=GROUP)
    if is_scheme(value):
        return value  # type: ignore[no-any-return]
    raise InputError(
        f"{argument} must be a function from a profile to a design, got '{name}', a "
        f"{type(value).__name__}; use a sampler with fedpace run"
    )


def is_scheme(value: object) -> bool:
    """Return whether a value is a scheme, not a sampler or a class of samplers."""
    return callable(value) and not isinstance(value, type) and optional(value, "observe") is None
