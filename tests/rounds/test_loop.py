"""Draw, run, aggregate, record."""

import warnings
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from fedpace.rounds.aggregate import aggregate
from fedpace.rounds.loop import start, train

from fedpace.checks import FloatArray
from fedpace.data.synthetic import synthetic
from fedpace.models.logistic import Logistic
from fedpace.rounds.backend import Evaluation, Reply
from fedpace.rounds.rows import Row
from fedpace.rounds.schedules import Schedule, constant, inverse
from fedpace.rounds.simulator import Simulator
from fedpace.rounds.state import State
from fedpace.rounds.stopping import Stop
from fedpace.sampling.design import Design, Draw, Everyone, WithReplacement
from fedpace.seeds import Seeds
from fedpace.times.round_times import Steady, Varying

SIZES = np.array([10, 30, 20, 40])
TIMES = np.array([1.0, 4.0, 2.0, 0.5])
WEIGHTS = SIZES / SIZES.sum()
SCHEDULE = inverse(0.1)
DESIGN = WithReplacement([0.4, 0.2, 0.3, 0.1], 3, WEIGHTS)


@dataclass(frozen=True)
class Counter:
    """A backend whose every client adds 1 to its own entry of the model."""

    weights: FloatArray
    usual_times: FloatArray
    rates: list[tuple[int, float]] = field(default_factory=list)

    def initial(self) -> FloatArray:
        return np.zeros(self.weights.size)

    def present(self) -> None:
        return None

    def run(
        self, parameters: FloatArray, draw: Draw, *, round_index: int, learning_rate: float
    ) -> Reply:
        self.rates.append((round_index, learning_rate))
        updates = np.eye(parameters.size)[draw.clients]
        seconds = self.usual_times[draw.clients] * (1 + round_index)
        return Reply(draw.clients, updates, seconds, draw.clients.astype(np.float64) + 1)

    def evaluate(self, parameters: FloatArray) -> Evaluation:
        return Evaluation(-float(parameters.sum()), 0.5)


def counter() -> Counter:
    return Counter(WEIGHTS, TIMES)


def simulator(seed: int = 0) -> Simulator:
    data = synthetic(SIZES, np.random.default_rng(seed), features=3, classes=3)
    return Simulator(
        data, Logistic(3, 3), Varying(TIMES, Seeds(seed), noise=0.3), Seeds(seed), 3, 4
    )


def trained(
    backend: Counter | Simulator,
    design: Design = DESIGN,
    *,
    rounds: int = 6,
    schedule: Schedule = SCHEDULE,
    seed: int = 1,
) -> tuple[State, list[Row]]:
    state, first = start(backend)
    state, rows = train(
        backend,
        design,
        state,
        schedule=schedule,
        stop=Stop(rounds=rounds),
        rng=np.random.default_rng(seed),
    )
    return state, [first, *rows]


def test_aggregate_adds_weighted_updates_without_renormalising() -> None:
    result = aggregate(np.array([1.0, 2.0]), np.array([2.0, 0.5]), np.array([[1.0, 0], [2, 4]]))
    assert result.tolist() == [4.0, 4.0]


def test_row_zero_describes_the_initial_model() -> None:
    backend = simulator()
    state, first = start(backend, "pilot")
    assert (first.phase, first.round, first.seconds, first.round_seconds) == ("pilot", 0, 0, 0)
    assert (first.loss, first.accuracy) == backend.evaluate(backend.initial())
    assert first.clients.size == first.weights.size == first.grad_norms.size == 0
    assert (state.round, state.seconds, state.ended) == (0, 0, "")


def test_the_clock_equals_the_sum_of_the_slowest_times() -> None:
    backend = simulator()
    state, rows = trained(backend, rounds=12)
    clock = 0.0
    for row in rows[1:]:
        slowest = max(backend.times.at(row.round - 1, row.clients).tolist())
        clock += slowest
        assert row.round_seconds == slowest
        assert row.client_seconds.max() == slowest
        assert row.seconds == clock
    assert state.seconds == clock


def test_rounds_are_numbered_one_after_the_other() -> None:
    state, rows = trained(counter(), rounds=9)
    assert [row.round for row in rows] == list(range(10))
    assert (state.round, state.ended) == (9, "rounds")


def test_each_round_has_the_learning_rate_of_its_number() -> None:
    backend = counter()
    trained(backend, rounds=3, schedule=inverse(0.6))
    assert backend.rates == [(0, 0.6), (1, 0.3), (2, pytest.approx(0.2))]


def test_weights_of_the_draw_are_used_as_they_are() -> None:
    state, rows = trained(counter(), rounds=8)
    expected = np.zeros(4)
    for row in rows[1:]:
        expected[row.clients] += row.weights
    np.testing.assert_allclose(state.parameters, expected)
    # With these q the weights of a round do not sum to 1; nothing makes them.
    assert any(abs(row.weights.sum() - 1) > 0.1 for row in rows[1:])
    assert rows[-1].loss == pytest.approx(-expected.sum())


def test_the_expected_round_time_is_recorded_with_the_actual_one() -> None:
    _, rows = trained(simulator())
    assert {row.expected_round_seconds for row in rows[1:]} == {DESIGN.expected_round_time(TIMES)}


def test_rows_hold_the_replies_of_the_drawn_clients() -> None:
    _, rows = trained(counter())
    for row in rows[1:]:
        np.testing.assert_array_equal(row.grad_norms, 1.0 + row.clients)
        np.testing.assert_array_equal(row.client_seconds, TIMES[row.clients] * row.round)


def test_full_participation_takes_everyone_every_round() -> None:
    _, rows = trained(counter(), Everyone(WEIGHTS))
    for row in rows[1:]:
        assert row.clients.tolist() == [0, 1, 2, 3]
        np.testing.assert_array_equal(row.weights, WEIGHTS)
        assert row.round_seconds == 4.0 * row.round


def test_the_same_seed_gives_the_same_numbers_and_another_one_others() -> None:
    one, other, another = (
        trained(simulator(2)),
        trained(simulator(2)),
        trained(simulator(2), seed=9),
    )
    np.testing.assert_array_equal(one[0].parameters, other[0].parameters)
    for row, same in zip(one[1], other[1], strict=True):
        assert row[:7] == same[:7]
        for values, others in zip(row[7:], same[7:], strict=True):
            np.testing.assert_array_equal(values, others)
    assert (one[0].parameters != another[0].parameters).any()


def test_training_goes_on_where_a_state_left_off() -> None:
    backend = simulator()
    rng = np.random.default_rng(1)
    state, _ = start(backend)
    for rounds in (2, 6):
        state, rows = train(
            backend, DESIGN, state, schedule=inverse(0.1), stop=Stop(rounds=rounds), rng=rng
        )
    assert [row.round for row in rows] == [3, 4, 5, 6]
    whole, _ = trained(backend)
    np.testing.assert_array_equal(state.parameters, whole.parameters)
    assert state.seconds == whole.seconds


def test_stops_at_the_first_reason() -> None:
    backend = counter()
    for stop, reason in (
        (Stop(loss=-2.0, rounds=100), "target loss"),
        (Stop(accuracy=0.5), "target accuracy"),
        (Stop(seconds=20.0, rounds=100), "seconds"),
    ):
        state, first = start(backend)
        state, rows = train(
            backend, DESIGN, state, schedule=constant(1), stop=stop, rng=np.random.default_rng(0)
        )
        assert state.ended == reason
        assert all(stop.reason(row) is None for row in rows[:-1])
        assert first.round == 0


@pytest.mark.parametrize("rate", [1e3, 1e100, 1e308])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_diverging_run_stops_as_diverged_without_a_warning(
    rate: float, clip: float | None
) -> None:
    # Weight decay times so large a rate multiplies the model by −rate in every step.
    backend = replace(simulator(), times=Steady(TIMES), clip=clip, weight_decay=1.0)
    state, _ = start(backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state, rows = train(
            backend,
            Everyone(WEIGHTS),
            state,
            schedule=constant(rate),
            stop=Stop(rounds=200),
            rng=np.random.default_rng(0),
        )
    assert state.ended == "diverged"
    assert not np.isfinite(rows[-1].loss)
