"""Gradient norms from what clients reported."""

import math
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace.checks import FloatArray
from fedpace.samplers.client_stats import (
    empty_client_stats,
    estimated_grad_norms,
    learn,
    profile_of,
)
from fedpace.sampling.schemes import SCHEMES
from fedpace.training.history import Row
from fedpace.training.sampler import SamplerContext
from tests.training.fakes import row


def reported(norms: dict[int, float]) -> Row:
    clients = sorted(norms)
    return row(clients, grad_norms=[norms[i] for i in clients])


def estimated(rows: Iterable[Row], n: int, *, known_at_first: int | None = None) -> FloatArray:
    """Return the norms after these rows, as a run learns them: one after the other."""
    seen = empty_client_stats(n if known_at_first is None else known_at_first)
    for each in rows:
        seen = learn(seen, each)
    return estimated_grad_norms(seen, n)


def directly(rows: list[Row], n: int) -> list[float]:
    """Return the norms as they are defined, from all rows at once."""
    reports = [
        [
            norm
            for each in rows
            for client, norm in zip(each.clients.tolist(), each.grad_norms.tolist(), strict=True)
            if client == wanted and math.isfinite(norm)
        ]
        for wanted in range(n)
    ]
    means = [math.sqrt(np.mean(np.square(each))) if each else math.nan for each in reports]
    known = [mean for mean in means if not math.isnan(mean)]
    if not known:
        return [1.0] * n
    cut = [min(mean, 10 * float(np.median(known))) for mean in means]
    least = 1e-9 * max(mean for mean in cut if not math.isnan(mean))
    cut = [max(mean, least) if mean > 0 else mean for mean in cut]
    usual = float(np.quantile([mean for mean in cut if not math.isnan(mean)], 0.9))
    return [usual if math.isnan(mean) else mean for mean in cut]


NORMS = st.just(0.0) | st.floats(1e-90, 1e6) | st.sampled_from([math.nan, math.inf])
ROWS = st.lists(
    st.dictionaries(st.integers(0, 5), NORMS, max_size=4).map(reported),
    max_size=12,
)


@given(ROWS, st.integers(0, 6))
def test_learning_round_by_round_equals_the_definition(rows: list[Row], known: int) -> None:
    np.testing.assert_allclose(estimated(rows, 6, known_at_first=known), directly(rows, 6))


def test_a_clients_norm_is_the_root_mean_square_of_its_reports() -> None:
    rows = [reported({0: 3.0, 1: 1.0}), reported({0: 4.0}), reported({1: 1.0})]
    np.testing.assert_allclose(estimated(rows, 2), [np.sqrt((9 + 16) / 2), 1.0])


def test_the_order_of_rounds_does_not_matter() -> None:
    rows = [reported({0: 3.0, 1: 1.0}), reported({0: 4.0}), reported({1: 7.0})]
    np.testing.assert_allclose(estimated(rows, 2), estimated(reversed(rows), 2))


def test_clients_never_seen_get_the_upper_quantile_of_those_seen() -> None:
    seen = {i: float(i + 1) for i in range(11)}  # 1, 2, …, 11: the 0.9 quantile is 10
    norms = estimated([reported(seen)], 13)
    np.testing.assert_allclose(norms[:11], list(seen.values()))
    np.testing.assert_allclose(norms[11:], 10.0)


def test_a_client_that_joins_later_is_learned_like_the_others() -> None:
    norms = estimated([reported({0: 1.0}), reported({5: 3.0})], 7, known_at_first=2)
    assert norms[[0, 5]].tolist() == [1.0, 3.0]


def test_rows_without_clients_add_nothing() -> None:
    np.testing.assert_allclose(estimated([row(), reported({0: 2.0})], 1), [2.0])


@pytest.mark.parametrize("rows", [[], [row()], [reported({1: math.nan})]])
def test_all_count_alike_while_nobody_reported(rows: list[Row]) -> None:
    np.testing.assert_array_equal(estimated(rows, 3), np.ones(3))


def test_a_boastful_client_counts_for_ten_times_the_median() -> None:
    norms = estimated([reported({0: 1.0, 1: 2.0, 2: 1e30})], 3)
    np.testing.assert_array_equal(norms, [1.0, 2.0, 20.0])


@pytest.mark.parametrize("said", [1e-40, 1e-150, 1e-320, 1e30, 1e150, 1e308, 0.0])
@pytest.mark.parametrize("others", [1, 2, 20])
def test_no_norm_that_is_reported_makes_an_estimate_fail(said: float, others: int) -> None:
    n = others + 1
    weights, known = np.full(n, 1 / n), empty_client_stats(n)
    known = learn(known, reported({0: said} | {i: 1.0 + i for i in range(1, n)}))
    for c in (None, 1.0):
        profile = profile_of(known, SamplerContext(weights, np.ones(n)), c_over_s0=c)
        for scheme in ("optimal-mean", "optimal-max", "statistical", "optimal-tiers"):
            assert np.isfinite(SCHEMES[scheme](profile, 2).largest_weight)


@pytest.mark.parametrize("square", [1e-80, 1e-300, 0.0, 1e300, math.inf])
def test_a_checkpoint_with_such_a_norm_goes_on(square: float) -> None:
    # As it was written before norms were bounded.
    known = learn(empty_client_stats(4), reported({0: 1.0, 1: 2.0, 2: 3.0, 3: 1.0}))
    known["squares"][0] = square
    profile = profile_of(known, SamplerContext(np.full(4, 0.25), np.ones(4)))
    assert np.isfinite(SCHEMES["optimal-mean"](profile, 2).largest_weight)


def test_all_norms_may_be_next_to_nothing() -> None:
    norms = estimated([reported(dict.fromkeys(range(4), 1e-140))], 4)
    np.testing.assert_array_equal(norms, np.ones(4))
