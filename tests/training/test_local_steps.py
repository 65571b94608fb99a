"""Tasks with a number of local steps of their own: training, time, directions and rows."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpace.checks import IntArray
from fedpace.errors import InputError
from fedpace.sampling.dispatch import InTurn
from fedpace.sampling.schemes import SCHEMES
from fedpace.seeds import Seeds
from fedpace.servers.memory import Memory
from fedpace.studies.build import simulator
from fedpace.studies.study import load_study
from fedpace.times.links import Linked
from fedpace.times.round_times import Steady
from fedpace.training.checkpoint import Checkpoint
from fedpace.training.sampler import BaseSampler, Plan, SamplerContext
from fedpace.training.stopping import Stop, constant
from fedpace.training.train import train
from fedpace.training.updates import RoundUpdates
from tests.training.fakes import SIZES, small_simulator, task

P = SIZES / SIZES.sum()
STEPS = np.array([1, 7, 2, 7, 3, 5])
TRAINING: dict[str, Any] = {"schedule": constant(0.05), "seeds": Seeds(1)}


@dataclass
class Steps(BaseSampler):
    """Weighted sampling, with these local steps."""

    steps: int | IntArray | None
    asynchronous: bool = False
    seen: RoundUpdates | None = None

    def design(self, state: Any, context: SamplerContext) -> Plan:
        if self.asynchronous:
            return Plan(InTurn(P, P, 2), local_steps=self.steps, buffer=2)
        return Plan(SCHEMES["weighted"](context.blank_profile, 3), local_steps=self.steps)

    def see(self, state: Any, updates: RoundUpdates) -> Any:
        self.seen = updates
        return state


def test_each_client_trains_as_a_simulator_with_its_steps() -> None:
    backend = small_simulator()
    sent = task(range(6), backend.initial())._replace(local_steps=STEPS)
    found = backend.train_tasks([sent, sent._replace(round_index=3)])
    for index, together in zip((0, 3), found, strict=True):
        for client, steps in enumerate(STEPS.tolist()):
            alone = replace(backend, local_steps=steps)
            expected = alone.train_task(task([client], backend.initial(), round_index=index))
            np.testing.assert_allclose(together.updates[client], expected.updates[0], rtol=1e-12)
            np.testing.assert_allclose(together.grad_norms[client], expected.grad_norms[0])


def test_as_many_steps_as_configured_changes_no_number() -> None:
    backend = small_simulator()
    plain, asked = (
        train(backend, Steps(steps), stop=Stop(rounds=5), **TRAINING).history.rows
        for steps in (None, backend.local_steps)
    )
    assert [row.loss for row in plain] == [row.loss for row in asked]
    assert [row.seconds for row in plain] == [row.seconds for row in asked]
    assert not plain[1].local_steps.size
    assert (asked[1].local_steps == backend.local_steps).all()


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_only_computing_grows_with_the_steps(share: float) -> None:
    usual = np.arange(1.0, 7.0)
    backend = replace(small_simulator(), times=Steady(usual, share), local_steps=10)
    backend.submit(task(range(6), backend.initial())._replace(local_steps=STEPS))
    expected = usual * (share * STEPS / 10 + 1 - share)
    np.testing.assert_allclose(backend.collect().seconds, expected)
    fewer = replace(backend, local_steps=5, reference_steps=10)
    assert fewer.usual_computing is not None
    assert fewer.usual_times is not None
    np.testing.assert_allclose(fewer.usual_times, usual * (1 - share / 2))
    np.testing.assert_allclose(fewer.usual_computing * fewer.usual_times, usual * share / 2)
    assert backend.usual_times is backend.times.usual


def test_a_link_that_varies_keeps_its_seconds() -> None:
    compute, speeds = np.array([4.0, 1.0]), np.array([[125.0, 40.0, 125.0, 40.0]] * 2)
    usual = compute + 8.0
    times = Linked(Steady(usual), compute, speeds, 8.0, Seeds(0))
    both = np.arange(2)
    took = times.at(0.0, both, round_index=3)
    share = times.computing_of(both, round_index=3)
    np.testing.assert_allclose(took * share, compute)
    np.testing.assert_allclose(times.computing * usual, compute)


def test_directions_are_per_local_step_where_the_sampler_chose_them() -> None:
    modes: list[dict[str, Any]] = [{}, {"mode": "asynchronous", "at_once": 2}]
    for mode in modes:
        sampler = Steps(STEPS, asynchronous=bool(mode))
        train(small_simulator(), sampler, stop=Stop(rounds=4), **TRAINING, **mode)
        seen = sampler.seen
        assert seen is not None
        steps = STEPS[seen.draw.clients]
        np.testing.assert_array_equal(seen.reply.local_steps, steps)
        np.testing.assert_allclose(
            seen.directions(slice(None)), seen.reply.updates / (0.05 * steps[:, None]), rtol=1e-12
        )
        few = seen.only(steps == steps[0])
        np.testing.assert_array_equal(
            few.directions(slice(None)), seen.directions(slice(None))[steps == steps[0]]
        )


def test_memory_steps_as_far_as_the_average_where_all_take_the_same_steps() -> None:
    """Without a remembered update, β is 0: the steps are those of the average."""
    one, other = (
        train(small_simulator(), Steps(3), server=s, stop=Stop(rounds=1), **TRAINING).parameters
        for s in (None, Memory())
    )
    np.testing.assert_allclose(one, other, atol=1e-12)


def test_rows_and_their_resumption_hold_the_steps(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    for rounds in (3, 6):
        checkpoint = Checkpoint(path, {})
        how: Any = {"stop": Stop(rounds=rounds), "callbacks": [checkpoint], **TRAINING}
        rows = train(small_simulator(), Steps(STEPS), **how).history.rows
    whole = train(small_simulator(), Steps(STEPS), stop=Stop(rounds=6), **TRAINING).history
    assert [row.loss for row in rows] == [row.loss for row in whole.rows]
    for row, other in zip(rows[1:], whole.rows[1:], strict=True):
        np.testing.assert_array_equal(row.local_steps, STEPS[row.clients])
        np.testing.assert_array_equal(row.local_steps, other.local_steps)
    assert whole.columns()["local_steps"][1] == STEPS[rows[1].clients].tolist()


@pytest.mark.parametrize("steps", [0, np.array([1, 0, 1, 1, 1, 1]), np.array([1, 2])])
def test_a_plan_without_steps_for_a_client_is_refused(steps: Any) -> None:
    with pytest.raises(InputError, match="local_steps of a plan must be at least 1"):
        train(small_simulator(), Steps(steps), stop=Stop(rounds=5), **TRAINING)


def test_a_study_with_fewer_steps_than_its_times_are_for_takes_less_time() -> None:
    names = ["devices.times=trace:fedscale", "devices.reference_steps=50"]
    fifty = simulator(load_study("simulation-1", names), 0)
    five = simulator(load_study("simulation-1", [*names, "training.local_steps=5"]), 0)
    less = simulator(load_study("simulation-1", [names[0], "devices.samples=120"]), 0)
    times, shares = five.usual_times, five.usual_computing
    assert times is not None
    assert shares is not None
    np.testing.assert_allclose(times, less.times.usual)
    np.testing.assert_allclose(shares, less.times.computing)
    assert (times < fifty.times.usual).all()
