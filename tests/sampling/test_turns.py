"""The queue of turns gives the turns of the rule that looks at every client."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedpace.checks import FloatArray
from fedpace.sampling.dispatch import AmongFree, InTurn
from fedpace.sampling.solvers.shares import bounded_shares
from fedpace.sampling.turns import DUE, LEAST_PAID, MOST_CREDIT, MOST_PAID, NOTHING

Mask = NDArray[np.bool_]


def by_looking_at_all(design: InTurn, credit: FloatArray, free: Mask) -> tuple[int, float]:
    """Take the turn of the rule; return who has it and what it pays. Changes `credit`."""
    clients = np.flatnonzero(free)
    always = clients[design.always[clients]]
    if always.size:
        client = int(always[np.argmax(credit[always])])
        least = min(LEAST_PAID, max(credit[client] + DUE, NOTHING))
        paid = float(np.clip(credit[client], least, MOST_PAID))
    else:
        client = int(clients[np.argmin((DUE - credit[clients]) / design.q[clients])])
        paid = float(np.clip(credit[client] - DUE, DUE, MOST_PAID))
    earning = design.q * (credit < MOST_CREDIT)
    if earning.any():
        credit += earning * (paid / earning.sum())
    credit[client] -= paid
    return client, paid


class Case(NamedTuple):
    """A fleet, how many are at work, how many are away at a time, and the credit of some."""

    n: int
    at_once: int
    away: float = 0.0
    slow: int = 0
    credit: float = 0.0
    spell: int = 40


CASES = {
    "everyone there": Case(300, 10),
    "some away": Case(300, 10, away=0.3),
    "most away for long": Case(60, 3, away=0.9, spell=2000),
    "nearly all full": Case(40, 2, credit=4.5, away=0.5),
    "all full": Case(12, 2, credit=8.0),
    "some always at work": Case(60, 10, slow=4, away=0.1),
    "all always at work": Case(8, 8),
    "all always at work, some away": Case(8, 8, away=0.3, credit=3.9),
    "deep in debt, always at work": Case(8, 8, credit=-3.0),
    "one client": Case(1, 1),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(2))
def test_turns_are_those_of_the_rule(name: str, seed: int) -> None:
    case, rng = CASES[name], np.random.default_rng(seed)
    times, p = rng.exponential(size=case.n) + 0.1, rng.pareto(1.5, size=case.n) + 0.1
    times[: case.slow] = 100.0 * case.n
    p /= p.sum()
    q = bounded_shares(p, times, case.at_once)
    design = InTurn(q, p, case.at_once, times=times)
    credit = design.start(rng) + case.credit
    turns = design.turns(credit.copy())
    free = np.ones(case.n, dtype=np.bool_)
    paid = np.zeros(case.n)
    there = rng.random(case.n) >= case.away
    for step in range(700):
        if case.away and step % case.spell == 0:
            there = rng.random(case.n) >= case.away
        found = turns.next(there if case.away else None, rng)
        can = free & there if case.away else free
        assert (found is None) == (not can.any())
        if found is not None:
            client, amount = by_looking_at_all(design, credit, can)
            assert found[0] == client
            assert found[1] == pytest.approx(amount * p[client] / q[client], rel=1e-6)
            paid[client] += amount
            free[client] = False
            assert np.abs(turns.credits - credit).max() < 1e-7
        busy = np.flatnonzero(~free)
        while busy.size and (busy.size >= case.at_once or rng.random() < 0.3):
            ended = int(rng.choice(busy))
            free[ended] = True
            turns.end(ended)
            busy = np.flatnonzero(~free)


@settings(max_examples=30)
@given(st.integers(1, 30), st.data())
def test_one_turn_is_the_first_of_the_queue(n: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    p = rng.dirichlet(np.ones(n)) + 1e-3
    design = InTurn(p / p.sum(), p / p.sum(), data.draw(st.integers(1, n)))
    credit, free = 3 * rng.normal(size=n), rng.random(n) < 0.5
    free[rng.integers(n)] = True
    turn = design.next(free, credit, rng)
    client, paid = by_looking_at_all(design, credit, free)
    assert turn.client == client
    assert turn.weight == pytest.approx(paid * design.weights[client] / design.q[client])
    np.testing.assert_allclose(turn.credits, credit, atol=1e-9)


@pytest.mark.parametrize("kind", [InTurn, AmongFree])
def test_who_is_at_work_or_unknown_is_left_out(kind: type[InTurn] | type[AmongFree]) -> None:
    rng = np.random.default_rng(0)
    design = kind([0.5, 0.3, 0.2], [1 / 3] * 3, 2)
    turns = design.turns(design.start(rng), busy=[0, 7])
    turns.end(7)
    turns.end(1)  # it was free
    clients = {found[0] for _ in range(2) if (found := turns.next(None, rng))}
    assert clients == {1, 2}
    assert turns.next(None, rng) is None
    turns.end(0)
    assert turns.next(np.array([False, True, True]), rng) is None
    assert turns.next(np.array([True, False, False]), rng) is not None


def test_a_design_may_give_no_client_a_turn() -> None:
    class Never(AmongFree):
        def next(self, free: Mask, credit: FloatArray, rng: np.random.Generator) -> None:  # type: ignore[override]
            return None

    rng = np.random.default_rng(0)
    design = Never([0.5, 0.3, 0.2], [1 / 3] * 3, 2)
    credit = design.start(rng)
    turns = design.turns(credit)
    assert turns.next(None, rng) is None
    np.testing.assert_array_equal(turns.credits, credit)
