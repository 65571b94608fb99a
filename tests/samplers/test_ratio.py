"""c = β/α from histories that were made from a known α and β."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.samplers.pilots import (
    LARGEST_RATIO,
    RatioEstimate,
    estimate_ratio,
    rounds_to_pass,
)

# Some clients with much data and large gradients: U = N Σ p² G² is far above V = Σ p G².
WEIGHTS = np.array([0.5, 0.2, 0.1, 0.1, 0.05, 0.05])
NORMS = np.array([4.0, 2.0, 1.0, 3.0, 1.0, 2.0])
# And the other way round: large clients have the smaller gradients.
REVERSED = np.array([1.0, 2.0, 5.0, 6.0, 8.0, 9.0])
LIMIT = 0.3  # F*
THRESHOLDS = [1.5, 1.3, 1.1, 0.9, 0.8]
PASSED = [300.0, 450.0, 660.0, 990.0, 1500.0]  # rounds


def terms(weights: FloatArray, norms: FloatArray) -> tuple[float, float, float]:
    """Return U, V and S_0."""
    u = weights.size * float(np.sum(weights**2 * norms**2))
    return u, float(np.sum(weights * norms**2)), float(np.sum(weights * norms)) ** 2


def losses(slope: float, rounds: int = 4000) -> list[float]:
    """Return F* + slope / r after rounds r = 1, 2, …, with the initial model before them."""
    return [1e6, *(LIMIT + slope / r for r in range(1, rounds))]


def estimated(c: float, weights: FloatArray, norms: FloatArray, alpha: float) -> RatioEstimate:
    u, v, _ = terms(weights, norms)
    uniform, weighted = losses(alpha * (u + c)), losses(alpha * (v + c))
    return estimate_ratio(uniform, weighted, THRESHOLDS, weights, norms)


def slow(c_over_s0: float, norms: FloatArray) -> tuple[float, float]:
    """Return c and an α with which passing the thresholds takes hundreds of rounds."""
    u, v, s0 = terms(WEIGHTS, norms)
    c = c_over_s0 * s0
    return c, 300 / (max(u, v) + c)


def assert_default(estimate: RatioEstimate, norms: FloatArray) -> None:
    _, _, s0 = terms(WEIGHTS, norms)
    assert not estimate.identified
    assert estimate.reason
    assert estimate.value == pytest.approx(s0)


@pytest.mark.parametrize("norms", [NORMS, REVERSED])
@pytest.mark.parametrize("c_over_s0", [0.0, 0.1, 0.5, 1.0, 3.0, 8.0])
def test_recovers_c_from_exact_histories(c_over_s0: float, norms: FloatArray) -> None:
    c, alpha = slow(c_over_s0, norms)
    estimate = estimated(c, WEIGHTS, norms, alpha)
    _, _, s0 = terms(WEIGHTS, norms)
    assert estimate.identified
    assert estimate.value == pytest.approx(c, rel=0.02, abs=0.02 * s0)
    assert estimate.low <= estimate.value <= estimate.high
    u, v, _ = terms(WEIGHTS, norms)
    assert estimate.rho == pytest.approx((u + c) / (v + c), rel=1e-3)


def test_the_estimate_depends_on_neither_the_scale_of_alpha_nor_the_limit() -> None:
    c, alpha = slow(1.0, NORMS)
    one, other = (estimated(c, WEIGHTS, NORMS, alpha * factor) for factor in (1.0, 2.0))
    assert one.value == pytest.approx(other.value, rel=0.01)


def test_scaling_the_gradients_scales_c_with_their_square() -> None:
    c, alpha = slow(1.0, NORMS)
    one = estimated(c, WEIGHTS, NORMS, alpha)
    other = estimated(9 * c, WEIGHTS, 3 * NORMS, alpha / 9)
    assert other.value == pytest.approx(9 * one.value, rel=1e-9)


@pytest.mark.parametrize("c_over_s0", [0.3, 1.0])
def test_with_noise_the_interval_covers_c(c_over_s0: float) -> None:
    u, v, s0 = terms(WEIGHTS, NORMS)
    c = c_over_s0 * s0
    covered, repeats = 0, 60
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        uniform, weighted = (
            # Each threshold is passed a few per cent sooner or later than it should be.
            curve((np.array(PASSED) * (s + c) / (u + c) * rng.lognormal(0, 0.05, 5)).tolist())
            for s in (u, v)
        )
        estimate = estimate_ratio(uniform, weighted, THRESHOLDS, WEIGHTS, NORMS)
        covered += estimate.low <= c <= estimate.high
    # Two standard deviations cover 95 %; the rest is five standard errors of the count.
    assert covered >= 0.95 * repeats - 5 * math.sqrt(0.95 * 0.05 * repeats)


def curve(rounds: list[float]) -> list[float]:
    """Return losses that pass the thresholds at about these rounds, linear in between."""
    times = [0.0, *sorted(rounds), 2000.0]
    values = [2.0, *THRESHOLDS, 0.7]
    drawn: list[float] = np.interp(np.arange(2000), times, values).tolist()
    return drawn


def test_balanced_clients_leave_c_unidentified() -> None:
    # With p and G the same for all, U = V whatever c is.
    weights, norms = np.full(6, 1 / 6), np.full(6, 2.0)
    estimate = estimate_ratio(losses(200), losses(180), THRESHOLDS, weights, norms)
    assert not estimate.identified
    assert "U ≈ V" in estimate.reason
    assert estimate.value == pytest.approx(4.0)
    assert (estimate.low, estimate.high) == (0, math.inf)


def test_rounds_on_the_wrong_side_of_one_leave_c_unidentified() -> None:
    # U > V says that uniform sampling needs more rounds; here it needs fewer.
    assert_default(estimate_ratio(losses(100), losses(200), THRESHOLDS, WEIGHTS, NORMS), NORMS)
    assert_default(
        estimate_ratio(losses(200), losses(100), THRESHOLDS, WEIGHTS, REVERSED), REVERSED
    )


def test_equally_many_rounds_leave_c_unidentified() -> None:
    same = losses(150)
    assert_default(estimate_ratio(same, same, THRESHOLDS, WEIGHTS, NORMS), NORMS)


def test_without_a_threshold_that_both_pass_c_is_the_default() -> None:
    estimate = estimate_ratio(losses(150), [2.0, 1.9], THRESHOLDS, WEIGHTS, NORMS)
    assert_default(estimate, NORMS)
    assert estimate.reason == "no threshold passed"
    assert math.isnan(estimate.rho)


def test_a_threshold_above_the_initial_loss_says_nothing() -> None:
    estimate = estimate_ratio([1.0, 0.9], [1.0, 0.9], [1.5], WEIGHTS, NORMS)
    assert_default(estimate, NORMS)


def test_noise_larger_than_the_contrast_leaves_c_unidentified() -> None:
    # One pilot is first at some thresholds, the other at the rest.
    uniform = curve([100, 300, 350, 900, 950])
    weighted = curve([200, 210, 600, 610, 1500])
    assert_default(estimate_ratio(uniform, weighted, THRESHOLDS, WEIGHTS, NORMS), NORMS)


def test_faster_than_c_zero_allows_is_c_zero_not_negative() -> None:
    u, v, _ = terms(WEIGHTS, NORMS)
    estimate = estimate_ratio(losses(300), losses(300 * v / u / 2), THRESHOLDS, WEIGHTS, NORMS)
    assert not estimate.identified
    assert estimate.value == 0
    assert estimate.low == 0


@given(
    first=st.lists(st.floats(0, 3), min_size=1, max_size=12),
    second=st.lists(st.floats(0, 3), min_size=1, max_size=12),
    norms=st.lists(st.floats(0.1, 10), min_size=6, max_size=6),
)
def test_whatever_the_losses_c_is_neither_negative_nor_above_ten_s0(
    first: list[float], second: list[float], norms: list[float]
) -> None:
    array = np.array(norms)
    estimate = estimate_ratio(first, second, THRESHOLDS, WEIGHTS, array)
    _, _, s0 = terms(WEIGHTS, array)
    assert 0 <= estimate.value <= LARGEST_RATIO * s0 * (1 + 1e-12)
    assert 0 <= estimate.low <= estimate.high
    if estimate.identified:
        assert estimate.low <= estimate.value <= estimate.high < math.inf


def test_a_diverged_pilot_gives_the_default() -> None:
    broken = [2.0, math.nan]
    assert_default(estimate_ratio(broken, losses(150), THRESHOLDS, WEIGHTS, NORMS), NORMS)


def test_gradients_that_are_all_zero_do_not_break_the_estimate() -> None:
    estimate = estimate_ratio(losses(150), losses(120), THRESHOLDS, WEIGHTS, np.zeros(6))
    assert not estimate.identified


def test_refuses_to_estimate_without_thresholds() -> None:
    with pytest.raises(InputError, match=r"thresholds must not be empty, got none; give losses"):
        estimate_ratio(losses(1), losses(1), [], WEIGHTS, NORMS)


@pytest.mark.parametrize(
    ("threshold", "rounds"),
    [(2.5, 0.0), (2.0, 0.0), (1.5, 0.5), (1.0, 1.0), (0.6, 3.8), (0.4, math.inf)],
)
def test_a_threshold_is_passed_between_rounds_and_for_the_first_time(
    threshold: float, rounds: float
) -> None:
    assert rounds_to_pass([2.0, 1.0, 1.2, 1.0, 0.5], threshold) == pytest.approx(rounds)
