"""Asynchronously every client weighs p in the long run, even if it is slow, busy or away."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedpace import BaseDesign, InputError, Profile, WithReplacement
from fedpace.checks import FloatArray
from fedpace.sampling.dispatch import (
    AmongFree,
    BaseDispatch,
    InTurn,
    Turn,
    as_any_design,
    as_dispatch,
)
from fedpace.sampling.solvers.shares import bounded_shares, solve_shares
from fedpace.sampling.turns import MOST_CREDIT, NOTHING
from tests.sampling.completions import completions
from tests.sampling.fleets import Fleet, fleets


def kinds() -> dict[str, tuple[FloatArray, int]]:
    """Times of the clients, and how many are at work."""
    rng = np.random.default_rng(1)
    one_slow, slower_than_all = np.ones(60), rng.exponential(size=40) + 0.1
    one_slow[7] = 60.0
    slower_than_all[3] = slower_than_all.sum()
    return {
        "exponential": (rng.exponential(size=100) + 0.01, 10),
        "heavy tail": (1 + rng.pareto(1.1, size=100), 10),
        "ties": (rng.integers(1, 5, size=60).astype(float), 10),
        "one sixty times as slow": (one_slow, 10),
        "one slower than all others together": (slower_than_all, 5),
        "N = 12, C = 10, heavy tail": (1 + rng.pareto(1.1, size=12), 10),
        "N = 11, C = 10": (rng.exponential(size=11) + 0.1, 10),
        "N = C": (rng.exponential(size=10) + 0.1, 10),
    }


def weights_of(n: int) -> FloatArray:
    weights = 1 + np.random.default_rng(2).pareto(1.5, size=n)
    return np.asarray(weights / weights.sum(), dtype=np.float64)


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("scheme", ["weighted", "optimal"])
def test_weights_are_as_the_data_and_time_as_predicted(
    kind: str, noise: float, scheme: str
) -> None:
    times, at_once = kinds()[kind]
    p = weights_of(times.size)
    q = bounded_shares(p, times, at_once)
    if scheme == "optimal":
        q = solve_shares(p, times, np.ones(times.size), None, at_once, max_weight=4.0).q
    design = InTurn(q, p, at_once, times=times)
    count = 5_000
    found = completions(design, times, count, noise=noise)
    # Credits stay between −1 and 4 or so: a handful of turns of each client, of `count` in all.
    unpaid = 5 * float((p / q).sum()) / count
    assert float(np.abs(found.weight_shares - p).sum()) <= 0.005 + unpaid
    predicted = design.seconds_per_completion(times)
    # Where all are always at work and times vary, turns pay up to a fifth less than 1.
    within = 0.2 if times.size == at_once else 0.08
    assert found.seconds / found.weights.sum() == pytest.approx(predicted, rel=within)
    if scheme == "weighted":
        assert found.seconds / count == pytest.approx(predicted, rel=0.05)


def test_by_chance_the_slow_weigh_too_little() -> None:
    times, at_once = kinds()["one slower than all others together"]
    p = weights_of(times.size)
    chance = completions(AmongFree(p, p, at_once), times, 10_000)
    shares = bounded_shares(p, times, at_once)
    turns = completions(InTurn(shares, p, at_once, times=times), times, 10_000)
    assert chance.weight_shares[3] < 0.75 * p[3]
    errors = [float(np.abs(found.weight_shares - p).sum()) for found in (chance, turns)]
    assert errors[0] > 10 * errors[1]


def test_who_is_away_at_times_is_made_up_for() -> None:
    times, at_once = kinds()["heavy tail"]
    p = weights_of(times.size)
    design = InTurn(bounded_shares(p, times, at_once), p, at_once, times=times)
    found = completions(design, times, 10_000, noise=0.5, away=0.2)
    assert float(np.abs(found.weight_shares - p).sum()) < 0.06


def test_who_is_away_for_long_is_not_owed_all_of_it() -> None:
    design = InTurn([0.5, 0.25, 0.25], [1 / 3] * 3, at_once=1)
    rng = np.random.default_rng(0)
    credit, there = design.start(rng), np.array([False, True, True])
    for _ in range(1000):
        credit = design.next(there, credit, rng).credits
    assert MOST_CREDIT <= credit[0] <= MOST_CREDIT + 1
    assert np.all(np.abs(credit[1:]) <= 3)
    turns = [design.next(there | True, credit, rng)]
    for _ in range(9):
        turns.append(design.next(there | True, turns[-1].credits, rng))
    assert sum(turn.client == 0 for turn in turns) <= 8
    assert turns[0].client == 0
    assert turns[0].weight == pytest.approx(2 * (1 / 3) / 0.5)


@pytest.mark.parametrize("believed", [1e-3, 0.1, 1.0, None])
@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("n", [4, 20])
def test_an_answer_in_a_millisecond_weighs_no_more_where_all_are_at_work(
    n: int, noise: float, believed: float | None
) -> None:
    """The shares may assume any time for the fast client, or none may be known at all."""
    p, times = np.full(n, 1 / n), np.linspace(0.8, 1.2, n)
    assumed, times[0] = times.copy(), 1e-3
    design = InTurn(p, p, n)
    if believed is not None:
        assumed[0] = believed
        design = InTurn(bounded_shares(p, assumed, n), p, n, times=assumed)
    found = completions(design, times, 10_000, noise=noise)
    assert found.counts[0] > 0.9 * 10_000 * (1 - 1 / n)
    # Ten seconds or so: every other client has about ten turns, and owes or is owed one or two.
    assert found.weight_shares[0] == pytest.approx(p[0], rel=0.35)


@settings(max_examples=40)
@given(fleets(fewest=2), st.data())
def test_credits_keep_their_sum_and_are_not_changed_in_place(
    fleet: Fleet, data: st.DataObject
) -> None:
    n = fleet.times.size
    at_once = data.draw(st.integers(1, n))
    shares = bounded_shares(fleet.weights, fleet.times, at_once)
    design = InTurn(shares, fleet.weights, at_once, times=fleet.times)
    rng = np.random.default_rng(0)
    credit = design.start(rng)
    total = credit.sum()
    for _ in range(20):
        free = rng.random(n) < 0.5
        free[rng.integers(n)] = True
        before = credit.copy()
        turn = design.next(free, credit, rng)
        np.testing.assert_array_equal(credit, before)
        credit = turn.credits
        assert free[turn.client]
        paid = turn.weight * design.q[turn.client] / design.weights[turn.client]
        assert NOTHING * (1 - 1e-12) <= paid <= 2 + 1e-12
    assert credit.sum() == pytest.approx(total, rel=1e-9, abs=1e-9)


def test_what_there_is_to_say_of_a_design() -> None:
    p, q = [0.5, 0.5], [0.75, 0.25]
    design = InTurn(q, p, at_once=1)
    assert (design.n, design.at_once, design.solution) == (2, 1, None)
    assert design.largest_weight == 2.0
    assert design.seconds_per_completion([1.0, 5.0]) == 2.0
    profile = Profile(p, [1.0, 5.0], [1.0, 1.0])
    assert design.variance_term(profile) == pytest.approx(0.25 / 0.75 + 1)
    assert design.columns()["aggregation_weight"].tolist() == pytest.approx([2 / 3, 2])
    with pytest.raises(ValueError, match="read-only"):
        design.q[0] = 1


def test_chance_follows_q_among_those_who_are_free() -> None:
    design = AmongFree([0.5, 0.3, 0.2], [1 / 3] * 3, at_once=2)
    rng = np.random.default_rng(0)
    credit = design.start(rng)
    turns = [design.next(np.array([False, True, True]), credit, rng) for _ in range(2000)]
    ones = sum(turn.client == 1 for turn in turns)
    assert abs(ones - 1200) <= 5 * (2000 * 0.6 * 0.4) ** 0.5
    assert {turn.client for turn in turns} == {1, 2}
    assert turns[0].credits is credit


@pytest.mark.parametrize("design", [InTurn, AmongFree])
def test_wrong_input_is_refused(design: type[InTurn] | type[AmongFree]) -> None:
    half = [0.5, 0.5]
    with pytest.raises(InputError, match="q must be positive, got 0 for client 1; a client that"):
        design([1.0, 0.0], half, 1)
    with pytest.raises(InputError, match="at_once must be at most 2, got 3; a client does one"):
        design(half, half, 3)
    made, rng = design(half, half, 1), np.random.default_rng(0)
    with pytest.raises(InputError, match="free must be one truth value per client"):
        made.next(np.array([True]), made.start(rng), rng)
    with pytest.raises(InputError, match="free must have at least one client, got none; wait"):
        made.next(np.array([False, False]), made.start(rng), rng)


def test_more_than_a_client_can_do_is_refused() -> None:
    with pytest.raises(InputError, match=r"q must be at most .* got 0.5 for client 1; a client"):
        InTurn([0.5, 0.5], [0.5, 0.5], 2, times=[1.0, 3.0])


class Alternating:
    """An asynchronous design as a user may write it: the free client with the lowest number."""

    q = np.array([0.5, 0.5])
    at_once = 1

    def next(self, free: NDArray[np.bool_], credit: FloatArray, rng: np.random.Generator) -> Turn:
        return Turn(int(np.argmax(free)), 1.0, credit)


def test_an_object_with_the_methods_is_accepted() -> None:
    design, rng = as_dispatch(Alternating()), np.random.default_rng(0)
    assert isinstance(design, BaseDispatch)
    assert (design.n, design.largest_weight, design.solution) == (2, 1.0, None)
    assert design.start(rng).tolist() == [0.0, 0.0]
    turn = design.next(np.array([False, True]), design.start(rng), rng)
    assert turn is not None
    assert turn.client == 1
    assert design.seconds_per_completion([1.0, 3.0]) == 2.0
    assert design.columns()["q"].tolist() == [0.5, 0.5]


def test_what_a_design_must_define_is_named() -> None:
    with pytest.raises(InputError, match=r"design must have `next` in asynchronous .* mode sync"):
        as_dispatch(object())
    assert as_any_design(Alternating()).n == 2
    assert isinstance(as_any_design(WithReplacement([1.0], 1, [1.0])), BaseDesign)
    bare = BaseDispatch()
    for missing in (
        lambda: bare.q,
        lambda: bare.at_once,
        lambda: bare.next(np.ones(1, np.bool_), np.ones(1), np.random.default_rng(0)),
    ):
        with pytest.raises(NotImplementedError, match="BaseDispatch does not define"):
            missing()


def test_where_all_are_at_work_a_client_that_answers_at_once_gets_what_it_is_due() -> None:
    times = np.append(np.linspace(0.5, 1.5, 9), 1e-3)
    p = weights_of(times.size)
    q = bounded_shares(p, times, times.size)
    found = completions(InTurn(q, p, times.size, times=times), times, 8_000, noise=0.3)
    assert found.weight_shares[-1] == pytest.approx(p[-1], rel=0.25)
