"""A backend that spreads a round's clients over a Dask cluster; the clock is simulated."""

from __future__ import annotations

import math
import threading
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray
from fedpace.rounds.backend import Evaluation, Probe, Task
from fedpace.rounds.judged import Judged
from fedpace.rounds.local import Trained
from fedpace.rounds.simulator import SimulatedClock, Simulator
from fedpace.times.round_times import RoundTimes


class _Recipe(NamedTuple):
    """How a worker builds its simulator, and the name under which it keeps it."""

    name: str
    make: Callable[..., Simulator]
    arguments: tuple[Any, ...]


class Spread(SimulatedClock):
    """Train on whichever workers are there; any worker trains any client.

    For the same seed the numbers are those of the simulator in one process. What a lost worker
    was to do, Dask lets another do.

    Parameters
    ----------
    client : distributed.Client
        Of the cluster.
    make_simulator, *arguments
        Called once on every worker, where it must be importable; returns the Simulator. The
        arguments go with every task: what to build from, such as a study and a seed, not the data.

    Examples
    --------
    ::

        from fedpace.studies.experiment import simulator

        backend = Spread(distributed.Client("tcp://10.0.0.1:8786"), simulator, study, seed)
    """

    def __init__(
        self, client: Any, make_simulator: Callable[..., Simulator], *arguments: Any
    ) -> None:
        super().__init__()
        self.slow_accuracy = math.nan  # as the simulator's
        self._client = client
        self._recipe = _Recipe(uuid.uuid4().hex, make_simulator, arguments)
        described = client.submit(_described, self._recipe, pure=False)
        self.weights: FloatArray
        self._initial: FloatArray
        self.trained_entries: NDArray[np.bool_] | None
        about = described.result()
        self.weights, self.times, self.times_known, self._initial, self.trained_entries = about

    def initial(self) -> FloatArray:
        """Return the model's initial parameters."""
        return self._initial.copy()

    def trained_each(self, tasks: Sequence[Task]) -> list[Trained]:
        """Share the tasks' clients out among the workers' threads, in runs of neighbours."""
        threads = max(1, sum(self._client.nthreads().values()))
        submit = partial(self._client.submit, _called, self._recipe, "trained", pure=False)
        sent = [[submit(share) for share in _shares_of(task, threads)] for task in tasks]
        parts: list[list[Trained]] = self._client.gather(sent)
        return [Trained(*map(np.concatenate, zip(*each, strict=True))) for each in parts]

    def judged(self, task: Task) -> Judged:
        """Return how the model of a task does on its clients' samples, from one worker."""
        asked = self._client.submit(_called, self._recipe, "judged", task, pure=False)
        found: Judged = asked.result()
        return found

    def probe(self, task: Task, *, samples: int | None = None, held_out: bool = False) -> Probe:
        """Let clients say how a model does, on one worker."""
        told = partial(_called, samples=samples, held_out=held_out)
        found: Probe = self._client.submit(told, self._recipe, "probe", task, pure=False).result()
        return found

    def evaluate(self, parameters: FloatArray, *, due: bool = True) -> Evaluation | None:
        """Return the global loss and the test accuracy, from one worker."""
        if not due:
            return None
        task = self._client.submit(_evaluated, self._recipe, parameters, pure=False)
        evaluation: Evaluation
        evaluation, self.slow_accuracy = task.result()
        return evaluation


def _shares_of(task: Task, threads: int) -> list[Task]:
    """Cut a task into about as many as there are threads."""
    count = task.clients.size
    bounds = np.linspace(0, count, min(threads, count) + 1).astype(int).tolist()
    return [task._replace(clients=task.clients[slice(*each)]) for each in pairwise(bounds)]


# What runs on a worker. It keeps the latest simulator only: two may not fit into memory.
_kept: dict[str, Simulator] = {}
_building = threading.Lock()


def _simulator(recipe: _Recipe) -> Simulator:
    with _building:
        if recipe.name not in _kept:
            _kept.clear()
            _kept[recipe.name] = recipe.make(*recipe.arguments)
        return _kept[recipe.name]


def _described(
    recipe: _Recipe,
) -> tuple[FloatArray, RoundTimes, bool, FloatArray, NDArray[np.bool_] | None]:
    """Return what is known of the clients without their data."""
    made = _simulator(recipe)
    return made.weights, made.times, made.times_known, made.initial(), made.trained_entries


def _evaluated(recipe: _Recipe, parameters: FloatArray) -> tuple[Evaluation | None, float]:
    simulator = _simulator(recipe)
    return simulator.evaluate(parameters), simulator.slow_accuracy


def _called(recipe: _Recipe, method: str, argument: Any, **more: Any) -> Any:
    return getattr(_simulator(recipe), method)(argument, **more)
