"""What the server knows of its fleet, checked once: values, defaults and refusals."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace import InputError, Profile
from fedpace.checks import positive_count, probabilities
from fedpace.profile import stand_in

GOOD: dict[str, Any] = {"weights": [0.5, 0.3, 0.2], "times": [1, 2, 3], "grad_norms": [1, 2, 4]}
counts = st.lists(st.integers(1, 10**6), min_size=1, max_size=20)


# A signalling NaN warns when it is converted to another type.
SIGNALLING = np.array([0x3F800000, 0x7F800001, 0x40000000], np.uint32).view(np.float32)


def refusal(make: Callable[[], object]) -> str:
    """Return the message; it must be one line that ends in a remedy."""
    with pytest.raises(InputError) as refused:
        make()
    message = str(refused.value)
    assert "\n" not in message
    complaint, remedy = message.split("; ", maxsplit=1)
    assert complaint
    assert remedy
    return message


def test_columns_are_kept_as_read_only_floats() -> None:
    profile = Profile(**GOOD)
    assert profile.n == 3
    for name, values in GOOD.items():
        column = getattr(profile, name)
        assert column.dtype == np.float64
        assert column.tolist() == values
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 9


def test_arrays_given_stay_the_callers_own() -> None:
    given_arrays: dict[str, Any] = {name: np.array(values, float) for name, values in GOOD.items()}
    profile = Profile(**given_arrays)
    for name, array in given_arrays.items():
        array[0] = 77.0
        assert getattr(profile, name)[0] == GOOD[name][0]


def test_fields_cannot_be_set() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Profile(**GOOD).beta_over_alpha = 2.0  # type: ignore[misc]


def test_a_copy_with_another_ratio_can_be_made() -> None:
    changed = dataclasses.replace(Profile(**GOOD), beta_over_alpha=7.0)
    assert changed.beta_over_alpha == 7.0
    assert changed.times.tolist() == GOOD["times"]


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda x: np.array(x, dtype=np.float32)])
def test_columns_may_be_any_sequence_of_numbers(kind: Callable[[Any], Any]) -> None:
    profile = Profile(kind([0.5, 0.5]), kind([1, 2]), kind([3, 4]))
    assert profile.times.tolist() == [1.0, 2.0]
    assert profile.times.dtype == np.float64


@given(counts)
def test_samples_become_shares(samples: list[int]) -> None:
    ones = np.ones(len(samples))
    profile = Profile.from_samples(samples, ones, ones, 2.0)
    assert profile.weights == pytest.approx(np.array(samples) / sum(samples), rel=1e-14)
    assert profile.weights.sum() == pytest.approx(1, abs=1e-14)
    assert profile.beta_over_alpha == 2.0


def test_samples_are_refused_under_their_own_name() -> None:
    message = refusal(lambda: Profile.from_samples([3, 0], [1, 1], [1, 1]))
    assert message.startswith("samples must be positive, got 0 for client 1; ")


def test_the_default_ratio_is_the_least_variance_term() -> None:
    assert Profile(**GOOD).beta_over_alpha == pytest.approx((0.5 + 0.6 + 0.8) ** 2, rel=1e-14)
    assert Profile(**GOOD, beta_over_alpha=0).beta_over_alpha == 0.0


def test_weights_written_with_a_few_digits_are_made_to_sum_to_one() -> None:
    profile = Profile([0.3333333, 0.3333333, 0.3333333], [1, 1, 1], [1, 1, 1])
    assert profile.weights.sum() == pytest.approx(1, abs=1e-15)


def test_importance_is_weight_times_norm() -> None:
    assert Profile(**GOOD).importance == pytest.approx([0.5, 0.6, 0.8], rel=1e-15)


@pytest.mark.parametrize(
    ("norms", "expected"),
    [
        ([0.0, 3.0, 2.0], [2.0, 3.0, 2.0]),
        ([0.0, 0.0], [1.0, 1.0]),
        ([5.0, 4.0], [5.0, 4.0]),
    ],
)
def test_a_norm_of_zero_stands_for_the_smallest_positive(
    norms: list[float], expected: list[float]
) -> None:
    assert stand_in(np.array(norms)).tolist() == expected
    n = len(norms)
    profile = Profile(np.full(n, 1 / n), np.ones(n), norms)
    assert profile.importance == pytest.approx(np.array(expected) / n, rel=1e-15)
    assert profile.grad_norms.tolist() == norms


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": [0.5, 0.5, 0.0]}, "weights must be positive, got 0 for client 2; measure it"),
        ({"weights": [1.5, -0.7, 0.2]}, "weights must be positive, got -0.7 for client 1; "),
        ({"weights": [0.5, 0.3, 0.1]}, "weights must sum to 1, got a sum of 0.9; divide by the"),
        ({"weights": [5, 3, 2]}, "a sum of 10; divide by the sum, or give sample counts to Prof"),
        ({"weights": 0.5}, "weights must be a vector with one entry per client, got shape (); "),
        ({"weights": [[0.5], [0.5]]}, "weights must be a vector with one entry per client, got sh"),
        ({"weights": []}, "got shape (0,); give at least one client"),
        ({"weights": ["a", "b", "c"]}, "weights must be numbers, got ['a', 'b', 'c']; "),
        ({"weights": [[1], [1, 2]]}, "weights must be numbers, got [[1], [1, 2]]; "),
        ({"times": [1, 0, 3]}, "times must be positive, got 0 for client 1; measure it, or drop"),
        ({"times": [1, 2, np.nan]}, "times must be finite, got nan for client 2; measure it"),
        ({"times": [1, np.inf, 2]}, "times must be finite, got inf for client 1; measure it"),
        ({"times": [1, None, 2]}, "times must be finite, got nan for client 1; measure it"),
        ({"times": [1, 2]}, "times must have one entry per client, got 2 for 3 clients; give ar"),
        ({"times": [10**400, 1, 1]}, "times must be "),
        ({"times": np.array([1 + 2j, 1, 1])}, "times must be "),
        ({"times": [1e101, 1e100, 1e100]}, "got 1e+101 for client 0; check the unit"),
        ({"times": [1e-90, 1e-101, 1e-90]}, "times must lie between 1e-100 and 1e+100, got 1e-101"),
        (
            {"times": [1e-20, 1, 1e15]},
            "times must lie within a factor of 1e+30 of each other, got 1e-20 for client 0 and "
            "1e+15 for client 2; check the units",
        ),
        ({"weights": [1e-40, 0.5, 0.5]}, "weights must lie within a factor of 1e+30 of each other"),
        ({"grad_norms": [1, -2, 3]}, "grad_norms must be at least 0, got -2 for client 1; report"),
        ({"grad_norms": [1, 2, np.nan]}, "grad_norms must be finite, got nan for client 2; "),
        ({"grad_norms": [1]}, "grad_norms must have one entry per client, got 1 for 3 clients; "),
        ({"grad_norms": [1e-20, 0, 1e15]}, "grad_norms must lie within a factor of 1e+30 of each"),
        ({"grad_norms": [0, 1e-200, 1e-200]}, "got 1e-200 for client 1; check the unit"),
        ({"beta_over_alpha": -1.0}, "beta_over_alpha must be finite and at least 0, got -1; leave"),
        ({"beta_over_alpha": np.nan}, "beta_over_alpha must be finite and at least 0, got nan; "),
        ({"beta_over_alpha": np.inf}, "beta_over_alpha must be finite and at least 0, got inf; "),
        ({"beta_over_alpha": 1e40}, "beta_over_alpha must be at most 1e+30 times (Σ p_i G_i)² ="),
        ({"beta_over_alpha": "x"}, "beta_over_alpha must be a number, got 'x'; leave it out for"),
        ({"beta_over_alpha": "3"}, "beta_over_alpha must be a number, got '3'; leave it out for"),
        ({"beta_over_alpha": [1.0]}, "beta_over_alpha must be a number, got [1.0]; leave it"),
        ({"beta_over_alpha": np.ones(1)}, "beta_over_alpha must be a number, got array([1.]); "),
        ({"beta_over_alpha": 1j}, "beta_over_alpha must be a number, got 1j; leave it out"),
        ({"beta_over_alpha": 10**400}, "beta_over_alpha must be a number, got 10000000"),
    ],
)
def test_every_refusal_names_argument_value_client_and_remedy(
    changes: dict[str, Any], message: str
) -> None:
    assert message in refusal(lambda: Profile(**(GOOD | changes)))


@pytest.mark.parametrize("name", ["weights", "times", "grad_norms", "samples"])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, 1e308, 1.0], "must lie between 1e-100 and 1e+100, got 1e+308 for client 1; check"),
        ([1e308, 1e308, 1e308], "must lie between 1e-100 and 1e+100, got 1e+308 for client 0; "),
        (SIGNALLING, "must be finite, got nan for client 1; measure it"),
        (SIGNALLING.astype(object), "must be finite, got nan for client 1; measure it"),
        (np.full(3, np.longdouble("1e4000")), "must be finite, got inf for client 0; measure it"),
        (np.array([1, 10**400, 1], object), "must be numbers, got array([1, 100000"),
        (np.zeros(3, "datetime64[s]"), "datetime64[s] is no real number"),
    ],
)
def test_numbers_beyond_float64_are_refused_without_a_warning(
    name: str, values: Any, message: str
) -> None:
    columns = GOOD | {name: values}
    make = Profile
    if name == "samples":
        columns.pop("weights")
        make = Profile.from_samples  # type: ignore[assignment]
    said = refusal(lambda: make(**columns))
    assert said.startswith(f"{name} must ")
    assert message in said


def test_the_widest_span_that_is_allowed_is_accepted() -> None:
    profile = Profile([0.5, 0.5], [1e-15, 1e15], [0.0, 1.0], 1e29)
    assert profile.times.tolist() == [1e-15, 1e15]


@pytest.mark.parametrize("k", [1, 7, np.int32(7), np.uint8(7), 10**12])
def test_counts_may_be_any_kind_of_integer(k: Any) -> None:
    count = positive_count("k", k)
    assert count == k
    assert type(count) is int


@pytest.mark.parametrize(
    ("k", "message"),
    [
        (0, "k must be at least 1, got 0; give 1 or more"),
        (-3, "k must be at least 1, got -3; give 1 or more"),
        (10**12 + 1, "k must be at most 1,000,000,000,000, got 1000000000001; give fewer"),
        (2.0, "k must be an integer, got 2.0; give 1 or more"),
        ("2", "k must be an integer, got '2'; give 1 or more"),
        (None, "k must be an integer, got None; give 1 or more"),
        (np.arange(100), "k must be an integer, got array([ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,"),
        (True, "k must be an integer, got True; give 1 or more"),
        (np.True_, "k must be an integer, got np.True_; give 1 or more"),
    ],
)
def test_what_is_no_count_is_refused(k: object, message: str) -> None:
    assert refusal(lambda: positive_count("k", k)).startswith(message)


def test_probabilities_are_a_fresh_array_even_with_zeros() -> None:
    q = np.array([0.0, 1.0])
    checked = probabilities(q, 2)
    checked[0] = 5.0
    assert q.tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("q", "message"),
    [
        ([0.5, 0.5, 0.0], "q must have one entry per client, got 3 for 2 clients; give arrays"),
        ([-0.1, 1.1], "q must be at least 0, got -0.1 for client 0; give probabilities"),
        ([0.7, 0.7], "q must sum to 1, got a sum of 1.4; divide by the sum"),
        ([0.5, np.nan], "q must be finite, got nan for client 1; "),
        ([1e308, 1e308], "q must sum to 1, got a sum of inf; divide by the sum"),
        ([5e-324, 1.0], "q must be 0 or at least 1e-290, got 4.94066e-324 for client 0; raise it"),
    ],
)
def test_what_are_no_probabilities_is_refused(q: list[float], message: str) -> None:
    assert refusal(lambda: probabilities(q, 2)).startswith(message)


def test_the_same_fleet_with_another_ratio() -> None:
    fleet = Profile([0.5, 0.5], [1.0, 4.0], [3.0, 1.0])
    other = fleet.with_ratio(2.5)
    assert other.beta_over_alpha == 2.5
    np.testing.assert_array_equal(other.times, fleet.times)
    with pytest.raises(
        InputError, match=r"--beta-over-alpha must be finite and at least 0, got -1"
    ):
        fleet.with_ratio(-1.0, "--beta-over-alpha")
