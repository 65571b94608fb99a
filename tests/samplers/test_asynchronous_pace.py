"""The sampler pace in asynchronous training: shares by P3, and small steps."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedpace.errors import InputError
from fedpace.samplers.asynchronous_pace import AsynchronousPace
from fedpace.samplers.build import sampler_for
from fedpace.sampling.dispatch import InTurn
from fedpace.sampling.solvers.shares import bounded_shares
from fedpace.seeds import Seeds
from fedpace.times.round_times import Steady
from fedpace.training.history import Row
from fedpace.training.sampler import SamplerContext
from fedpace.training.stopping import Stop, constant, inverse
from fedpace.training.train import train
from fedpace.training.training import Outcome
from tests.training.fakes import LARGER, small_simulator


def trained(
    pace: AsynchronousPace, backend: Any = None, *, steps: int = 60, **more: Any
) -> Outcome:
    how: dict[str, Any] = {"schedule": inverse(0.3), "stop": Stop(rounds=steps), "seeds": Seeds(0)}
    how |= {"mode": "asynchronous", "at_once": pace.k, "buffer": pace.buffer}
    return train(backend or small_simulator(times=Steady(LARGER)), pace, **how | more)


def step(loss: float, *clients: int) -> Row:
    """Return a step after which the loss was evaluated."""
    numbers, ones = np.array(clients, dtype=np.int64), np.ones(len(clients))
    return Row("train", 1, 1.0, loss, 0.5, 1.0, 1.0, numbers, ones / 4, ones, ones)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k must be .*, got 0"),
        ({"k": 3, "warm_up": 0}, "warm_up must be .*, got 0; give 3"),
        ({"k": 3, "refresh": 0}, "refresh must be .*, got 0; give 2"),
        ({"k": 3, "buffer": 0}, "buffer must be .*, got 0; leave it out"),
        ({"k": 3, "c_over_s0": -1.0}, "c_over_s0 must be positive and finite, got -1.0"),
        ({"k": 3, "max_weight": 0.5}, "max_weight must be .*, got 0.5"),
    ],
)
def test_a_bad_argument_is_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        AsynchronousPace(**arguments)
    assert "\n" not in str(error.value)


def test_begins_with_weighted_shares_and_goes_on_with_those_of_p3() -> None:
    backend = small_simulator(times=Steady(LARGER))
    rows = trained(AsynchronousPace(2), backend).history.rows
    assert {each.phase for each in rows} == {"warm-up", "train"}
    begun = [each for each in rows[1:] if each.phase == "warm-up"]
    assert sum(each.clients.size for each in begun) == 6  # three times those at work
    assert begun[0].why == "warm-up: weighted shares, to learn from"
    assert rows[-1].why.startswith("shares by P3, c = ")
    assert "measured on" in rows[-1].why
    assert rows[-1].loss < rows[0].loss


def test_leans_to_the_fast_within_the_cap() -> None:
    backend = small_simulator(times=Steady(LARGER))
    design = trained(AsynchronousPace(2, c_over_s0=100.0), backend).design
    assert isinstance(design, InTurn)
    weighted = bounded_shares(backend.weights, LARGER, 2)
    assert design.q @ LARGER < weighted @ LARGER
    assert (design.q >= weighted / 1.5 * (1 - 1e-6)).all()
    assert design.q.min() < 0.7 * weighted[np.argmin(design.q)]


def test_each_client_gets_its_part_of_all_weight() -> None:
    backend = small_simulator(times=Steady(LARGER))
    outcome = trained(AsynchronousPace(2), backend, steps=600)
    received = np.zeros(6)
    for each in outcome.history.rows:
        np.add.at(received, each.clients, each.weights)
    assert np.abs(received / received.sum() - backend.weights).sum() < 0.03


STEADY_RATE = constant(0.1)


def buffers_after(
    *losses: float, at_once: int = 12, rate: Callable[[int], float] = STEADY_RATE
) -> list[int]:
    """Return how many updates make the next step, after each of those losses."""
    pace, known = AsynchronousPace(at_once), SamplerContext(np.full(30, 1 / 30), np.ones(30))
    state, found = pace.init(30), []
    for r, loss in enumerate(losses):
        state["rate"] = rate(r)
        state = pace.observe(state, step(loss, *range(6)))
        found.append(pace.design(state, known._replace(rate=rate(r + 1))).buffer or 0)
    return found


def test_the_first_step_waits_for_all_at_work_unless_nobody_knows_the_rate() -> None:
    pace, known = AsynchronousPace(12), SamplerContext(np.full(30, 1 / 30), np.ones(30))
    assert pace.design(pace.init(30), known._replace(rate=0.1)).buffer == 12
    assert pace.design(pace.init(30), known).buffer == 3


def test_steps_are_made_of_fewer_updates_while_the_loss_falls() -> None:
    found = buffers_after(*np.linspace(3, 1, 20))
    assert found[0] == 3
    assert found[-1] == 1
    assert found == sorted(found, reverse=True)


def test_steps_are_made_of_fewer_updates_as_the_rate_falls_even_if_the_loss_rises() -> None:
    assert buffers_after(1.0, 1.4, 1.8, 2.6, 5.0, rate=inverse(0.1)) == [6, 4, 3, 2, 2]


def test_steps_are_made_of_more_updates_up_to_all_at_work_where_the_loss_rises() -> None:
    assert buffers_after(1.0, 1.4, 1.8, 2.6, 5.0, 9.0) == [3, 3, 6, 12, 12, 12]
    assert buffers_after(1.0, 1.4, 1.8, 2.6, 5.0, 9.0, at_once=4) == [2, 4, 4, 4, 4, 4]


def test_one_jump_that_goes_back_cuts_nothing() -> None:
    assert buffers_after(1.0, 1.5, 0.9, 0.8) == [3, 3, 3, 2]


def test_where_nobody_evaluates_the_loss_steps_follow_the_rate_alone() -> None:
    pace, known = AsynchronousPace(12), SamplerContext(np.full(30, 1 / 30), np.ones(30))
    state, unknown = pace.init(30), step(math.nan, 0, 1)._replace(accuracy=math.nan)
    for _ in range(50):
        state = pace.observe(state, unknown)
    assert pace.design(state, known).buffer == 3
    assert set(buffers_after(*[math.nan] * 20)) == {3}
    assert buffers_after(*[math.nan] * 20, rate=inverse(0.1))[-1] == 1


@pytest.mark.parametrize("at_once", [1, 2, 3, 5, 6])
def test_any_number_of_clients_may_be_at_work(at_once: int) -> None:
    outcome = trained(AsynchronousPace(at_once), steps=40)
    assert outcome.history.rows[-1].loss < outcome.history.rows[0].loss
    assert all(each.clients.size <= max(at_once, 2) for each in outcome.history.rows)


def test_with_fewer_clients_than_room_all_are_at_work() -> None:
    pace = AsynchronousPace(8)
    plan = pace.design(pace.init(3), SamplerContext(np.full(3, 1 / 3), np.array([1.0, 2.0, 4.0])))
    design = plan.design
    assert isinstance(design, InTurn)
    np.testing.assert_allclose(design.q, np.array([4.0, 2.0, 1.0]) / 7)


def test_a_given_buffer_and_c_are_kept() -> None:
    outcome = trained(AsynchronousPace(3, buffer=3, c_over_s0=0.7))
    assert all(each.clients.size == 3 for each in outcome.history.rows[1:])
    assert outcome.notes == {"lean": 0.7}
    assert "as given" in outcome.history.rows[-1].why


def test_hidden_times_are_learned() -> None:
    backend = replace(small_simulator(times=Steady(LARGER)), times_known=False)
    outcome = trained(AsynchronousPace(2), backend, steps=200)
    np.testing.assert_allclose(outcome.profile.times, LARGER)


def test_one_wild_update_does_not_end_the_run() -> None:
    class Wild(type(small_simulator())):  # type: ignore[misc]
        """Its client 3 sends nothing finite in one task."""

        def collect(self, count: int | None = None) -> Any:
            reply = super().collect(count)
            hit = (reply.clients == 3) & (self.__dict__.setdefault("wild", 0) < 1)
            if hit.any():
                self.__dict__["wild"] += 1
                reply = reply._replace(grad_norms=np.where(hit, np.inf, reply.grad_norms))
                reply.updates[hit] *= 1e12
            return reply

    calm = small_simulator(times=Steady(LARGER))
    backend = Wild(**{name: getattr(calm, name) for name in calm.__dataclass_fields__})
    outcome = trained(AsynchronousPace(2), backend, steps=50, schedule=constant(0.01))
    assert np.isfinite(outcome.profile.grad_norms).all()
    assert outcome.history.rows[-1].round == 50


def test_is_the_pace_of_asynchronous_studies() -> None:
    made = sampler_for("pace", 4, mode="asynchronous", refresh=7, max_weight=9.0)
    assert isinstance(made, AsynchronousPace)
    assert (made.k, made.refresh, made.max_weight, made.buffer) == (4, 7, 1.5, None)
