"""Where local training happens: tasks, replies and the base class of backends."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpace.adapt import adapt
from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError
from fedpace.times.round_times import EVERYONE, Presence

NO_CLIENTS: IntArray = np.empty(0, dtype=np.int64)
NO_VALUES: FloatArray = np.empty(0)


class Task(NamedTuple):
    """Work for some clients: train from `parameters`.

    `clients` are distinct and ascending. `round_index` counts from 0; `seconds` is the run's clock
    when the task is sent. The task ends when `take` clients have answered, or after `deadline`
    seconds; later replies are discarded. With `losses`, clients also report the loss of the model
    that they received. In asynchronous training `round_index` counts tasks, and `version` is the
    number of server steps that the model has taken; it is −1 in rounds. `local_steps` are those
    that each client is to take; None for as many as the backend is configured for.
    """

    clients: IntArray
    parameters: FloatArray
    round_index: int
    learning_rate: float
    seconds: float
    version: int = -1
    take: int | None = None
    deadline: float | None = None
    losses: bool = False
    local_steps: IntArray | None = None

    @property
    def common_steps(self) -> int | None:
        """The local steps, for a backend that sends all clients of a task the same question."""
        if self.local_steps is None or not self.clients.size:
            return None
        if (self.local_steps != self.local_steps[0]).any():
            got = f"{self.local_steps.min()} to {self.local_steps.max()}"
            raise InputError(
                f"local_steps must be the same for all clients of a round here, got {got}; "
                "plan one number, or train asynchronously"
            )
        return int(self.local_steps[0])

    def part(self, chosen: NDArray[np.bool_]) -> Task:
        """Return the task of some of its clients."""
        steps = None if self.local_steps is None else self.local_steps[chosen]
        return self._replace(clients=self.clients[chosen], local_steps=steps)


class Reply(NamedTuple):
    """What clients sent back, one entry per client that answered.

    `updates` are w_i − w, of shape (m, P); `seconds` run from sending to arrival; `grad_norms`
    are the root mean square norms of the stochastic gradients over the local steps, which is what
    G_i bounds. The next columns are empty where they are unknown: `losses` F_i(w) of the model that
    was sent, and `rms_losses`, the root mean square over the client's samples; the
    `computing_seconds` among `seconds`; bytes transferred; the `local_steps` that were done, where
    the task asked for a number of them.

    A client that was asked and is not among `clients` is missing. `refused` are those whose reply
    arrived but was not accepted. `waited` is the time until the reply was complete, where that is
    not the slowest of `seconds`. In asynchronous training, `missing` are clients that failed or
    were too late, and `held` are clients whose reply has arrived and follows later, when it can
    be judged. `wasted` is the total time that clients worked without a reply that counts.
    """

    clients: IntArray
    updates: FloatArray
    seconds: FloatArray
    grad_norms: FloatArray
    losses: FloatArray = NO_VALUES
    computing_seconds: FloatArray = NO_VALUES
    bytes_down: IntArray = NO_CLIENTS
    bytes_up: IntArray = NO_CLIENTS
    rms_losses: FloatArray = NO_VALUES
    local_steps: IntArray = NO_CLIENTS
    refused: IntArray = NO_CLIENTS
    waited: float | None = None
    missing: IntArray = NO_CLIENTS
    wasted: float = 0.0
    held: IntArray = NO_CLIENTS

    @property
    def lasted(self) -> float:
        """The seconds by which the run's clock advances."""
        return float(self.seconds.max(initial=0.0)) if self.waited is None else self.waited

    def of(self, place: int) -> Reply:
        """Return the reply of one client, without the time that passed."""
        columns = {name: getattr(self, name)[place : place + 1] for name in PER_CLIENT}
        return Reply(**columns)

    def only(self, selected: NDArray[np.bool_]) -> Reply:
        """Return the replies of some clients; the time of the others counts as wasted."""
        values = {name: getattr(self, name) for name in PER_CLIENT}
        columns: dict[str, Any] = {name: x[selected] for name, x in values.items() if len(x)}
        wasted = self.wasted + float(self.seconds[~selected].sum())
        return self._replace(**columns, waited=self.lasted, wasted=wasted)


PER_CLIENT = Reply._fields[: Reply._fields.index("refused")]


def join_replies(replies: Sequence[Reply], **rest: Any) -> Reply:
    """Join several replies into one; columns that not all of them have are left out."""
    columns: dict[str, Any] = {}
    for name in PER_CLIENT:
        parts = [getattr(each, name) for each in replies]
        if all(
            part.size or not each.clients.size for part, each in zip(parts, replies, strict=True)
        ):
            columns[name] = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return Reply(**columns, **rest)


class Probe(NamedTuple):
    """The loss and accuracy of a model on some clients, and the seconds that each took.

    `losses` are means over a client's samples; `accuracies` are NaN for a client without any.
    """

    clients: IntArray
    losses: FloatArray
    accuracies: FloatArray
    seconds: FloatArray


class Evaluation(NamedTuple):
    """The global loss F(w) = Σ p_i F_i(w), and the accuracy on held-out samples."""

    loss: float
    accuracy: float


class BaseBackend(ABC):
    """Train clients, measure how long each takes, and evaluate the model.

    A synchronous round submits one task and collects all replies. Asynchronous training submits
    tasks of one client each and collects replies as they arrive. A subclass implements `weights`,
    `initial`, `submit`, `collect` and `evaluate`, and overrides what else it needs.

    Attributes
    ----------
    slow_accuracy : float
        Accuracy of the model evaluated last on what the slowest fifth of clients hold out; NaN
        where it is unknown.
    asks_to_evaluate : bool
        Whether clients must be asked to evaluate a model, which takes time.
    largest_share : float in (0, 1]
        The share of the rounds that one client may take part in; 1 for no limit.
    trained_entries : array of bool, optional
        Which parameters gradients move; None for all.
    shared_by : int, optional
        The clients that transfer at the same time in `usual_times`, if they share a link.
    local_steps : int, optional
        E where a task does not say; None where only the clients know it.
    """

    slow_accuracy: float = math.nan
    asks_to_evaluate: bool = False
    largest_share: float = 1.0
    shared_by: int | None = None
    trained_entries: NDArray[np.bool_] | None = None
    local_steps: int | None = None

    @property
    @abstractmethod
    def weights(self) -> FloatArray:
        """p_i of every client known so far."""

    @property
    def usual_times(self) -> FloatArray | None:
        """t_i as known before training, in seconds; None where they must be learned."""
        return None

    @property
    def usual_computing(self) -> FloatArray | None:
        """The share of `usual_times` that is computing; None where it must be learned."""
        return None

    @abstractmethod
    def initial(self) -> FloatArray:
        """Return the parameters that training starts from."""

    def present(self, round_index: int, seconds: float) -> Presence:  # noqa: ARG002
        """Return which clients can be drawn now, by default all; wait while they are too few."""
        return EVERYONE

    @abstractmethod
    def submit(self, task: Task) -> None:
        """Send a task; do not wait for it."""

    @abstractmethod
    def collect(self, count: int | None = None) -> Reply:
        """Wait for the next `count` replies, or for all that are still to come.

        Clients that failed or were too late count as well: they are `missing`.
        """

    @abstractmethod
    def evaluate(self, parameters: FloatArray, *, due: bool = True) -> Evaluation | None:
        """Return the global loss and the test accuracy.

        Where the evaluation is not `due`, return what costs the clients nothing, or None.
        """

    def probe(self, task: Task, *, samples: int | None = None, held_out: bool = False) -> Probe:  # noqa: ARG002
        """Ask clients for the loss of a model before the draw: on `samples` of theirs, or all."""
        raise InputError(
            f"sampler must not probe clients on a backend without `probe`, got "
            f"{type(self).__name__}; simulate it, or choose a scheme that does not probe"
        )

    def drop(self) -> None:  # noqa: B027
        """Forget tasks that are still under way; by default there is nothing to do."""


REQUIRED = ("weights", "initial", "submit", "collect", "evaluate")


def as_backend(value: Any) -> BaseBackend:
    """Return a backend; an object that does not subclass `BaseBackend` is wrapped."""
    return adapt(value, BaseBackend, argument="backend", required=REQUIRED)  # type: ignore[type-abstract]


class Probing:
    """What a sampler calls to probe candidates; the run's clock waits for the slowest of them.

    Parameters
    ----------
    backend, task : BaseBackend, Task
        Whom to ask, and the round that it is for: its model and clock.

    Attributes
    ----------
    seconds : float
        Time spent on probes.
    probes : list of Probe
        The answers.
    """

    def __init__(self, backend: BaseBackend, task: Task) -> None:
        self._backend, self._task = backend, task
        self.seconds = 0.0
        self.probes: list[Probe] = []

    def __call__(
        self, clients: IntArray, *, samples: int | None = None, held_out: bool = False
    ) -> Probe:
        """Return the model's loss on `samples` of each client's, on all, or on held-out ones."""
        task = self._task._replace(clients=clients, seconds=self._task.seconds + self.seconds)
        probe = self._backend.probe(task, samples=samples, held_out=held_out)
        self.seconds += float(probe.seconds.max(initial=0.0))
        self.probes.append(probe)
        return probe

    def costs(self, task: Task, reply: Reply) -> dict[str, Any]:
        """Return what a round cost, by the columns of its row."""
        asked = np.concatenate([task.clients, *(each.clients for each in self.probes)])
        worked = float(sum(probe.seconds.sum() for probe in self.probes))
        found = reply_costs(
            reply, task.parameters.size, np.unique(asked).size, reply.wasted + worked
        )
        return found | {"probing_seconds": self.seconds}


def reply_costs(reply: Reply, size: int, asked: int, wasted: float) -> dict[str, Any]:
    """Return what replies cost, by the columns of a row.

    Where no network counted bytes, they are those of a model of `size` numbers in single precision:
    one to each of those `asked`, and one from each whose reply counts. `wasted` device-seconds
    brought nothing.
    """
    down, up = reply.bytes_down, reply.bytes_up
    return {
        "device_seconds": float(reply.seconds.sum()) + wasted,
        "wasted_seconds": wasted,
        "traffic_down": int(down.sum()) if down.size else 4 * size * asked,
        "traffic_up": int(up.sum()) if up.size else 4 * size * reply.clients.size,
    }
