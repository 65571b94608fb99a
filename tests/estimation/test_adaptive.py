"""Algorithm 2: pilots, estimates, and training that goes on from there."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from fedpace.estimation.adaptive import Outcome, Pilots, known_so_far, run_adaptive, run_known

from fedpace.checks import FloatArray
from fedpace.data.synthetic import synthetic
from fedpace.estimation.gradients import estimated_grad_norms
from fedpace.models.logistic import Logistic
from fedpace.profile import Profile
from fedpace.rounds.backend import Evaluation, Reply
from fedpace.rounds.rows import Row
from fedpace.rounds.schedules import inverse
from fedpace.rounds.simulator import Simulator
from fedpace.rounds.stopping import Stop
from fedpace.sampling.design import Design, Draw, WithReplacement
from fedpace.sampling.schemes import SCHEMES
from fedpace.seeds import Seeds
from fedpace.times.round_times import Steady

SIZES = np.array([60, 30, 10, 20, 10, 15])
TIMES = np.array([1.0, 4.0, 2.0, 0.5, 3.0, 1.5])
PILOTS = Pilots([1.0, 0.9, 0.8], rounds=6)


def simulator(seed: int = 0) -> Simulator:
    data = synthetic(SIZES, np.random.default_rng(seed), features=4, classes=3)
    return Simulator(data, Logistic(4, 3), Steady(TIMES), Seeds(seed), local_steps=4, batch=5)


def adaptive(
    backend: "Simulator | Scripted",
    *,
    scheme: str = "optimal-mean",
    stop: Stop | None = None,
    c_over_s0: float | None = None,
    pilots: Pilots = PILOTS,
    seed: int = 0,
) -> Outcome:
    return run_adaptive(
        backend,
        SCHEMES[scheme],
        k=3,
        schedule=inverse(0.3),
        stop=stop or Stop(rounds=12),
        seeds=Seeds(seed),
        pilots=pilots,
        c_over_s0=c_over_s0,
        max_weight=2.0,
    )


def phase(outcome: Outcome, name: str) -> list[Row]:
    return [row for row in outcome.history.rows if row.phase == name]


@dataclass(frozen=True)
class Scripted:
    """A backend whose model counts rounds, and whose loss follows a script for each pilot.

    The second entry counts the rounds of the weighted pilot, whose weights always sum to 1; the
    first counts all others. So the model says which pilot it comes from.
    """

    uniform: Sequence[float]
    weighted: Sequence[float]
    weights: FloatArray
    usual_times: FloatArray

    def initial(self) -> FloatArray:
        return np.zeros(2)

    def present(self) -> None:
        return None

    def run(
        self,
        parameters: FloatArray,
        draw: Draw,
        *,
        round_index: int,
        learning_rate: float,  # noqa: ARG002
    ) -> Reply:
        size = draw.clients.size
        total = float(draw.weights.sum())
        by_weight = math.isclose(total, 1.0)
        step = np.array([0.0, 1.0]) if by_weight and parameters[0] == 0 else np.array([1.0, 0.0])
        updates = np.tile(step / total, (size, 1))
        return Reply(
            draw.clients, updates, self.usual_times[draw.clients], np.full(size, 1.0 + round_index)
        )

    def evaluate(self, parameters: FloatArray) -> Evaluation:
        uniform, weighted = (round(float(entry)) for entry in parameters)
        if weighted:
            return Evaluation(self.weighted[min(weighted, len(self.weighted) - 1)], 0.5)
        return Evaluation(self.uniform[min(uniform, len(self.uniform) - 1)], 0.5)


def scripted(uniform: Sequence[float], weighted: Sequence[float]) -> Scripted:
    # In hundredths all are odd: twice the sum of three of them, a uniform draw, is never 100.
    weights = np.array([0.41, 0.23, 0.13, 0.11, 0.07, 0.05])
    return Scripted(uniform, weighted, weights, TIMES)


def test_phases_follow_in_order_on_one_clock() -> None:
    rows = adaptive(simulator()).history.rows
    phases = [row.phase for row in rows]
    assert list(dict.fromkeys(phases)) == ["pilot-uniform", "pilot-weighted", "train"]
    assert phases == sorted(phases, key=["pilot-uniform", "pilot-weighted", "train"].index)
    clock = 0.0
    for row in rows[1:]:
        clock += row.round_seconds
        assert row.seconds == pytest.approx(clock)


def test_pilots_run_from_the_initial_model_until_the_lowest_threshold_or_the_last_round() -> None:
    backend = simulator()
    outcome = adaptive(backend, pilots=Pilots([1.0, 0.2], rounds=4))
    for name in ("pilot-uniform", "pilot-weighted"):
        rows = [row for row in phase(outcome, name) if row.round > 0]
        assert [row.round for row in rows] == list(range(1, len(rows) + 1))
        assert len(rows) == 4 or rows[-1].loss <= 0.2
        assert all(row.loss > 0.2 for row in rows[:-1])


def test_pilot_time_counts_and_can_be_told_apart() -> None:
    outcome = adaptive(simulator())
    pilots = sum(row.round_seconds for row in outcome.history.rows if row.phase != "train")
    training = sum(row.round_seconds for row in phase(outcome, "train"))
    assert pilots > 0
    assert phase(outcome, "train")[0].seconds > pilots
    assert outcome.state.seconds == pytest.approx(pilots + training)


@pytest.mark.parametrize(
    ("uniform", "weighted", "better"),
    [
        ([3.0, 2.5, 2.0, 1.8], [3.0, 2.9, 2.8, 2.7], "pilot-uniform"),
        ([3.0, 2.9, 2.8, 2.7], [3.0, 2.5, 2.0, 1.8], "pilot-weighted"),
    ],
)
def test_training_goes_on_from_the_better_pilots_model(
    uniform: list[float], weighted: list[float], better: str
) -> None:
    outcome = adaptive(
        scripted(uniform, weighted), pilots=Pilots([0.1], rounds=3), stop=Stop(rounds=5)
    )
    model = np.rint(outcome.state.parameters).astype(int).tolist()
    assert (model[1] >= 3) == (better == "pilot-weighted")
    assert (model[1] == 0) == (better == "pilot-uniform")
    assert sum(model) == 5  # three rounds of one pilot, two of training


def test_training_goes_on_with_the_round_index_of_that_pilot() -> None:
    # The uniform pilot passes the threshold after 2 rounds and is the better; weighted needs 4.
    backend = scripted([3.0, 1.0, 0.1], [3.0, 2.9, 2.0, 1.0, 0.45])
    outcome = adaptive(backend, pilots=Pilots([0.5], rounds=9), stop=Stop(rounds=7))
    assert [row.round for row in phase(outcome, "train")] == [3, 4, 5, 6, 7]
    assert outcome.state.round == 7


def test_gradient_norms_come_from_both_pilots() -> None:
    outcome = adaptive(simulator())
    pilots = [row for row in outcome.history.rows if row.phase != "train"]
    np.testing.assert_allclose(outcome.profile.grad_norms, estimated_grad_norms(pilots, SIZES.size))


def test_the_design_is_the_schemes_for_what_was_learned() -> None:
    outcome = adaptive(simulator(), scheme="optimal-max")
    expected = SCHEMES["optimal-max"](outcome.profile, 3, max_weight=2.0)
    assert isinstance(expected, WithReplacement)
    assert isinstance(outcome.design, WithReplacement)
    np.testing.assert_array_equal(outcome.design.q, expected.q)
    row = phase(outcome, "train")[0]
    assert row.expected_round_seconds == expected.expected_round_time(TIMES)


def test_without_a_given_c_the_estimate_is_used() -> None:
    outcome = adaptive(simulator())
    assert outcome.ratio is not None
    assert outcome.profile.beta_over_alpha == outcome.ratio.value


@pytest.mark.parametrize("c_over_s0", [0.0, 0.3, 4.0])
def test_a_given_c_is_used_in_units_of_s0(c_over_s0: float) -> None:
    outcome = adaptive(simulator(), c_over_s0=c_over_s0)
    s0 = float(outcome.profile.weights @ outcome.profile.grad_norms) ** 2
    assert outcome.profile.beta_over_alpha == pytest.approx(c_over_s0 * s0)
    assert outcome.ratio is not None


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    one, other, another = (adaptive(simulator(), seed=seed) for seed in (0, 0, 1))
    assert [row.loss for row in one.history.rows] == [row.loss for row in other.history.rows]
    assert [row.loss for row in one.history.rows] != [row.loss for row in another.history.rows]


def test_a_target_that_the_pilots_reach_ends_the_run_and_says_so() -> None:
    backend = scripted([3.0, 0.4], [3.0, 0.4])
    outcome = adaptive(backend, pilots=Pilots([0.5], rounds=9), stop=Stop(loss=0.5))
    assert phase(outcome, "train") == []
    assert outcome.history.time_to(loss=0.5) < math.inf
    assert outcome.state.ended == "target loss"


def test_time_that_the_pilots_use_up_ends_the_run_and_says_so() -> None:
    outcome = adaptive(simulator(), stop=Stop(seconds=5.0), pilots=Pilots([0.0], rounds=40))
    assert phase(outcome, "train") == []
    assert outcome.state.ended == "seconds"


def test_a_pilot_that_diverges_is_not_the_better_one() -> None:
    backend = scripted([3.0, math.nan], [3.0, 2.0, 1.0])
    outcome = adaptive(backend, pilots=Pilots([0.5], rounds=2), stop=Stop(rounds=4))
    assert outcome.state.parameters[1] >= 2
    assert math.isfinite(outcome.history.rows[-1].loss)


def test_a_weighted_pilot_that_diverges_does_not_stop_training_from_the_uniform_one() -> None:
    backend = scripted([3.0, 2.0, 1.0], [3.0, math.nan])
    outcome = adaptive(backend, pilots=Pilots([0.5], rounds=2), stop=Stop(rounds=4))
    assert [row.round for row in phase(outcome, "train")] == [3, 4]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # overflow is tested with the loop
def test_pilots_that_both_diverge_end_the_run_as_diverged() -> None:
    outcome = run_adaptive(
        replace(simulator(), weight_decay=1.0),
        SCHEMES["optimal-mean"],
        k=3,
        schedule=lambda _: 1e200,
        stop=Stop(rounds=12),
        seeds=Seeds(0),
        pilots=PILOTS,
    )
    assert outcome.state.ended == "diverged"


def test_a_known_profile_needs_no_pilots() -> None:
    backend = simulator()
    profile = Profile(backend.weights, TIMES, np.ones(6), 0.7)
    outcome = run_known(
        backend,
        SCHEMES["optimal-mean"],
        profile,
        k=3,
        schedule=inverse(0.3),
        stop=Stop(rounds=5),
        seeds=Seeds(0),
        max_weight=2.0,
    )
    assert {row.phase for row in outcome.history.rows} == {"train"}
    assert [row.round for row in outcome.history.rows] == list(range(6))
    assert outcome.ratio is None
    assert outcome.profile is profile
    design: Design = SCHEMES["optimal-mean"](profile, 3, max_weight=2.0)
    assert outcome.design.largest_weight == design.largest_weight


def test_the_profile_takes_c_in_units_of_s0_or_as_given_or_the_default() -> None:
    backend = simulator()
    rows = adaptive(backend).history.rows
    s0 = float(backend.weights @ estimated_grad_norms(rows, 6)) ** 2
    assert known_so_far(backend, rows, 2.5).beta_over_alpha == pytest.approx(2.5 * s0)
    assert known_so_far(backend, rows, None, 7.0).beta_over_alpha == 7.0
    assert known_so_far(backend, rows, None).beta_over_alpha == pytest.approx(s0)
