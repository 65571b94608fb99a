"""Where local training happens, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.times.round_times import Presence

NOBODY: IntArray = np.empty(0, dtype=np.int64)
NOTHING: FloatArray = np.empty(0)


class Task(NamedTuple):
    """What clients are to do: train from `parameters`.

    `clients` are distinct and ascend. `round_index` counts from 0; `seconds` is the clock of the
    run when the task is given out. It is over when `take` of them have answered, or after
    `deadline` seconds; whoever is later has worked in vain. With `losses`, a client also says how
    the model that it got does on its samples, where it would not say so otherwise. Without a
    barrier `round_index` counts the tasks, and `version` the steps that lie behind the model; −1
    in rounds.
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


class Reply(NamedTuple):
    """What clients sent back, one entry per client that answered.

    `updates` are w_i − w, of shape (m, P); `seconds` run from sending to arrival; `grad_norms`
    are the root mean square norms of the stochastic gradients over the local steps, which is what
    G_i bounds. The rest is known where a network lies between, or was asked for, and empty
    otherwise: `losses` F_i(w) of the model that was sent, and `rms_losses`, the root mean square
    over the client's samples; `computing_seconds` of the `seconds`; bytes that crossed.

    A client that was asked and is not among `clients` is missing. `refused` are those of them
    whose reply came but was not accepted. `waited` are the seconds that passed until the reply
    was whole, where that is not the slowest of `seconds`. Where tasks are collected a few at a
    time, `missing` are those that failed or were too late; they are not waited for any more.
    `wasted` are the seconds that clients worked, all together, without a reply that counts.
    """

    clients: IntArray
    updates: FloatArray
    seconds: FloatArray
    grad_norms: FloatArray
    losses: FloatArray = NOTHING
    computing_seconds: FloatArray = NOTHING
    bytes_down: IntArray = NOBODY
    bytes_up: IntArray = NOBODY
    rms_losses: FloatArray = NOTHING
    refused: IntArray = NOBODY
    waited: float | None = None
    missing: IntArray = NOBODY
    wasted: float = 0.0

    @property
    def lasted(self) -> float:
        """The seconds by which the clock moves on."""
        return float(self.seconds.max(initial=0.0)) if self.waited is None else self.waited

    def of(self, place: int) -> Reply:
        """Return what one client sent back, without the time that passed."""
        columns = {name: getattr(self, name)[place : place + 1] for name in PER_CLIENT}
        return Reply(**columns)

    def only(self, chosen: NDArray[np.bool_]) -> Reply:
        """Return what some of the clients sent; the others worked in vain."""
        told = {name: getattr(self, name) for name in PER_CLIENT}
        columns: dict[str, Any] = {name: x[chosen] for name, x in told.items() if len(x)}
        wasted = self.wasted + float(self.seconds[~chosen].sum())
        return self._replace(**columns, waited=self.lasted, wasted=wasted)


PER_CLIENT = Reply._fields[: Reply._fields.index("refused")]


def together(replies: Sequence[Reply], **rest: Any) -> Reply:
    """Return several replies as one; what not all of them tell is left out."""
    columns: dict[str, Any] = {}
    for name in PER_CLIENT:
        parts = [getattr(each, name) for each in replies]
        if all(
            part.size or not each.clients.size for part, each in zip(parts, replies, strict=True)
        ):
            columns[name] = np.concatenate(parts)
    return Reply(**columns, **rest)


class Probe(NamedTuple):
    """How a model does on the samples of some clients, and the seconds that each took to say so.

    `losses` are means over a client's samples; `accuracies` are NaN for a client without any.
    """

    clients: IntArray
    losses: FloatArray
    accuracies: FloatArray
    seconds: FloatArray


class Evaluation(NamedTuple):
    """The global loss F(w) = Σ p_i F_i(w), and the accuracy on what clients held back."""

    loss: float
    accuracy: float


class Backend(Protocol):
    """Trains clients, says how long each took, and evaluates the model.

    A round submits a task and collects all replies. Without a barrier, tasks are submitted and
    replies collected a few at a time. A backend whose clients can say how a model does, before
    they are drawn, also has `probe(task, samples=None, held_out=False) -> Probe`: on so many of
    their samples, on all, or on those held out. One that knows has `slow_accuracy`: that of the
    model evaluated last on what the slowest fifth of clients hold back. One whose clients must be
    asked to evaluate a model, which takes time, has `asks_to_evaluate = True`.
    """

    @property
    def weights(self) -> FloatArray:
        """p_i of every client known so far."""

    @property
    def usual_times(self) -> FloatArray | None:
        """t_i as known before training, in seconds; None where they must be learned."""

    def initial(self) -> FloatArray:
        """Return the parameters that training starts from."""

    def present(self, round_index: int, seconds: float) -> Presence:
        """Return who can be drawn now; wait while they are too few."""

    def submit(self, task: Task) -> None:
        """Give out a task; do not wait for it."""

    def collect(self, count: int | None = None) -> Reply:
        """Wait for the next `count` replies, or for all that are still to come.

        Clients that failed, or that were too late, count as well: they are `missing`.
        """

    def evaluate(self, parameters: FloatArray, *, due: bool = True) -> Evaluation | None:
        """Return the global loss and the test accuracy.

        Where the evaluation is not `due`, return what costs the clients nothing, or None.
        """
