"""Asynchronous training: send tasks, take replies, step."""

from __future__ import annotations

import heapq
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpace.backends.local import LocalUpdates
from fedpace.backends.simulator import SimulatedClock
from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.sampling.design import Everyone, WithReplacement
from fedpace.sampling.dispatch import InTurn
from fedpace.sampling.solvers.shares import bounded_shares
from fedpace.seeds import Seeds
from fedpace.servers.asynchronous import FedAsync, FedBuff
from fedpace.servers.memory import Memory
from fedpace.times.links import SharedLink, Transfers, share_fairly
from fedpace.times.round_times import BaseTimes, Presence, Steady, Varying
from fedpace.training.asynchronous import AsynchronousTraining, begin_turns
from fedpace.training.backend import Evaluation, Reply, Task, join_replies
from fedpace.training.callbacks import RunInfo
from fedpace.training.checkpoint import BackgroundWriter, Checkpoint, State
from fedpace.training.history import Row
from fedpace.training.sampler import Plan, SamplerContext
from fedpace.training.stopping import Stop, constant, inverse
from fedpace.training.train import train
from fedpace.training.updates import RoundUpdates

from .fakes import (
    LARGER,
    SIZES,
    EndedError,
    Fixed,
    MemoryCheckpoint,
    assert_same_outcome,
    assert_same_rows,
    small_simulator,
)

P = SIZES / SIZES.sum()
SHARES = InTurn(P, P, 3)


class Counters(SimulatedClock):
    """Clients whose updates are all alike and cost nothing; the loss is 1."""

    def __init__(self, weights: FloatArray, times: BaseTimes) -> None:
        super().__init__()
        self._weights, self.times, self.times_known = weights, times, True
        self.tasks: list[Task] = []

    @property
    def weights(self) -> FloatArray:
        return self._weights

    def initial(self) -> FloatArray:
        return np.zeros(1)

    def submit(self, task: Task) -> None:
        self.tasks.append(task)
        super().submit(task)

    def train_tasks(self, tasks: Any) -> list[LocalUpdates]:
        return [
            LocalUpdates(np.ones((task.clients.size, 1)), np.ones(task.clients.size))
            for task in tasks
        ]

    def evaluate(self, parameters: FloatArray, *, due: bool = True) -> Evaluation | None:
        return Evaluation(1.0, 0.5) if due else None


def settings(**more: Any) -> dict[str, Any]:
    usual = {"schedule": inverse(0.1), "stop": Stop(rounds=30), "seeds": Seeds(1), "at_once": 3}
    return usual | more


def run_asynchronously(backend: Any, design: Any = SHARES, **more: Any) -> Any:
    return train(backend, Fixed(design), mode="asynchronous", **settings(**more))


def test_a_client_has_one_task_at_a_time_and_all_slots_are_taken() -> None:
    backend = Counters(P, Varying(LARGER, Seeds(0), noise=0.5))
    outcome = run_asynchronously(backend, buffer=2)
    rows = outcome.history.rows[1:]
    began = np.concatenate([row.began for row in rows])
    ended = began + np.concatenate([row.client_seconds for row in rows])
    clients = np.concatenate([row.clients for row in rows])
    for client in range(6):
        mine = np.flatnonzero(clients == client)
        mine = mine[np.argsort(began[mine])]
        assert (began[mine][1:] >= ended[mine][:-1] - 1e-9).all()
    for moment in np.linspace(0.1, rows[-1].seconds * 0.8, 50):
        assert ((began <= moment) & (moment < ended)).sum() <= 3
    first = [task.round_index for task in backend.tasks]
    assert first == list(range(len(first)))  # so that no two tasks train on the same batches


def test_tasks_share_a_link_as_if_all_were_known_in_advance() -> None:
    backend = Counters(P, Varying(LARGER, Seeds(0), noise=0.5, computing=0.6))
    backend.link, backend.megabits = SharedLink(3.0), 2.0
    rows = run_asynchronously(backend, buffer=2).history.rows[1:]
    began = np.concatenate([row.began for row in rows])
    seconds = np.concatenate([row.client_seconds for row in rows])
    sent = {(task.seconds, int(task.clients[0])): task for task in backend.tasks}
    alone = np.array([
        backend.times.at(task.seconds, task.clients, round_index=task.round_index)[0]
        for task in sent.values()
    ])  # fmt: skip
    starts, who = np.array([*sent]).T
    own = backend.megabits / (0.4 * alone)
    every = Transfers(
        starts + 0.6 * alone, np.full(alone.size, 2.0), own, np.full(alone.size, np.inf)
    )
    ends = dict(zip(zip(starts, who, strict=True), share_fairly(every, 3.0).ends, strict=True))
    clients = np.concatenate([row.clients for row in rows])
    found = [ends[each] for each in zip(began, clients, strict=True)]
    assert began + seconds == pytest.approx(found, rel=1e-9)
    assert (began + seconds > began + 1.05 * backend.times.usual.min()).any()


@pytest.mark.parametrize("rule", ["fair", "optimal"])
def test_a_round_is_as_long_as_its_transfers(rule: str) -> None:
    backend = Counters(P, Steady(LARGER, 1.0))
    backend.link, backend.megabits, backend.sharing = SharedLink(3.0, rule), 2.0, 2
    usual = backend.usual_times
    assert usual is not None
    assert usual == pytest.approx(LARGER + 2 * 2.0 / 3.0)
    assert backend.usual_computing == pytest.approx(LARGER / usual)
    clients = np.array([0, 2, 5])
    backend.submit(Task(clients, np.zeros(1), 0, 0.1, 7.0))
    reply = backend.collect()
    ends = backend.link.ends(LARGER[clients], np.full(3, 2.0))
    assert dict(zip(reply.clients, reply.seconds, strict=True)) == pytest.approx(
        dict(zip(clients, ends, strict=True))
    )
    assert reply.lasted == pytest.approx(ends.max())


def test_a_late_transfer_is_lost_and_leaves_the_link_to_others() -> None:
    backend = Counters(P, Steady(np.ones(6), 1.0))
    backend.link, backend.megabits = SharedLink(1.0), 1.0
    backend.submit(Task(np.arange(3), np.zeros(1), 0, 0.1, 0.0, deadline=3.5))
    backend.submit(Task(np.array([4]), np.zeros(1), 1, 0.1, 0.0))
    reply = backend.collect()
    assert reply.missing.tolist() == [0, 1, 2]  # 2.5 of 4 megabits were moved by then
    assert reply.clients.tolist() == [4]
    assert reply.seconds == pytest.approx([3.5 + 0.375])


def test_every_buffer_of_updates_makes_a_step_at_the_rate_of_each_task() -> None:
    rows = run_asynchronously(small_simulator(), buffer=2).history.rows[1:]
    assert all(row.clients.size == 2 for row in rows)
    assert [row.round for row in rows] == list(range(1, 31))
    assert all((row.staleness >= 0).all() for row in rows)
    assert max(row.staleness.max() for row in rows) >= 2
    seconds = [row.seconds for row in rows]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize(
    ("buffer", "behind"),
    [(1, [0, 1, 1, 1, 1, 2, 2, 2, 2]), (2, [0, 1, 1, 1, 1]), (6, [0, 1, 1, 1])],
)
def test_memory_counts_a_step_with_the_rate_of_a_quarter_of_the_age_of_its_updates(
    buffer: int, behind: list[int]
) -> None:
    backend = Counters(P, Varying(LARGER, Seeds(0), noise=0.5))  # no two are back at once
    how = settings(at_once=6, buffer=buffer, server=Memory(beta=0.0))
    training = AsynchronousTraining(backend, Fixed(InTurn(P, P, 6)), **how)
    for r, lag in enumerate(behind):
        before = training.state.parameters
        (row,) = next(rows for _ in range(9) if (rows := training.advance()))
        rates = np.array([inverse(0.1)(version) for version in row.versions])
        step = inverse(0.1)(r - lag) * (row.weights @ (1 / rates))
        np.testing.assert_allclose(training.state.parameters - before, step, rtol=1e-9)


def test_equal_times_and_a_full_buffer_are_rounds() -> None:
    """Everyone at work, and all back at the same moment: full participation."""
    one = small_simulator(times=Steady(np.ones(6)))
    design = InTurn(np.full(6, 1 / 6), P, 6)
    training = AsynchronousTraining(
        one, Fixed(design), **settings(at_once=6, buffer=6, stop=Stop(rounds=4))
    )
    model = one.initial()
    for index in range(4):
        tasks = training.tasks()
        assert sorted(task.clients[0] for task in tasks) == list(range(6))
        assert {task.seconds for task in tasks} == {float(index)}
        assert {task.learning_rate for task in tasks} == {inverse(0.1)(index)}
        trained = {int(task.clients[0]): one.train_task(task).updates[0] for task in tasks}
        for task in tasks:
            np.testing.assert_array_equal(task.parameters, model)
            one.submit(task)
        (row,) = training.take(one.collect(1))
        model = model + row.weights @ np.array([trained[i] for i in row.clients.tolist()])
        np.testing.assert_allclose(training.state.parameters, model, rtol=1e-12)
        np.testing.assert_allclose(row.weights[np.argsort(row.clients)], P, rtol=1e-9)
        assert (row.seconds, row.round_seconds) == (index + 1.0, 1.0)
        assert (row.staleness == 0).all()


def test_lazy_training_gives_each_task_the_numbers_it_has_alone() -> None:
    one, other = small_simulator(), small_simulator()
    rng = np.random.default_rng(0)
    tasks = [Task(np.array([i]), rng.normal(size=15), 7 + i, 0.1 / (1 + i), 0.0) for i in range(4)]
    for task in tasks:
        one.submit(task)
    came = [one.collect(1) for _ in tasks]
    for reply in came:
        client = int(reply.clients[0])
        alone = other.train_task(tasks[client])
        np.testing.assert_array_equal(reply.updates, alone.updates)
        np.testing.assert_array_equal(reply.grad_norms, alone.grad_norms)
    assert one.collect().clients.size == 0


COMPLETIONS = 20_000
FLEETS: dict[str, Any] = {
    "heavy tails": (60, 10, lambda rng: rng.pareto(1.2, 60) + 0.1),
    "one slower than all others together": (60, 10, lambda _: np.append(np.ones(59), 300.0)),
    "hardly more clients than slots": (12, 10, lambda rng: rng.pareto(1.2, 12) + 0.1),
    "as many clients as slots": (8, 8, lambda rng: rng.exponential(1.0, 8)),
    "exponential": (100, 10, lambda rng: rng.exponential(1.0, 100)),
}


@pytest.mark.parametrize("fleet", FLEETS)
@pytest.mark.parametrize("leaning", [False, True], ids=["weighted", "to the fast"])
def test_each_client_gets_its_part_of_all_weight(fleet: str, leaning: bool) -> None:
    n, at_once, draw = FLEETS[fleet]
    rng = np.random.default_rng(0)
    times, p = draw(rng), rng.exponential(1.0, n) + 0.05
    p /= p.sum()
    wanted = p / np.sqrt(times) if leaning else p
    design = InTurn(bounded_shares(wanted, times, at_once), p, at_once)
    given = given_weights([design], times, COMPLETIONS)
    # Where everyone is always at work nobody can be chosen, and turns come as they come.
    assert np.abs(given / given.sum() - p).sum() < (0.01 if at_once < n else 0.02)
    assert abs(given.sum() / COMPLETIONS - 1) < (0.1 if at_once < n else 0.15)  # steps keep length


def test_parts_stay_right_when_shares_change_all_the_time() -> None:
    rng = np.random.default_rng(0)
    times, p = rng.exponential(1.0, 60), rng.exponential(1.0, 60) + 0.05
    p /= p.sum()
    wanted = [p * rng.uniform(0.3, 1.0, 60) for _ in range(50)]
    designs = [InTurn(bounded_shares(each, times, 10), p, 10) for each in wanted]
    given = given_weights(designs, times, COMPLETIONS)
    assert np.abs(given / given.sum() - p).sum() < 0.01


def test_who_leaves_and_returns_gets_its_part_of_the_time_it_is_there() -> None:
    n, p = 30, np.full(30, 1 / 30)
    design = InTurn(p, p, 5)

    def here(index: int) -> Any:
        return (np.arange(n) >= 10) | (index // 500 % 2 == 0)  # ten are away half of the time

    given = given_weights([design], np.ones(n), 50_000, here)
    there, away = given[10:].mean(), given[:10].mean()
    # Of the turns of those who stay, in halves of 500/30 and 500/20: 0.4, and the few turns that
    # one is ahead of the others by when it comes back.
    assert 0.4 < away / there < 0.4 + 6 / (500 / 30 + 500 / 20)


def given_weights(
    designs: Any, times: FloatArray, completions: int, here: Any = None
) -> FloatArray:
    """Return the sum of each client's weights; the design in use changes every 20 completions."""
    rng, clock = np.random.default_rng(1), 0.0
    given, before = np.zeros(times.size), None
    busy: list[tuple[float, int]] = []
    turns = begin_turns(designs[0], np.empty(0), [], rng)
    for index in range(completions):
        design = designs[index // 20 % len(designs)]
        if design is not before:
            owed = turns.credits * (turns.design.weights / turns.design.q)
            turns, before = begin_turns(design, owed, [client for _, client in busy], rng), design
        while len(busy) < design.at_once:
            found = turns.next(None if here is None else here(index), rng)
            assert found is not None
            client, weight = found
            given[client] += weight
            heapq.heappush(busy, (clock + times[client] * rng.uniform(0.8, 1.2), client))
        clock, client = heapq.heappop(busy)
        turns.end(client)
    return given


def test_the_clock_and_the_model_go_on_after_a_run_was_ended() -> None:
    """Tasks under way are drawn again, with other batches: only that differs."""
    journal = MemoryCheckpoint(lives=12)
    with pytest.raises(EndedError):
        run_asynchronously(small_simulator(), buffer=2, callbacks=[journal])
    found = journal.found
    assert found is not None
    training = AsynchronousTraining(
        small_simulator(), Fixed(SHARES), **settings(buffer=2, callbacks=[journal])
    )
    assert_same_rows(training.rows, found.rows)
    assert training.state.seconds == found.rows[-1].seconds == training.tasks()[0].seconds
    np.testing.assert_array_equal(training.state.parameters, found.state.parameters)
    journal.lives = 10**9
    outcome = run_asynchronously(small_simulator(), buffer=2, callbacks=[journal])
    assert [row.round for row in outcome.history.rows] == list(range(31))
    assert outcome.state.ended == "rounds"


def test_who_was_at_work_when_a_run_was_ended_is_sent_out_again() -> None:
    journal = MemoryCheckpoint(lives=7)
    backend = Counters(P, Steady(LARGER))
    with pytest.raises(EndedError):
        run_asynchronously(backend, buffer=1, callbacks=[journal])
    done = journal.found.rows[-1]  # type: ignore[union-attr]
    under_way = [task.clients[0] for task in backend.tasks if task.seconds < done.seconds]
    finished = np.concatenate([row.clients for row in journal.found.rows])  # type: ignore[union-attr]
    for client in finished:
        under_way.remove(client)
    again = AsynchronousTraining(
        Counters(P, Steady(LARGER)), Fixed(SHARES), **settings(buffer=1, callbacks=[journal])
    )
    tasks = again.tasks()
    assert set(under_way) <= {int(task.clients[0]) for task in tasks}
    assert {task.round_index for task in tasks}.isdisjoint(t.round_index for t in backend.tasks[:6])


def test_a_checkpoint_of_every_step_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    short = run_asynchronously(
        small_simulator(), buffer=2, callbacks=[Checkpoint(path, {})], stop=Stop(rounds=5)
    )
    whole = run_asynchronously(small_simulator(), buffer=2, callbacks=[Checkpoint(path, {})])
    assert_same_rows(whole.history.rows[:6], [*short.history.rows[:5], whole.history.rows[5]])
    assert whole.state.round == 30


@pytest.mark.parametrize("ended_by", [KeyboardInterrupt, InputError])
def test_whatever_ends_a_run_its_newest_step_is_on_the_disk(
    ended_by: type[BaseException], tmp_path: Path
) -> None:
    path, seen = tmp_path / "run.npz", []

    def watch(row: Row) -> None:
        seen.append(row)
        if row.round == 20:
            raise ended_by

    with pytest.raises(ended_by):
        run_asynchronously(
            small_simulator(), server=Memory(), callbacks=[Checkpoint(path, {}), watch]
        )
    found = Checkpoint(path, {}).resume()
    assert found is not None
    assert found.state.round == 20
    assert_same_rows(found.rows[1:], seen)


def test_a_state_that_is_changed_in_place_is_kept_as_it_was_recorded(tmp_path: Path) -> None:
    journal, go = Checkpoint(tmp_path / "run.npz", {}), threading.Event()

    def write_later(item: Any) -> None:
        assert go.wait(600)
        journal._write(item)

    journal._writer = BackgroundWriter(write_later)
    parameters = np.zeros(3)
    row = run_asynchronously(small_simulator(), stop=Stop(rounds=1)).history.rows[0]
    rng = np.random.default_rng(0)
    journal.on_row(RunInfo("", 0, State(parameters, 0, 0.0), rng), row)
    parameters += 1
    go.set()
    journal.flush()
    found = Checkpoint(journal.path, {}).resume()
    assert found is not None
    assert found.state.parameters.tolist() == [0, 0, 0]


def test_the_same_seed_gives_the_same_run() -> None:
    assert_same_outcome(*(run_asynchronously(small_simulator(), buffer=2) for _ in range(2)))


class Forgetful(Counters):
    """Client 0 never answers: its slot is free after 5 seconds; a late answer may come."""

    late = False

    def submit(self, task: Task) -> None:
        self._pending = self._pending and 0 not in task.clients
        super().submit(task)

    def collect(self, count: int | None = None) -> Reply:
        reply = super().collect(count)
        if self.late and 0 not in reply.clients.tolist() and self._pending:
            self._pending = False
            one = Reply(np.array([0]), np.ones((1, 1)), np.array([9.0]), np.ones(1))
            return join_replies([one, reply], waited=reply.waited)
        if 0 in reply.clients.tolist():
            keep = reply.clients != 0
            self._pending = True
            return reply._replace(
                clients=reply.clients[keep],
                updates=reply.updates[keep],
                seconds=reply.seconds[keep],
                grad_norms=reply.grad_norms[keep],
                missing=np.array([0]),
            )
        return reply

    _pending = False


def test_who_never_answers_frees_its_slot_and_counts_as_missing() -> None:
    times = Steady(np.array([5.0, 1.0, 1.1, 1.2, 1.3, 1.4]))
    rows = run_asynchronously(Forgetful(P, times), buffer=2, stop=Stop(rounds=60)).history.rows
    missing = [row for row in rows if row.missing.size]
    assert missing
    assert all(row.missing.tolist() == [0] for row in missing)
    np.testing.assert_allclose([row.missing_seconds[0] for row in missing], 5.0)
    assert all(0 not in row.clients for row in rows)
    assert all(row.clients.size + row.missing.size == 2 for row in rows[1:])


@pytest.mark.parametrize("oldest", [None, 2])
def test_a_late_answer_counts_unless_it_is_too_old(oldest: int | None) -> None:
    backend = Forgetful(P, Steady(np.array([5.0, 1.0, 1.1, 1.2, 1.3, 1.4])))
    backend.late = True
    rare = InTurn([0.05, *[0.19] * 5], P, 3)
    outcome = run_asynchronously(backend, rare, buffer=2, stop=Stop(rounds=90), oldest=oldest)
    rows = outcome.history.rows
    assert any(0 in row.clients for row in rows) == (oldest is None)
    assert any(0 in row.refused for row in rows) == (oldest is not None)


class Looking(Fixed):
    """Keeps what it is shown."""

    def see(self, state: Any, seen: RoundUpdates) -> Any:
        SHOWN.append(seen)


SHOWN: list[RoundUpdates] = []


def test_a_sampler_is_shown_what_each_update_began_with() -> None:
    SHOWN.clear()
    train(
        small_simulator(),
        Looking(SHARES),
        mode="asynchronous",
        **settings(buffer=2, server=Memory()),
    )
    models = {seen.version: seen.parameters for seen in SHOWN}
    assert sorted(models) == list(range(30))
    for seen in SHOWN:
        assert seen.started is not None
        for version, rate, model in zip(
            seen.started.versions, seen.rates, seen.models, strict=True
        ):
            np.testing.assert_array_equal(model, models[version])
            assert rate == inverse(0.1)(version)
        assert seen.residual_norms.shape == seen.draw.clients.shape


def test_a_client_that_is_twice_in_a_buffer_counts_twice() -> None:
    """Two clients, the second far slower: the first is back several times before a step."""
    backend = Counters(np.array([0.9, 0.1]), Steady(np.array([1.0, 10.0])))
    design = InTurn([0.9, 0.1], [0.9, 0.1], 1)
    outcome = run_asynchronously(
        backend, design, at_once=1, buffer=5, server=Memory(), stop=Stop(rounds=40)
    )
    rows = outcome.history.rows[1:]
    assert any(np.unique(row.clients).size < row.clients.size for row in rows)
    assert outcome.state.answered.sum() == outcome.state.asked.sum() == 200
    assert outcome.state.server["clients"].size == 2


def test_fedbuff_gives_old_updates_less_weight() -> None:
    rows = run_asynchronously(small_simulator(), buffer=2, server=FedBuff()).history.rows[1:]
    for row in rows:
        fresh = 1 / np.sqrt(1 + row.staleness)
        np.testing.assert_allclose(row.weights, fresh / fresh.sum())
    old = run_asynchronously(small_simulator(), buffer=1, server=FedBuff(oldest=2)).history.rows[1:]
    assert any(row.refused.size for row in old)
    assert max(row.staleness.max(initial=0) for row in old) == 2


def test_fedasync_mixes_the_clients_model_in() -> None:
    SHOWN.clear()
    outcome = train(
        small_simulator(), Looking(SHARES), mode="asynchronous",
        **settings(buffer=1, server=FedAsync(0.5, 1.0)),
    )  # fmt: skip
    for seen, after in zip(SHOWN, [*SHOWN[1:], None], strict=True):
        alpha = 0.5 / (1 + seen.version - seen.started.versions[0])  # type: ignore[union-attr]
        mixed = (1 - alpha) * seen.parameters + alpha * (seen.models[0] + seen.reply.updates[0])
        expected = outcome.state.parameters if after is None else after.parameters
        np.testing.assert_allclose(mixed, expected, atol=1e-12)


class Halved(Counters):
    """Every second client is away."""

    def present(self, round_index: int, seconds: float) -> Presence:
        return Presence(np.arange(6) % 2 == 0)


def test_with_memory_steps_go_as_far_where_half_of_the_clients_are_away() -> None:
    alike = np.full(6, 1 / 6)
    backend, design = Halved(alike, Steady(np.ones(6))), InTurn(alike, alike, 2)
    how = {"at_once": 2, "buffer": 1, "server": Memory(), "schedule": constant(0.1)}
    model = run_asynchronously(backend, design, **how, stop=Stop(rounds=60)).state.parameters
    assert model[0] == pytest.approx(60, rel=0.02)  # everybody's update adds 1


class Buffers(Fixed):
    """A sampler that has its own buffer."""

    def design(self, state: None, context: SamplerContext) -> Any:
        return Plan(self.given, buffer=1 + context.round // 10)


def test_a_sampler_may_change_the_buffer_as_it_goes() -> None:
    rows = train(
        small_simulator(), Buffers(SHARES), mode="asynchronous", **settings()
    ).history.rows  # fmt: skip
    assert [row.clients.size for row in rows[1:]] == [1] * 10 + [2] * 10 + [3] * 10


class Alone(Counters):
    """Nobody is there for the first ten seconds, then three are."""

    def present(self, round_index: int, seconds: float) -> Presence:
        here = np.arange(6) < 3
        return Presence(here, max(10.0 - seconds, 0.0))


def test_those_present_share_the_work_and_waiting_is_told() -> None:
    outcome = run_asynchronously(Alone(P, Steady(LARGER)), buffer=2, at_once=1)
    rows = outcome.history.rows[1:]
    assert rows[0].waiting_seconds == 10.0
    assert rows[0].seconds > 10.0
    assert set(np.concatenate([row.clients for row in rows]).tolist()) == {0, 1, 2}
    assert math.isclose(np.mean([row.weights.sum() for row in rows]), 1.0, rel_tol=0.1)


def test_a_design_that_draws_with_replacement_gives_shares() -> None:
    design = WithReplacement(np.full(6, 1 / 6), 3, P)
    rows = run_asynchronously(Counters(P, Steady(np.ones(6))), design, buffer=3).history.rows[1:]
    counts = np.bincount(np.concatenate([row.clients for row in rows]), minlength=6)
    assert counts.max() - counts.min() <= 2
    assert math.isclose(rows[5].expected_round_seconds, 1.0)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"design": Everyone(P)}, "design must have `next` in asynchronous training"),
        ({"at_once": 0}, "at_once must be"),
        ({"buffer": 0}, "buffer must be"),
    ],
)
def test_says_what_a_run_without_a_barrier_cannot_do(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run_asynchronously(small_simulator(), **more)


def test_rounds_refuse_a_design_without_draws_and_modes_are_two() -> None:
    with pytest.raises(InputError, match=r"design must have `draw` in synchronous .* InTurn"):
        train(
            small_simulator(),
            Fixed(SHARES),
            schedule=inverse(0.1),
            stop=Stop(rounds=1),
            seeds=Seeds(0),
        )
    with pytest.raises(InputError, match="mode must be synchronous or asynchronous, got 'async'"):
        train(small_simulator(), Fixed(SHARES), mode="async")
