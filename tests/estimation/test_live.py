"""Clients that come and go, whose counts, times and losses are learned on the way."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from fedpace.estimation.adaptive import Live, Outcome, Pilots, WarmUp, run_adaptive, run_known
from numpy.typing import NDArray

from fedpace.checks import FloatArray
from fedpace.rounds.backend import NOTHING, Evaluation, Reply
from fedpace.rounds.rows import Row
from fedpace.rounds.schedules import constant
from fedpace.rounds.stopping import Stop
from fedpace.sampling.design import Draw
from fedpace.sampling.schemes import SCHEMES
from fedpace.seeds import Seeds

SAMPLES = np.array([50.0, 10.0, 30.0, 10.0])
TIMES = np.array([1.0, 5.0, 2.0, 3.0])


@dataclass
class Fleet:
    """Clients with their own times; `there` says who is there in which round, and who answers.

    The model is one number, which every update lowers by its client's share of 0.1.
    """

    there: Any = None
    answers: Any = None
    estimates: bool = True
    samples: FloatArray = field(default_factory=SAMPLES.copy)
    known: int = 4
    rounds: int = 0
    evaluations: int = 0
    usual_times: None = None

    @property
    def weights(self) -> FloatArray:
        samples = self.samples[: self.known]
        weights: FloatArray = samples / samples.sum()
        return weights

    def initial(self) -> FloatArray:
        return np.array([10.0])

    def present(self) -> NDArray[np.bool_] | None:
        if self.there is None:
            return None
        here = np.array(self.there(self.rounds), dtype=np.bool_)
        self.known = here.size
        return here

    def run(
        self, parameters: FloatArray, draw: Draw, *, round_index: int, learning_rate: float
    ) -> Reply:
        self.rounds += 1
        answered = draw.clients
        if self.answers is not None:
            answered = draw.clients[[self.answers(self.rounds, i) for i in draw.clients.tolist()]]
        m = answered.size
        losses = np.full(m, float(parameters[0])) if self.estimates else NOTHING
        return Reply(
            answered,
            np.full((m, 1), -0.1 + 0 * learning_rate * round_index),
            TIMES[answered],
            1.0 + answered.astype(np.float64),
            losses=losses,
            waited=7.0 if m < draw.clients.size else None,
        )

    def evaluate(self, parameters: FloatArray) -> Evaluation:
        self.evaluations += 1
        return Evaluation(float(parameters[0]), 0.5)


@dataclass(frozen=True)
class Unmeasured(Stop):
    """A stop for which a loss that nobody measured is no divergence."""

    def reason(self, row: Row) -> str | None:
        return super().reason(row._replace(loss=1e9) if math.isnan(row.loss) else row)


def adaptive(fleet: Fleet, *, rounds: int = 20, live: Live | None = None, **more: Any) -> Outcome:
    usual: dict[str, Any] = {
        "k": 2, "schedule": constant(0.1), "stop": Stop(rounds=rounds), "seeds": Seeds(0),
        "pilots": WarmUp(5), "live": live or Live(refresh=5),
    }  # fmt: skip
    return run_adaptive(fleet, SCHEMES["optimal-mean"], **usual | more)


def rows_of(outcome: Outcome, phase: str) -> list[Row]:
    return [row for row in outcome.history.rows if row.phase == phase]


def test_times_and_norms_are_learned_as_they_come() -> None:
    outcome = adaptive(Fleet(), rounds=60)
    seen = {i for row in outcome.history.rows for i in row.clients.tolist()}
    assert seen == {0, 1, 2, 3}
    np.testing.assert_allclose(outcome.profile.times, TIMES)
    np.testing.assert_allclose(outcome.profile.grad_norms, [1, 2, 3, 4])


def test_the_warm_up_is_kept_and_training_goes_on_from_it() -> None:
    outcome = adaptive(Fleet())
    rounds = [row.round for row in outcome.history.rows]
    assert rounds == list(range(21))
    assert len(rows_of(outcome, "warm-up")) == 6
    assert outcome.ratio is None


def test_the_expected_round_time_is_not_made_up_before_any_is_known() -> None:
    outcome = adaptive(Fleet())
    assert all(math.isnan(row.expected_round_seconds) for row in rows_of(outcome, "warm-up")[1:])
    assert all(row.expected_round_seconds >= 1 for row in rows_of(outcome, "train"))


def test_a_sample_count_that_becomes_known_counts_from_the_next_round() -> None:
    fleet = Fleet(samples=np.ones(4))

    def there(round_index: int) -> list[bool]:
        if round_index == 2:
            fleet.samples = SAMPLES.copy()
        return [True] * 4

    fleet.there = there
    rows = rows_of(adaptive(fleet), "warm-up")[1:]
    # Weighted sampling: every draw weighs 1/K whatever the counts, but who is drawn changes.
    alike, counted = Fleet(samples=np.ones(4)), Fleet()
    firsts = [row.clients.tolist() for row in rows_of(adaptive(alike), "warm-up")[1:]]
    lasts = [row.clients.tolist() for row in rows_of(adaptive(counted), "warm-up")[1:]]
    mine = [row.clients.tolist() for row in rows]
    assert mine[:2] == firsts[:2]
    assert mine[3:] == lasts[3:]
    assert firsts[3:] != lasts[3:]


@pytest.mark.parametrize("pilots", [WarmUp(12), Pilots([8.0], 12), None])
def test_if_all_go_and_others_come_the_design_is_solved_for_again(
    pilots: WarmUp | Pilots | None,
) -> None:
    fleet = Fleet(there=lambda r: [True, True] if r < 4 else [False, False, True, True], known=2)
    if pilots is None:
        outcome = run_known(
            fleet, SCHEMES["uniform"], None, k=2, schedule=constant(0.1), stop=Stop(rounds=9),
            seeds=Seeds(0), live=Live(refresh=50),
        )  # fmt: skip
    else:
        outcome = adaptive(fleet, pilots=pilots, live=Live(refresh=50))
    drawn = [set(row.clients.tolist()) for row in outcome.history.rows[1:]]
    assert set().union(*drawn[:4]) == {0, 1}
    assert set().union(*drawn[4:]) == {2, 3}
    assert outcome.state.ended == "rounds"


def test_a_newcomer_is_drawn_after_the_next_refresh() -> None:
    fleet = Fleet(there=lambda r: [True] * (3 if r < 7 else 4), known=3)
    rows = adaptive(fleet, rounds=40).history.rows
    first = next(row.round for row in rows if 3 in row.clients)
    assert 10 <= first <= 20


def test_nobody_ever_answers_and_the_model_stays() -> None:
    outcome = adaptive(Fleet(answers=lambda *_: False))
    assert outcome.state.parameters.tolist() == [10.0]
    assert outcome.state.ended == "rounds"
    assert outcome.history.rows[-1].loss == 10.0
    assert outcome.history.rows[-1].seconds == 20 * 7.0


def test_a_round_without_replies_after_an_estimate_is_evaluated() -> None:
    fleet = Fleet(answers=lambda r, _: r not in (7, 8))
    rows = adaptive(fleet, live=Live(evaluate_every=5)).history.rows
    assert [row.evaluated for row in rows[6:10]] == [False, True, True, False]
    assert rows[7].loss == rows[8].loss  # of the same model
    assert fleet.evaluations == 1 + 4 + 1  # the initial model, every fifth round, and round 7


def test_an_estimate_that_would_end_the_run_is_checked_first() -> None:
    fleet = Fleet()
    outcome = adaptive(fleet, stop=Stop(loss=9.0, rounds=500), live=Live(evaluate_every=0))
    last = outcome.history.rows[-1]
    assert outcome.state.ended == "target loss"
    assert last.evaluated
    assert last.loss <= 9.0
    assert last.loss == float(outcome.state.parameters[0])


def test_what_both_pilots_learned_of_who_answers_is_kept() -> None:
    fleet = Fleet(answers=lambda _, i: i != 1)
    outcome = adaptive(fleet, pilots=Pilots([9.9], 4), rounds=6)
    asked = sum(1 in row.missing for row in outcome.history.rows)
    assert outcome.state.asked[1] == asked > 0
    assert outcome.state.answered[1] == 0


def test_pilots_keep_the_kind_of_stop_and_fill_in_losses_nobody_measured() -> None:
    class Unseen(Fleet):
        def evaluate(self, parameters: FloatArray) -> Evaluation:
            rare = self.rounds % 4 == 0
            return Evaluation(float(parameters[0]) if rare else math.nan, math.nan)

    outcome = adaptive(
        Unseen(estimates=False), pilots=Pilots([9.5, 9.0], 8), stop=Unmeasured(rounds=12)
    )
    assert len(rows_of(outcome, "pilot-uniform")) == 9
    assert len(rows_of(outcome, "pilot-weighted")) == 8
    assert outcome.ratio is not None
    assert math.isfinite(outcome.ratio.value)
    assert outcome.state.ended == "rounds"


def test_a_changed_stop_is_still_a_stop() -> None:
    assert isinstance(replace(Unmeasured(rounds=3), rounds=5), Unmeasured)
