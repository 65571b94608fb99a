"""Ask clients how a model does before the draw, and keep account of what that costs."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpace.checks import IntArray
from fedpace.errors import InputError
from fedpace.rounds.backend import Backend, Probe, Reply, Task


class Probing:
    """What a sampler calls to ask candidates; the run's clock waits for the slowest of them.

    Parameters
    ----------
    backend, task : Backend, Task
        Whom to ask, and the round that it is for: its model, and the clock.

    Attributes
    ----------
    seconds : float
        By which the clock has moved on.
    probes : list of Probe
        What was answered.
    """

    def __init__(self, backend: Backend, task: Task) -> None:
        self._backend, self._task = backend, task
        self.seconds = 0.0
        self.probes: list[Probe] = []

    def __call__(
        self, clients: IntArray, *, samples: int | None = None, held_out: bool = False
    ) -> Probe:
        """Return how the model does on `samples` of each client's, on all, or on those held out."""
        ask = getattr(self._backend, "probe", None)
        if ask is None:
            raise InputError(
                f"sampler must not ask candidates on a backend without `probe`, got "
                f"{type(self._backend).__name__}; simulate it, or take a scheme that does not ask"
            )
        task = self._task._replace(clients=clients, seconds=self._task.seconds + self.seconds)
        probe: Probe = ask(task, samples=samples, held_out=held_out)
        self.seconds += float(probe.seconds.max(initial=0.0))
        self.probes.append(probe)
        return probe

    def costs(self, task: Task, reply: Reply) -> dict[str, Any]:
        """Return what a round cost, by the columns of its row."""
        asked = np.concatenate([task.clients, *(each.clients for each in self.probes)])
        worked = float(sum(probe.seconds.sum() for probe in self.probes))
        found = costs(reply, task.parameters.size, np.unique(asked).size, reply.wasted + worked)
        return found | {"probing_seconds": self.seconds}


def costs(reply: Reply, size: int, asked: int, wasted: float) -> dict[str, Any]:
    """Return what replies cost, by the columns of a row.

    Where no network counted them, the bytes are those of a model of `size` numbers in single
    precision: one to each of those `asked`, once, and one from each whose reply counts. The updates
    of those who did not answer in time are not sent. `wasted` device-seconds brought nothing.
    """
    down, up = reply.bytes_down, reply.bytes_up
    return {
        "device_seconds": float(reply.seconds.sum()) + wasted,
        "wasted_seconds": wasted,
        "traffic_down": int(down.sum()) if down.size else 4 * size * asked,
        "traffic_up": int(up.sum()) if up.size else 4 * size * reply.clients.size,
    }
