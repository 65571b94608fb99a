"""A shared link, against tiny steps of time, closed forms and bounds."""

from math import factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace import InputError
from fedpace.checks import FloatArray
from fedpace.times.links import (
    SharedLink,
    Transfers,
    fair_end,
    fair_rates,
    queue_time,
    share_fairly,
)

seeds = st.integers(0, 9999)


def clients(seed: int, most: int = 7) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Draw when clients are ready, their megabits, and their own links; some all ready at once."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, most))
    ready = rng.exponential(size=n) * rng.integers(0, 2)
    return ready, 0.1 + rng.exponential(size=n), 0.2 + rng.exponential(size=n)


def test_two_clients_by_hand() -> None:
    ready, megabits = np.zeros(2), np.array([1.0, 3.0])
    assert SharedLink(1.0).ends(ready, megabits) == pytest.approx([2.0, 4.0])
    assert SharedLink(1.0, "optimal").ends(ready, megabits) == pytest.approx([4.0, 4.0])
    late = np.array([0.0, 2.0])
    both = 2 + np.sqrt(2)
    assert SharedLink(1.0, "optimal").ends(late, np.ones(2)) == pytest.approx([both, both])
    own = np.array([0.25, np.inf])  # the first takes 4 seconds, and leaves 0.75 of the link
    assert SharedLink(1.0).ends(ready, np.ones(2), own) == pytest.approx([4.0, 4 / 3])


@pytest.mark.parametrize("seed", range(4))
def test_fair_sharing_is_what_tiny_steps_of_time_give(seed: int) -> None:
    ready, megabits, own = clients(seed, 5)
    ends, left, now, step = np.full(ready.size, np.nan), megabits.copy(), 0.0, 2e-3
    while np.isnan(ends).any():
        active = (ready <= now) & (left > 0)
        left[active] -= step * fair_rates(own[active], 1.0)
        now += step
        ends[np.isnan(ends) & (left <= 0)] = now
    assert SharedLink(1.0).ends(ready, megabits, own) == pytest.approx(ends, abs=0.02)


@settings(max_examples=50)
@given(seeds, st.floats(0.1, 10))
def test_the_last_is_done_when_the_closed_form_says(seed: int, capacity: float) -> None:
    ready, megabits, _ = clients(seed)
    last = SharedLink(capacity).ends(ready, megabits).max()
    assert last == pytest.approx(fair_end(ready, megabits, capacity), rel=1e-9)


@settings(max_examples=50)
@given(seeds, st.floats(0.1, 10))
def test_the_optimal_allocation_uses_the_link_and_ends_together(seed: int, capacity: float) -> None:
    ready, megabits, _ = clients(seed)
    ends = SharedLink(capacity, "optimal").ends(ready, megabits)
    assert np.unique(ends).size == 1
    assert np.sum(megabits / (ends - ready)) == pytest.approx(capacity, rel=1e-9)
    # The bounds of the journal, and fair sharing, which gives a finished client's part to others.
    traffic = megabits.sum() / capacity
    assert ends[0] >= (traffic + ready @ megabits / megabits.sum()) * (1 - 1e-9)
    assert ends[0] <= (traffic + ready.max()) * (1 + 1e-9)
    assert ends[0] >= fair_end(ready, megabits, capacity) * (1 - 1e-9)


@settings(max_examples=30)
@given(seeds)
def test_own_links_limit_everyone(seed: int) -> None:
    ready, megabits, own = clients(seed)
    alone = ready + megabits / own
    for rule in ("fair", "optimal"):
        assert np.all(SharedLink(1.0, rule).ends(ready, megabits, own) >= alone * (1 - 1e-9))
        wide = SharedLink(1e9, rule).ends(ready, megabits, own)
        most = alone if rule == "fair" else np.full(alone.size, alone.max())
        assert wide == pytest.approx(most, rel=1e-6)


@settings(max_examples=30)
@given(seeds, st.floats(0.1, 3))
def test_an_interruption_changes_nothing(seed: int, pause: float) -> None:
    ready, megabits, own = clients(seed)
    whole = Transfers(ready, megabits, own, np.full(ready.size, np.inf))
    first = share_fairly(whole, 1.0, until=pause)
    rest = share_fairly(whole._replace(left=first.left), 1.0, now=pause)
    ends = np.where(np.isfinite(first.ends), first.ends, rest.ends)
    assert ends == pytest.approx(share_fairly(whole, 1.0).ends, rel=1e-9)


def test_who_quits_leaves_the_link_to_the_others() -> None:
    quits = np.array([1.0, np.inf])
    shared = share_fairly(Transfers(np.zeros(2), np.full(2, 2.0), np.full(2, 9.0), quits), 1.0)
    assert shared.lost.tolist() == [True, False]
    assert shared.ends == pytest.approx([1.0, 2.5])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shared:0", r"link must have a positive, finite capacity, got 0; write \"shared:20\""),
        ("shared:-3", r"link must have a positive, finite capacity, got -3; "),
        ("shared:inf", r"link must have a positive, finite capacity, got inf; "),
        ("shared:fast", r"link must be shared:CAPACITY in Mbit/s, got 'shared:fast'; "),
        ("own:20", r"link must be shared:CAPACITY in Mbit/s, got 'own:20'; "),
        ("shared:20:best", r"link must be shared fair or optimal, got 'best'; "),
    ],
)
def test_a_bad_link_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SharedLink.parse(text)


def test_a_client_that_can_never_finish_is_refused() -> None:
    with pytest.raises(InputError, match="own must be positive, got 0 for client 1; a client with"):
        SharedLink(1.0).ends(np.zeros(2), np.ones(2), np.array([1.0, 0.0]))


@pytest.mark.parametrize("rule", ["fair", "optimal"])
@pytest.mark.parametrize("bad", [np.inf, np.nan, -1.0])
def test_times_and_traffic_that_never_end_are_refused(rule: str, bad: float) -> None:
    link, column = SharedLink(1.0, rule), np.array([1.0, bad])
    with pytest.raises(InputError, match=f"ready must be .*, got {bad:g} for client 1; leave out"):
        link.ends(column, np.ones(2))
    with pytest.raises(InputError, match=f"megabits must be .*, got {bad:g} for client 1"):
        link.ends(np.ones(2), column)


@given(st.floats(0.01, 10), st.floats(0.01, 10), st.integers(1, 12))
def test_the_queue_has_the_rate_of_its_product_form(z: float, d: float, at_once: int) -> None:
    def g(n: int) -> float:
        return sum(d ** (n - j) * z**j / factorial(j) for j in range(n + 1))

    found = queue_time(z, d, at_once)
    assert found.seconds == pytest.approx(g(at_once) / g(at_once - 1), rel=1e-9)
    step = 1e-5 * z
    ends = [queue_time(z + each, d, at_once).seconds for each in (-step, step)]
    assert found.slope == pytest.approx((ends[1] - ends[0]) / (2 * step), rel=1e-4, abs=1e-6)


def test_without_traffic_a_completion_takes_its_part_of_a_task() -> None:
    assert queue_time(3.0, 0.0, 4) == pytest.approx((0.75, 0.25))
    assert queue_time(3.0, 1.0, 1) == pytest.approx((4.0, 1.0))


@pytest.mark.parametrize("at_once", [2, 5])
def test_the_queue_is_what_shared_transfers_of_random_clients_take(at_once: int) -> None:
    computing, megabits, f = np.array([0.5, 4.0]), np.array([2.0, 0.5]), np.array([0.4, 0.6])
    rng, now, ends = np.random.default_rng(1), 0.0, []
    drawn = rng.choice(2, at_once, p=f)
    ready, left = computing[drawn], megabits[drawn].copy()
    never = np.full(at_once, np.inf)
    for _ in range(3000):
        found = share_fairly(Transfers(ready, left, never, never), 1.0, now=now, count=1)
        slot = int(np.argmin(found.ends))
        now, left = float(found.ends[slot]), found.left
        ends.append(now)
        client = int(rng.choice(2, p=f))
        ready[slot], left[slot] = now + computing[client], megabits[client]
    lasted = np.diff(np.array(ends)[::100])  # sums of 100, nearly independent
    error = lasted.std(ddof=1) / np.sqrt(lasted.size)
    expected = 100 * queue_time(float(f @ computing), float(f @ megabits), at_once).seconds
    assert abs(lasted.mean() - expected) < 5 * error
