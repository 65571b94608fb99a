"""Learning rates."""

import pytest

from fedpace.training.stopping import constant, inverse, theoretical


def test_inverse_falls_as_one_over_one_plus_the_round() -> None:
    assert [inverse(0.6)(r) for r in range(3)] == pytest.approx([0.6, 0.3, 0.2])


def test_constant_stays() -> None:
    assert {constant(0.05)(r) for r in range(100)} == {0.05}


def test_the_bounds_rate_is_two_over_mu_times_gamma_plus_the_round() -> None:
    assert [theoretical(0.5, 8)(r) for r in (0, 2)] == pytest.approx([0.5, 0.4])
