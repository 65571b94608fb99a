"""A backend that spreads a round's clients over a Dask cluster; the clock is simulated."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from fedpace.checks import FloatArray
from fedpace.rounds.backend import Evaluation, Reply
from fedpace.rounds.simulator import Simulator
from fedpace.sampling.design import Draw


class _Recipe(NamedTuple):
    """How a worker builds its simulator, and the name under which it keeps it."""

    name: str
    make: Callable[..., Simulator]
    arguments: tuple[Any, ...]


class _Known(NamedTuple):
    weights: FloatArray
    usual_times: FloatArray
    initial: FloatArray


class Cluster:
    """Train on whichever workers are there; any worker trains any client.

    For the same seed the numbers are those of the simulator in one process. What a lost worker
    was to do, Dask lets another do.

    Parameters
    ----------
    client : distributed.Client
        Of the cluster.
    make_simulator : callable
        Called with `arguments` once on every worker; returns the Simulator. Must be importable
        there.
    arguments
        Sent with every task: what to build from, such as a study and a seed, not the data.

    Examples
    --------
    ::

        from fedpace.studies.experiment import simulator

        backend = Cluster(distributed.Client("tcp://10.0.0.1:8786"), simulator, study, seed)
    """

    def __init__(
        self, client: Any, make_simulator: Callable[..., Simulator], *arguments: Any
    ) -> None:
        self._client = client
        self._recipe = _Recipe(uuid.uuid4().hex, make_simulator, arguments)

    @property
    def weights(self) -> FloatArray:
        """p_i."""
        return self._known.weights

    @property
    def usual_times(self) -> FloatArray:
        """t_i without noise and drift."""
        return self._known.usual_times

    def initial(self) -> FloatArray:
        """Return the model's initial parameters."""
        return self._known.initial.copy()

    def present(self) -> None:
        """Return None: everyone is there."""

    def run(
        self, parameters: FloatArray, draw: Draw, *, round_index: int, learning_rate: float
    ) -> Reply:
        """Share the drawn clients out among the workers' threads, in runs of neighbours."""
        threads = max(1, sum(self._client.nthreads().values()))
        bounds = np.linspace(0, draw.clients.size, min(threads, draw.clients.size) + 1).astype(int)
        tasks = [
            self._client.submit(
                _run,
                self._recipe,
                parameters,
                _part(draw, first, end),
                round_index,
                learning_rate,
                pure=False,
            )
            for first, end in pairwise(bounds.tolist())
        ]
        parts: list[Reply] = self._client.gather(tasks)
        return _joined(parts)

    def evaluate(self, parameters: FloatArray) -> Evaluation:
        """Return the global loss and the test accuracy, from one worker."""
        task = self._client.submit(_evaluate, self._recipe, parameters, pure=False)
        evaluation: Evaluation = task.result()
        return evaluation

    @cached_property
    def _known(self) -> _Known:
        known: _Known = self._client.submit(_know, self._recipe, pure=False).result()
        return known


def _part(draw: Draw, first: int, end: int) -> Draw:
    return Draw(draw.clients[first:end], draw.weights[first:end])


def _joined(parts: list[Reply]) -> Reply:
    columns = (name for name in Reply._fields if name != "waited")
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in columns
    }
    return Reply(**joined)


# What runs on a worker. It keeps the latest simulator only: two may not fit into memory.
_kept: dict[str, Simulator] = {}
_building = threading.Lock()


def _simulator(recipe: _Recipe) -> Simulator:
    with _building:
        if recipe.name not in _kept:
            _kept.clear()
            _kept[recipe.name] = recipe.make(*recipe.arguments)
        return _kept[recipe.name]


def _know(recipe: _Recipe) -> _Known:
    simulator = _simulator(recipe)
    return _Known(simulator.weights, simulator.usual_times, simulator.initial())


def _run(
    recipe: _Recipe, parameters: FloatArray, draw: Draw, round_index: int, learning_rate: float
) -> Reply:
    return _simulator(recipe).run(
        parameters, draw, round_index=round_index, learning_rate=learning_rate
    )


def _evaluate(recipe: _Recipe, parameters: FloatArray) -> Evaluation:
    return _simulator(recipe).evaluate(parameters)
