import numpy as np
import pytest
from hypothesis import given

from fedpace import (
    InputError,
    convergence_bound,
    predicted_rounds,
    predicted_time,
    variance_term,
)
from tests.sampling.fleets import Fleet, fleets


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
    ],
)
def test_constants_outside_the_theorem_are_refused(change: dict[str, float], message: str) -> None:
    values = {"variance": 1.0, "alpha": 1.0, "beta": 1.0, "precision": 0.1} | change
    with pytest.raises(InputError, match=message):
        predicted_rounds(
            values["variance"],
            alpha=values["alpha"],
            beta=values["beta"],
            precision=values["precision"],
        )


def test_a_round_must_last() -> None:
    with pytest.raises(InputError, match="round_time must be positive, got 0.0"):
        predicted_time(0.0, 1.0, alpha=1.0, beta=1.0, precision=0.1)
