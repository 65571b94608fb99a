"""What a round does on average: the same as full participation, whatever the scheme."""

import numpy as np
import pytest

from fedpace.backends.simulator import Simulator
from fedpace.checks import FloatArray
from fedpace.data.partition import synthetic
from fedpace.models.networks import Logistic
from fedpace.profile import Profile
from fedpace.sampling.design import Design, Everyone
from fedpace.sampling.schemes import SCHEMES
from fedpace.seeds import Seeds
from fedpace.servers.average import Average
from fedpace.times.round_times import Steady
from fedpace.training.backend import Reply
from tests.training.fakes import task

SIZES = np.array([40, 5, 20, 10, 15, 10])
TIMES = np.array([1.0, 4.0, 2.0, 0.5, 3.0, 1.5])
NORMS = np.array([2.0, 1.0, 4.0, 3.0, 1.0, 0.5])
DRAWS = 1500


def simulator() -> Simulator:
    data = synthetic(SIZES, np.random.default_rng(0), features=2, classes=3)
    return Simulator(data, Logistic(2, 3), Steady(TIMES), Seeds(4), local_steps=3, batch=4)


def one_round(backend: Simulator, design: Design, rng: np.random.Generator) -> FloatArray:
    start = np.linspace(-1, 1, backend.model.size)
    draw = design.draw(rng)
    trained = backend.train_task(task(draw.clients.tolist(), start, rate=0.5))
    reply = Reply(draw.clients, trained.updates, TIMES[draw.clients], trained.grad_norms)
    return Average().apply(None, start, draw, reply)[0]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_average_of_many_aggregates_is_full_participation(scheme: str) -> None:
    backend, rng = simulator(), np.random.default_rng(1)
    design = SCHEMES[scheme](Profile(backend.weights, TIMES, NORMS), 3)
    full = one_round(backend, Everyone(backend.weights), rng)
    models = np.array([one_round(backend, design, rng) for _ in range(DRAWS)])
    error = models.std(axis=0, ddof=1) / np.sqrt(DRAWS)
    np.testing.assert_array_less(np.abs(models.mean(axis=0) - full), 5 * error + 1e-12)
    if scheme != "full":
        assert error.min() > 0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_average_of_many_round_times_is_the_expected_one(scheme: str) -> None:
    rng = np.random.default_rng(2)
    design = SCHEMES[scheme](Profile(SIZES / SIZES.sum(), TIMES, NORMS), 3)
    slowest = np.array([TIMES[design.draw(rng).clients].max() for _ in range(4000)])
    error = slowest.std(ddof=1) / np.sqrt(slowest.size)
    assert abs(slowest.mean() - design.expected_round_time(TIMES)) <= 5 * error + 1e-12
