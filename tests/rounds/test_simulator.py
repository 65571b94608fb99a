"""The simulator against the naive loop, number by number."""

from dataclasses import replace

import numpy as np
import pytest

from fedpace.data.shards import Shards, Split
from fedpace.data.synthetic import synthetic
from fedpace.models.logistic import Logistic
from fedpace.rounds.aggregate import aggregate
from fedpace.rounds.loop import start, train
from fedpace.rounds.schedules import inverse
from fedpace.rounds.simulator import Simulator
from fedpace.rounds.stopping import Stop
from fedpace.sampling.design import Design, Draw, Everyone, WithReplacement
from fedpace.seeds import Seeds
from fedpace.times.round_times import Steady, Varying
from tests import reference

FEATURES, CLASSES, ROUNDS = 4, 3, 4
SIZES = np.array([3, 9, 5, 14, 1])
Q = np.array([0.3, 0.1, 0.25, 0.15, 0.2])


def simulator() -> Simulator:
    data = synthetic(SIZES, np.random.default_rng(0), features=FEATURES, classes=CLASSES)
    times = Steady(np.array([1.0, 0.5, 3.0, 2.0, 0.7]))
    return Simulator(data, Logistic(FEATURES, CLASSES), times, Seeds(5), local_steps=5, batch=4)


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
        reply = backend.run(parameters, draw, round_index=r, learning_rate=schedule(r))
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
        parameters = aggregate(parameters, draw.weights, reply.updates)
        np.testing.assert_allclose(parameters, models[r], rtol=0, atol=1e-10)
        expected = reference.loss(models[r], clients, CLASSES)
        assert backend.evaluate(parameters).loss == pytest.approx(expected, abs=1e-10)
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


def test_the_loop_trains_to_the_model_of_the_reference() -> None:
    backend, design, schedule = simulator(), with_replacement(5), inverse(0.5)
    state, _ = start(backend)
    state, _ = train(
        backend,
        design,
        state,
        schedule=schedule,
        stop=Stop(rounds=ROUNDS),
        rng=np.random.default_rng(3),
    )
    rng = np.random.default_rng(3)
    models = reference.fedavg(
        backend.initial().tolist(),
        samples(backend.data.train),
        [participants(design, design.draw(rng)) for _ in range(ROUNDS)],
        batches=lambda r, client: batches(backend, r, client),
        schedule=schedule,
        classes=CLASSES,
    )
    np.testing.assert_allclose(state.parameters, models[-1], rtol=0, atol=1e-10)


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
    assert backend.evaluate(parameters).accuracy == pytest.approx(right / total)


def test_a_clients_update_does_not_depend_on_who_else_is_drawn() -> None:
    backend = simulator()
    parameters = np.random.default_rng(0).normal(size=backend.model.size)
    everyone = Draw(np.arange(5), np.ones(5))
    together = backend.run(parameters, everyone, round_index=2, learning_rate=0.1)
    for i in range(5):
        only = Draw(np.array([i]), np.ones(1))
        alone = backend.run(parameters, only, round_index=2, learning_rate=0.1)
        np.testing.assert_allclose(together.updates[i], alone.updates[0], rtol=0, atol=1e-12)


def test_running_changes_neither_the_parameters_nor_the_data() -> None:
    backend = simulator()
    parameters = np.ones(backend.model.size)
    x = backend.data.train.x.copy()
    backend.run(parameters, Draw(np.arange(5), np.ones(5)), round_index=0, learning_rate=0.1)
    backend.evaluate(parameters)
    assert (parameters == 1).all()
    np.testing.assert_array_equal(backend.data.train.x, x)


def test_seconds_are_the_devices_times_of_that_round() -> None:
    times = Varying(np.ones(5), Seeds(1), noise=0.5)
    backend = replace(simulator(), times=times)
    draw = Draw(np.array([1, 4]), np.ones(2))
    reply = backend.run(backend.initial(), draw, round_index=7, learning_rate=0.1)
    np.testing.assert_array_equal(reply.seconds, times.at(7, draw.clients))
    np.testing.assert_array_equal(backend.usual_times, np.ones(5))


def test_a_client_whose_gradient_is_zero_is_clipped_without_a_warning() -> None:
    nothing = Shards(np.zeros((2, 1)), np.array([0, 1]), np.array([0, 2]))
    backend = Simulator(
        Split(nothing, nothing), Logistic(1, 2), Steady(np.ones(1)), Seeds(0), batch=2, clip=1.0
    )
    reply = backend.run(
        np.zeros(4), Draw(np.array([0]), np.ones(1)), round_index=0, learning_rate=0.1
    )
    assert np.isfinite(reply.updates).all()
