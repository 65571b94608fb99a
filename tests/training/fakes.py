"""Clients in memory, a small simulator, and rows: for tests of rounds and of estimation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace.backends.simulator import Simulator
from fedpace.checks import FloatArray
from fedpace.data.partition import synthetic
from fedpace.models.networks import Logistic
from fedpace.sampling.design import Design
from fedpace.sampling.dispatch import Dispatch
from fedpace.seeds import Seeds
from fedpace.times.round_times import EVERYONE, BaseTimes, Presence, Varying
from fedpace.training.backend import NO_VALUES, BaseBackend, Evaluation, Reply, Task
from fedpace.training.callbacks import Callback, RunInfo
from fedpace.training.checkpoint import Found
from fedpace.training.history import LISTS, SCALARS, Row
from fedpace.training.sampler import BaseSampler, SamplerContext
from fedpace.training.training import Outcome

SAMPLES = np.array([50.0, 10.0, 30.0, 10.0])
TIMES = np.array([1.0, 5.0, 2.0, 3.0])
SIZES = np.array([60, 30, 10, 20, 10, 15])
LARGER = np.array([1.0, 4.0, 2.0, 0.5, 3.0, 1.5])


@dataclass(eq=False)
class Fleet(BaseBackend):
    """Clients of which each adds 1 to its own entry of the model; the loss is 10 − Σ w / 10.

    `there` says who is there after so many tasks, `answers` whether a client answers a task, both
    counted over all phases. A round in which somebody is missing lasts 7 seconds. Client i's
    gradient norm is i + 1.
    """

    samples: FloatArray = field(default_factory=SAMPLES.copy)
    times: FloatArray = field(default_factory=TIMES.copy)
    times_known: bool = False
    there: Callable[[int], Sequence[bool]] | None = None
    answers: Callable[[int, int], bool] = lambda _task, _client: True
    estimates: bool = True
    known: int = 4
    tasks: list[Task] = field(default_factory=list)
    evaluations: int = 0

    @property
    def weights(self) -> FloatArray:
        samples = self.samples[: self.known]
        weights: FloatArray = samples / samples.sum()
        return weights

    @property
    def usual_times(self) -> FloatArray | None:
        return self.times if self.times_known else None

    def initial(self) -> FloatArray:
        return np.zeros(self.samples.size)

    def present(self, round_index: int, seconds: float) -> Presence:
        if self.there is None:
            return EVERYONE
        here = np.array(self.there(len(self.tasks)), dtype=np.bool_)
        self.known = here.size
        return Presence(here)

    def submit(self, task: Task) -> None:
        self.tasks.append(task)

    def collect(self, count: int | None = None) -> Reply:
        assert count is None
        task = self.tasks[-1]
        came = [self.answers(len(self.tasks), i) for i in task.clients.tolist()]
        clients = task.clients[came]
        return Reply(
            clients,
            np.eye(task.parameters.size)[clients],
            self.times[clients],
            clients.astype(np.float64) + 1,
            losses=np.full(clients.size, loss_of(task.parameters)) if self.estimates else NO_VALUES,
            waited=None if all(came) else 7.0,
        )

    def evaluate(self, parameters: FloatArray, *, due: bool = True) -> Evaluation | None:
        self.evaluations += due
        return Evaluation(loss_of(parameters), 0.5) if due else None


def loss_of(parameters: FloatArray) -> float:
    """Return the loss of a fleet's model."""
    return 10 - float(parameters.sum()) / 10


@dataclass(frozen=True)
class Fixed(BaseSampler):
    """A sampler that always draws from one design, and learns nothing."""

    given: Design | Dispatch

    def init(self, n: int) -> None:
        pass

    def design(self, state: None, context: SamplerContext) -> Any:
        return self.given

    def observe(self, state: None, row: Row) -> None:
        pass


class MemoryCheckpoint(Callback):
    """A checkpoint in memory, in which a run is ended by an EndedError after so many rounds."""

    def __init__(self, lives: int = 10**9) -> None:
        self.lives = lives
        self.found: Found | None = None

    def resume(self) -> Found | None:
        return self.found

    def on_start(self, run: RunInfo, rows: Sequence[Row]) -> None:
        if self.found is None:
            self.on_row(run, rows[0])

    def on_row(self, run: RunInfo, row: Row) -> None:
        assert run.state is not None
        assert run.rng is not None
        rows = () if self.found is None else self.found.rows
        self.found = Found(run.state, (*rows, row), dict(run.rng.bit_generator.state))
        self.lives -= 1
        if self.lives == 0:
            raise EndedError


class EndedError(Exception):
    """The process of a run is ended."""


def small_simulator(seed: int = 0, times: BaseTimes | None = None, **more: Any) -> Simulator:
    """Return six clients with 145 samples of three classes; times vary by noise unless given."""
    data = synthetic(SIZES, np.random.default_rng(seed), features=4, classes=3)
    noisy = Varying(LARGER, Seeds(seed), noise=0.3)
    settings = {"local_steps": 4, "batch": 5} | more
    return Simulator(data, Logistic(4, 3), times or noisy, Seeds(seed), **settings)


def task(
    clients: Sequence[int],
    parameters: FloatArray,
    *,
    round_index: int = 0,
    rate: float = 0.1,
    seconds: float = 0.0,
) -> Task:
    """Return what to do for these clients."""
    return Task(np.array(clients, dtype=np.int64), parameters, round_index, rate, seconds)


def row(clients: Sequence[int] = (), **columns: Any) -> Row:
    """Return round 3 of a training, which lasted 9 seconds, with ones for these clients.

    Other `columns` are given by their names, lists as lists.
    """
    ones = np.ones(len(clients))
    usual: dict[str, Any] = {
        "phase": "train", "round": 3, "seconds": 5.0, "loss": 1.0, "accuracy": 0.1,
        "expected_round_seconds": 1.0, "round_seconds": 9.0, "clients": clients,
        "weights": ones, "client_seconds": ones, "grad_norms": ones,
    }  # fmt: skip
    made = Row(**usual | columns)
    arrays: dict[str, Any] = {
        name: np.array(getattr(made, name), _dtype_of(name)) for name in LISTS
    }
    return made._replace(**arrays)


def rows_of(outcome: Outcome, phase: str) -> list[Row]:
    """Return the rows of a phase."""
    return [each for each in outcome.history.rows if each.phase == phase]


def assert_same_rows(rows: Sequence[Row], others: Sequence[Row]) -> None:
    """Compare to the last bit, types included; NaN equals NaN."""
    for one, other in zip(rows, others, strict=True):
        for name in SCALARS:
            np.testing.assert_equal(getattr(one, name), getattr(other, name))
        for name in LISTS:
            mine, twin = getattr(one, name), getattr(other, name)
            assert mine.dtype == twin.dtype
            np.testing.assert_array_equal(mine, twin)


def assert_same_outcome(one: Outcome, other: Outcome) -> None:
    """Compare two runs to the last bit."""
    assert_same_rows(one.history.rows, other.history.rows)
    np.testing.assert_array_equal(one.state.parameters, other.state.parameters)
    assert (one.state.ended, one.state.seconds) == (other.state.ended, other.state.seconds)
    np.testing.assert_array_equal(one.profile.grad_norms, other.profile.grad_norms)
    np.testing.assert_array_equal(one.profile.times, other.profile.times)
    assert repr(one.notes) == repr(other.notes)  # NaN is not equal to itself
    assert one.design.largest_weight == other.design.largest_weight


def _dtype_of(column: str) -> type[np.generic]:
    default: NDArray[Any] = Row._field_defaults[column]
    return default.dtype.type
