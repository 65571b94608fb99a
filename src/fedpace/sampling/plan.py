"""Predict what each scheme costs, for one K or several."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedpace.checks import number, positive_count, short_repr
from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.sampling.design import BaseDesign, as_design
from fedpace.sampling.schemes import SCHEMES, scheme_named
from fedpace.sampling.solvers.solution import CAP_REMEDY


class Prediction(NamedTuple):
    """The predicted cost of one scheme with one K.

    `relative_time` is the predicted time to the target over that of uniform sampling with
    the reference K.
    """

    scheme: str
    k: int
    design: BaseDesign
    round_time: float
    variance_term: float
    largest_weight: float
    relative_time: float

    def numbers(self) -> dict[str, Any]:
        """Return every field except the design, by name."""
        return {name: value for name, value in self._asdict().items() if name != "design"}


def plan(
    profile: Profile,
    k: int,
    *,
    ks: Iterable[int] | None = None,
    schemes: Sequence[str] = tuple(SCHEMES),
    max_weight: float | None = None,
) -> Iterator[Prediction]:
    """Yield the predicted cost of every scheme for every K.

    The bound reaches ε after R = α (S(q) + β/α) / ε rounds, and α ∝ 1/K [Luo22, Thm. 1]. So
    for another K than the one at which c = β/α is known, c(K) = c · K/k, and the time is
    T (S + c(K)) / K up to a constant.

    Parameters
    ----------
    profile : Profile
        The clients; its `beta_over_alpha` is that of K = `k`.
    k : int ≥ 1
        The reference K.
    ks : integers ≥ 1, optional
        The values of K to compare; by default only `k`.
    schemes : names in SCHEMES
        Rows come in this order.
    max_weight : float, optional
        Cap on p_i / (K q_i), at least 1/k. A K below k gets no cap tighter than 1/K.

    Examples
    --------
    >>> fleet = Profile(weights=[0.5, 0.5], times=[1.0, 4.0], grad_norms=[1.0, 1.0])
    >>> for row in plan(fleet, k=2, schemes=["full", "uniform"]):
    ...     print(row.scheme, row.round_time, row.variance_term, round(row.relative_time, 3))
    full 4.0 0.0 0.615
    uniform 3.25 1.0 1.0
    """
    k = positive_count("k", k)
    ks = (k,) if ks is None else ks
    for argument, values in (("ks", ks), ("schemes", schemes)):
        if not np.iterable(values):
            raise InputError(
                f"{argument} must be a list, got {short_repr(values)}; put it in brackets"
            )
    if max_weight is not None:
        max_weight = number("max_weight", max_weight, CAP_REMEDY)
    reference = uniform_cost(profile, k)
    for each in ks:
        each = positive_count("k", each)
        at = _at(profile, k, each)
        cap = max(max_weight, 1 / each) if max_weight is not None and each < k else max_weight
        for name in schemes:
            design = as_design(scheme_named(name)(at, each, max_weight=cap))
            yield predict(at, name, design, each, reference=reference)


def best(rows: Sequence[Prediction]) -> Prediction:
    """Return the row with the least predicted time."""
    return min(rows, key=lambda row: row.relative_time)


def recommended(rows: Sequence[Prediction], k: int) -> Prediction | None:
    """Return the best row, or, if that is full participation, the best with the reference K.

    The bound assumes the worst case for the variance and so overstates the benefit of many clients
    per round; therefore `full` and K ≥ N are never recommended. If the reference K is not among
    the rows, the nearest K is used; None if nothing else was compared.
    """
    first = best(rows)
    if first.scheme != "full" and first.k < first.design.n:
        return first
    others = [row for row in rows if row.scheme != "full" and row.k < row.design.n]
    if not others:
        return None
    nearest = min((row.k for row in others), key=lambda each: abs(np.log(each / k)))
    return best([row for row in others if row.k == nearest])


def predict(
    profile: Profile, scheme: str, design: BaseDesign, k: int, *, reference: float
) -> Prediction:
    """Return the predicted cost of a design; the profile's c must be that of this K."""
    round_time = design.expected_round_time(profile.times)
    variance = design.variance_term(profile)
    return Prediction(
        scheme=scheme,
        k=k,
        design=design,
        round_time=round_time,
        variance_term=variance,
        largest_weight=design.largest_weight,
        relative_time=round_time * (variance + profile.beta_over_alpha) / k / reference,
    )


def uniform_cost(profile: Profile, k: int) -> float:
    """Return T (S + c) / K of uniform sampling, the reference of all comparisons."""
    return predict(
        profile, "uniform", SCHEMES["uniform"](profile, k), k, reference=1.0
    ).relative_time


def usual_ks(n: int, k: int) -> list[int]:
    """Return 1, 2, 5, 10, 20, … up to N, including N and the reference K.

    >>> usual_ks(40, k=4)
    [1, 2, 4, 5, 10, 20, 40]
    """
    steps = (digit * 10**power for power in range(len(str(n))) for digit in (1, 2, 5))
    return sorted({k, n, *(step for step in steps if step < n)})


def _at(profile: Profile, k: int, other: int) -> Profile:
    return Profile(
        profile.weights,
        profile.times,
        profile.grad_norms,
        profile.beta_over_alpha * other / k,
    )
