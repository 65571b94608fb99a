"""A shared link, against tiny steps of time, closed forms and bounds."""

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
        ("shared:0", r"link must have a positive capacity, got 0; write \"shared:20\""),
        ("shared:-3", r"link must have a positive capacity, got -3; "),
        ("shared:inf", r"link must have a positive capacity, got inf; "),
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
