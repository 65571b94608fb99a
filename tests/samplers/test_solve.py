"""A scheme as a sampler: what it learns, when it solves, and for whom."""

import math
from typing import Any

import numpy as np
import pytest

from fedpace.conformance import check_sampler
from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.samplers.pilots import Piloted
from fedpace.samplers.solve import Solve
from fedpace.sampling.design import Design, WithReplacement
from fedpace.sampling.schemes import SCHEMES
from fedpace.seeds import Seeds
from fedpace.training.backend import BaseBackend
from fedpace.training.sampler import BaseSampler
from fedpace.training.stopping import Stop, constant
from fedpace.training.synchronous import SynchronousTraining
from fedpace.training.train import train
from fedpace.training.training import Outcome
from tests.training.fakes import LARGER, SAMPLES, TIMES, Fleet, rows_of, small_simulator

MEAN = SCHEMES["optimal-mean"]


def settings(rounds: int = 20, **more: Any) -> dict[str, Any]:
    usual = {"schedule": constant(0.1), "stop": Stop(rounds=rounds), "seeds": Seeds(0)}
    return usual | more


def solved(backend: BaseBackend, *, rounds: int = 20, **more: Any) -> Outcome:
    sampler = Solve(MEAN, 2, **{"warm_up": 5, "refresh": 5} | more)
    return train(backend, sampler, **settings(rounds))


def drawn(outcome: Outcome, first: int = 0, end: int | None = None) -> set[int]:
    """Return who answered in some of the rounds."""
    rows = outcome.history.rows[1:][first:end]
    return {i for row in rows for i in row.clients.tolist()}


def test_times_and_norms_are_learned_as_they_come() -> None:
    outcome = solved(Fleet(), rounds=60)
    assert drawn(outcome) == {0, 1, 2, 3}
    np.testing.assert_allclose(outcome.profile.times, TIMES)
    np.testing.assert_allclose(outcome.profile.grad_norms, [1, 2, 3, 4])


def test_times_that_are_known_are_not_learned() -> None:
    outcome = solved(small_simulator(), rounds=12)  # with noise
    np.testing.assert_array_equal(outcome.profile.times, LARGER)


def test_the_warm_up_is_kept_and_training_goes_on_from_it() -> None:
    outcome = solved(Fleet())
    assert [row.round for row in outcome.history.rows] == list(range(21))
    assert len(rows_of(outcome, "warm-up")) == 6
    assert outcome.notes == {}
    weights = [np.bincount(row.clients, row.weights, 4) for row in outcome.history.rows]
    np.testing.assert_allclose(outcome.state.parameters, np.sum(weights, axis=0))


def test_the_warm_up_draws_by_weight() -> None:
    sampler = Solve(MEAN, 2, warm_up=5)
    run = SynchronousTraining(Fleet(), sampler, **settings())
    design = run.outcome().design
    assert isinstance(design, WithReplacement)
    np.testing.assert_allclose(design.q, SAMPLES / SAMPLES.sum())


def test_a_run_that_ends_in_its_warm_up_says_so() -> None:
    outcome = solved(Fleet(), rounds=3)
    assert {row.phase for row in outcome.history.rows} == {"warm-up"}
    assert outcome.state.ended == "rounds"
    np.testing.assert_array_equal(outcome.profile.grad_norms, np.ones(4))


def test_the_expected_round_time_is_not_made_up_before_any_is_known() -> None:
    outcome = solved(Fleet())
    assert all(math.isnan(row.expected_round_seconds) for row in rows_of(outcome, "warm-up")[1:])
    assert all(row.expected_round_seconds >= 1 for row in rows_of(outcome, "train"))


class Counted:
    """A scheme that remembers what it was asked."""

    def __init__(self, scheme: Any = MEAN) -> None:
        self.scheme = scheme
        self.asked: list[tuple[Profile, int, float | None]] = []

    def __call__(self, profile: Profile, k: int, *, max_weight: float | None = None) -> Design:
        self.asked.append((profile, k, max_weight))
        design: Design = self.scheme(profile, k, max_weight=max_weight)
        return design


@pytest.mark.parametrize(("refresh", "times"), [(None, 1), (5, 3), (7, 3), (100, 1)])
def test_it_is_solved_after_the_warm_up_and_after_every_few_rounds(
    refresh: int | None, times: int
) -> None:
    scheme = Counted()
    train(Fleet(), Solve(scheme, 2, warm_up=5, refresh=refresh), **settings(rounds=19))
    assert len(scheme.asked) == times


def test_a_scheme_is_asked_with_the_cap_and_c_in_units_of_s0() -> None:
    scheme = Counted()
    sampler = Solve(scheme, 2, warm_up=5, max_weight=3.0, c_over_s0=0.25)
    outcome = train(Fleet(), sampler, **settings())
    ((profile, k, max_weight),) = scheme.asked
    assert (k, max_weight) == (2, 3.0)
    s0 = float(profile.weights @ profile.grad_norms) ** 2
    assert profile.beta_over_alpha == pytest.approx(0.25 * s0)
    assert outcome.profile is profile
    assert outcome.design.largest_weight <= 3.0 * (1 + 1e-9)


def test_without_a_given_c_it_is_s0() -> None:
    profile = solved(Fleet()).profile
    s0 = float(profile.weights @ profile.grad_norms) ** 2
    assert profile.beta_over_alpha == pytest.approx(s0)


def test_a_known_profile_needs_no_warm_up() -> None:
    backend = small_simulator()
    profile = Profile(backend.weights, LARGER, np.ones(6), 0.7)
    outcome = train(backend, Solve(MEAN, 3, max_weight=2.0, profile=profile), **settings(rounds=5))
    assert {row.phase for row in outcome.history.rows} == {"train"}
    assert [row.round for row in outcome.history.rows] == list(range(6))
    assert outcome.profile is profile
    design = MEAN(profile, 3, max_weight=2.0)
    assert isinstance(design, WithReplacement)
    assert isinstance(outcome.design, WithReplacement)
    np.testing.assert_array_equal(outcome.design.q, design.q)


def test_a_scheme_that_looks_at_counts_alone_learns_nothing() -> None:
    outcome = train(Fleet(), Solve(SCHEMES["uniform"], 2), **settings())
    assert {row.phase for row in outcome.history.rows} == {"train"}
    assert outcome.state.sampler["rounds"] == 0


def test_a_sample_count_that_becomes_known_counts_from_the_next_round() -> None:
    fleet = Fleet(samples=np.ones(4))

    def there(round_index: int) -> list[bool]:
        if round_index == 2:
            fleet.samples = SAMPLES.copy()
        return [True] * 4

    fleet.there = there
    # Weighted sampling: every draw weighs 1/K whatever the counts, but who is drawn changes.
    mine, alike, counted = (
        [row.clients.tolist() for row in rows_of(solved(each), "warm-up")[1:]]
        for each in (fleet, Fleet(samples=np.ones(4)), Fleet())
    )
    assert mine[:2] == alike[:2]
    assert mine[3:] == counted[3:]
    assert alike[3:] != counted[3:]


SAMPLERS: dict[str, BaseSampler] = {
    "counts": Solve(SCHEMES["uniform"], 2),
    "a short warm-up": Solve(MEAN, 2, warm_up=2, refresh=50),
    "a long warm-up": Solve(MEAN, 2, warm_up=12),
    "long pilots": Piloted(MEAN, 2, [8.0], 12, refresh=50),
    "short pilots": Piloted(MEAN, 2, [8.0], 1),
}


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_if_all_go_and_others_come_the_design_is_solved_for_again(sampler: BaseSampler) -> None:
    fleet = Fleet(there=lambda r: [True, True] if r < 4 else [False, False, True, True], known=2)
    outcome = train(fleet, sampler, **settings(rounds=15))
    assert drawn(outcome, end=4) == {0, 1}
    assert drawn(outcome, first=4) == {2, 3}
    assert outcome.state.ended == "rounds"


def test_a_newcomer_is_drawn_after_the_next_refresh() -> None:
    fleet = Fleet(there=lambda r: [True] * (3 if r < 7 else 4), known=3)
    outcome = solved(fleet, rounds=40)
    first = next(row.round for row in outcome.history.rows if 3 in row.clients)
    assert 10 <= first <= 20


def test_nobody_ever_answers_and_the_model_stays() -> None:
    outcome = solved(Fleet(answers=lambda *_: False))
    assert outcome.state.parameters.tolist() == [0, 0, 0, 0]
    assert outcome.state.ended == "rounds"
    assert outcome.history.rows[-1].loss == 10.0
    assert outcome.history.rows[-1].seconds == 20 * 7.0


def test_two_runs_may_share_a_sampler() -> None:
    sampler = Solve(MEAN, 2, warm_up=3, refresh=4)
    runs = [
        SynchronousTraining(Fleet(times=TIMES * scale), sampler, **settings())
        for scale in (1.0, 3.0)
    ]
    while not runs[0].ended:
        for run in runs:  # in turn
            run.backend.submit(run.draw())
            run.complete(run.backend.collect())
    for run, scale in zip(runs, (1.0, 3.0), strict=True):
        alone = train(
            Fleet(times=TIMES * scale), Solve(MEAN, 2, warm_up=3, refresh=4), **settings()
        )
        np.testing.assert_array_equal(run.state.parameters, alone.state.parameters)
        np.testing.assert_array_equal(run.outcome().profile.times, alone.profile.times)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Solve(SCHEMES["full"], 3),
        lambda: Solve(SCHEMES["weighted"], 3),
        lambda: Solve(MEAN, 3, warm_up=4),
        lambda: Solve(MEAN, 3, warm_up=4, refresh=3, max_weight=9.0),
        lambda: Solve(SCHEMES["statistical"], 3, warm_up=1, refresh=1, c_over_s0=2.0),
    ],
)
def test_keeps_to_the_rules_of_a_sampler(make: Any) -> None:
    check_sampler(make)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"warm_up": 0}, "warm_up must be at least 1, got 0"),
        ({"warm_up": 2.5}, "warm_up must be an integer, got 2.5"),
        ({"refresh": 0}, "refresh must be at least 1, got 0"),
    ],
)
def test_refuses_settings_that_are_none(changes: dict[str, Any], problem: str) -> None:
    usual: dict[str, Any] = {"scheme": MEAN, "k": 2}
    with pytest.raises(InputError, match=problem):
        Solve(**usual | changes)
