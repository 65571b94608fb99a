"""A simulated clock: tasks are given out, and come back in the order of their times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from fedpace.checks import FloatArray
from fedpace.rounds.backend import NOBODY, NOTHING, Reply, Task
from fedpace.rounds.local import Trained
from fedpace.times.round_times import Presence, RoundTimes


class _Underway(NamedTuple):
    """A task, and the seconds that each of its clients takes."""

    task: Task
    seconds: FloatArray

    @property
    def arrivals(self) -> FloatArray:
        """When each reply comes, by the clock of the run."""
        return self.task.seconds + self.seconds


class SimulatedClock(ABC):
    """Keep tasks until their time has come; whoever extends this trains.

    Attributes
    ----------
    times : RoundTimes
        How long each client takes, and when it is there.
    times_known : bool
        Whether the server knows the usual times; else it must learn them.
    """

    times: RoundTimes
    times_known: bool

    def __init__(self) -> None:
        self._underway: list[_Underway] = []
        self._now = 0.0

    @property
    def usual_times(self) -> FloatArray | None:
        """t_i without noise and drift, where the server knows them."""
        return self.times.usual if self.times_known else None

    @abstractmethod
    def trained(self, task: Task) -> Trained:
        """Let the clients of a task train."""

    def present(self, round_index: int, seconds: float) -> Presence:  # noqa: ARG002
        """Return who is there at this time of the simulated clock."""
        return self.times.present(seconds)

    def submit(self, task: Task) -> None:
        """Give out a task: its clients begin now."""
        self._now = max(self._now, task.seconds) if self._underway else task.seconds
        times = self.times.at(task.seconds, task.clients, round_index=task.round_index)
        self._underway.append(_Underway(task, times))

    def collect(self, count: int | None = None) -> Reply:
        """Return the next replies by the simulated clock: `count`, and any at the same moment."""
        underway = self._underway
        if len(underway) == 1 and count in (None, underway[0].seconds.size):
            self._underway = []
            return self._reply(underway[0])  # a round: exactly as long as its slowest client
        arrivals = np.sort(np.concatenate([NOTHING, *(each.arrivals for each in underway)]))
        if not arrivals.size:
            return Reply(NOBODY, NOTHING.reshape(0, 0), NOTHING, NOTHING)
        last = arrivals[-1 if count is None else min(count, arrivals.size) - 1]
        parts = [_part(each, each.arrivals <= last) for each in underway]
        rest = [_part(each, each.arrivals > last) for each in underway]
        self._underway = [each for each in rest if each.seconds.size]
        replies = [self._reply(each) for each in parts if each.seconds.size]
        waited, self._now = max(last - self._now, 0.0), max(last, self._now)
        return Reply(
            np.concatenate([each.clients for each in replies]),
            np.concatenate([each.updates for each in replies]),
            np.concatenate([each.seconds for each in replies]),
            np.concatenate([each.grad_norms for each in replies]),
            waited=float(waited),
        )

    def _reply(self, underway: _Underway) -> Reply:
        trained = self.trained(underway.task)
        clients = underway.task.clients
        return Reply(clients, trained.updates, underway.seconds, trained.grad_norms)


def _part(underway: _Underway, chosen: FloatArray) -> _Underway:
    task = underway.task._replace(clients=underway.task.clients[chosen])
    return _Underway(task, underway.seconds[chosen])
