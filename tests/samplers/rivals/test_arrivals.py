"""Asynchronous rivals on quadratics, step by step by hand, and against methods they must equal.

Client i's loss is (x − a_i)² / 2 and its update −η (x − a_i) of the model x that it was sent. Two
clients with times 1 and 3, both always at work, unless a test says otherwise.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from fedpace.backends.local import LocalUpdates
from fedpace.backends.simulator import SimulatedClock
from fedpace.checks import FloatArray
from fedpace.conformance import check_sampler, check_server
from fedpace.errors import InputError
from fedpace.registry import ASYNCHRONOUS, METHODS, RIVAL, is_biased, load, method_names
from fedpace.samplers.build import sampler_for
from fedpace.samplers.rivals.asynchronous import Ordered, Queued, queues, solve_routing
from fedpace.sampling.design import Draw
from fedpace.seeds import Seeds
from fedpace.servers.asynchronous import Area, Malenia
from fedpace.servers.average import FedExp
from fedpace.servers.build import server_for
from fedpace.studies.build import run_one
from fedpace.times.round_times import Steady
from fedpace.training.backend import Evaluation, Reply, Task
from fedpace.training.callbacks import Callback, RunInfo
from fedpace.training.history import Row
from fedpace.training.sampler import BaseSampler, SamplerContext
from fedpace.training.stopping import Stop, constant
from fedpace.training.train import train
from tests.studies.tiny import tiny_study
from tests.training.fakes import assert_same_rows

RATE = 0.25
# Ties end in the order of clients, and the earlier one begins its next task before the later ends.
AFTER = 1e-9
SLOW = 3 + AFTER
A = np.array([2.0, -3.0])
NAMES = [
    "ringleader", "malenia", "rennala", "ringmaster", "rescaled", "ace", "ca2fl", "area",
    "generalized-asyncsgd", "fedcompass",
]  # fmt: skip
ALL = np.ones(4, dtype=np.bool_)


class Quadratics(SimulatedClock):
    """One number to train; the loss that is shown is that number."""

    def __init__(self, times: Sequence[float], a: FloatArray, p: Sequence[float] | None = None):
        super().__init__()
        self.a, self.times, self.times_known = a, Steady(np.array(times)), True
        self.p = np.full(a.size, 1 / a.size) if p is None else np.array(p)

    @property
    def weights(self) -> FloatArray:
        return self.p

    def initial(self) -> FloatArray:
        return np.zeros(1)

    def train_tasks(self, tasks: Sequence[Task]) -> list[LocalUpdates]:
        updates = [-t.learning_rate * (t.parameters - self.a[t.clients, None]) for t in tasks]
        return [LocalUpdates(each, np.ones(len(each))) for each in updates]

    def evaluate(self, parameters: FloatArray, *, due: bool = True) -> Evaluation:
        return Evaluation(float(parameters[0]), 0.0)


class Latest(Callback):
    """Keep all rows, with the latest model as the loss."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def on_row(self, run: RunInfo, row: Row) -> None:
        assert run.state is not None
        self.rows.append(row._replace(loss=float(run.state.parameters[0])))


def run(
    sampler: str | BaseSampler,
    count: int,
    *,
    backend: Quadratics | None = None,
    at_once: int = 2,
    buffer: int | None = None,
    **knobs: Any,
) -> list[Row]:
    """Return the first rows of a run, with the latest model as the loss: its mean is handed out."""
    if isinstance(sampler, str):
        sampler = sampler_for(sampler, at_once, mode=ASYNCHRONOUS, buffer=buffer, knobs=knobs)
    how: dict[str, Any] = {"schedule": constant(RATE), "seeds": Seeds(0), "mode": ASYNCHRONOUS}
    backend = backend or Quadratics([1.0, SLOW], A)
    latest = Latest()
    train(backend, sampler, stop=Stop(rounds=count), at_once=at_once, callbacks=[latest], **how)
    return latest.rows


def models(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Return when the model moved, and to where."""
    found, before = [], 0.0
    for row in rows:
        if row.loss != before:
            found.append((row.seconds, row.loss))
        before = row.loss
    return found


def update(client: int, x: float) -> float:
    return float(-RATE * (x - A[client]))


def check(rows: Sequence[Row], expected: Sequence[tuple[float, float]]) -> None:
    np.testing.assert_allclose(models(rows)[: len(expected)], expected, rtol=1e-7)


def test_ringleader_steps_once_per_worker_and_round() -> None:
    # Arrivals 1, 1, 1, 2 at 1, 2, 3, 3: the first step. At 4 client 1, not served yet, with its
    # fourth update, of the first model. Then a new round: 1 at 5 and 6, and 2 at 6, which steps.
    x1 = (update(0, 0) + update(1, 0)) / 2
    x2 = x1 + (update(0, 0) + update(1, 0)) / 2
    x3 = x2 + (update(0, x2) + update(1, x1)) / 2
    x4 = x3 + (update(0, x2) + update(1, x1)) / 2
    rows = run("ringleader", 14)
    check(rows, [(3, x1), (4, x2), (6, x3), (7, x4)])
    assert [round(seconds) for seconds, _ in models(rows)] == [3, 4, 6, 7, 9, 10]


def test_ringleader_keeps_updates_of_those_who_were_served_for_the_next_round() -> None:
    # Times 1, 2, 4. Phase 1 ends at 4 with client 3, which is served. Client 1 steps at 5; its
    # second, at 6, is kept; client 2 steps at 6. Then client 1 at 7 and 8, 2 and 3 at 8.
    a = np.array([1.0, -3.0, 5.0])
    times = [1.0, 2 + AFTER, 4 + 3 * AFTER]

    def of(client: int, x: float) -> float:
        return float(-RATE * (x - a[client]))

    x1 = (of(0, 0) + of(1, 0) + of(2, 0)) / 3
    x2, x3 = 2 * x1, 3 * x1
    x4 = x3 + ((2 * of(0, x2) + of(0, x3)) / 3 + of(1, x3) + of(2, x1)) / 3
    rows = run("ringleader", 14, backend=Quadratics(times, a), at_once=3)
    check(rows, [(4, x1), (5, x2), (6, x3), (8, x4)])


def test_malenia_steps_along_the_mean_of_the_means_at_one_model() -> None:
    # S = 2: client 1 three times, client 2 once, at 3; then client 1 at 5 and 6, as that of 4 was
    # begun at the first model, and client 2 at 6.
    x1 = (update(0, 0) + update(1, 0)) / 2
    x2 = x1 + (update(0, x1) + update(1, x1)) / 2
    check(run("malenia", 9), [(3, x1), (6, x2)])
    # S = 4: the harmonic mean is 1.5 at 3, and 3 at 6.
    check(run("malenia", 12, gradients=4), [(6, x1)])


def test_rennala_takes_the_first_updates_whoever_they_are_from() -> None:
    x1 = update(0, 0)
    # S = 2: client 1 alone. Client 2 never counts: its updates are of older models.
    check(run("rennala", 9, gradients=2), [(2, x1), (4, x1 + update(0, x1))])
    # S = 4: three of client 1 and one of client 2; then that of 4 is old, and 5, 6, 6, 7 count.
    y1 = (3 * update(0, 0) + update(1, 0)) / 4
    y2 = y1 + (3 * update(0, y1) + update(1, y1)) / 4
    check(run("rennala", 10, gradients=4), [(3, y1), (7, y2)])


def test_ringmaster_drops_what_is_too_old() -> None:
    x = [0.0]
    for _ in range(5):
        x.append(x[-1] + update(0, x[-1]))
    check(run("ringmaster", 6, threshold=2), [(1, x[1]), (2, x[2]), (3, x[3]), (4, x[4])])
    # R = 4: client 2 comes at 3 with three steps since; and at 6, three steps after x4.
    x4 = x[3] + update(1, 0)
    x5 = x4 + update(0, x[3])
    x6 = x5 + update(0, x5)
    x7 = x6 + update(0, x6)
    x8 = x7 + update(1, x4)
    rows = run("ringmaster", 8, threshold=4)
    check(rows, [(1, x[1]), (2, x[2]), (3, x[3]), (3, x4), (4, x5), (5, x6), (6, x7), (6, x8)])
    # With R = 3 both are dropped, and do not count as steps.
    assert len(models(run("ringmaster", 8, threshold=3))) == 6


def test_rescaled_steps_are_as_long_as_their_clients_are_slow() -> None:
    x1 = update(0, 0) / 2
    x2 = x1 + update(0, x1) / 2
    x3 = x2 + update(0, x2) / 2
    x4 = x3 + 1.5 * update(1, 0)
    check(run("rescaled", 5), [(1, x1), (2, x2), (3, x3), (3, x4), (4, x4 + update(0, x3) / 2)])


def test_rescaled_learns_times_that_it_does_not_know() -> None:
    backend = Quadratics([1.0, SLOW], A)
    backend.times_known = False
    rows = run("rescaled", 8, backend=backend)
    # Client 2 was begun when nobody's time was known, and again when its own was.
    assert [(int(row.clients[0]), row.weights[0].round(3)) for row in rows] == [
        (0, 1.0), (0, 1.0), (0, 1.0), (1, 1.0), (0, 1.0), (0, 0.5), (0, 0.5), (1, 1.5)
    ]  # fmt: skip


def test_ace_steps_along_the_latest_of_everybody() -> None:
    x1 = (update(0, 0) + update(1, 0)) / 2
    x2 = x1 + (update(0, 0) + update(1, 0)) / 2
    x3 = x2 + (update(0, x2) + update(1, 0)) / 2
    x4 = x3 + (update(0, x3) + update(1, 0)) / 2
    x5 = x4 + (update(0, x3) + update(1, x1)) / 2
    check(run("ace", 8), [(3, x1), (4, x2), (5, x3), (6, x4), (6, x5)])


def test_ca2fl_calibrates_the_buffer() -> None:
    # B = 2: client 1 twice at the first model, the second less the first. At 3 the exact mean.
    x1 = update(0, 0) / 2
    x2 = x1 + (update(0, x1) + update(1, 0)) / 2
    check(run("ca2fl", 2, buffer=2), [(2, x1), (3, x2)])


def test_area_is_the_mean_of_the_models_that_clients_sent() -> None:
    x1 = update(0, 0) / 2  # the client sends the same twice: both at the first model
    x2 = (x1 + update(0, x1) + update(1, 0)) / 2
    check(run("area", 2, buffer=2), [(2, x1), (3, x2)])


@pytest.mark.parametrize("buffer", [1, 3])
def test_area_s_model_is_the_mean_of_the_latest_models_at_every_step(buffer: int) -> None:
    seen: list[Any] = []

    class Watched(Area):
        def step(self, state: Any, updates: Any) -> Any:
            x, state = super().step(state, updates)
            seen.append((x, updates.weights @ (state["start"] + state["rows"])))
            return x, state

    sampler = sampler_for("area", 2, mode=ASYNCHRONOUS, buffer=buffer)
    object.__setattr__(sampler, "server", Watched(slots=2))
    p = [0.5, 0.2, 0.2, 0.1]
    run(sampler, 20, backend=Quadratics([1, 2, 3, 4.5], np.arange(4.0), p))
    for model, mean in seen[3:]:
        np.testing.assert_allclose(model, mean)
    assert len(seen) == 20


def test_queues_have_the_rate_and_delay_of_two_clients_by_hand() -> None:
    # q = ½, two tasks: a = (½, 3/2), Z = 1, 2, 3.25. Delays E n_i with one task, over q.
    q, times = np.array([0.5, 0.5]), np.array([1.0, 3.0])
    assert queues(q, times, 2).rate == pytest.approx(2 / 3.25)
    np.testing.assert_allclose(queues(q, times, 1).tasks / q, [0.5, 1.5])
    assert queues(q, times, 3).tasks.sum() == pytest.approx(3)


def test_queues_match_a_simulation() -> None:
    q, times = np.array([0.5, 0.3, 0.2]), np.array([1.0, 2.0, 5.0])
    rng, tasks, clock, steps = np.random.default_rng(0), np.array([2, 1, 1]), 0.0, 6_000
    for _ in range(steps):  # exponential times: who is next, and when
        rates = (tasks > 0) / times
        clock += rng.exponential(1 / rates.sum())
        tasks[rng.choice(3, p=rates / rates.sum())] -= 1
        tasks[rng.choice(3, p=q)] += 1
    # Five standard errors of about 1/√steps each.
    assert steps / clock == pytest.approx(queues(q, times, 4).rate, rel=5 / np.sqrt(steps))


def test_routing_is_optimal_and_weighted_sampling_for_equal_times() -> None:
    p, times = np.array([0.4, 0.3, 0.2, 0.1]), np.array([1.0, 5.0, 2.0, 9.0])

    def value(q: FloatArray) -> float:
        return float((p**2 / q).sum() / queues(q, times, 3).rate)

    q, rng = solve_routing(p, times, 3), np.random.default_rng(0)
    for _ in range(200):
        other = q * np.exp(0.2 * rng.normal(size=4))
        assert value(q) <= value(other / other.sum()) * (1 + 1e-9)
    assert value(q) < value(p) / 1.1
    # One task: E t = Σ q_i t_i, and q ∝ p_i for equal times.
    np.testing.assert_allclose(solve_routing(p, np.ones(4), 1), p, atol=1e-4)


def test_tasks_wait_where_their_client_is_busy() -> None:
    p = np.full(4, 0.25)
    free = np.array([False, True, True, True])
    rng = np.random.default_rng(0)
    waiting = Queued(p, p, np.array([2.0, 0, 0, 0]), ALL, 2)
    assert waiting.next(free, np.zeros(4), rng) is None
    other = Queued(p, p, np.array([1.0, 0, 1, 0]), ALL, 2)
    turn = other.next(free, np.zeros(4), rng)
    assert turn is not None
    assert (turn.client, turn.weight) == (2, 1.0)
    away = Queued(p, p, np.array([1.0, 0, 0, 1]), np.array([1, 1, 1, 0], dtype=np.bool_), 2)
    assert away.next(free & away.present, np.zeros(4), rng) is not None


def test_completions_follow_the_routing() -> None:
    backend = Quadratics([1.0, 3.0, 0.5, 2.0], np.arange(4.0), [0.4, 0.3, 0.2, 0.1])
    rows = run("generalized-asyncsgd", 500, backend=backend, at_once=3, scale=0.01)
    q = solve_routing(backend.p, backend.times.usual, 3)
    clients = np.array([row.clients[0] for row in rows])
    shares = np.bincount(clients, minlength=4) / clients.size
    assert np.abs(shares - q).max() < 5 * np.sqrt(0.25 / clients.size)
    np.testing.assert_allclose(rows[0].weights, 0.01 * backend.p[clients[0]] / q[clients[0]])


def test_slots_have_one_client_at_work_each_and_take_turns_by_p() -> None:
    p = np.array([0.4, 0.1, 0.2, 0.3])
    done = np.zeros(4)
    groups = np.arange(4) % 2
    design = Ordered((done + 1) / p, groups, ALL, p, p, 2)
    rng = np.random.default_rng(0)
    assert design.next(ALL, np.zeros(4), rng).client == 0
    free = np.array([False, True, True, True])
    assert design.next(free, np.zeros(4), rng).client == 3  # of the other slot, as p says
    # All slots have one at work, as those of a slot are away: any who is free.
    free = np.array([False, False, True, False])
    assert design.next(free, np.zeros(4), rng).client == 2
    backend = Quadratics([1.0, 1.0, 1.0, 1.0], np.arange(4.0), p.tolist())
    clients = [row.clients[0] for row in run("ringleader", 200, backend=backend)]
    shares = np.bincount(clients, minlength=4) / 100
    np.testing.assert_allclose(shares, p / np.bincount(groups, p)[groups], atol=0.03)


def test_who_answered_longest_ago_is_next() -> None:
    backend = Quadratics([1.0] * 5, np.arange(5.0))
    rows = run("ace", 15, backend=backend)
    assert [int(row.clients[0]) for row in rows] == [0, 1, 2, 3, 4] * 3


@pytest.mark.parametrize("name", NAMES)
def test_one_client_alone_is_gradient_descent(name: str) -> None:
    knobs: dict[str, Any] = {"mixing": 1.0, "most": 1} if name == "fedcompass" else {}
    rows = run(name, 6, backend=Quadratics([2.0], A[:1]), at_once=1, **knobs)
    expected = A[0] * (1 - (1 - RATE) ** np.arange(1, 7))
    np.testing.assert_allclose([row.loss for row in rows], expected)
    assert [row.seconds for row in rows] == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]


@pytest.mark.parametrize("name", ["ringleader", "malenia", "rennala", "ace"])
def test_the_first_step_with_equal_times_is_full_participation_s(name: str) -> None:
    p = [0.5, 0.2, 0.2, 0.1]
    backend = Quadratics([2.0] * 4, np.arange(4.0), p)
    row = next(row for row in run(name, 8, backend=backend, at_once=4) if row.loss)
    if name == "rennala":  # with p as C P_j / S
        assert row.weights.sum() == pytest.approx(p[int(row.clients[0])])
    assert row.seconds == 2
    assert row.loss == pytest.approx(RATE * float(p @ np.arange(4.0)))


def test_malenia_with_equal_times_is_gradient_descent() -> None:
    p = [0.5, 0.2, 0.2, 0.1]
    rows = run("malenia", 24, backend=Quadratics([2.0] * 4, np.arange(4.0), p), at_once=4)
    optimum = float(p @ np.arange(4.0))
    steps = np.arange(1, 7)
    expected = np.column_stack([2.0 * steps, optimum * (1 - (1 - RATE) ** steps)])
    np.testing.assert_allclose(models(rows), expected)


@pytest.mark.parametrize(
    "name", ["ringleader", "malenia", "rescaled", "ace", "ca2fl", "area", "generalized-asyncsgd"]
)
def test_those_that_correct_for_speed_end_at_the_optimum(name: str) -> None:
    a, p = np.array([0.0, 1.0, 2.0, 10.0]), [0.3, 0.3, 0.3, 0.1]
    backend = Quadratics([0.7, 1.0, 2.2, 6.1], a, p)
    knobs: dict[str, Any] = {"malenia": {}, "area": {}}.get(name, {"scale": 0.1})
    rows = run(name, 600, backend=backend, at_once=4, **knobs)
    assert np.mean([row.loss for row in rows[-300:]]) == pytest.approx(p @ a, abs=0.2)


@pytest.mark.parametrize("name", ["rennala", "ringmaster"])
def test_those_for_equal_data_lean_to_the_fast(name: str) -> None:
    backend = Quadratics([0.5, 5.0], np.array([0.0, 1.0]))
    rows = run(name, 300, backend=backend, scale=0.2)
    assert np.mean([row.loss for row in rows[-200:]]) < 0.3


@pytest.mark.parametrize("name", NAMES)
def test_every_one_keeps_the_rules_and_says_its_source_and_bias(name: str) -> None:
    for k in (1, 3):
        make = partial(sampler_for, name, k, mode=ASYNCHRONOUS)
        check_sampler(make)
        check_sampler(make, n=12, seed=1)
    entry = METHODS[name]
    assert entry.kind == RIVAL
    assert name in method_names(RIVAL, mode=ASYNCHRONOUS)
    made = load(entry.server or entry.asynchronous)
    docstring = " ".join(str(made.__doc__).split())
    assert ("**biased**" in docstring.lower()) == is_biased(name)
    assert "Source: " in docstring
    assert "Differs from" in docstring
    if entry.server:
        check_server(lambda: made(slots=2))


@pytest.mark.parametrize("name", NAMES)
def test_every_one_runs_in_a_study_with_fewer_at_work_than_clients(
    tmp_path: Any, name: str
) -> None:
    settings = ["training.mode=asynchronous", "training.schedule=constant:0.02", "stop.loss=none"]
    study = tiny_study(tmp_path, *settings, "stop.rounds=60")
    outcome, again = (run_one(study, name, 0) for _ in range(2))
    rows = outcome.history.rows
    assert rows[-1].loss < rows[0].loss
    assert_same_rows(rows, again.history.rows)


class Steps(Quadratics):
    """Clients take their seconds per local step, and each step counts."""

    def train_tasks(self, tasks: Sequence[Task]) -> list[LocalUpdates]:
        found = super().train_tasks(tasks)
        return [
            LocalUpdates(each.updates * task.local_steps[:, None], each.grad_norms)
            for each, task in zip(found, tasks, strict=True)
            if task.local_steps is not None
        ]


def steps_backend(seconds: Sequence[float], a: FloatArray, most: int) -> Steps:
    backend = Steps([most * each for each in seconds], a)
    backend.times = Steady(np.array(backend.times.usual), 1.0)
    backend.local_steps = backend.reference_steps = most
    return backend


def test_fedcompass_groups_clients_that_answer_together() -> None:
    # 0.01 and 0.03 s a step, 20 to 100 steps. Client 1 alone at 1, in groups of its own to 2 and 3;
    # client 2 alone at 3, then 33 steps to join the group of 4, and again that of 5.
    backend = steps_backend([0.01, 0.03 + AFTER], A, 100)
    rows = run("fedcompass", 6, backend=backend, most=100, fewest=20)
    came = [(row.clients.tolist(), row.local_steps.tolist()) for row in rows]
    assert [round(row.seconds, 3) for row in rows] == [1, 2, 3, 3, 4, 5]
    assert came[:4] == [([0], [100]), ([0], [100]), ([0], [100]), ([1], [100])]
    assert [dict(zip(*each, strict=True)) for each in came[4:]] == [{0: 100, 1: 33}] * 2
    x1 = 0.9 / 2 * 100 * update(0, 0)
    x2 = x1 + 0.9 / 2 * 100 * update(0, x1)
    x3 = x2 + 0.9 / 2 * 100 * update(0, x2)
    x4 = x3 + 0.9 * (1 + 3) ** -0.5 / 2 * 100 * update(1, 0)
    # Client 1 began after three applications and client 2 after four.
    x5 = x4 + 0.9 / 2 * (2**-0.5 * 100 * update(0, x3) + 33 * update(1, x4))
    np.testing.assert_allclose([row.loss for row in rows[:5]], [x1, x2, x3, x4, x5])


def test_fedcompass_with_equal_speeds_is_federated_averaging() -> None:
    p = [0.5, 0.2, 0.2, 0.1]
    backend = steps_backend([0.2] * 4, np.arange(4.0), 10)
    backend.p = np.array(p)
    rows = run("fedcompass", 6, backend=backend, at_once=4, mixing=1.0)
    x = 0.0
    for index, row in enumerate(rows):
        x -= 10 * RATE * float(p @ (x - np.arange(4.0)))
        assert row.loss == pytest.approx(x)
        assert row.seconds == pytest.approx(2.0 * (index + 1))
        assert sorted(row.clients.tolist()) == [0, 1, 2, 3]


def test_fedcompass_makes_a_group_that_the_fastest_will_meet() -> None:
    # 0.01, 0.02 and 0.11 s a step, 5 to 10 steps, λ = 1.5. At 1.1 client 3 is alone; the groups end
    # at 1.2 at the latest, where it can do no 5 steps. It makes its own: of the one with the limit
    # 1.3, ⌊(1.3 + 0.01 · 10 − 1.1) / 0.11⌋ = 2 steps, raised to 5, until 1.65.
    sampler: Any = sampler_for("fedcompass", 3, mode=ASYNCHRONOUS, knobs={"most": 10, "fewest": 5})
    state = sampler.init(3)
    state["speed"][:] = [0.01, 0.02, 0.11]
    state["due"][:2], state["limit"][:2] = 1.2, 1.3
    state["working"][:2] = True
    context = SamplerContext(np.full(3, 1 / 3), seconds=1.1)
    plan = sampler.plan(state, context)
    assert plan.local_steps[2] == 5
    free = np.array([False, False, True])
    assert plan.design.next(free, np.zeros(3), np.random.default_rng(0)).client == 2
    assert state["due"][2] == pytest.approx(1.65)
    assert state["limit"][2] == pytest.approx(1.1 + 1.5 * 0.55)


def test_fedcompass_applies_what_came_too_late_with_the_next_group() -> None:
    sampler: Any = sampler_for("fedcompass", 3, mode=ASYNCHRONOUS)
    state, context = sampler.init(3), SamplerContext(np.full(3, 1 / 3), seconds=2.0)
    state["speed"][:] = 0.1
    state["due"][:], state["limit"][:] = [1.0, 1.0, 5.0], [1.5, 1.5, 7.5]
    state["working"][:] = [True, False, True]
    state["waiting"][1] = True
    # At 2 client 1 comes, after the limit of its group: client 2 is applied, client 1 waits.
    held = sampler.steps_now(state, 0.0, np.array([2]), context)
    assert held.tolist() == []  # an application: late ones go with it
    state["waiting"][:], state["late"][:] = False, False
    state["working"][0], state["due"][0], state["limit"][0] = True, 1.0, 1.5
    held = sampler.steps_now(state, 0.0, np.array([2]), context)
    assert held.tolist() == [0]
    # It is with the group of 5 that it is applied.
    later = context._replace(seconds=5.0)
    assert sampler.steps_now(state, 0.0, np.array([], dtype=np.int64), later).tolist() == []


def test_fedcompass_goes_on_after_an_interruption() -> None:
    # As stored: client 1 waits for client 2, in the other slot, whose task is lost.
    sampler: Any = sampler_for("fedcompass", 2, mode=ASYNCHRONOUS)
    state, context = sampler.init(4), SamplerContext(np.full(4, 0.25), seconds=3.0)
    state["speed"][:], state["due"][:2], state["limit"][:2] = 0.1, 4.0, 5.0
    state["waiting"][0], state["working"][1] = True, True
    rng, free = np.random.default_rng(0), ALL.copy()
    turn = sampler.plan(state, context).design.next(free, np.zeros(4), rng)
    assert turn.client == 1
    free[1] = False
    assert sampler.plan(state, context).design.next(free, np.zeros(4), rng) is None
    nobody = np.array([], dtype=np.int64)
    assert not sampler.steps_now(state, 1.0, nobody, context).size
    assert not (state["working"] | state["waiting"]).any()
    # Everybody waits, and nobody is at work: any client.
    state["waiting"][:] = True
    assert sampler.plan(state, context).design.next(ALL, np.zeros(4), rng) is not None


def test_fedcompass_refuses_bad_settings() -> None:
    for knobs, message in (
        ({"slack": 0.5}, "slack must be at least 1, got 0.5"),
        ({"newest": 0}, "newest must be above 0 and at most 1, got 0"),
        ({"most": 0}, "most must be at least 1, got 0"),
    ):
        with pytest.raises(InputError, match=message):
            sampler_for("fedcompass", 2, mode=ASYNCHRONOUS, knobs=knobs)


def test_knobs_go_to_the_server() -> None:
    made = sampler_for("malenia", 3, mode=ASYNCHRONOUS, knobs={"gradients": 9, "scale": 0.5})
    assert made.server == Malenia(slots=3, gradients=9, scale=0.5)
    with pytest.raises(InputError, match="knobs must be those of its server, got speed for 'ace'"):
        sampler_for("ace", 3, mode=ASYNCHRONOUS, knobs={"speed": 1})
    with pytest.raises(InputError, match="scale must be above 0, got -1"):
        Malenia(scale=-1)
    with pytest.raises(InputError, match="scale must be above 0, got 0"):
        sampler_for("rescaled", 3, mode=ASYNCHRONOUS, knobs={"scale": 0})
    with pytest.raises(InputError, match="ace has no rounds"):
        sampler_for("ace", 3)


def test_fedexp_steps_further_where_updates_disagree() -> None:
    def step(updates: list[list[float]], epsilon: float = 1e-12) -> FloatArray:
        clients, ones = np.arange(2), np.ones(2)
        reply = Reply(clients, np.array(updates), ones, ones)
        draw = Draw(clients, np.full(2, 0.5))
        return FedExp(epsilon).apply(None, np.zeros(2), draw, reply)[0]

    # Norms 1 and 1, the mean (0.1, 0.3) of square 0.1: η_g = 1 / 0.2 = 5.
    np.testing.assert_allclose(step([[1, 0], [-0.8, 0.6]]), [0.5, 1.5])
    # Orthogonal: ½ / (2 · ½) … = 1; alike: as FedAvg.
    np.testing.assert_allclose(step([[1, 0], [0, 1]]), [0.5, 0.5])
    np.testing.assert_allclose(step([[1, 2], [1, 2]]), [1, 2])
    np.testing.assert_allclose(step([[1, 0], [-0.8, 0.6]], 0.05), [0.25, 0.75])
    check_server(FedExp)
    assert server_for("fedexp:0.1") == FedExp(0.1)
