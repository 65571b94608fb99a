"""One training: draw, collect, apply, record."""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.sampling.design import Draw, Everyone, WithReplacement
from fedpace.seeds import Seeds
from fedpace.servers.average import Average
from fedpace.times.round_times import Presence, Steady
from fedpace.training.backend import NO_VALUES, BaseBackend, Evaluation, Reply, Task
from fedpace.training.history import Row
from fedpace.training.sampler import START, BaseSampler, Phase, Plan, SamplerContext
from fedpace.training.stopping import Stop, constant, inverse
from fedpace.training.synchronous import SynchronousTraining
from fedpace.training.train import train
from fedpace.training.training import Outcome

from .fakes import (
    LARGER,
    SAMPLES,
    SIZES,
    TIMES,
    Fixed,
    Fleet,
    MemoryCheckpoint,
    assert_same_outcome,
    assert_same_rows,
    loss_of,
    rows_of,
    small_simulator,
)

WEIGHTS = SAMPLES / SAMPLES.sum()
DESIGN = WithReplacement([0.4, 0.2, 0.3, 0.1], 3, WEIGHTS)
SIX = WithReplacement(np.full(6, 1 / 6), 3, SIZES / SIZES.sum())


def settings(**more: Any) -> dict[str, Any]:
    usual = {"schedule": inverse(0.1), "stop": Stop(rounds=6), "seeds": Seeds(1)}
    return usual | more


def trained(backend: BaseBackend, design: Any = DESIGN, **more: Any) -> Outcome:
    return train(backend, Fixed(design), **settings(**more))


def started(backend: BaseBackend, sampler: Any = None, **more: Any) -> SynchronousTraining:
    return SynchronousTraining(backend, sampler or Fixed(DESIGN), **settings(**more))


def round_of(run: SynchronousTraining) -> Row:
    """Do one round by hand."""
    run.backend.submit(run.draw())
    return run.complete(run.backend.collect())


def test_row_zero_describes_the_initial_model() -> None:
    backend = small_simulator()
    run = started(backend, Fixed(SIX))
    (first,) = run.rows
    assert (first.phase, first.round, first.seconds, first.round_seconds) == ("train", 0, 0, 0)
    assert (first.loss, first.accuracy) == backend.evaluate(backend.initial())
    assert first.clients.size == first.weights.size == first.grad_norms.size == 0
    assert (run.state.round, run.state.seconds, run.ended) == (0, 0, "")


def test_training_is_draw_and_complete_in_turn() -> None:
    run = started(small_simulator(), Fixed(SIX))
    while not run.ended:
        round_of(run)
    assert_same_outcome(run.outcome(), trained(small_simulator(), SIX))


def test_whoever_watches_sees_every_round_as_it_comes() -> None:
    seen: list[Row] = []
    outcome = trained(Fleet(), callbacks=[seen.append])
    assert_same_rows(seen, outcome.history.rows[1:])


@pytest.mark.parametrize("step", ["draw", "complete"])
def test_draw_and_complete_must_alternate(step: str) -> None:
    run = started(Fleet())
    nothing = Reply(np.empty(0, dtype=np.int64), np.empty((0, 4)), NO_VALUES, NO_VALUES)
    with pytest.raises(InputError, match=f"{step} must come after"):
        [run.draw(), run.draw()] if step == "draw" else run.complete(nothing)


def test_the_clock_equals_the_sum_of_the_slowest_times() -> None:
    backend = small_simulator()
    outcome = trained(backend, SIX, stop=Stop(rounds=12))
    clock = 0.0
    for row in outcome.history.rows[1:]:
        slowest = backend.times.at(clock, row.clients, round_index=row.round - 1).max()
        clock += slowest
        assert row.round_seconds == row.client_seconds.max() == slowest
        assert row.seconds == clock
    assert outcome.state.seconds == clock


def test_rounds_are_numbered_one_after_the_other() -> None:
    outcome = trained(Fleet(), stop=Stop(rounds=9))
    assert [row.round for row in outcome.history.rows] == list(range(10))
    assert (outcome.state.round, outcome.state.ended) == (9, "rounds")
    assert [row.ended for row in outcome.history.rows] == [""] * 9 + ["rounds"]


def test_a_task_holds_the_model_the_round_its_learning_rate_and_the_clock() -> None:
    fleet = Fleet()
    rows = trained(fleet, stop=Stop(rounds=3), schedule=inverse(0.6)).history.rows
    assert [task.round_index for task in fleet.tasks] == [0, 1, 2]
    assert [task.learning_rate for task in fleet.tasks] == [0.6, 0.3, pytest.approx(0.2)]
    assert [task.seconds for task in fleet.tasks] == [row.seconds for row in rows[:-1]]
    assert fleet.tasks[0].parameters.tolist() == [0, 0, 0, 0]
    for task, row in zip(fleet.tasks, rows[1:], strict=True):
        assert task.clients.tolist() == row.clients.tolist() == sorted(set(row.clients.tolist()))


def test_weights_of_the_draw_are_used_as_they_are() -> None:
    outcome = trained(Fleet(), stop=Stop(rounds=8))
    expected = np.zeros(4)
    for row in outcome.history.rows[1:]:
        expected[row.clients] += row.weights
    np.testing.assert_allclose(outcome.state.parameters, expected)
    # With these q the weights of a round do not sum to 1; nothing makes them.
    assert any(abs(row.weights.sum() - 1) > 0.1 for row in outcome.history.rows[1:])
    assert outcome.history.rows[-1].loss == pytest.approx(loss_of(expected))


def test_the_expected_round_time_is_recorded_where_times_are_known() -> None:
    rows = trained(Fleet(times_known=True)).history.rows
    assert {row.expected_round_seconds for row in rows[1:]} == {DESIGN.expected_round_time(TIMES)}
    assert all(math.isnan(row.expected_round_seconds) for row in trained(Fleet()).history.rows[1:])


def test_rows_hold_the_replies_of_the_drawn_clients() -> None:
    for row in trained(Fleet()).history.rows[1:]:
        np.testing.assert_array_equal(row.grad_norms, 1.0 + row.clients)
        np.testing.assert_array_equal(row.client_seconds, TIMES[row.clients])
        np.testing.assert_allclose(row.loss_estimate, row.weights @ row.losses)


def test_full_participation_takes_everyone_every_round() -> None:
    for row in trained(Fleet(), Everyone(WEIGHTS)).history.rows[1:]:
        assert row.clients.tolist() == [0, 1, 2, 3]
        np.testing.assert_allclose(row.weights, WEIGHTS)
        assert row.round_seconds == 5.0


def test_the_same_seed_gives_the_same_numbers_and_another_one_others() -> None:
    one, other = (trained(small_simulator(2), SIX) for _ in range(2))
    assert_same_outcome(one, other)
    another = trained(small_simulator(2), SIX, seeds=Seeds(9))
    assert (one.state.parameters != another.state.parameters).any()


def test_a_run_goes_on_where_its_journal_left_off_and_may_be_given_more_rounds() -> None:
    journal = MemoryCheckpoint()
    trained(small_simulator(), SIX, stop=Stop(rounds=2), callbacks=[journal])
    rows: list[Row] = []
    longer = trained(small_simulator(), SIX, callbacks=[journal, rows.append])
    assert [row.round for row in rows] == [3, 4, 5, 6]
    whole = trained(small_simulator(), SIX)
    assert_same_rows(longer.history.rows[3:], whole.history.rows[3:])
    np.testing.assert_array_equal(longer.state.parameters, whole.state.parameters)


def test_stops_at_the_first_reason() -> None:
    for stop, reason in (
        (Stop(loss=9.8, rounds=100), "target loss"),
        (Stop(accuracy=0.5, rounds=100), "target accuracy"),
        (Stop(seconds=20.0, rounds=100), "seconds"),
        (Stop(loss=-99.0, rounds=4), "rounds"),
    ):
        outcome = trained(Fleet(), stop=stop)
        assert outcome.state.ended == outcome.history.rows[-1].ended == reason
        assert not any(stop.reason(row) for row in outcome.history.rows[1:-1])


@pytest.mark.parametrize("rate", [1e3, 1e100, 1e308])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_diverging_run_stops_as_diverged_without_a_warning(
    rate: float, clip: float | None
) -> None:
    # Weight decay times so large a rate multiplies the model by −rate in every step.
    backend = small_simulator(times=Steady(LARGER), clip=clip, weight_decay=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outcome = trained(
            backend, Everyone(backend.weights), schedule=constant(rate), stop=Stop(rounds=200)
        )
    assert outcome.state.ended == "diverged"
    assert not np.isfinite(outcome.history.rows[-1].loss)


def test_whoever_keeps_the_model_elsewhere_gives_it_with_the_draw() -> None:
    run = started(Fleet())
    task = run.draw(np.full(4, 7.0))
    assert task.parameters.tolist() == [7.0] * 4
    run.backend.submit(task)
    row = run.complete(run.backend.collect())
    expected = np.full(4, 7.0)
    expected[row.clients] += row.weights
    np.testing.assert_allclose(run.state.parameters, expected)


def test_replies_may_come_in_any_order() -> None:
    run, twin = (started(Fleet(), Fixed(Everyone(WEIGHTS))) for _ in range(2))
    for each in (run, twin):
        each.backend.submit(each.draw())
    reply = run.backend.collect()
    backwards = Reply(
        reply.clients[::-1], reply.updates[::-1], reply.seconds[::-1], reply.grad_norms[::-1],
        losses=reply.losses[::-1],
    )  # fmt: skip
    row, same = run.complete(backwards), twin.complete(reply)
    np.testing.assert_allclose(run.state.parameters, twin.state.parameters)
    assert row.weights.tolist() == same.weights[::-1].tolist()


# When the model is evaluated.


def test_the_model_is_evaluated_in_every_nth_round_and_estimated_in_between() -> None:
    fleet = Fleet()
    rows = trained(fleet, stop=Stop(rounds=7), evaluate_every=3).history.rows
    assert [row.evaluated for row in rows] == [True, False, False, True, False, False, True, True]
    assert fleet.evaluations == 4  # the initial model, rounds 3 and 6, and the last
    for row in rows[1:]:
        assert row.evaluated or row.loss == row.loss_estimate


def test_it_is_evaluated_every_time_where_clients_tell_no_losses() -> None:
    rows = trained(Fleet(estimates=False), evaluate_every=3).history.rows
    assert all(row.evaluated for row in rows)


def test_a_round_without_replies_after_an_estimate_is_evaluated_once() -> None:
    fleet = Fleet(answers=lambda task, _: task not in (7, 8))
    rows = trained(fleet, stop=Stop(rounds=20), evaluate_every=5).history.rows
    assert [row.evaluated for row in rows[6:10]] == [False, True, True, False]
    assert rows[7].loss == rows[8].loss  # of the same model
    assert fleet.evaluations == 1 + 4 + 1  # the initial model, every fifth round, and round 7


def test_an_estimate_that_would_end_the_run_is_checked_first() -> None:
    outcome = trained(Fleet(), stop=Stop(loss=9.0, rounds=500), evaluate_every=0)
    last = outcome.history.rows[-1]
    assert outcome.state.ended == "target loss"
    assert last.evaluated
    assert last.loss == loss_of(outcome.state.parameters) <= 9.0
    assert not any(row.evaluated and row.loss <= 9.0 for row in outcome.history.rows[:-1])


class Unseen(Fleet):
    """A fleet whose model nobody can evaluate."""

    def evaluate(self, parameters: FloatArray, *, due: bool = True) -> Evaluation | None:
        self.evaluations += due
        return None


def test_a_blind_run_goes_on_with_estimates_and_ends_by_none() -> None:
    outcome = trained(Unseen(), stop=Stop(loss=9.5, rounds=12, blind=True), evaluate_every=0)
    rows = outcome.history.rows
    assert outcome.state.ended == "rounds"
    assert math.isnan(rows[0].loss)
    assert all(row.loss_estimate > 9.5 or math.isnan(row.loss) for row in rows[1:])
    assert any(math.isnan(row.loss) for row in rows[1:])


def test_a_blind_run_keeps_the_estimate_of_its_last_round() -> None:
    row = trained(Unseen(), stop=Stop(rounds=5, blind=True), evaluate_every=0).history.rows[-1]
    assert row.loss == row.loss_estimate
    assert row.ended == "rounds"


def test_a_blind_run_without_any_losses_ends_by_its_limits() -> None:
    outcome = trained(Unseen(estimates=False), stop=Stop(rounds=5, blind=True), evaluate_every=0)
    assert outcome.state.ended == "rounds"
    assert all(math.isnan(row.loss) for row in outcome.history.rows)


# Who is there.


def test_those_absent_are_never_drawn_and_the_others_stand_for_the_whole() -> None:
    fleet = Fleet(there=lambda _: [True, False, True, True])
    outcome = trained(fleet, stop=Stop(rounds=400))
    here = np.array([0, 2, 3])
    assert {i for row in outcome.history.rows for i in row.clients.tolist()} == set(here.tolist())
    totals = np.array([np.bincount(row.clients, row.weights, 4) for row in outcome.history.rows])
    error = totals[1:].std(axis=0, ddof=1) / np.sqrt(400)
    expected = np.zeros(4)
    expected[here] = WEIGHTS[here] / WEIGHTS[here].sum()
    assert (np.abs(totals[1:].mean(axis=0) - expected) <= 5 * error).all()


class Late(Fleet):
    """A fleet for which one waits two seconds before every third round."""

    def present(self, round_index: int, seconds: float) -> Presence:
        return Presence(None, 2.0 if round_index % 3 == 0 else 0.0)


def test_waiting_for_clients_counts_and_can_be_told_apart() -> None:
    fleet = Late()
    rows = trained(fleet, stop=Stop(rounds=7)).history.rows
    assert [row.waiting_seconds for row in rows] == [0, 2, 0, 0, 2, 0, 0, 2]
    clock = 0.0
    for task, row in zip(fleet.tasks, rows[1:], strict=True):
        clock += row.waiting_seconds
        assert task.seconds == clock
        clock += row.round_seconds
        assert row.seconds == clock


def test_a_design_for_nobody_who_is_there_is_refused() -> None:
    fleet = Fleet(there=lambda _: [False, False, True, True])
    run = started(fleet, Fixed(WithReplacement([0.5, 0.5], 2, [0.5, 0.5])))
    with pytest.raises(InputError, match="sampler must return a design for those present"):
        run.draw()
    assert (run.state.seconds, run.state.round) == (0, 0)


# Samplers and servers with states of their own.


class Counting(BaseSampler):
    """A sampler that counts rows in its state, and says so in the notes of its plan."""

    def init(self, n: int) -> dict[str, int]:
        return {"n": n, "rows": 0}

    def design(self, state: dict[str, int], context: SamplerContext) -> Plan:
        return Plan(DESIGN, None, {"rows": state["rows"], "round": context.round})

    def observe(self, state: dict[str, int], row: Row) -> dict[str, int]:
        return {"n": state["n"], "rows": state["rows"] + 1}


def test_a_sampler_sees_every_row_and_its_notes_are_kept() -> None:
    outcome = train(Fleet(), Counting(), **settings())
    assert outcome.state.sampler == {"n": 4, "rows": 7}
    assert outcome.notes == {"rows": 7, "round": 6}
    np.testing.assert_allclose(outcome.profile.weights, WEIGHTS)
    np.testing.assert_array_equal(outcome.profile.times, np.ones(4))
    assert outcome.design is DESIGN


class Remembering(Average):
    """A server that counts how often it was called."""

    def init(self, parameters: FloatArray) -> Any:
        return 0

    def apply(
        self, state: Any, parameters: FloatArray, draw: Draw, reply: Reply
    ) -> tuple[FloatArray, Any]:
        return super().apply(None, parameters, draw, reply)[0], state + 1


def test_a_servers_state_is_carried_and_it_is_not_asked_without_replies() -> None:
    fleet = Fleet(answers=lambda task, _: task != 2)
    assert trained(fleet, server=Remembering()).state.server == 5


@dataclass(frozen=True)
class InPhases(BaseSampler):
    """Two trials from the initial model, then training on from the end of the first."""

    design_: WithReplacement = DESIGN
    lasting: tuple[int, int] = (3, 2)

    def init(self, n: int) -> int:
        return 0

    def phase(self, state: int) -> Phase:
        if state < 2:
            until = Stop(rounds=self.lasting[state])
            return Phase(f"trial-{state}", ("pilot-draw", state), START, until)
        return Phase(model="trial-0")

    def design(self, state: int, context: SamplerContext) -> WithReplacement:
        return self.design_

    def observe(self, state: int, row: Row) -> int:
        return state + (state < 2 and row.ended == "rounds")


def test_phases_begin_with_the_model_they_ask_for_on_one_clock() -> None:
    fleet = Fleet()
    outcome = train(fleet, InPhases(), **settings())
    assert [row.phase for row in outcome.history.rows] == (
        ["trial-0"] * 4 + ["trial-1"] * 2 + ["train"] * 3
    )
    assert [row.round for row in outcome.history.rows] == [0, 1, 2, 3, 1, 2, 4, 5, 6]
    assert fleet.tasks[3].parameters.tolist() == [0, 0, 0, 0]
    first = [np.bincount(row.clients, row.weights, 4) for row in rows_of(outcome, "trial-0")]
    np.testing.assert_allclose(fleet.tasks[5].parameters, np.sum(first, axis=0))
    seconds = [row.seconds for row in outcome.history.rows]
    assert seconds == sorted(seconds)
    assert outcome.state.seconds == sum(row.round_seconds for row in outcome.history.rows)


def test_a_servers_memory_goes_with_the_model() -> None:
    outcome = train(Fleet(), InPhases(), **settings(server=Remembering()))
    assert outcome.state.server == outcome.state.round == 6  # not of the other trial


class Rash(InPhases):
    """Begins with a model that nobody kept."""

    def phase(self, state: int) -> Phase:
        return Phase("rash", model=START) if state else Phase("first")

    def observe(self, state: int, row: Row) -> int:
        return state + (row.round == 1)


def test_a_phase_that_begins_with_a_model_that_was_not_kept_is_refused() -> None:
    run = started(Fleet(), Rash())
    with pytest.raises(InputError, match="phase must begin with a model that was kept, got 'start"):
        round_of(run)


def test_each_phase_draws_from_its_own_stream() -> None:
    rows = train(Fleet(), InPhases(), **settings()).history.rows
    seeds = Seeds(1)
    for phase, stream in (("trial-0", ("pilot-draw", 0)), ("trial-1", ("pilot-draw", 1))):
        rng = seeds.stream(*stream)
        for row in rows:
            if row.phase == phase and row.round:
                np.testing.assert_array_equal(row.clients, DESIGN.draw(rng).clients)
    rng = seeds.stream("draw")
    for row in rows[-3:]:
        np.testing.assert_array_equal(row.clients, DESIGN.draw(rng).clients)


def test_the_runs_target_does_not_end_a_trial_but_training_ends_at_once_if_it_was_reached() -> None:
    outcome = train(Fleet(), InPhases(), **settings(stop=Stop(loss=9.75, rounds=50)))
    assert len(outcome.history.rows) == 6
    assert outcome.history.rows[3].loss <= 9.75
    assert outcome.state.ended == "target loss"
    np.testing.assert_array_equal(
        outcome.state.parameters, outcome.state.models["trial-0"]["parameters"]
    )


def test_time_that_is_up_ends_a_run_in_any_phase() -> None:
    outcome = train(Fleet(), InPhases(), **settings(stop=Stop(seconds=0.5)))
    assert [row.phase for row in outcome.history.rows] == ["trial-0"] * 2
    assert outcome.state.ended == "seconds"


def test_everybody_is_counted_as_asked_and_answered() -> None:
    fleet = Fleet(answers=lambda _, client: client != 1)
    outcome = train(fleet, InPhases(), **settings())
    asked = np.zeros(4, dtype=int)
    for task in fleet.tasks:
        asked[task.clients] += 1
    np.testing.assert_array_equal(outcome.state.asked, asked)
    np.testing.assert_array_equal(outcome.state.answered, asked * [1, 0, 1, 1])
    assert asked[1] == sum(1 in row.missing for row in outcome.history.rows) > 0


def test_a_task_is_not_changed_by_what_comes_after() -> None:
    run = started(small_simulator(), Fixed(SIX))
    tasks: list[Task] = []
    kept: list[FloatArray] = []
    while not run.ended:
        tasks.append(run.draw())
        kept.append(tasks[-1].parameters.copy())
        run.backend.submit(tasks[-1])
        run.complete(run.backend.collect())
    for task, before in zip(tasks, kept, strict=True):
        np.testing.assert_array_equal(task.parameters, before)
