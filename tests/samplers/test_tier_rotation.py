"""Every tier gets its share of the rounds, and every client what it is owed."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedpace.checks import FloatArray
from fedpace.samplers import pace as tier_rotation
from fedpace.samplers.pace import (
    PATIENCE,
    Balance,
    add_round,
    empty_balance,
    extend_balance,
    next_tier,
)
from fedpace.sampling.tiers import Tiered, inclusion_probabilities
from tests.training.fakes import row

Answers = Callable[[int], bool]
ROUND = row()


def tiered(n: int, k: int, count: int, seed: int, weights: FloatArray | None = None) -> Tiered:
    """Return tiers of about N/G clients each, with shares of the rounds and places by chance."""
    rng = np.random.default_rng(seed)
    p = rng.random(n) + 0.1 if weights is None else weights
    tiers = np.arange(n) * count // n
    chances = rng.random(count) + 0.2
    places = inclusion_probabilities(rng.random(n) + 0.2, tiers, k)
    return Tiered(tiers, chances / chances.sum(), places, p / p.sum(), k=k)


class Rounds:
    """Rounds in which tiers take turns, with the balance that they leave."""

    def __init__(self, n: int, *, chance: float = 0.37, seed: int = 0) -> None:
        self.balance: Balance = empty_balance(n)
        self.received = np.zeros(100)  # of clients, silent or not
        self.turns: list[int] = []
        self.chance, self.rng = chance, np.random.default_rng(seed)

    def go(
        self,
        design: Tiered,
        count: int,
        *,
        present: Callable[[], NDArray[np.bool_]] | None = None,
        answers: Answers = lambda _: True,
        chances: FloatArray | None = None,
    ) -> None:
        for _ in range(count):
            there = None if present is None else present()
            turn = next_tier(design, self.balance, there, self.chance)
            turned = design.with_turn(turn)
            draw = (turned if there is None else turned.among(there)).draw(self.rng)
            came = np.array([answers(client) for client in draw.clients.tolist()], np.bool_)
            kept = draw.clients[came]
            # The server's own correction for replies that are missing.
            weights = draw.weights[came] / (1.0 if chances is None else chances[kept])
            new = ROUND._replace(clients=kept, weights=weights, missing=draw.clients[~came])
            self.balance = add_round(self.balance, new)
            self.received[kept] += weights
            self.turns.append(turn)


def largest_weights(design: Tiered) -> FloatArray:
    weights: FloatArray = design.weights / (design.chances[design.tiers] * design.inclusion)
    return weights


@given(
    count=st.integers(2, 8),
    size=st.integers(1, 6),
    k=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    chance=st.floats(0, 1, exclude_max=True),
)
@settings(max_examples=40, deadline=None)
def test_each_tier_gets_its_share_of_the_turns(
    count: int, size: int, k: int, seed: int, chance: float
) -> None:
    # Each tier is drawn whole, so that nothing but turns is left to chance.
    whole = tiered(count * size, count * size, count, seed)
    rounds = Rounds(whole.n, chance=chance)
    rounds.go(whole, 20 * k)
    got = np.bincount(rounds.turns, minlength=count)
    # Mostly one; whoever is due first comes first, even where it is a little early.
    assert np.abs(got - whole.chances * 20 * k).max() <= 1.5
    owed = whole.weights * 20 * k - rounds.balance["received"]
    assert (np.abs(owed) <= 1.5 * largest_weights(whole)).all()


@pytest.mark.parametrize("seed", range(3))
def test_turns_of_a_tier_come_evenly(seed: int) -> None:
    design = tiered(60, 60, 6, seed)
    rounds = Rounds(60)
    rounds.go(design, 400)
    for tier, chance in enumerate(design.chances):
        gaps = np.diff(np.flatnonzero(np.array(rounds.turns) == tier))
        assert gaps.max() <= 2 / chance + 1


def test_first_turns_are_as_likely_as_the_shares() -> None:
    design = tiered(12, 3, 4, 1)
    nobody = empty_balance(12)
    first = [next_tier(design, nobody, None, chance) for chance in np.linspace(0, 1, 500)]
    assert (np.bincount(first, minlength=4) > 0).all()


def test_clients_get_their_share_where_places_are_drawn() -> None:
    design, count = tiered(40, 3, 4, 2), 4000
    rounds = Rounds(40)
    rounds.go(design, count)
    # What is owed is random only by the draws within the tier: π of its turns, m_g R of them.
    marginals = design.chances[design.tiers] * design.inclusion
    error = np.sqrt(count * design.weights**2 / marginals)
    excess = np.abs(rounds.balance["received"] - design.weights * count) - 5 * error
    assert (excess <= largest_weights(design)).all()
    sums = np.bincount(design.tiers, rounds.balance["received"]) / count
    np.testing.assert_allclose(sums, np.bincount(design.tiers, design.weights), rtol=0.05)


def test_designs_that_change_leave_every_client_its_share() -> None:
    p = np.random.default_rng(5).random(24) + 0.1
    rounds = Rounds(24)
    for seed in range(30):
        design = tiered(24, 24, 3 + seed % 4, seed, p)
        rounds.go(design, 10)
    owed = design.weights * 300 - rounds.balance["received"]
    # A client may be behind by a round of each kind of its tiers, and no more.
    assert np.abs(owed).max() <= 3 * design.round_weights.max()
    assert abs(owed.sum()) <= 3 * design.round_weights.max()


def test_missing_replies_are_made_up_for() -> None:
    design, rng = tiered(30, 30, 5, 3), np.random.default_rng(0)
    rounds = Rounds(30)
    chances = np.where(np.isin(np.arange(30), [12, 13, 14]), 0.8, 1.0)
    rounds.go(design, 600, answers=lambda each: rng.random() < chances[each], chances=chances)
    sums = np.bincount(design.tiers, rounds.received[:30])
    owed = np.bincount(design.tiers, design.weights) * 600 - sums
    assert (np.abs(owed) <= 3 * design.round_weights).all()


@pytest.mark.parametrize("silent", [range(12, 18), range(12, 17)], ids=["all", "most"])
def test_a_tier_that_never_answers_does_not_have_every_turn(silent: range) -> None:
    design = tiered(30, 30, 5, 3)
    rounds = Rounds(30)
    rounds.go(design, 500, answers=lambda client: client not in silent)
    got = np.bincount(rounds.turns, minlength=5)
    assert np.abs(got - design.chances * 500).max() <= PATIENCE + 2
    # Whoever is there after all does not have to be made up for at once.
    rounds.go(design, 100)
    late = np.bincount(rounds.turns[-100:], minlength=5)
    assert late[2] <= design.chances[2] * 100 + 4


def test_nobody_has_to_answer() -> None:
    design = tiered(12, 2, 3, 0)
    rounds = Rounds(12)
    rounds.go(design, 60, answers=lambda _: False)
    assert set(rounds.turns) == {0, 1, 2}
    assert rounds.balance["received"].sum() == 0


def test_a_tier_of_which_nobody_is_there_waits_and_is_made_up_for() -> None:
    design = tiered(20, 20, 4, 1)
    rounds = Rounds(20)
    away = np.arange(20) >= 5
    rounds.go(design, 20, present=lambda: away)
    assert 0 not in rounds.turns
    rounds.go(design, 80)
    assert abs(rounds.turns.count(0) - 100 * design.chances[0]) <= 1 + 100 * 0.2 * design.chances[0]


def test_absences_by_chance_leave_tiers_their_share() -> None:
    design, rng = tiered(40, 4, 5, 4), np.random.default_rng(1)
    rounds = Rounds(40)

    def present() -> NDArray[np.bool_]:
        there: NDArray[np.bool_] = rng.random(40) < 0.6
        there[rng.integers(40)] = True
        return there

    rounds.go(design, 2000, present=present)
    sums = np.bincount(design.tiers, rounds.balance["received"]) / 2000
    np.testing.assert_allclose(sums, np.bincount(design.tiers, design.weights), rtol=0.05)


@pytest.mark.parametrize("before", [10, 1000])
def test_newcomers_do_not_have_every_turn(before: int) -> None:
    p = np.random.default_rng(2).random(24) + 0.2
    rounds = Rounds(20)
    rounds.go(tiered(20, 20, 4, 0, p[:20]), before)
    design = tiered(24, 24, 6, 1, p)
    rounds.balance = extend_balance(rounds.balance, 24)
    rounds.go(design, 200)
    late = np.bincount(rounds.turns[-200:], minlength=6)
    assert np.abs(late - 200 * design.chances).max() <= 4
    assert rounds.turns[before : before + 20].count(5) <= 20 * design.chances[5] + 3


def test_newcomers_are_owed_from_when_they_come() -> None:
    p = np.random.default_rng(2).random(24) + 0.2
    rounds = Rounds(20)
    rounds.go(tiered(20, 20, 4, 0, p[:20]), 10)
    design = tiered(24, 24, 6, 1, p)
    rounds.balance = extend_balance(rounds.balance, 24)
    rounds.go(design, 300)
    received = np.bincount(design.tiers, rounds.balance["received"])
    late = design.tiers >= 5
    assert rounds.balance["since"][20:].min() >= 10
    mine = rounds.balance["received"][late].sum() / 300
    assert mine == pytest.approx(design.weights[late].sum(), abs=0.02)
    assert received.min() > 0


@pytest.mark.parametrize("silent", [False, True])
def test_large_fleets_take_the_turns_of_small_ones(
    monkeypatch: pytest.MonkeyPatch, *, silent: bool
) -> None:
    """What is owed is added up by tiers, unless clients joined late or stopped answering."""
    rng = np.random.default_rng(0)
    n, count = 200, 20
    weights, chances = rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(count))
    tiers = np.repeat(np.arange(count), n // count)
    design = Tiered(tiers, chances, np.full(n, 0.5), weights)
    balance = empty_balance(n)
    balance["rounds"] = 30
    balance["missed"][::7] = PATIENCE if silent else PATIENCE - 1
    for _ in range(40):
        balance["received"][rng.integers(n, size=5)] += rng.random(5)
        present, chance = rng.random(n) < 0.5, float(rng.random())
        turns = []
        for many in (n, 0):
            monkeypatch.setattr(tier_rotation, "MANY", many)
            turns.append([next_tier(design, balance, here, chance) for here in (None, present)])
        assert turns[0] == turns[1]
