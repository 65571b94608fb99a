"""The suite accepts backends that keep the rules, and says which one another breaks."""

from typing import Any

import numpy as np
import pytest

from fedpace import Presence, Reply, Seeds, Simulator, Task, Varying
from fedpace.checks import FloatArray
from fedpace.conformance import check_backend
from fedpace.data.partition import synthetic
from fedpace.models.networks import Logistic


def simulator(kind: type[Simulator] = Simulator) -> Simulator:
    data = synthetic(np.array([10, 30, 20, 40]), np.random.default_rng(0), features=3, classes=3)
    times = Varying(np.array([1.0, 4.0, 2.0, 0.5]), Seeds(0), noise=0.3)
    return kind(data, Logistic(3, 3), times, Seeds(0), local_steps=3, batch=4)


def test_the_simulator_passes() -> None:
    check_backend(simulator)


class Unweighted(Simulator):
    @property
    def weights(self) -> FloatArray:
        return np.ones(4)


class Numbered(Simulator):
    def present(self, round_index: int, seconds: float) -> Presence:
        return Presence(np.arange(4))  # type: ignore[arg-type]


class Talkative(Simulator):
    def collect(self, count: int | None = None) -> Reply:
        reply = super().collect(count)
        return reply._replace(clients=reply.clients + 1) if reply.clients.size else reply


class AllAtOnce(Simulator):
    """Forgets the first task when it gets the second."""

    def submit(self, task: Task) -> None:
        self._underway = []
        super().submit(task)


class Backwards(Simulator):
    def collect(self, count: int | None = None) -> Reply:
        return super().collect(count)._replace(waited=-1.0)


@pytest.mark.parametrize(
    ("backend", "sentence"),
    [
        (Unweighted, "weights must sum to 1, got 4"),
        (Numbered, "present must be one truth value for each of 4 clients"),
        (Talkative, "a reply must hold only clients asked"),
        (AllAtOnce, "the second of two single tasks must be answered as well"),
        (Backwards, "a reply must last at least 0 seconds, got -1"),
    ],
)
def test_a_broken_rule_is_named(backend: Any, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_backend(lambda: simulator(backend))
