"""Round times from what was measured."""

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace.checks import FloatArray
from fedpace.samplers.client_stats import COLD, LATEST, empty_client_stats, estimated_times, learn
from fedpace.training.history import Row
from tests.training.fakes import row


def timed(seconds: dict[int, float], missing: list[int] | None = None) -> Row:
    clients = sorted(seconds)
    return row(clients, client_seconds=[seconds[i] for i in clients], missing=missing or [])


def estimated(rows: Iterable[Row], n: int, *, known_at_first: int | None = None) -> FloatArray:
    """Return the times after these rows, as a run learns them: one after the other."""
    seen = empty_client_stats(n if known_at_first is None else known_at_first)
    for each in rows:
        seen = learn(seen, each)
    return estimated_times(seen, n)


def directly(rows: list[Row], n: int) -> list[float]:
    """Return the times as they are defined, from all rows at once."""
    means: dict[int, float] = {}
    for client in range(n):
        count, mean = 0, 0.0
        for each in rows:
            lasted = dict(zip(each.clients.tolist(), each.client_seconds.tolist(), strict=True))
            lasted |= dict.fromkeys(each.missing.tolist(), each.round_seconds)
            if client in lasted:
                count += 1
                if count == 2 and mean > COLD * lasted[client]:
                    mean = lasted[client]  # the first was a cold start
                mean += max(LATEST, 1 / count) * (lasted[client] - mean)
        if count:
            means[client] = mean
    usual = float(np.quantile(list(means.values()), 0.1)) if means else 1.0
    return [means.get(client, usual) for client in range(n)]


ROWS = st.lists(
    st.dictionaries(st.integers(0, 4), st.floats(0.01, 100), max_size=4).flatmap(
        lambda seconds: st.sets(st.integers(0, 5)).map(
            lambda gone: timed(seconds, sorted(gone - set(seconds)))
        )
    ),
    max_size=12,
)


@given(ROWS, st.integers(0, 6))
def test_learning_round_by_round_equals_the_definition(rows: list[Row], known: int) -> None:
    np.testing.assert_allclose(estimated(rows, 6, known_at_first=known), directly(rows, 6))


def test_the_first_few_count_alike() -> None:
    rows = [timed({0: 1.0}), timed({0: 2.0}), timed({0: 6.0})]
    assert estimated(rows, 1)[0] == pytest.approx(3.0)


def test_follows_a_client_that_becomes_slow() -> None:
    rows = [timed({0: 1.0})] * 50
    assert estimated(rows, 1)[0] == pytest.approx(1.0)
    assert estimated([*rows, timed({0: 2.0})], 1)[0] == pytest.approx(1 + LATEST)
    assert estimated([*rows, *[timed({0: 2.0})] * 30], 1)[0] == pytest.approx(2.0, rel=0.01)


def test_a_reply_that_never_came_counts_as_the_round_that_was_waited() -> None:
    np.testing.assert_allclose(estimated([timed({0: 1.0}, missing=[1])], 2), [1.0, 9.0])


def test_a_client_never_drawn_counts_as_one_of_the_faster() -> None:
    rows = [timed({i: float(i + 1) for i in range(11)})]
    assert estimated(rows, 12)[11] == pytest.approx(2.0)


def test_a_client_that_joins_later_is_learned_like_the_others() -> None:
    rows = [timed({0: 1.0}), timed({0: 1.0, 7: 4.0})]
    times = estimated(rows, 9, known_at_first=2)
    assert times[[0, 7]].tolist() == [1.0, 4.0]
    np.testing.assert_allclose(times[[1, 8]], np.quantile([1.0, 4.0], 0.1))


def test_estimating_changes_nothing_of_what_was_seen() -> None:
    seen = empty_client_stats(2)
    seen = learn(seen, timed({0: 3.0}))
    estimated_times(seen, 5)[:] = 99.0
    assert estimated_times(seen, 2).tolist() == [3.0, 3.0]


def test_all_count_alike_while_nothing_was_measured() -> None:
    np.testing.assert_array_equal(estimated([row()], 3), np.ones(3))
