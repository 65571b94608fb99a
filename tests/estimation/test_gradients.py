"""Gradient norms from what clients reported."""

import numpy as np
import pytest

from fedpace.estimation.gradients import estimated_grad_norms
from fedpace.rounds.rows import Row


def row(reports: dict[int, float]) -> Row:
    clients = np.array(sorted(reports), dtype=np.int64)
    norms = np.array([reports[i] for i in sorted(reports)], dtype=np.float64)
    ones = np.ones(clients.size)
    return Row("train", 1, 1.0, 1.0, 0.5, 1.0, 1.0, clients, ones, ones, norms)


def test_a_clients_norm_is_the_root_mean_square_of_its_reports() -> None:
    rows = [row({0: 3.0, 1: 1.0}), row({0: 4.0}), row({1: 1.0})]
    norms = estimated_grad_norms(rows, 2)
    np.testing.assert_allclose(norms, [np.sqrt((9 + 16) / 2), 1.0])


def test_the_order_of_rounds_does_not_matter() -> None:
    rows = [row({0: 3.0, 1: 1.0}), row({0: 4.0}), row({1: 7.0})]
    np.testing.assert_allclose(
        estimated_grad_norms(rows, 2), estimated_grad_norms(reversed(rows), 2)
    )


def test_clients_never_seen_get_the_upper_quantile_of_those_seen() -> None:
    seen = {i: float(i + 1) for i in range(11)}  # 1, 2, …, 11: the 0.9 quantile is 10
    norms = estimated_grad_norms([row(seen)], 13)
    np.testing.assert_allclose(norms[:11], list(seen.values()))
    np.testing.assert_allclose(norms[11:], 10.0)


def test_rows_without_clients_add_nothing() -> None:
    np.testing.assert_allclose(estimated_grad_norms([row({}), row({0: 2.0})], 1), [2.0])


@pytest.mark.parametrize("rows", [[], [row({})]])
def test_all_count_alike_while_nobody_reported(rows: list[Row]) -> None:
    np.testing.assert_array_equal(estimated_grad_norms(rows, 3), np.ones(3))


def test_a_boastful_client_counts_for_ten_times_the_median() -> None:
    norms = estimated_grad_norms([row({0: 1.0, 1: 2.0, 2: 1e30})], 3)
    np.testing.assert_array_equal(norms, [1.0, 2.0, 20.0])
