from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace import InputError, variance_term
from fedpace.sampling.bound import convergence_bound, predicted_rounds, predicted_time
from tests.sampling.fleets import Fleet, distributions, fleets


@given(fleets())
def test_least_variance_is_at_q_proportional_to_importance(fleet: Fleet) -> None:
    best = fleet.importance / fleet.importance.sum()
    value = variance_term(best, fleet.weights, fleet.grad_norms)
    assert value == pytest.approx(fleet.least_variance, rel=1e-12)
    for other in np.random.default_rng(0).dirichlet(np.ones(best.size), size=5):
        mixed = 0.9 * other + 0.1 * best
        assert variance_term(mixed, fleet.weights, fleet.grad_norms) >= value * (1 - 1e-12)


def test_a_norm_of_zero_adds_nothing_even_where_q_is_zero() -> None:
    assert variance_term([1.0, 0.0], [0.5, 0.5], [2.0, 0.0]) == 1.0


def test_an_important_client_that_is_never_drawn_is_refused() -> None:
    with pytest.raises(InputError, match=r"q must be positive .* got 0 for client 1; .*biased"):
        variance_term([1.0, 0.0], [0.5, 0.5], [2.0, 1.0])


def test_a_client_that_is_hardly_ever_drawn_costs_more_than_can_be_written() -> None:
    assert variance_term([1e-250, 1.0], [0.5, 0.5], [1e99, 1e99]) == np.inf


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(InputError, match="grad_norms must have one entry per client, got 1 for 2"):
        variance_term([0.5, 0.5], [0.5, 0.5], [2.0])


def test_the_bound_rounds_and_time_agree_with_each_other() -> None:
    rounds = predicted_rounds(5.0, alpha=2.0, beta=3.0, precision=0.1)
    assert convergence_bound(5.0, alpha=2.0, beta=3.0, rounds=rounds) == pytest.approx(0.1)
    seconds = predicted_time(4.0, 5.0, alpha=2.0, beta=3.0, precision=0.1)
    assert seconds == pytest.approx(4.0 * rounds)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": 0.0}, "alpha must be positive, got 0.0"),
        ({"beta": -1.0}, "beta must be at least 0, got -1.0"),
        ({"variance": float("nan")}, "variance must be at least 0, got nan"),
        ({"precision": -0.1}, "precision must be positive, got -0.1"),
        ({"alpha": "2"}, "alpha must be a number, got '2'; see Theorem 1"),
        ({"beta": None}, "beta must be a number, got None; see Theorem 1"),
        ({"variance": [1.0]}, r"variance must be a number, got \[1\.0\]; see Theorem 1"),
    ],
)
def test_constants_outside_the_theorem_are_refused(change: dict[str, Any], message: str) -> None:
    values = {"variance": 1.0, "alpha": 1.0, "beta": 1.0, "precision": 0.1} | change
    with pytest.raises(InputError, match=message):
        predicted_rounds(
            values["variance"],
            alpha=values["alpha"],
            beta=values["beta"],
            precision=values["precision"],
        )


def test_a_round_must_last() -> None:
    with pytest.raises(InputError, match=r"round_time must be positive, got 0\.0"):
        predicted_time(0.0, 1.0, alpha=1.0, beta=1.0, precision=0.1)


@given(st.data(), fleets(decades=6.0))
def test_variance_term_is_the_sum_of_its_terms(data: st.DataObject, fleet: Fleet) -> None:
    q = data.draw(distributions(fleet.times.size))
    terms = [(p * g) ** 2 / x for p, _, g, x in zip(*fleet, q, strict=True)]
    found = variance_term(q, fleet.weights, fleet.grad_norms)
    assert found == pytest.approx(sum(terms), rel=1e-13)


def test_values_of_theorem_1() -> None:
    assert convergence_bound(3.0, alpha=2.0, beta=4.0, rounds=5) == 2.0
    assert predicted_rounds(3.0, alpha=2.0, beta=4.0, precision=0.5) == 20.0
    assert predicted_time(7.0, 3.0, alpha=2.0, beta=4.0, precision=0.5) == 140.0
    assert convergence_bound(0.0, alpha=2.0, beta=0.0, rounds=5) == 0.0


def test_all_norms_zero_leave_no_variance() -> None:
    assert variance_term([0.5, 0.5], [0.5, 0.5], [0.0, 0.0]) == 0.0


@pytest.mark.parametrize(
    ("weights", "grad_norms", "message"),
    [
        ([0.5, 0.5], [-3.0, 1.0], "grad_norms must be at least 0, got -3 for client 0"),
        ([0.5, 0.5], [1e308, 1.0], "grad_norms must lie between .*, got 1e\\+308 for client 0"),
        ([0.5, 0.5], [1.0, np.inf], "grad_norms must be finite, got inf for client 1"),
        ([0.0, 1.0], [1.0, 1.0], "weights must be positive, got 0 for client 0"),
    ],
)
def test_columns_that_make_no_sense_are_refused(
    weights: list[float], grad_norms: list[float], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        variance_term([0.5, 0.5], weights, grad_norms)


def test_no_rounds_are_refused() -> None:
    with pytest.raises(InputError, match="rounds must be positive, got 0; see Theorem 1"):
        convergence_bound(1.0, alpha=1.0, beta=1.0, rounds=0)
