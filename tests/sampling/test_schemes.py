"""What every scheme promises, and what each of them is."""

from collections.abc import Callable
from random import Random
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace import SCHEMES, Design, InputError, Profile, Tiered, WithReplacement
from fedpace.conformance import check_design
from fedpace.sampling.independent import Independent
from fedpace.sampling.schemes import needs_counts_only, scheme_named
from tests.sampling.fleets import Fleet, extreme_fleets, fleets, random_fleet, ratios
from tests.sampling.own_design import halves

SAMPLING = [name for name in SCHEMES if name != "full"]
ONCE = ["optimal-tiers", "optimal-independent"]  # no client twice in a round
WITH_REPLACEMENT = [name for name in SAMPLING if name not in ONCE]
SOLVED = ["statistical", "optimal-mean", "optimal-max", *ONCE]


def sampling_design(
    name: str, profile: Profile, k: int, cap: float | None = None
) -> WithReplacement | Tiered | Independent:
    design = SCHEMES[name](profile, k, max_weight=cap)
    assert isinstance(design, WithReplacement | Tiered | Independent)
    return design


def test_names_are_those_that_others_rely_on() -> None:
    assert list(SCHEMES) == [
        "full",
        "uniform",
        "weighted",
        "statistical",
        "optimal-mean",
        "optimal-max",
        "optimal-tiers",
        "optimal-independent",
    ]


@pytest.mark.parametrize("name", SAMPLING)
@settings(max_examples=25)
@given(fleet=extreme_fleets(), ratio=ratios, k=st.sampled_from([1, 3, 50]))
def test_every_client_of_every_scheme_keeps_a_positive_probability(
    name: str, fleet: Fleet, ratio: float, k: int
) -> None:
    design = sampling_design(name, Profile(*fleet, ratio), k)
    assert design.q.shape == fleet.times.shape
    assert np.all(design.q > 0)
    assert design.q.sum() == pytest.approx(1, abs=1e-12)
    assert design.k == k
    assert design.weights == pytest.approx(fleet.weights, rel=1e-12)


@pytest.mark.parametrize("make", [*SCHEMES.values(), halves], ids=[*SCHEMES, "own"])
def test_every_scheme_is_unbiased(make: Callable[[Profile, int], Design]) -> None:
    check_design(make)


@pytest.mark.parametrize("name", WITH_REPLACEMENT)
@settings(max_examples=15)
@given(fleet=fleets(), k=st.integers(1, 20), random=st.randoms(use_true_random=False))
def test_no_scheme_cares_about_the_order_of_clients(
    name: str, fleet: Fleet, k: int, random: Random
) -> None:
    order = random.sample(range(fleet.times.size), fleet.times.size)
    q = sampling_design(name, Profile(*fleet), k).q
    permuted = sampling_design(name, Profile(*fleet.permuted(order)), k).q
    assert permuted == pytest.approx(q[order], rel=1e-3 if name == "optimal-max" else 1e-9)


@pytest.mark.parametrize("name", SOLVED)
@settings(max_examples=15)
@given(fleet=fleets(), k=st.integers(1, 20), factor=st.floats(1, 20))
def test_every_scheme_with_a_choice_keeps_the_cap(
    name: str, fleet: Fleet, k: int, factor: float
) -> None:
    design = sampling_design(name, Profile(*fleet), k, factor / k)
    # Who is drawn once at most weighs p at least.
    least = fleet.weights.max() if name in ONCE else 0.0
    assert design.largest_weight <= max(factor / k, least) * (1 + 1e-9)


@pytest.mark.parametrize("name", SOLVED)
def test_a_cap_that_cannot_be_kept_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"max_weight must be at least 1/k = 0\.1, got 0\.05; "):
        SCHEMES[name](Profile(*random_fleet(5, 0)), 10, max_weight=0.05)


@pytest.mark.parametrize("name", SAMPLING)
@pytest.mark.parametrize("k", [0, -1, 2.5, True, "3"])
def test_every_scheme_refuses_a_k_that_is_no_count(name: str, k: object) -> None:
    with pytest.raises(InputError, match="k must be"):
        SCHEMES[name](Profile(*random_fleet(5, 0)), k)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_takes_k_by_keyword_and_a_numpy_integer(name: str) -> None:
    profile = Profile(*random_fleet(5, 0))
    design = SCHEMES[name](profile=profile, k=cast(int, np.int64(3)))
    assert design.expected_round_time(profile.times) > 0


@pytest.mark.parametrize("name", SOLVED)
def test_a_norm_of_zero_counts_as_the_smallest_positive(name: str) -> None:
    p, t = [0.4, 0.3, 0.3], [1.0, 2.0, 3.0]
    q = sampling_design(name, Profile(p, t, [2.0, 0.0, 0.5], 1.0), 5).q
    stand_in = sampling_design(name, Profile(p, t, [2.0, 0.5, 0.5], 1.0), 5).q
    assert q.tolist() == stand_in.tolist()


@pytest.mark.parametrize("name", SOLVED)
def test_all_norms_zero_count_as_equal(name: str) -> None:
    p, t = [0.4, 0.3, 0.3], [1.0, 2.0, 3.0]
    q = sampling_design(name, Profile(p, t, [0.0, 0.0, 0.0], 1.0), 5).q
    equal = sampling_design(name, Profile(p, t, [1.0, 1.0, 1.0], 1.0), 5).q
    assert q.tolist() == equal.tolist()


@given(fleets(), st.integers(1, 9))
def test_the_simple_schemes_are_what_they_say(fleet: Fleet, k: int) -> None:
    profile = Profile(*fleet)
    n = fleet.times.size
    assert sampling_design("uniform", profile, k).q == pytest.approx(np.full(n, 1 / n))
    weighted = sampling_design("weighted", profile, k)
    assert weighted.q == pytest.approx(fleet.weights)
    assert weighted.largest_weight == pytest.approx(1 / k)
    statistical = sampling_design("statistical", profile, k).q
    assert statistical == pytest.approx(fleet.importance / fleet.importance.sum(), rel=1e-12)
    everyone = SCHEMES["full"](profile, k)
    assert everyone.expected_round_time(profile.times) == fleet.times.max()


@pytest.mark.parametrize("name", SCHEMES)
def test_designs_say_how_they_were_found_if_a_solver_found_them(name: str) -> None:
    design = SCHEMES[name](Profile(*random_fleet(5, 0)), 3)
    solution = getattr(design, "solution", None)
    assert (solution is not None) == (name in SOLVED)
    if solution is not None:
        assert solution.status == "converged"


@pytest.mark.parametrize("name", ["uniform", "weighted", "full"])
def test_schemes_with_nothing_to_choose_take_no_notice_of_a_cap(name: str) -> None:
    profile = Profile(*random_fleet(5, 0))
    free, capped = (SCHEMES[name](profile, 4, max_weight=cap) for cap in (None, 0.01))
    assert free.largest_weight == capped.largest_weight


def test_schemes_of_fedpace_and_ones_own_say_whether_counts_are_all_they_need() -> None:
    def mine(profile: Profile, k: int, *, max_weight: float | None = None) -> Design:
        return WithReplacement(profile.weights, k, profile.weights)

    needing = [name for name, scheme in SCHEMES.items() if needs_counts_only(scheme)]
    assert needing == ["full", "uniform", "weighted"]
    assert not needs_counts_only(mine)
    mine.needs_counts_only = True  # type: ignore[attr-defined]
    assert needs_counts_only(mine)


def test_a_class_is_no_scheme() -> None:
    with pytest.raises(InputError, match=r"must be a function .*, got 'pathlib:Path', a type; "):
        scheme_named("pathlib:Path")


def test_a_misspelt_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="got 'optimal'; did you mean 'optimal-m") as caught:
        SCHEMES["optimal"]
    assert isinstance(caught.value, KeyError)  # which a dictionary raises
    assert SCHEMES.get("optimal") is None
