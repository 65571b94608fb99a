"""A round that ends early, candidates that are asked, and what both cost."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace.checks import IntArray
from fedpace.sampling.design import Draw, Everyone
from fedpace.seeds import Seeds
from fedpace.times.round_times import Presence, Steady
from fedpace.training.backend import Reply
from fedpace.training.stopping import Stop, constant
from fedpace.training.synchronous import SynchronousTraining
from fedpace.training.train import train

from .fakes import LARGER, SIZES, Fixed, Fleet, small_simulator, task

EVERYONE = Everyone(SIZES / SIZES.sum())
HOW: dict[str, Any] = {"schedule": constant(0.1), "stop": Stop(rounds=4), "seeds": Seeds(0)}


class Leaving(Steady):
    """Clients that leave after so many seconds."""

    def __init__(self, usual: Any, stays: Any) -> None:
        super().__init__(usual)
        object.__setattr__(self, "stays", np.asarray(stays))

    def leaves(self, seconds: float, clients: IntArray) -> Any:
        return self.stays[clients]  # type: ignore[attr-defined]

    def present(self, seconds: float) -> Presence:
        return Presence(None)


def asked(times: Any = LARGER, stays: Any = np.inf, **more: Any) -> Reply:
    backend = small_simulator(times=Leaving(times, np.broadcast_to(stays, 6)))
    backend.submit(task(range(6), backend.initial())._replace(**more))
    return backend.collect()


def test_the_first_replies_count_and_end_the_round() -> None:
    reply = asked(take=3)  # times 1, 4, 2, 0.5, 3, 1.5
    assert reply.clients.tolist() == [0, 3, 5]
    assert reply.lasted == 1.5
    assert reply.wasted == 3 * 1.5
    assert reply.updates.shape[0] == 3


def test_a_deadline_ends_the_round_for_those_who_are_late() -> None:
    reply = asked(deadline=1.75)
    assert (reply.clients.tolist(), reply.lasted) == ([0, 3, 5], 1.75)
    assert reply.wasted == 3 * 1.75
    nobody = asked(deadline=0.25)
    assert (nobody.clients.size, nobody.updates.shape[0], nobody.lasted) == (0, 0, 0.25)


def test_whoever_leaves_brings_nothing_and_is_not_waited_for() -> None:
    reply = asked(stays=[9, 1, 9, 9, 2, 9])
    assert (reply.clients.tolist(), reply.lasted) == ([0, 2, 3, 5], 2.0)
    assert reply.wasted == 3.0
    assert asked(stays=[9, 1, 9, 9, 2, 9], take=2).clients.tolist() == [0, 3]
    last = asked(stays=[9, 9, 9, 9, 9, 1.25])
    assert (5 in last.clients, last.lasted) == (False, 4.0)


@given(
    st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0]), min_size=6, max_size=6),
    st.lists(st.sampled_from([0.25, 1.0, 2.5, np.inf]), min_size=6, max_size=6),
    st.one_of(st.none(), st.integers(1, 7)),
    st.one_of(st.none(), st.sampled_from([0.75, 1.0, 2.0])),
)
@settings(max_examples=80, deadline=None)
def test_nobody_counts_who_is_late_or_gone(
    times: list[float], stays: list[float], take: int | None, deadline: float | None
) -> None:
    reply = asked(np.array(times), np.array(stays), take=take, deadline=deadline)
    limit = np.inf if deadline is None else deadline
    able = np.flatnonzero(np.array(times) <= np.minimum(stays, limit))
    count = able.size if take is None else min(take, able.size)
    assert reply.clients.size == count
    assert np.isin(reply.clients, able).all()
    assert reply.lasted <= limit
    others = np.setdiff1d(able, reply.clients)
    if count and others.size:
        assert np.array(times)[others].min() >= np.array(times)[reply.clients].max()
    worked = np.minimum(np.minimum(times, stays), reply.lasted)
    assert reply.wasted == pytest.approx(np.delete(worked, reply.clients).sum())


def test_losses_are_told_where_they_are_asked_for() -> None:
    assert not asked().losses.size
    reply = asked(losses=True)
    np.testing.assert_allclose(reply.losses, np.log(3), rtol=1e-6)  # the initial model is even
    np.testing.assert_allclose(reply.rms_losses, np.log(3), rtol=1e-6)


def test_a_run_may_end_every_round_early() -> None:
    rows = train(small_simulator(times=Steady(LARGER)), Fixed(EVERYONE), take=4, **HOW).history.rows
    assert all(each.round_seconds == 2.0 for each in rows[1:])
    assert rows[-1].missing.tolist() == [1, 4]
    # One that has answered always counts with p; the late ones would count for more.
    np.testing.assert_allclose(rows[-1].weights, EVERYONE.weights[rows[-1].clients])
    late = train(small_simulator(times=Steady(LARGER)), Fixed(EVERYONE), deadline=1.0, **HOW)
    assert [each.clients.tolist() for each in late.history.rows[1:]] == [[0, 3]] * 4


def test_where_the_backend_waits_for_all_the_first_still_count() -> None:
    rows = train(Fleet(), Fixed(Everyone(np.full(4, 0.25))), take=2, **HOW).history.rows
    assert rows[1].clients.tolist() == [0, 2]  # times 1, 5, 2, 3
    assert rows[1].round_seconds == 5.0  # it did wait
    assert rows[1].wasted_seconds == 8.0


def test_what_a_sampler_chooses_is_all_that_counts() -> None:
    class Picky(Fixed):
        def choose(self, state: None, draw: Draw, reply: Reply, rng: np.random.Generator) -> Draw:
            return Draw(reply.clients[1:2], np.array([7.0]))

    training = SynchronousTraining(Fleet(), Picky(Everyone(np.full(4, 0.25))), **HOW)
    training.draw()
    seconds = np.array([2.0, 3.0])
    row = training.complete(Reply(np.array([1, 3]), np.eye(4)[[1, 3]], seconds, np.ones(2)))
    assert (row.clients.tolist(), row.weights.tolist()) == ([3], [7.0])
    assert (row.missing.tolist(), row.left_out.tolist()) == ([0, 2], [1])
    assert (row.round_seconds, row.wasted_seconds) == (3.0, 2.0)
    assert training.state.parameters.tolist() == [0.0, 0.0, 0.0, 7.0]


def test_asking_counts_in_the_clock_and_in_the_bytes() -> None:
    backend = small_simulator(times=Steady(LARGER))
    probe = backend.probe(task([1, 2], backend.initial()), samples=10)
    np.testing.assert_allclose(probe.seconds, [4.0 * 10 / 60, 2.0 * 10 / 60])
    held_out = backend.probe(task([0], backend.initial()), held_out=True)
    assert held_out.seconds[0] == pytest.approx(backend.data.test.sizes[0] / 60)
    assert 0 <= held_out.accuracies[0] <= 1
