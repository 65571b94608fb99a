"""The simulator against the naive loop, number by number; and its clock."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedpace.backends.simulator import Simulator
from fedpace.checks import FloatArray, IntArray
from fedpace.conformance import check_backend
from fedpace.data.partition import synthetic
from fedpace.data.shards import Shards, Split
from fedpace.errors import InputError
from fedpace.models.networks import Logistic
from fedpace.sampling.design import Design, Draw, Everyone, WithReplacement
from fedpace.seeds import Seeds
from fedpace.servers.average import Average
from fedpace.times.round_times import Presence, Steady, Varying
from fedpace.training.backend import Reply
from fedpace.training.stopping import Stop, inverse
from fedpace.training.train import train
from tests import reference
from tests.training.fakes import Fixed, task

FEATURES, CLASSES, ROUNDS = 4, 3, 4
SIZES = np.array([3, 9, 5, 14, 1])
Q = np.array([0.3, 0.1, 0.25, 0.15, 0.2])
TIMES = np.array([1.0, 0.5, 3.0, 2.0, 0.7])


def simulator() -> Simulator:
    data = synthetic(SIZES, np.random.default_rng(0), features=FEATURES, classes=CLASSES)
    model = Logistic(FEATURES, CLASSES)
    return Simulator(data, model, Steady(TIMES), Seeds(5), local_steps=5, batch=4)


def submit(
    backend: Simulator, clients: Any, parameters: FloatArray | None = None, **more: Any
) -> None:
    """Give out a task, from the initial model unless said otherwise."""
    backend.submit(task(clients, backend.initial() if parameters is None else parameters, **more))


def asked(backend: Simulator, *arguments: Any, **more: Any) -> Reply:
    """Give out one task, and collect it whole."""
    submit(backend, *arguments, **more)
    return backend.collect()


def samples(shards: Shards) -> list[reference.Samples]:
    clients = [shards.client(i) for i in range(shards.n)]
    return [(client.x.tolist(), client.y.tolist()) for client in clients]


def batches(backend: Simulator, round_index: int, client: int) -> list[list[int]]:
    """Return the samples that the simulator promises to use: by seed, round and client alone."""
    rng = backend.seeds.stream("batch", round_index, client)
    size = int(backend.data.train.sizes[client])
    drawn: list[list[int]] = rng.integers(size, size=(backend.local_steps, backend.batch)).tolist()
    return drawn


def participants(design: Design, draw: Draw) -> list[reference.Participant]:
    """Say with the reference's own arithmetic what a draw means."""
    if isinstance(design, Everyone):
        p = SIZES / SIZES.sum()
        assert draw.clients.tolist() == list(range(SIZES.size))
        return [reference.Participant(i, float(p[i])) for i in range(SIZES.size)]
    assert isinstance(design, WithReplacement)
    p, q, k = design.weights, design.q, design.k
    counts = np.rint(draw.weights * k * q[draw.clients] / p[draw.clients]).astype(int)
    assert counts.sum() == k
    return [
        reference.Participant(i, reference.weight(m, float(p[i]), float(q[i]), k))
        for i, m in zip(draw.clients.tolist(), counts.tolist(), strict=True)
    ]


def with_replacement(k: int) -> WithReplacement:
    return WithReplacement(Q, k, SIZES / SIZES.sum())


def assert_equals_reference(backend: Simulator, design: Design) -> list[Draw]:
    """Train a few rounds; compare model, loss and gradient norms after each with the reference."""
    schedule = inverse(0.5)
    rng = np.random.default_rng(11)
    draws = [design.draw(rng) for _ in range(ROUNDS)]
    clients = samples(backend.data.train)
    models = reference.fedavg(
        backend.initial().tolist(),
        clients,
        [participants(design, draw) for draw in draws],
        batches=lambda r, client: batches(backend, r, client),
        schedule=schedule,
        classes=CLASSES,
        weight_decay=backend.weight_decay,
        clip=backend.clip,
    )
    parameters = backend.initial()
    for r, draw in enumerate(draws):
        reply = asked(backend, draw.clients, parameters, round_index=r, rate=schedule(r))
        for i, client in enumerate(draw.clients.tolist()):
            local = reference.local_sgd(
                parameters.tolist(),
                clients[client],
                batches(backend, r, client),
                classes=CLASSES,
                rate=schedule(r),
                weight_decay=backend.weight_decay,
                clip=backend.clip,
            )
            assert reply.grad_norms[i] == pytest.approx(np.sqrt(np.mean(local.squares)), abs=1e-10)
        parameters, _ = Average().apply(None, parameters, draw, reply)
        np.testing.assert_allclose(parameters, models[r], rtol=0, atol=1e-10)
        found = backend.evaluate(parameters)
        assert found is not None
        assert found.loss == pytest.approx(reference.loss(models[r], clients, CLASSES), abs=1e-10)
    assert not np.allclose(parameters, backend.initial(), atol=0.05)  # something was learned
    return draws


def test_equals_the_reference_with_clients_drawn_more_than_once() -> None:
    draws = assert_equals_reference(simulator(), with_replacement(6))
    assert any(draw.clients.size < 6 for draw in draws)


def test_equals_the_reference_with_a_single_draw() -> None:
    assert_equals_reference(simulator(), with_replacement(1))


def test_equals_the_reference_with_full_participation() -> None:
    assert_equals_reference(simulator(), Everyone(SIZES / SIZES.sum()))


def test_equals_the_reference_with_weight_decay() -> None:
    assert_equals_reference(replace(simulator(), weight_decay=0.3), with_replacement(6))


@pytest.mark.parametrize("clip", [0.2, 1.0, 1e6])
def test_equals_the_reference_with_clipping(clip: float) -> None:
    assert_equals_reference(replace(simulator(), clip=clip), with_replacement(6))


def test_equals_the_reference_with_clipping_and_weight_decay_together() -> None:
    backend = replace(simulator(), clip=0.4, weight_decay=0.2)
    assert_equals_reference(backend, with_replacement(6))


@pytest.mark.parametrize("batch", [1, 40])
def test_equals_the_reference_with_a_batch_smaller_or_larger_than_the_data(batch: int) -> None:
    assert_equals_reference(replace(simulator(), batch=batch), with_replacement(4))


def test_a_run_trains_to_the_model_of_the_reference() -> None:
    backend, design, schedule = simulator(), with_replacement(5), inverse(0.5)
    seeds = Seeds(3)
    outcome = train(
        backend, Fixed(design), schedule=schedule, stop=Stop(rounds=ROUNDS), seeds=seeds
    )
    rng = seeds.stream("draw")
    models = reference.fedavg(
        backend.initial().tolist(),
        samples(backend.data.train),
        [participants(design, design.draw(rng)) for _ in range(ROUNDS)],
        batches=lambda r, client: batches(backend, r, client),
        schedule=schedule,
        classes=CLASSES,
    )
    np.testing.assert_allclose(outcome.state.parameters, models[-1], rtol=0, atol=1e-10)


def test_data_with_other_clients_for_testing_are_refused() -> None:
    data = simulator().data
    end = data.test.offsets[-2]
    fewer = Shards(data.test.x[:end], data.test.y[:end], data.test.offsets[:-1])
    with pytest.raises(InputError, match=r"same clients .* got 5 and 4; give"):
        replace(simulator(), data=Split(data.train, fewer))


def test_weights_are_shares_of_the_training_samples() -> None:
    np.testing.assert_allclose(simulator().weights, SIZES / SIZES.sum())


def test_accuracy_is_the_share_of_held_out_samples_with_the_largest_score() -> None:
    backend = simulator()
    parameters = np.random.default_rng(0).normal(size=backend.model.size)
    right = total = 0
    for xs, ys in samples(backend.data.test):
        for x, y in zip(xs, ys, strict=True):
            chances = reference.chances(parameters.tolist(), x, CLASSES)
            right += chances[y] == max(chances)
            total += 1
    found = backend.evaluate(parameters)
    assert found is not None
    assert found.accuracy == pytest.approx(right / total)
    assert backend.evaluate(parameters, due=False) is None


def test_a_clients_update_does_not_depend_on_who_else_is_drawn() -> None:
    backend = simulator()
    parameters = np.random.default_rng(0).normal(size=backend.model.size)
    together = asked(backend, range(5), parameters, round_index=2)
    for i in range(5):
        alone = asked(backend, [i], parameters, round_index=2)
        np.testing.assert_allclose(together.updates[i], alone.updates[0], rtol=0, atol=1e-12)


def test_training_changes_neither_the_parameters_nor_the_data() -> None:
    backend = simulator()
    parameters = np.ones(backend.model.size)
    x = backend.data.train.x.copy()
    asked(backend, range(5), parameters)
    backend.evaluate(parameters)
    assert (parameters == 1).all()
    np.testing.assert_array_equal(backend.data.train.x, x)


def test_a_client_whose_gradient_is_zero_is_clipped_without_a_warning() -> None:
    nothing = Shards(np.zeros((2, 1)), np.array([0, 1]), np.array([0, 2]))
    backend = Simulator(
        Split(nothing, nothing), Logistic(1, 2), Steady(np.ones(1)), Seeds(0), batch=2, clip=1.0
    )
    assert np.isfinite(asked(backend, [0], np.zeros(4)).updates).all()


def test_keeps_to_the_rules_of_a_backend() -> None:
    check_backend(simulator)


# The clock.


def test_seconds_are_the_devices_times_at_that_moment() -> None:
    times = Varying(np.ones(5), Seeds(1), noise=0.5, drift=0.3)
    backend = replace(simulator(), times=times)
    reply = asked(backend, [1, 4], round_index=7, seconds=42.0)
    expected = times.at(42.0, np.array([1, 4]), round_index=7)
    np.testing.assert_array_equal(reply.seconds, expected)
    assert reply.lasted == expected.max()
    np.testing.assert_array_equal(backend.usual_times, np.ones(5))


def test_usual_times_are_hidden_where_the_server_must_learn_them() -> None:
    assert replace(simulator(), times_known=False).usual_times is None


def test_a_task_collected_by_its_size_is_a_whole_round() -> None:
    backend, twin = simulator(), simulator()
    whole = asked(backend, [0, 2, 3], round_index=4)
    submit(twin, [0, 2, 3], round_index=4)
    for mine, other in zip(twin.collect(3)[:4], whole[:4], strict=True):
        np.testing.assert_array_equal(mine, other)


def test_replies_come_in_the_order_of_the_simulated_clock() -> None:
    backend = simulator()
    whole = asked(backend, range(5))
    submit(backend, range(5))
    replies = [backend.collect(1) for _ in range(5)]
    assert [int(each.clients[0]) for each in replies] == np.argsort(TIMES).tolist()
    assert sum(each.lasted for each in replies) == pytest.approx(TIMES.max())
    for each in replies:
        client = int(each.clients[0])
        assert each.seconds[0] == TIMES[client]
        np.testing.assert_allclose(each.updates[0], whole.updates[client], rtol=0, atol=1e-12)
        np.testing.assert_allclose(each.grad_norms[0], whole.grad_norms[client])


def test_one_may_be_collected_first_and_the_rest_later() -> None:
    backend = simulator()
    submit(backend, range(5))
    first, rest = backend.collect(1), backend.collect()
    assert first.clients.tolist() == [1]
    assert first.lasted == 0.5
    assert rest.clients.tolist() == [0, 2, 3, 4]
    assert rest.lasted == 2.5  # until the slowest, from when the first came
    assert backend.collect().clients.size == 0


def test_those_that_come_at_the_same_moment_come_together() -> None:
    backend = replace(simulator(), times=Steady(np.array([1.0, 1.0, 2.0, 2.0, 3.0])))
    submit(backend, range(5))
    assert [backend.collect(1).clients.tolist() for _ in range(3)] == [[0, 1], [2, 3], [4]]


def test_two_tasks_of_different_models_may_be_underway_at_once() -> None:
    backend = simulator()
    old, new = backend.initial(), np.full(backend.model.size, 0.3)
    submit(backend, [2, 3], old, round_index=0)  # come at 3 and 2
    assert backend.collect(1).clients.tolist() == [3]
    submit(backend, [1, 0], new, round_index=1, seconds=2.0)  # come at 2.5 and 3
    early, both = backend.collect(1), backend.collect()
    assert early.clients.tolist() == [1]
    assert early.lasted == 0.5
    assert sorted(both.clients.tolist()) == [0, 2]
    assert both.lasted == 0.5
    for client, model, round_index in ((2, old, 0), (0, new, 1)):
        expected = asked(simulator(), [client], model, round_index=round_index)
        update = both.updates[both.clients.tolist().index(client)]
        np.testing.assert_allclose(update, expected.updates[0], rtol=0, atol=1e-12)


def test_what_came_while_one_waited_for_something_else_costs_no_time() -> None:
    backend = simulator()
    submit(backend, [1, 4])  # come at 0.5 and 0.7
    submit(backend, [0], seconds=10.0)
    assert backend.collect(1).lasted == 0.0
    assert backend.collect(1).lasted == 0.0
    assert backend.collect(1).lasted == 1.0


def test_the_next_round_after_a_partial_one_lasts_as_long_as_its_slowest() -> None:
    backend = simulator()
    submit(backend, [0, 2])
    backend.collect(1)
    backend.collect(1)
    assert asked(backend, [0, 3], seconds=3.0).lasted == 2.0


@given(st.data())
def test_waiting_adds_up_to_the_clock_whatever_is_collected_when(data: st.DataObject) -> None:
    backend = replace(SHARED)
    clock, given_out, arrivals = 0.0, 0, []
    expected: list[float] = []
    for index in range(data.draw(st.integers(1, 4))):
        clients = sorted(data.draw(st.sets(st.integers(0, 4), min_size=1)))
        submit(backend, clients, round_index=index, seconds=clock)
        expected += [clock + float(TIMES[i]) for i in clients]
        given_out += len(clients)
        for count in data.draw(st.lists(st.integers(1, 3), max_size=2)):
            reply = backend.collect(count)
            clock += reply.lasted
            arrivals += [clock] * reply.clients.size
    reply = backend.collect()
    clock += reply.lasted
    arrivals += [clock] * reply.clients.size
    assert len(arrivals) == given_out
    assert clock == pytest.approx(max(expected))
    # Nothing comes before its time.
    assert (np.sort(arrivals) >= np.sort(expected) - 1e-9).all()


SHARED = replace(simulator(), local_steps=1, batch=1)


# Who is there.


class Shifts(Steady):
    """The first two clients are there by day, the third by night; nobody at the seam."""

    def present(self, seconds: float) -> Presence:
        hour = seconds % 24
        if 10 <= hour < 12:
            return Presence(self._those(2), 12 - hour)
        return Presence(self._those(0, 1) if hour < 10 else self._those(2))

    def _those(self, *clients: int) -> NDArray[np.bool_]:
        return np.isin(np.arange(5), clients)


def by_hour(rows: Any, low: float, high: float) -> list[IntArray]:
    """Return who was drawn in rounds that began between two hours of the day."""
    begun = [(row, (row.seconds - row.round_seconds) % 24) for row in rows[1:]]
    return [row.clients for row, hour in begun if low <= hour < high]


def test_only_those_who_are_there_by_the_clock_are_drawn() -> None:
    backend = replace(simulator(), times=Shifts(TIMES), local_steps=1, batch=1)
    outcome = train(
        backend, Fixed(with_replacement(2)), schedule=inverse(0.1), stop=Stop(rounds=150),
        seeds=Seeds(0),
    )  # fmt: skip
    rows = outcome.history.rows
    assert set(np.concatenate(by_hour(rows, 0, 10)).tolist()) == {0, 1}
    assert set(np.concatenate(by_hour(rows, 12, 24)).tolist()) == {2}
    assert not by_hour(rows, 10 + 1e-6, 12 - 1e-6)
    waited = [row.waiting_seconds for row in rows]
    assert 0 < sum(map(bool, waited)) < len(waited) / 2
    assert max(waited) <= 2.0
    total = sum(row.round_seconds + row.waiting_seconds for row in rows)
    assert outcome.state.seconds == pytest.approx(total)


def test_the_draw_is_unbiased_among_those_who_are_there() -> None:
    backend = replace(simulator(), times=Shifts(TIMES), local_steps=1, batch=1)
    outcome = train(
        backend, Fixed(with_replacement(2)), schedule=inverse(0.1), stop=Stop(rounds=400),
        seeds=Seeds(1),
    )  # fmt: skip
    by_day = [row for row in outcome.history.rows[1:] if 2 not in row.clients]
    totals = np.array([np.bincount(row.clients, row.weights, 5) for row in by_day])
    error = totals.std(axis=0, ddof=1) / np.sqrt(len(by_day))
    expected = np.array([*SIZES[:2] / SIZES[:2].sum(), 0, 0, 0])
    assert (np.abs(totals.mean(axis=0) - expected) <= 5 * error).all()
