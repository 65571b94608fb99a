"""How many local steps a task has, what it follows from, and how far the server then steps."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace.conformance import check_sampler
from fedpace.errors import InputError
from fedpace.samplers.asynchronous_pace import AsynchronousPace
from fedpace.samplers.build import sampler_for
from fedpace.samplers.client_stats import empty_client_stats, learn
from fedpace.samplers.local_work import (
    CHANGE,
    FEWEST,
    FIRST,
    LocalWork,
    SplitTimes,
    best_steps,
    first_work,
    learn_work,
    split_times,
)
from fedpace.sampling.design import Draw
from fedpace.seeds import Seeds
from fedpace.studies.build import check_schemes, run_one, simulator
from fedpace.studies.runner import local_steps_note
from fedpace.studies.study import load_study
from fedpace.times.round_times import Steady
from fedpace.training.backend import NO_CLIENTS, Reply
from fedpace.training.sampler import SamplerContext
from fedpace.training.stopping import Stop, constant
from fedpace.training.train import train
from fedpace.training.updates import RoundUpdates
from tests.training.fakes import row as make_row
from tests.training.fakes import small_simulator

P = np.array([0.5, 0.3, 0.2])
COMPUTE, LINK = np.array([0.1, 0.4, 0.2]), np.array([3.0, 1.0, 0.5])


def context(**more: Any) -> SamplerContext:
    return SamplerContext(P, **more)


def work(noise: float, signal: float, steps: int) -> LocalWork:
    return LocalWork(steps=steps, noise=noise, signal=signal, count=1.0, fixed=False)


def updates_of(grads: Any, steps: Any, rate: float = 0.1) -> RoundUpdates:
    """Return a round of clients with these gradients, one list of E vectors each."""
    moves = np.array([-rate * np.sum(each, axis=0) for each in grads])
    norms = np.array([np.sqrt(np.mean(np.sum(np.square(each), axis=1))) for each in grads])
    m = len(moves)
    clients = np.arange(m)
    reply = Reply(clients, moves, np.ones(m), norms, local_steps=np.array(steps))
    draw = Draw(clients, np.full(m, 1 / m))
    return RoundUpdates(np.zeros(moves.shape[1]), rate, draw, reply, np.full(m, 1 / m))


def test_noise_and_signal_are_those_of_the_gradients() -> None:
    rng = np.random.default_rng(0)
    mean, count = np.array([1.0, 2.0, 0.0, 0.0]), 400
    found = []
    for _ in range(50):
        grads = [mean + 0.5 * rng.standard_normal((4, 4)) for _ in range(count // 50)]
        after = learn_work(first_work(), updates_of(grads, [4] * len(grads)), at_once=1)
        found.append((after["noise"] / after["count"], after["signal"] / after["count"]))
    for values, expected in zip(np.transpose(found), (4 * 0.25, 5.0), strict=True):
        error = values.std(ddof=1) / math.sqrt(values.size)
        assert abs(values.mean() - expected) < 5 * error


def test_a_single_step_tells_nothing_and_an_unconfirmed_number_is_fixed() -> None:
    one = learn_work(first_work(), updates_of([np.ones((1, 2))], [1]), at_once=1)
    assert one["count"] == 0
    seen = updates_of([np.ones((3, 2))], [3])
    unknown = seen._replace(reply=seen.reply._replace(local_steps=NO_CLIENTS))
    assert learn_work(first_work(), unknown, at_once=1)["fixed"]


@given(st.floats(0.1, 100), st.floats(0.01, 1), st.floats(0.1, 100))
def test_steps_are_those_of_least_time_per_progress(
    noise: float, compute: float, link: float
) -> None:
    split = SplitTimes(np.full(3, compute), np.full(3, link))
    seconds = {e: (compute * e + link) * (1 + noise / e) for e in range(1, 2000)}
    least = min(seconds, key=lambda e: seconds[e])
    before = FIRST
    for _ in range(12):
        found = best_steps(work(noise, 1.0, before), split, context(), progress=0.0, bend=0.0)
        assert math.floor(before / CHANGE) <= found <= max(before * CHANGE, FEWEST)
        before = found
    assert before >= FEWEST
    if FEWEST < least < 1500:
        assert seconds[before] <= seconds[least] * 1.001


def test_curvature_bounds_the_steps_and_progress_the_signal() -> None:
    split = SplitTimes(np.ones(3), np.full(3, 1e6))
    assert best_steps(work(1.0, 1.0, 10), split, context(), progress=0.0, bend=0.05) == 10
    few = best_steps(work(1.0, 0.0, 40), SplitTimes(np.ones(3), np.full(3, 900.0)), context(),
                     progress=1.0, bend=0.0)  # fmt: skip
    assert few == 30
    first = [best_steps(first_work(), split, context(local_steps=n), progress=0.0, bend=0.0)
             for n in (50, 4, 1)]  # fmt: skip
    assert first == [FIRST, 4, FEWEST]


def test_times_known_beforehand_are_split_as_known() -> None:
    times = 10 * COMPUTE + LINK
    known = context(times=times, computing=10 * COMPUTE / times, local_steps=10)
    split = split_times(empty_client_stats(3), known)
    np.testing.assert_allclose(split.at(4), 4 * COMPUTE + LINK)
    assert split.clear


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_times_are_split_by_tasks_of_different_length(noise: float) -> None:
    rng, stats = np.random.default_rng(1), empty_client_stats(3)
    assert not split_times(stats, context()).clear
    for number in range(60):
        steps = np.array([5, 10, 20])[(number + np.arange(3)) % 3]
        took = (COMPUTE * steps + LINK) * np.exp(noise * rng.standard_normal(3) - noise**2 / 2)
        seen = make_row([0, 1, 2], client_seconds=took, local_steps=steps)
        stats = learn(stats, seen)
    split = split_times(stats, context())
    assert split.clear
    for count in (5, 20):
        exact = COMPUTE * count + LINK
        np.testing.assert_allclose(split.at(count), exact, rtol=0.1 if noise == 0 else 0.5)


def test_reported_seconds_of_computing_split_times_of_equal_length() -> None:
    stats = empty_client_stats(3)
    for _ in range(5):
        seen = make_row([0, 1, 2], client_seconds=8 * COMPUTE + LINK, local_steps=[8] * 3,
                        computing_seconds=8 * COMPUTE)  # fmt: skip
        stats = learn(stats, seen)
    split = split_times(stats, context())
    np.testing.assert_allclose(split.compute, COMPUTE, rtol=1e-9)
    np.testing.assert_allclose(split.link, LINK, rtol=1e-9)


def run(share: float, **how: Any) -> Any:
    backend = replace(
        small_simulator(), times=Steady(np.arange(1.0, 7.0), share), local_steps=20, batch=2
    )
    sampler = AsynchronousPace(k=2, local_steps="auto", **how)
    common: dict[str, Any] = {"schedule": constant(0.05), "seeds": Seeds(1)}
    return train(backend, sampler, mode="asynchronous", at_once=2, stop=Stop(rounds=80), **common)


def test_where_the_link_dominates_tasks_have_more_local_steps() -> None:
    latest = [run(share).history.rows[-1].local_steps[0] for share in (0.99, 0.05)]
    assert FEWEST <= latest[0] < latest[1]


def test_times_that_are_not_known_are_explored_with_longer_tasks() -> None:
    backend = replace(small_simulator(), times_known=False, local_steps=20)
    sampler = AsynchronousPace(k=2, local_steps="auto")
    rows = train(backend, sampler, mode="asynchronous", at_once=2, stop=Stop(rounds=8),
                 schedule=constant(0.05), seeds=Seeds(1)).history.rows  # fmt: skip
    assert {FIRST, math.ceil(1.5 * FIRST)} == {int(row.local_steps[0]) for row in rows[1:5]}


def test_keeps_the_rules_of_a_sampler() -> None:
    check_sampler(lambda: AsynchronousPace(k=3, local_steps="auto"))


@pytest.mark.parametrize("value", [0, 2.5, "many", True])
def test_other_numbers_of_steps_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match="local_steps must be at least 1, or auto"):
        sampler_for("pace", 2, mode="asynchronous", knobs={"local_steps": value})


AUTO = ["training.local_steps=auto"]
ASYNCHRONOUS = [*AUTO, "training.mode=asynchronous"]


@pytest.mark.parametrize(("scheme", "how"), [("uniform", ASYNCHRONOUS), ("pace", AUTO)])
def test_only_asynchronous_pace_chooses_local_steps(scheme: str, how: list[str]) -> None:
    study = load_study("simulation-1", how)
    with pytest.raises(InputError, match=f"got auto for {scheme} in mode"):
        check_schemes(study, [scheme])
    check_schemes(load_study("simulation-1", ASYNCHRONOUS), ["pace"])


def test_other_schemes_of_the_comparison_keep_their_number() -> None:
    short = ["stop.rounds=3", "devices.reference_steps=7"]
    study = load_study("simulation-1", [*ASYNCHRONOUS, *short])
    check_schemes(study, ["uniform", "pace"])
    taken = {name: {e for row in run_one(study, name, 0).history.rows for e in row.local_steps}
             for name in ("uniform", "pace")}  # fmt: skip
    assert taken["pace"] == {5}
    assert not taken["uniform"]
    assert simulator(study, 0).local_steps == 7
    assert local_steps_note(study, ["uniform", "pace"]).endswith(
        "uniform: 7 each (devices.reference_steps)"
    )
    assert not local_steps_note(study, ["pace"])


def test_a_study_lets_pace_choose_for_all_or_for_itself() -> None:
    mine = ["training.mode=asynchronous", "sampling.knobs.pace.local_steps=auto"]
    short = ["stop.rounds=3"]
    histories = [run_one(load_study("simulation-1", [*how, *short]), "pace", 0).history
                 for how in (ASYNCHRONOUS, mine)]  # fmt: skip
    assert [{*row.local_steps.tolist()} for row in histories[0].rows] == [set(), {5}, {5}, {5}]
    assert [row.loss for row in histories[0].rows] == [row.loss for row in histories[1].rows]
    assert simulator(load_study("simulation-1", AUTO), 0).local_steps == 50
