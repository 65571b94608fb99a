from __future__ import annotations

import numpy as np
import pytest

from fedpace.checks import FloatArray
from fedpace.devices.lab.lab import (
    FASTEST,
    RoundMedians,
    calibrate,
    correct_rates,
    errors,
    rates_for,
)
from fedpace.times.round_times import EVERYONE, Presence
from fedpace.training.backend import BaseBackend, Reply, Task


class Links(BaseBackend):
    """Devices behind links of which half of what was computed goes missing in overheads."""

    def __init__(
        self, wanted: FloatArray, computing: FloatArray, overhead: float, absent: int | None = None
    ) -> None:
        self.computing = computing
        self.overhead = overhead
        self.absent = absent
        self.rates = rates_for(wanted, 80_000)
        self.together: list[int] = []

    @property
    def weights(self) -> FloatArray:
        return np.full(self.computing.size, 1 / self.computing.size)

    @property
    def usual_times(self) -> None:
        return None

    def initial(self) -> FloatArray:
        return np.zeros(20_000)

    def present(self, round_index: int, seconds: float) -> Presence:
        return EVERYONE

    def submit(self, task: Task) -> None:
        self.task = task

    def collect(self, count: int | None = None) -> Reply:
        parameters, clients = self.task.parameters, self.task.clients
        clients = clients[clients != self.absent]
        self.together.append(clients.size)
        computing = self.computing[clients]
        seconds = computing + self.overhead * 2 * 4 * parameters.size / self.rates[clients]
        updates = np.zeros((clients.size, parameters.size))
        norms = np.ones(clients.size)
        return Reply(clients, updates, seconds, norms, computing_seconds=computing)

    def evaluate(self, parameters: FloatArray, *, due: bool = True) -> None:
        pass

    def set_rates(self, rates: FloatArray) -> None:
        self.rates = rates


def silent(message: str) -> None:
    pass


def test_finds_the_rates_whatever_the_overhead() -> None:
    wanted = np.linspace(0.05, 2.0, 10)
    links = Links(wanted, np.full(10, 0.02), overhead=1.5)
    rng = np.random.default_rng(0)
    found = calibrate(links, wanted, links.rates, links.set_rates, at_once=4, rng=rng, say=silent)
    np.testing.assert_allclose(found.measured.seconds, wanted, rtol=1e-9)
    assert max(links.together) == 4


def test_devices_that_compute_too_long_get_the_fastest_rate() -> None:
    wanted = np.array([0.05, 0.05])
    links = Links(wanted, np.array([0.01, 0.2]), overhead=1.0)
    rng = np.random.default_rng(0)
    found = calibrate(links, wanted, links.rates, links.set_rates, at_once=2, rng=rng, say=silent)
    assert found.rates[1] == FASTEST
    assert found.measured.seconds[0] == pytest.approx(0.05)


def test_a_device_that_never_answers_keeps_its_rate_and_is_told() -> None:
    wanted = np.array([0.1, 0.1, 0.1])
    links = Links(wanted, np.full(3, 0.01), overhead=1.0, absent=1)
    rng = np.random.default_rng(0)
    found = calibrate(links, wanted, links.rates, links.set_rates, at_once=2, rng=rng, say=silent)
    assert np.isnan(found.measured.seconds).tolist() == [False, True, False]
    assert errors(wanted, found.measured.seconds).size == 2


def test_one_disturbed_round_does_not_throw_a_rate_off() -> None:
    disturbed = RoundMedians(np.array([100.0]), np.array([0.0]))
    assert correct_rates(np.array([1000.0]), np.array([0.1]), disturbed)[0] == 4000.0
