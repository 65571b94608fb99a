"""Where local training happens: tasks, replies and the base class of backends."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
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


class Difference:
    """An update w_i − w, or a model, as the arrays that came and those that were sent.

    It stands for one vector of all their entries.

    Parameters
    ----------
    came, sent : sequence of vectors
        Of the same lengths; `sent` is None where they are the update itself.
    kind : float32 or float64
        What it is computed in.
    square : float
        Σ (w_i − w)², if it was measured.
    """

    def __init__(
        self,
        came: Sequence[NDArray[Any]],
        sent: Sequence[NDArray[Any]] | None,
        kind: np.dtype[Any],
        square: float = math.nan,
    ) -> None:
        self.came, self.sent, self.kind, self.square = came, sent, kind, square
        self.edges = [0, *accumulate(each.size for each in came)]

    @property
    def size(self) -> int:
        """The number of entries."""
        return self.edges[-1]

    def times(self, factor: float) -> Difference:
        """Return it multiplied by a factor; itself, without a copy, for 1."""
        if factor == 1:
            return self
        return Difference([factor * np.asarray(self)], None, self.kind, factor**2 * self.square)

    def fill(self, out: NDArray[np.floating[Any]], begin: int) -> None:
        """Write the entries from `begin` on into `out`."""
        end, place = begin + out.size, bisect_right(self.edges, begin) - 1
        while begin < end:
            first, last = begin - self.edges[place], min(end, self.edges[place + 1])
            here, out = out[: last - begin], out[last - begin :]
            self.subtract(place, slice(first, first + here.size), here)
            begin, place = last, place + 1

    def subtract(self, place: int, chosen: Any, out: NDArray[np.floating[Any]]) -> None:
        """Write these entries of one of the arrays into `out`."""
        came = self.came[place][chosen]
        if self.sent is None:
            out[...] = came
            return
        sent = self.sent[place][chosen]
        if came.dtype.kind == sent.dtype.kind == "f":
            np.subtract(came, sent, out=out, casting="same_kind")
        else:  # integers may wrap around
            out[...] = came.astype(np.float64) - sent.astype(np.float64)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        whole = np.empty(self.size, self.kind)
        self.fill(whole, 0)
        return np.asarray(whole, dtype=dtype)

    def __getitem__(self, key: Any) -> Any:
        return self.at(key) if _is_choice(key) else np.asarray(self)[key]

    def at(self, chosen: IntArray) -> NDArray[np.floating[Any]]:
        """Return the entries at these positions, which ascend."""
        found = np.empty(chosen.size, self.kind)
        bounds = np.searchsorted(chosen, self.edges).tolist()
        for place, (first, last) in enumerate(pairwise(bounds)):
            if first < last:
                rest = chosen[first:last] - self.edges[place]
                self.subtract(place, rest, found[first:last])
        return found


class Differences(NDArrayOperatorsMixin):
    """The updates of a round as a matrix, a row each, whose blocks of columns are made when read.

    Large models are combined in this way without a copy of every update. Anything but a choice of
    rows or columns makes it a matrix, once.

    >>> came, sent = np.array([3.0, 5.0]), np.array([1.0, 1.0])
    >>> updates = Differences([Difference([came], [sent], came.dtype)], 2)
    >>> updates[:, 1:2], np.array([0.5]) @ updates
    (array([[4.]]), array([1., 2.]))
    """

    ndim = 2

    def __init__(self, rows: Sequence[Difference], size: int) -> None:
        self.rows = rows
        self.shape, self.size = (len(rows), size), len(rows) * size
        self.dtype = rows[0].kind if rows else np.dtype(np.float64)
        self._made: NDArray[Any] | None = None

    @property
    def made(self) -> bool:
        """Whether it is a matrix by now."""
        return self._made is not None

    @property
    def lengths(self) -> FloatArray:
        """The lengths of the rows; NaN where they were not measured."""
        return np.sqrt([row.square for row in self.rows])

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return (self[place] for place in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        rows, columns = key if isinstance(key, tuple) and len(key) == 2 else (key, ...)
        if isinstance(rows, int | np.integer):
            place = range(len(self))[rows]
            return self[place : place + 1, slice(None) if columns is ... else columns][0]
        some = isinstance(rows, slice) or (isinstance(rows, np.ndarray) and rows.ndim == 1)
        if isinstance(columns, slice) and columns.step not in (None, 1):
            columns = np.arange(*columns.indices(self.shape[1]))
        plain = columns is ... or isinstance(columns, slice) or _is_choice(columns)
        if self._made is not None or not some or not plain:
            return np.asarray(self)[key]
        chosen = [self.rows[place] for place in np.arange(len(self))[rows]]
        if columns is ...:
            return Differences(chosen, self.shape[1])
        if isinstance(columns, slice):
            begin, end, _ = columns.indices(self.shape[1])
            found = np.empty((len(chosen), max(end - begin, 0)), self.dtype)
            for row, out in zip(chosen, found, strict=True):
                row.fill(out, begin)
            return found
        return np.array([row.at(columns) for row in chosen]).reshape(len(chosen), columns.size)

    def __setitem__(self, key: Any, value: Any) -> None:
        np.asarray(self)[key] = value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if self._made is None:
            self._made = self[:, :]
        return np.asarray(self._made, dtype=dtype, copy=copy)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **how: Any) -> Any:
        made = (np.asarray(each) if isinstance(each, Differences) else each for each in inputs)
        return getattr(ufunc, method)(*made, **how)

    def __getattr__(self, name: str) -> Any:
        """Return whatever else a matrix has."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)


def _is_choice(columns: Any) -> bool:
    """Whether these are positions in ascending order."""
    return (
        isinstance(columns, np.ndarray)
        and columns.ndim == 1
        and columns.dtype.kind == "i"
        and bool((np.diff(columns, prepend=0) >= 0).all())
    )


def join_replies(replies: Sequence[Reply], **rest: Any) -> Reply:
    """Join several replies into one; columns that not all of them have are left out."""
    columns: dict[str, Any] = {}
    for name in PER_CLIENT:
        parts = [getattr(each, name) for each in replies]
        if all(
            part.size or not each.clients.size for part, each in zip(parts, replies, strict=True)
        ):
            columns[name] = parts[0] if len(parts) == 1 else _join(parts)
    return Reply(**columns, **rest)


def _join(parts: Sequence[Any]) -> Any:
    if not all(isinstance(part, Differences) for part in parts):
        return np.concatenate(parts)
    return Differences([row for part in parts for row in part.rows], parts[0].shape[1])


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
    evaluates_any : bool
        Whether several models may be evaluated after one step, as in simulation.
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
    evaluates_any: bool = False
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

    def received(self, parameters: FloatArray) -> FloatArray:
        """Return a model as clients receive it, which is kept while they work."""
        return parameters

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
