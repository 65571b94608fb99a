"""Algorithm 2: pilots, estimates, and training that goes on from there."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from fedpace.checks import FloatArray
from fedpace.conformance import check_sampler
from fedpace.errors import InputError
from fedpace.samplers.client_stats import empty_client_stats, estimated_grad_norms, learn
from fedpace.samplers.pilots import RATIO, Piloted
from fedpace.sampling.design import Draw, WithReplacement
from fedpace.sampling.schemes import SCHEMES
from fedpace.seeds import Seeds
from fedpace.times.round_times import Steady
from fedpace.training.backend import BaseBackend, Evaluation, Reply, Task
from fedpace.training.stopping import Stop, constant, inverse
from fedpace.training.train import train
from fedpace.training.training import Outcome
from tests.training.fakes import (
    LARGER,
    EndedError,
    Fleet,
    MemoryCheckpoint,
    assert_same_outcome,
    rows_of,
    small_simulator,
)

PHASES = ["pilot-uniform", "pilot-weighted", "train"]


def adaptive(
    backend: BaseBackend,
    thresholds: Sequence[float] = (1.0, 0.9, 0.8),
    rounds: int = 6,
    *,
    scheme: str = "optimal-mean",
    k: int = 3,
    sampler: dict[str, Any] | None = None,
    **more: Any,
) -> Outcome:
    usual: dict[str, Any] = {
        "schedule": inverse(0.3), "stop": Stop(rounds=12), "seeds": Seeds(0)
    }  # fmt: skip
    piloted = Piloted(SCHEMES[scheme], k, thresholds, rounds, **sampler or {"max_weight": 2.0})
    return train(backend, piloted, **usual | more)


@dataclass(eq=False)
class Scripted(Fleet):
    """A fleet whose model counts rounds, and whose loss follows a script for each pilot.

    The model counts in its first entry where it comes from the uniform pilot, in its second where
    it comes from the weighted one.
    """

    uniform: Sequence[float] = ()
    weighted: Sequence[float] = ()
    pilots: int = field(default=-1)

    def submit(self, task: Task) -> None:
        self.pilots += task.round_index == 0
        super().submit(task)

    def collect(self, count: int | None = None) -> Reply:
        reply = super().collect(count)
        before = self.tasks[-1].parameters
        second = before[1] > 0 or (self.pilots == 1 and before[0] == 0)
        return reply._replace(updates=np.tile(np.eye(4)[int(second)], (reply.clients.size, 1)))

    def evaluate(self, parameters: FloatArray, *, due: bool = True) -> Evaluation | None:
        assert due
        script = self.weighted if parameters[1] else self.uniform
        return Evaluation(script[min(round(float(parameters.sum())), len(script) - 1)], 0.5)


class PlainMean:
    """A server that adds the plain mean of the updates, so that a model can count rounds."""

    def init(self, parameters: FloatArray) -> None:
        pass

    def apply(
        self,
        state: None,
        parameters: FloatArray,
        draw: Draw,
        reply: Reply,
    ) -> tuple[FloatArray, None]:
        return parameters + reply.updates.mean(axis=0), state


def scripted(
    uniform: Sequence[float],
    weighted: Sequence[float],
    thresholds: Sequence[float],
    rounds: int,
    stop: Stop,
    **more: Any,
) -> Outcome:
    fleet = Scripted(uniform=uniform, weighted=weighted, times_known=True, estimates=False)
    return adaptive(fleet, thresholds, rounds, stop=stop, server=PlainMean(), **more)


def test_phases_follow_in_order_on_one_clock() -> None:
    rows = adaptive(small_simulator()).history.rows
    phases = [row.phase for row in rows]
    assert list(dict.fromkeys(phases)) == PHASES
    assert phases == sorted(phases, key=PHASES.index)
    clock = 0.0
    for row in rows[1:]:
        clock += row.round_seconds
        assert row.seconds == pytest.approx(clock)


def test_pilots_run_from_the_initial_model_until_the_lowest_threshold_or_the_last_round() -> None:
    outcome = adaptive(small_simulator(), [1.0, 0.2], 4)
    for name in PHASES[:2]:
        rows = [row for row in rows_of(outcome, name) if row.round > 0]
        assert [row.round for row in rows] == list(range(1, len(rows) + 1))
        assert len(rows) == 4 or rows[-1].loss <= 0.2
        assert all(row.loss > 0.2 for row in rows[:-1])
        assert rows[-1].ended in ("rounds", "target loss")


def test_the_pilots_are_uniform_and_weighted() -> None:
    backend = small_simulator()
    outcome = adaptive(backend, rounds=40, thresholds=[0.0], stop=Stop(rounds=41))
    for row in rows_of(outcome, "pilot-weighted"):  # every draw weighs 1/K
        np.testing.assert_allclose(row.weights * 3, np.rint(row.weights * 3))
    for row in rows_of(outcome, "pilot-uniform")[1:]:
        counts = row.weights * 3 / (6 * backend.weights[row.clients])
        np.testing.assert_allclose(counts, np.rint(counts), atol=1e-9)


def test_pilot_time_counts_and_can_be_told_apart() -> None:
    outcome = adaptive(small_simulator())
    pilots = sum(row.round_seconds for row in outcome.history.rows if row.phase != "train")
    training = sum(row.round_seconds for row in rows_of(outcome, "train"))
    assert pilots > 0
    assert rows_of(outcome, "train")[0].seconds > pilots
    assert outcome.state.seconds == pytest.approx(pilots + training)


@pytest.mark.parametrize(
    ("uniform", "weighted", "model"),
    [
        ([3.0, 2.5, 2.0, 1.8], [3.0, 2.9, 2.8, 2.7], [5, 0, 0, 0]),
        ([3.0, 2.9, 2.8, 2.7], [3.0, 2.5, 2.0, 1.8], [0, 5, 0, 0]),
        ([3.0, 2.9, 2.8, 2.5], [3.0, 2.9, 2.8, 2.5], [5, 0, 0, 0]),
    ],
)
def test_training_goes_on_from_the_better_pilots_model(
    uniform: list[float], weighted: list[float], model: list[int]
) -> None:
    outcome = scripted(uniform, weighted, [0.1], 3, Stop(rounds=5))
    np.testing.assert_allclose(outcome.state.parameters, model)


def test_training_goes_on_with_the_round_index_of_that_pilot() -> None:
    # The uniform pilot passes the threshold after 2 rounds and is the better; weighted needs 4.
    outcome = scripted([3.0, 1.0, 0.1], [3.0, 2.9, 2.0, 1.0, 0.45], [0.5], 9, Stop(rounds=7))
    assert [row.round for row in rows_of(outcome, "train")] == [3, 4, 5, 6, 7]
    assert outcome.state.round == 7


def test_gradient_norms_come_from_both_pilots() -> None:
    outcome = adaptive(small_simulator())
    seen = empty_client_stats(6)
    for row in outcome.history.rows:
        if row.phase != "train":
            seen = learn(seen, row)
    np.testing.assert_array_equal(outcome.profile.grad_norms, estimated_grad_norms(seen, 6))


def test_times_come_from_both_pilots_where_nobody_knows_them() -> None:
    backend = small_simulator(times=Steady(LARGER), times_known=False)
    outcome = adaptive(backend, [0.0], 15, stop=Stop(rounds=17))
    np.testing.assert_allclose(outcome.profile.times, LARGER)
    assert all(
        math.isnan(row.expected_round_seconds)
        for row in rows_of(outcome, "pilot-uniform")[1:] + rows_of(outcome, "pilot-weighted")
    )
    assert rows_of(outcome, "train")[0].expected_round_seconds > 0


def test_the_design_is_the_schemes_for_what_was_learned() -> None:
    outcome = adaptive(small_simulator(times=Steady(LARGER)), scheme="optimal-max")
    expected = SCHEMES["optimal-max"](outcome.profile, 3, max_weight=2.0)
    assert isinstance(expected, WithReplacement)
    assert isinstance(outcome.design, WithReplacement)
    np.testing.assert_array_equal(outcome.design.q, expected.q)
    row = rows_of(outcome, "train")[0]
    assert row.expected_round_seconds == expected.expected_round_time(LARGER)


def test_it_is_solved_again_where_asked_for_with_what_training_taught() -> None:
    once, often = (
        adaptive(small_simulator(), sampler={"refresh": refresh}, stop=Stop(rounds=30))
        for refresh in (None, 5)
    )
    assert (once.profile.grad_norms != often.profile.grad_norms).any()
    assert once.notes[RATIO]["rho"] == often.notes[RATIO]["rho"]  # of the pilots alone


def test_without_a_given_c_the_estimate_is_used() -> None:
    outcome = adaptive(small_simulator())
    assert outcome.profile.beta_over_alpha == outcome.notes[RATIO]["value"]


@pytest.mark.parametrize("c_over_s0", [0.0, 0.3, 4.0])
def test_a_given_c_is_used_in_units_of_s0(c_over_s0: float) -> None:
    outcome = adaptive(small_simulator(), sampler={"c_over_s0": c_over_s0})
    s0 = float(outcome.profile.weights @ outcome.profile.grad_norms) ** 2
    assert outcome.profile.beta_over_alpha == pytest.approx(c_over_s0 * s0)
    assert math.isfinite(outcome.notes[RATIO]["value"])


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    one, other, another = (adaptive(small_simulator(), seeds=Seeds(seed)) for seed in (0, 0, 1))
    assert_same_outcome(one, other)
    assert [row.loss for row in one.history.rows] != [row.loss for row in another.history.rows]


def test_a_target_that_the_pilots_reach_ends_the_run_and_says_so() -> None:
    outcome = scripted([3.0, 0.4], [3.0, 0.4], [0.5], 9, Stop(loss=0.5))
    assert rows_of(outcome, "train") == []
    assert outcome.history.time_to(loss=0.5) < math.inf
    assert outcome.state.ended == "target loss"


def test_time_that_the_pilots_use_up_ends_the_run_and_says_so() -> None:
    outcome = adaptive(small_simulator(), [0.0], 40, stop=Stop(seconds=5.0))
    assert rows_of(outcome, "train") == []
    assert outcome.state.ended == "seconds"


def test_a_pilot_that_diverges_is_not_the_better_one() -> None:
    outcome = scripted([3.0, math.nan], [3.0, 2.0, 1.0], [0.5], 2, Stop(rounds=4))
    np.testing.assert_allclose(outcome.state.parameters, [0, 4, 0, 0])
    assert math.isfinite(outcome.history.rows[-1].loss)


def test_a_weighted_pilot_that_diverges_does_not_stop_training_from_the_uniform_one() -> None:
    outcome = scripted([3.0, 2.0, 1.0], [3.0, math.nan], [0.5], 2, Stop(rounds=4))
    assert [row.round for row in rows_of(outcome, "train")] == [3, 4]


@pytest.mark.parametrize(
    ("uniform", "weighted", "stop"),
    [
        ([3.0, 2.0, 1.0], [3.0, math.nan], Stop(rounds=4)),
        ([3.0, math.nan], [3.0, 2.0, 1.0], Stop(rounds=4)),
        ([3.0, 1.1, 0.8], [3.0, 2.0, 1.5], Stop(loss=0.9, rounds=9)),
        ([3.0, math.nan], [3.0, math.nan], Stop(rounds=9)),
    ],
)
def test_a_run_that_ends_with_its_pilots_or_goes_on_is_resumed_as_such(
    uniform: list[float], weighted: list[float], stop: Stop
) -> None:
    arguments = (uniform, weighted, [0.5], 2, stop)
    whole = scripted(*arguments)
    pilots = sum(row.phase != "train" for row in whole.history.rows)
    journal = MemoryCheckpoint(lives=pilots)
    with pytest.raises(EndedError):
        scripted(*arguments, callbacks=[journal])
    resumed = scripted(*arguments, callbacks=[journal])
    assert resumed.state.ended == whole.state.ended
    assert [row.round for row in resumed.history.rows] == [row.round for row in whole.history.rows]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # overflow is tested with the run
def test_pilots_that_both_diverge_end_the_run_as_diverged() -> None:
    outcome = adaptive(small_simulator(weight_decay=1.0), schedule=constant(1e200))
    assert outcome.state.ended == "diverged"
    np.testing.assert_array_equal(outcome.profile.grad_norms, np.ones(6))


def test_what_both_pilots_learned_of_who_answers_is_kept() -> None:
    fleet = Fleet(answers=lambda _, i: i != 1)
    outcome = adaptive(fleet, [9.9], 4, k=2, stop=Stop(rounds=6))
    asked = sum(1 in row.missing for row in outcome.history.rows)
    assert outcome.state.asked[1] == asked > 0
    assert outcome.state.answered[1] == 0


class Unseen(Fleet):
    """A fleet whose model is evaluated in every fourth round only."""

    def evaluate(self, parameters: FloatArray, *, due: bool = True) -> Evaluation | None:
        rare = len(self.tasks) % 4 == 0
        return super().evaluate(parameters, due=due) if rare else None


def test_losses_that_nobody_measured_are_filled_in() -> None:
    stop = Stop(rounds=12, blind=True)
    outcome = adaptive(Unseen(estimates=False), [9.5, 9.0], 8, k=2, stop=stop, evaluate_every=4)
    assert len(rows_of(outcome, "pilot-uniform")) == 9
    assert len(rows_of(outcome, "pilot-weighted")) == 8
    assert math.isfinite(outcome.notes[RATIO]["value"])
    assert outcome.state.ended == "rounds"


class Dark(Fleet):
    """A fleet whose model nobody evaluates, and whose clients tell no loss."""

    def evaluate(self, parameters: FloatArray, *, due: bool = True) -> None:
        pass


def test_pilots_whose_losses_nobody_measured_still_teach_norms_and_times() -> None:
    stop = Stop(rounds=12, blind=True)
    outcome = adaptive(Dark(estimates=False), [9.0], 8, k=2, stop=stop, evaluate_every=0)
    assert outcome.state.ended == "rounds"
    assert isinstance(outcome.design, WithReplacement)
    assert np.ptp(outcome.design.q) > 0.05  # not that of a pilot
    assert not outcome.notes[RATIO]["identified"]


@pytest.mark.parametrize("refresh", [None, 3])
@pytest.mark.parametrize("scheme", ["statistical", "optimal-mean"])
def test_keeps_to_the_rules_of_a_sampler(scheme: str, refresh: int | None) -> None:
    check_sampler(lambda: Piloted(SCHEMES[scheme], 3, [1.0, 0.5], 4, refresh=refresh))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"pilot_rounds": 0}, "pilots.rounds must be at least 1, got 0"),
        ({"thresholds": []}, "pilots.thresholds must hold a loss, got none"),
        ({"refresh": -1}, "refresh must be at least 1, got -1"),
    ],
)
def test_refuses_settings_that_are_none(changes: dict[str, Any], problem: str) -> None:
    usual: dict[str, Any] = {
        "scheme": SCHEMES["optimal-mean"], "k": 2, "thresholds": [1.0], "pilot_rounds": 3
    }  # fmt: skip
    with pytest.raises(InputError, match=problem):
        Piloted(**usual | changes)
