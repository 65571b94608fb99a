"""Predict what each scheme costs, for one K or several."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations_with_replacement, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedpace.checks import (
    FloatArray,
    IntArray,
    number,
    one_per_client,
    positive_column,
    positive_count,
    short_repr,
)
from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.sampling.design import BaseDesign, Everyone, WithReplacement, as_design
from fedpace.sampling.dispatch import BaseDispatch, turns_of
from fedpace.sampling.independent import Independent
from fedpace.sampling.schemes import SCHEMES, scheme_named
from fedpace.sampling.solvers.solution import CAP_REMEDY
from fedpace.sampling.tiers import Tiered
from fedpace.times.links import OPTIMAL, SharedLink, fair_end, optimal_end, queue_time

# Up to this many different draws are listed one by one; otherwise this many are drawn.
MOST_CASES, DRAWS = 2000, 400
# Shares and what a transfer costs on a shared link depend on each other; more steps change nothing.
LINK_STEPS = 4
# Where the link is full, computing costs nothing: of a second of it, at least this part.
LEAST_SLOPE = 1e-9


class Prediction(NamedTuple):
    """The predicted cost of one scheme with one K.

    `relative_time` is the predicted time to the target over that of uniform sampling with
    the reference K. In asynchronous training `k` is C.
    """

    scheme: str
    k: int
    design: BaseDesign | BaseDispatch
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
    link: SharedLink | None = None,
    megabits: ArrayLike = 1.0,
    asynchronous: bool = False,
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
    link, megabits : SharedLink, float or array of N, optional
        A link that the clients of a round share, and what each moves on it. The profile's times
        are then those of computing. Schemes solve with the times of K clients in transfer, and
        the expected round is that of `link_round_time`.
    asynchronous : bool
        Whether `ks` are values of C, clients always at work: see `predict_turns`. The reference is
        still uniform sampling in rounds of `k`.

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
    shared = None if link is None else (link, np.broadcast_to(megabits, profile.n))
    reference = uniform_cost(profile, k, shared)
    for each in ks:
        each = positive_count("k", each)
        if asynchronous:
            for name in schemes:
                found = predict_turns(
                    profile, name, each, k=k, max_weight=max_weight, shared=shared
                )
                yield found._replace(relative_time=found.relative_time / reference)
            continue
        at = _at(profile, k, each)
        fleet = at if shared is None else _in_transfer(at, each, *shared)
        cap = max(max_weight, 1 / each) if max_weight is not None and each < k else max_weight
        for name in schemes:
            design = as_design(scheme_named(name)(fleet, each, max_weight=cap))
            yield predict(at, name, design, each, reference=reference, shared=shared)


def best(rows: Sequence[Prediction]) -> Prediction:
    """Return the row with the least predicted time."""
    return min(rows, key=lambda row: row.relative_time)


def recommend(rows: Sequence[Prediction], k: int) -> Prediction | None:
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
    profile: Profile,
    scheme: str,
    design: BaseDesign,
    k: int,
    *,
    reference: float,
    shared: tuple[SharedLink, FloatArray] | None = None,
) -> Prediction:
    """Return the predicted cost of a design; the profile's c must be that of this K."""
    round_time = design.expected_round_time(profile.times)
    if shared is not None:
        round_time = link_round_time(design, shared[0], profile.times, shared[1]).mean
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


def uniform_cost(
    profile: Profile, k: int, shared: tuple[SharedLink, FloatArray] | None = None
) -> float:
    """Return T (S + c) / K of uniform sampling, the reference of all comparisons."""
    design = SCHEMES["uniform"](profile, k)
    return predict(profile, "uniform", design, k, reference=1.0, shared=shared).relative_time


def predict_turns(
    profile: Profile,
    scheme: str,
    at_once: int,
    *,
    k: int,
    max_weight: float | None = None,
    shared: tuple[SharedLink, FloatArray] | None = None,
) -> Prediction:
    """Return the predicted cost of asynchronous training with C = `at_once` clients at work.

    A completion takes M/C seconds, M = Σ f_i t_i, and the model has moved by C − 1 steps since it
    began. So time is M/C (S(f) + (2C − 1) s), with s = c/K as in rounds of K = `k`; docs/method.md
    has the reason. On a shared link M/C is that of `queue_time`, and shares are found with times
    in which a transfer counts as much as it costs there. `round_time` is that of C completions.
    """
    at_once = positive_count("at_once", at_once, "a client does one task at a time", profile.n)
    delayed = (2 * at_once - 1) * profile.beta_over_alpha / k
    times, steps = profile.times, 1
    transfer = np.zeros(profile.n)
    if shared is not None:
        link, megabits = shared
        if link.rule == OPTIMAL:
            raise InputError(
                f"link must be fair in asynchronous training, got {link.rule}; write shared:20"
            )
        transfer, steps = megabits / link.capacity, LINK_STEPS
    stretch = 1.0
    for _ in range(steps):
        seen = Profile(profile.weights, times + stretch * transfer, profile.grad_norms, delayed)
        cap = None if max_weight is None else max(at_once * max_weight, 1.0)
        design = turns_of(scheme, seen, at_once, max_weight=cap)
        computing, moving = float(design.q @ times), float(design.q @ transfer)
        seconds, slope = queue_time(computing, moving, at_once)
        if moving:
            stretch = (seconds - slope * computing) / (max(slope, LEAST_SLOPE) * moving)
    variance = design.variance_term(profile)
    return Prediction(
        scheme=scheme,
        k=at_once,
        design=design,
        round_time=at_once * seconds,
        variance_term=variance,
        largest_weight=design.largest_weight,
        relative_time=seconds * (variance + delayed),
    )


class LinkTime(NamedTuple):
    """The expected round time on a shared link, its standard error, and bounds on it.

    The `error` is 0 where all draws were listed. `mean_client` is the approximation of [Luo24],
    Σ q_i c_i + E[M]/B, in which M counts a client that was drawn twice once.
    """

    mean: float
    error: float
    low: float
    high: float
    mean_client: float


def link_round_time(
    design: BaseDesign,
    link: SharedLink,
    computing: ArrayLike,
    megabits: ArrayLike,
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> LinkTime:
    """Return the expected time of a round whose clients compute, then share a link.

    The mean is exact, by listing all draws, if there are few: of a small fleet, or of tiers.
    Otherwise it is that of `draws` draws. With M the megabits of a round,

        max(E[max (c_i + m_i/B)], min c + E[M]/B) ≤ E[T] ≤ E[max c] + E[M]/B.

    Parameters
    ----------
    design : Design
        Who is drawn.
    link : SharedLink
        B, and how it is shared.
    computing, megabits : arrays of N
        c_i in seconds, > 0, and m_i, > 0.
    draws, seed : int
        For more draws than can be listed.

    Examples
    --------
    >>> from fedpace import WithReplacement
    >>> half = WithReplacement([0.5, 0.5], 2, [0.5, 0.5])
    >>> link_round_time(half, SharedLink(1.0), [1.0, 1.0], [1.0, 1.0])[:4]
    (2.5, 0.0, 2.5, 2.5)
    """
    n = design.n
    c = one_per_client("computing", positive_column("computing", computing), n)
    m = positive_column("megabits", np.broadcast_to(np.asarray(megabits, dtype=np.float64), n))
    rate = link.capacity
    own = np.full(n, np.inf)

    def lasts(clients: IntArray) -> float:
        if link.rule == OPTIMAL:
            return optimal_end(c[clients], m[clients], own[clients], rate)
        return fair_end(c[clients], m[clients], rate)

    cases, error = _cases(design), 0.0
    if cases is None:
        rng = np.random.default_rng(seed)
        drawn = [design.draw(rng).clients for _ in range(positive_count("draws", draws))]
        cases = [(1 / draws, clients) for clients in drawn]
        error = float(np.std([lasts(clients) for clients in drawn]) / math.sqrt(draws))
    found = sum(chance * lasts(clients) for chance, clients in cases)
    traffic = sum(chance * float(m[clients].sum()) for chance, clients in cases) / rate
    if (inclusion := _inclusion(design)) is not None:
        traffic = float(inclusion @ m) / rate
    slowest = design.expected_round_time(c)
    low = max(design.expected_round_time(c + m / rate), float(c.min()) + traffic)
    q = design.columns().get("q", np.full(n, 1 / n))
    return LinkTime(found, error, low, slowest + traffic, float(q @ c) + traffic)


def _cases(design: BaseDesign) -> list[tuple[float, IntArray]] | None:
    """Return all draws with their probabilities, or None if they are too many to list."""
    n = design.n
    if isinstance(design, Everyone):
        return [(1.0, np.arange(n))]
    if isinstance(design, Tiered) and n + design.chances.size <= MOST_CASES:
        return [(chance, draw.clients) for chance, draw in design.samples()]
    if isinstance(design, Independent) and 2**n <= MOST_CASES:
        every = np.array([*product([False, True], repeat=n)])[1:]
        chances = np.where(every, design.inclusion, 1 - design.inclusion).prod(axis=1)
        chances /= chances.sum()
        return [(float(p), np.flatnonzero(each)) for p, each in zip(chances, every, strict=True)]
    if isinstance(design, WithReplacement) and math.comb(n + design.k - 1, design.k) <= MOST_CASES:
        counted = []
        for drawn in combinations_with_replacement(range(n), design.k):
            clients, counts = np.unique(drawn, return_counts=True)
            ways = math.factorial(design.k) / math.prod(map(math.factorial, counts.tolist()))
            counted.append((ways * float(np.prod(design.q[clients] ** counts)), clients))
        return counted
    return None


def _inclusion(design: BaseDesign) -> FloatArray | None:
    """Return the probability that each client is in a round, None if it is not known."""
    if isinstance(design, WithReplacement):
        return np.asarray(-np.expm1(design.k * np.log1p(-np.minimum(design.q, 1 - 1e-16))))
    if isinstance(design, Tiered):
        return np.asarray(design.chances[design.tiers] * design.inclusion)
    if isinstance(design, Independent):
        return np.asarray(design.inclusion / design.somebody)
    return np.ones(design.n) if isinstance(design, Everyone) else None


def _in_transfer(profile: Profile, k: int, link: SharedLink, megabits: FloatArray) -> Profile:
    """Return the profile with the times of K clients in transfer."""
    times = link.usual(profile.times, megabits, np.full(profile.n, np.inf), k)
    return Profile(profile.weights, times, profile.grad_norms, profile.beta_over_alpha)


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
