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
    assert rows[-1].why.endswith("S₀, measured")
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


def sizes(outcome: Outcome) -> list[int]:
    """Return the updates in each step."""
    return [each.clients.size for each in outcome.history.rows[1:]]


def test_the_first_step_takes_all_at_work_and_then_every_update_is_one() -> None:
    for schedule in (constant(0.1), lambda r: 0.3 / (1 + r) ** 0.5):
        assert sizes(trained(AsynchronousPace(4), schedule=schedule)) == [4] + [1] * 59


def test_steps_follow_a_rate_that_falls_fast() -> None:
    found = sizes(trained(AsynchronousPace(4), schedule=inverse(0.3)))
    assert found[:3] == [4, 2, 1]
    assert set(found[20:]) == {1}


def test_the_length_of_steps_does_not_depend_on_the_clients_rate_once_it_is_measured() -> None:
    # Two rates that differ by ten, with updates that differ by almost ten.
    ends = []
    for rate in (0.003, 0.03):
        rows = trained(AsynchronousPace(3), steps=400, schedule=constant(rate)).history.rows
        ends.append(rows[-1].loss)
    assert ends[0] == pytest.approx(ends[1], rel=0.05)


def test_a_rate_that_falls_does_not_bring_training_to_a_stop() -> None:
    # By then 0.01 / (1 + r) is 1/30 of the rate; steps of that length would hardly move the model.
    slow = trained(AsynchronousPace(3), steps=300, schedule=inverse(0.01)).history.rows
    assert slow[-1].loss < 0.75 * slow[0].loss
    plain = trained(AsynchronousPace(3, buffer=1), steps=300, schedule=inverse(0.01)).history.rows
    assert slow[0].loss - slow[-1].loss > 3 * (plain[0].loss - plain[-1].loss)


SCHEDULES: dict[str, Callable[[int], float]] = {
    "small": constant(0.003),
    "large": constant(1.0),
    "inverse": inverse(1.0),
    "root": lambda r: 1.0 / (1 + r) ** 0.5,
    "warm-up": lambda r: 0.5 * min(r / 50, 1.0) + 1e-3,
    "cosine": lambda r: 0.5 * max(math.cos(math.pi * r / 800), 0.0) + 1e-6,
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_training_is_stable_under_any_schedule(name: str) -> None:
    losses = [
        each.loss
        for each in trained(AsynchronousPace(3), steps=400, schedule=SCHEDULES[name]).history.rows
    ]
    assert max(losses) < 3 * losses[0]  # the first steps may be wild
    assert np.mean(losses[-100:]) < 0.9 * losses[0]


def test_where_the_loss_is_not_evaluated_steps_go_on() -> None:
    outcome = trained(AsynchronousPace(3), evaluate_every=0, schedule=constant(0.1))
    assert sizes(outcome)[-1] == 1


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
    assert outcome.notes == {"lean": pytest.approx(0.7)}
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
