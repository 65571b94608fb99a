"""The simulator: drawn clients train together, on stacked arrays; time is simulated."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedpace.backends.local import SGD, DataHolder, LocalSteps, LocalUpdates
from fedpace.backends.privacy import Privacy
from fedpace.checks import FloatArray, IntArray
from fedpace.data.shards import Shards, Split
from fedpace.errors import InputError
from fedpace.models.model import BaseModel, adapt_model
from fedpace.seeds import Seeds
from fedpace.times.links import (
    FAIR,
    FORWARD_AND_BACKWARD,
    MEGABITS,
    SharedLink,
    Transfers,
    share_fairly,
)
from fedpace.times.round_times import BaseTimes, Presence, as_times
from fedpace.training.backend import (
    NO_CLIENTS,
    NO_VALUES,
    BaseBackend,
    Evaluation,
    Probe,
    Reply,
    Task,
    join_replies,
)

# The slowest clients, whose accuracy is also reported separately.
SLOW = 0.2


class ClientLosses(NamedTuple):
    """One entry per client: its samples, mean and mean square of their losses, and accuracy.

    A client without samples has NaN.
    """

    counts: IntArray
    mean: FloatArray
    square: FloatArray
    accuracies: FloatArray


def evaluate_clients(
    model: BaseModel, parameters: FloatArray, shards: Shards, rows: IntArray, counts: IntArray
) -> ClientLosses:
    """Evaluate a model on these rows; `counts` of them belong to each client, in order."""
    x, y = model.prepare_whole(shards.x[rows]), shards.y[rows]
    losses = model.losses(parameters, x, y).astype(np.float64)
    correct = model.correct(parameters, x, y).astype(np.float64)
    owner = np.repeat(np.arange(counts.size), counts)

    def mean(values: FloatArray) -> FloatArray:
        sums = np.bincount(owner, values, counts.size)
        unknown = np.full(counts.size, np.nan)
        means: FloatArray = np.divide(sums, counts, out=unknown, where=counts > 0)
        return means

    return ClientLosses(counts, mean(losses), mean(losses**2), mean(correct))


class _Underway(NamedTuple):
    """A task, the seconds that each of its clients takes, and its result once trained."""

    task: Task
    seconds: FloatArray
    arrivals: FloatArray  # by the clock of the run
    first: float
    last: float
    trained: LocalUpdates | None = None
    transfers: Transfers | None = None  # with a link that clients share

    @classmethod
    def of(cls, task: Task, seconds: FloatArray, trained: LocalUpdates | None = None) -> Self:
        """Return a task whose clients take these seconds."""
        arrivals = task.seconds + seconds
        first, last = float(arrivals.min(initial=np.inf)), float(arrivals.max(initial=-np.inf))
        return cls(task, seconds, arrivals, first, last, trained)

    @property
    def reply(self) -> Reply:
        """The reply of its clients, once trained."""
        assert self.trained is not None
        updates, norms = self.trained
        steps = NO_CLIENTS if self.task.local_steps is None else self.task.local_steps
        return Reply(self.task.clients, updates, self.seconds, norms, local_steps=steps)

    def part(self, chosen: NDArray[np.bool_]) -> _Underway:
        """Return the task of some of the clients."""
        trained = self.trained and LocalUpdates(*(each[chosen] for each in self.trained))
        found = _Underway.of(self.task.part(chosen), self.seconds[chosen], trained)
        return found._replace(transfers=self.transfers and self.transfers.part(chosen))


class SimulatedClock(BaseBackend):
    """Keep tasks until their simulated time has come; a subclass trains.

    `times` are how long each client takes for `reference_steps` local steps, and when it is
    present; `times_known` is whether the server knows the usual ones, or must learn them. With a
    shared `link`, a task first computes, then transfers `megabits`, at the speed of its own link at
    most; the usual times are those with `sharing` clients in transfer.
    """

    times: BaseTimes
    times_known: bool
    reference_steps: int | None = None
    link: SharedLink | None = None
    megabits: float = MEGABITS
    sharing: int = 1

    def __init__(self) -> None:
        self._underway: list[_Underway] = []
        self._gone: list[_Underway] = []  # without a reply
        self._now = 0.0
        self._asked = 0.0  # the latest time at which `present` was called

    @property
    def usual_times(self) -> FloatArray | None:
        """Current t_i without noise and drift, if the server knows them."""
        if not self.times_known:
            return None
        return self._usual[0]

    @property
    def usual_computing(self) -> FloatArray | None:
        """The share of the usual times that is computing, if the server knows them."""
        if not self.times_known:
            return None
        return self._usual[1]

    @property
    def shared_by(self) -> int | None:  # type: ignore[override]
        """The clients in transfer that the usual times are for, with a shared link."""
        return None if self.link is None else self.sharing

    @property
    def _usual(self) -> tuple[FloatArray, FloatArray]:
        """The usual times, and the share of them that is computing."""
        usual = self.times.usual_at(self._asked)
        shares = np.broadcast_to(self.times.computing, usual.size)
        scaled = self.local_steps != self._reference
        if not scaled and self.link is None:
            return usual, shares
        linked = usual * (1 - shares)
        if scaled:
            usual = usual * self._factor(shares, self.local_steps)
            shares = 1 - linked / usual
        if self.link is not None:
            computing = usual - linked
            own = self._own_capacity(linked)
            usual = self.link.usual(computing, np.full_like(own, self.megabits), own, self.sharing)
            shares = computing / usual
        return usual, shares

    def _own_capacity(self, linked: FloatArray) -> FloatArray:
        """Return the capacity of own links on which the traffic takes these seconds alone."""
        with np.errstate(divide="ignore"):
            own: FloatArray = self.megabits / np.maximum(linked, 0.0)
        return own

    def client_losses(self, task: Task) -> ClientLosses:  # noqa: ARG002
        """Return the losses of a task's model on the samples of its clients."""
        name = type(self).__name__
        raise InputError(f"task.losses must be False on {name}, got True; use another backend")

    @abstractmethod
    def train_tasks(self, tasks: Sequence[Task]) -> list[LocalUpdates]:
        """Train the clients of these tasks, together where that is faster."""

    def present(self, round_index: int, seconds: float) -> Presence:  # noqa: ARG002
        """Return the clients present at this time of the simulated clock."""
        self._asked = seconds
        return self.times.present(seconds)

    def submit(self, task: Task) -> None:
        """Send a task: its clients begin now."""
        busy = self._underway or self._gone
        now = max(self._now, task.seconds) if busy else task.seconds
        if self._queued:
            self._advance(now)
        self._now = now
        times, linked = self._times(task)
        transfers = None
        if self.link is not None:
            ready, own = times - linked, self._own_capacity(linked)
            megabits = np.full_like(own, self.megabits)
            if self.link.rule == FAIR:
                quits = self._stays(task)
                transfers = Transfers(task.seconds + ready, megabits, own, task.seconds + quits)
            else:
                times = self.link.ends(ready, megabits, own)
        seconds, lost = self._end_times(task, times, self._stays(task))
        self._keep(_Underway.of(task, seconds)._replace(transfers=transfers), lost)

    def _keep(self, every: _Underway, lost: NDArray[np.bool_]) -> None:
        if lost.any():
            self._gone.append(every.part(lost))
        if not lost.all():
            self._underway.append(every.part(~lost) if lost.any() else every)

    @property
    def _queued(self) -> bool:
        """Whether a link is shared among all tasks, so that the end of each depends on others."""
        return self.link is not None and self.link.rule == FAIR

    def _join_transfers(self) -> Transfers:
        """Return the transfers of all tasks under way."""
        parts = [each.transfers for each in (*self._underway, *self._gone) if each.transfers]
        return Transfers(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _advance(self, until: float) -> None:
        """Transfer on the shared link until then."""
        assert self.link is not None
        if not (self._underway or self._gone) or until <= self._now:
            return
        left = share_fairly(
            self._join_transfers(), self.link.capacity, now=self._now, until=until
        ).left
        for entries in (self._underway, self._gone):
            for place, each in enumerate(entries):
                mine, left = left[: each.seconds.size], left[each.seconds.size :]
                assert each.transfers is not None
                entries[place] = each._replace(transfers=each.transfers._replace(left=mine))

    def _settle(self, count: int | None) -> None:
        """Find when the next `count` tasks end, if no other is sent, and transfer until then."""
        assert self.link is not None
        underway = [*self._underway, *self._gone]
        if not underway:
            return
        capacity = self.link.capacity
        ends, late, left = share_fairly(
            self._join_transfers(), capacity, now=self._now, count=count
        )
        self._underway, self._gone = [], []
        for each in underway:
            size = each.seconds.size
            times = np.where(late[:size], np.inf, ends[:size] - each.task.seconds)
            assert each.transfers is not None
            transfers = each.transfers._replace(left=left[:size])
            ends, late, left = ends[size:], late[size:], left[size:]
            seconds, lost = self._end_times(each.task, times, self._stays(each.task))
            ended = _Underway.of(each.task, seconds, each.trained)
            self._keep(ended._replace(transfers=transfers), lost)

    def collect(self, count: int | None = None) -> Reply:
        """Return the next `count` replies by the simulated clock, and any at the same moment."""
        if self._queued:
            self._settle(count)
        underway = [*self._underway, *self._gone]
        begun = all(each.task.seconds == self._now for each in underway)
        single = len(self._underway) == len(underway) == 1
        if begun and single and count in (None, underway[0].seconds.size):
            self._train()
            (every,), self._underway = self._underway, []
            return self._reply(every)  # a round: exactly as long as its slowest client
        arrivals = np.sort(np.concatenate([NO_VALUES, *(each.arrivals for each in underway)]))
        if not arrivals.size:
            return Reply(NO_CLIENTS, NO_VALUES.reshape(0, 0), NO_VALUES, NO_VALUES)
        last = arrivals[-1 if count is None else min(count, arrivals.size) - 1]
        if any(not each.trained and each.first <= last for each in self._underway):
            self._train()
        parts, self._underway = _split(self._underway, last)
        gone, self._gone = _split(self._gone, last)
        waited, self._now = max(last - self._now, 0.0), max(last, self._now)
        if begun:  # exactly as long as the last
            waited = max(float(each.seconds.max(initial=0.0)) for each in (*parts, *gone))
        missing = np.concatenate([NO_CLIENTS, *(each.task.clients for each in gone)])
        wasted = sum(float(each.seconds.sum()) for each in gone)
        due = [self._reply(each) for each in parts]
        if not due:
            size = gone[0].task.parameters.size
            due = [Reply(NO_CLIENTS, NO_VALUES.reshape(0, size), NO_VALUES, NO_VALUES)]
        return join_replies(due, waited=float(waited), missing=np.sort(missing), wasted=wasted)

    def drop(self) -> None:
        """Forget tasks under way."""
        self._underway, self._gone = [], []

    def _train(self) -> None:
        """Train all tasks under way together: those that are not due will be soon."""
        due = [each for each in self._underway if each.trained is None]
        trained = iter(self.train_tasks([each.task for each in due]))
        self._underway = [
            each._replace(trained=next(trained)) if each.trained is None else each
            for each in self._underway
        ]

    def _reply(self, underway: _Underway) -> Reply:
        """Return the reply, with losses if the task asks for them."""
        if not underway.task.losses:
            return underway.reply
        found = self.client_losses(underway.task)
        return underway.reply._replace(losses=found.mean, rms_losses=np.sqrt(found.square))

    def _times(self, task: Task) -> tuple[FloatArray, FloatArray]:
        """Return the seconds that a task takes, and those on the link.

        Computing grows with the local steps.
        """
        clients, index = task.clients, task.round_index
        times = self.times.at(task.seconds, clients, round_index=index)
        steps = self.local_steps if task.local_steps is None else task.local_steps
        usual = steps is None or np.all(steps == self._reference)
        if usual and self.link is None:
            return times, NO_VALUES
        shares = self.times.computing_of(clients, round_index=index)
        linked = times * (1 - shares)
        return times if usual else times * self._factor(shares, steps), linked

    @property
    def _reference(self) -> int | None:
        return self.local_steps if self.reference_steps is None else self.reference_steps

    def _factor(self, shares: FloatArray | float, steps: IntArray | int | None) -> FloatArray:
        """Return how much longer than usual a task takes, with these shares of computing."""
        parts = 1.0 if steps is None else steps / np.float64(self._reference or 1)
        return np.asarray(1 + shares * (parts - 1))

    def _stays(self, task: Task) -> FloatArray:
        """Return after how many seconds each client leaves, or is too late."""
        stays = self.times.leaves(task.seconds, task.clients)
        return stays if task.deadline is None else np.minimum(stays, task.deadline)

    def _end_times(
        self, task: Task, times: FloatArray, stays: FloatArray
    ) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Return when each client ends, and which bring no reply: they left, or were too late."""
        lost = stays < times
        seconds = np.minimum(times, stays)
        come = np.flatnonzero(~lost)
        if task.take is not None and come.size > task.take:
            come = come[np.argsort(seconds[come], kind="stable")]
            end = seconds[come[task.take - 1]]
            lost[come[task.take :]] = True
            seconds = np.minimum(seconds, end)
        return seconds, lost


def _split(underway: list[_Underway], last: float) -> tuple[list[_Underway], list[_Underway]]:
    """Return what is over by then, and the rest."""
    over, rest = [], []
    for each in underway:
        if each.last <= last:
            over.append(each)
        elif each.first > last:
            rest.append(each)
        else:
            now = each.arrivals <= last
            over.append(each.part(now))
            rest.append(each.part(~now))
    return over, rest


@dataclass(eq=False)
class Simulator(DataHolder, SimulatedClock):
    """Train drawn clients by local SGD; a round costs what its draw costs, not O(N).

    Parameters
    ----------
    data, model : Split, Model
        The samples of clients, and the model to train.
    times, times_known : RoundTimes, bool
        How long each takes, in simulated seconds, and whether the server knows the usual times.
    seeds : Seeds
        A client's batches in a round depend on these only, not on the other clients drawn.
    local_steps, batch, weight_decay, clip, optimiser, proximal
        E of tasks that do not say, and the rest of `LocalSteps`.
    privacy : Privacy, optional
        Clips updates and adds noise.
    reference_steps : int ≥ 1, optional
        The local steps that `times` are for; by default `local_steps`.
    link, megabits, sharing : SharedLink, float > 0, int ≥ 1, optional
        A link that clients share, the traffic of a task on it, and the clients in transfer that the
        usual times are for.
    """

    data: Split
    model: BaseModel
    times: BaseTimes
    seeds: Seeds
    local_steps: int = 50
    batch: int = 24
    weight_decay: float = 0.0
    clip: float | None = None
    optimiser: str = SGD
    proximal: float = 0.0
    times_known: bool = True
    privacy: Privacy | None = None
    reference_steps: int | None = None
    link: SharedLink | None = None
    megabits: float = MEGABITS
    sharing: int = 1
    evaluates_any = True

    def __post_init__(self) -> None:
        super().__init__()
        self.model, self.times = adapt_model(self.model), as_times(self.times)
        train, test = self.data.train.sizes.size, self.data.test.sizes.size
        if train != test:
            raise InputError(
                f"data must have the same clients for training and testing, got {train} and "
                f"{test}; give a client without test samples an empty shard"
            )
        self.trained_entries = self.model.trained

    @cached_property
    def weights(self) -> FloatArray:
        """p_i = n_i / Σ n."""
        sizes = self.data.train.sizes.astype(np.float64)
        weights: FloatArray = sizes / sizes.sum()
        return weights

    def initial(self) -> FloatArray:
        """Return the model's initial parameters."""
        return self.model.initial(self.seeds.stream("init"))

    def train_task(self, task: Task) -> LocalUpdates:
        """Run the local steps of every client of the task."""
        if task.local_steps is not None:
            return self.train_tasks([task])[0]
        rounds = np.full(task.clients.size, task.round_index)
        rows = self._batches(rounds, task.clients, self.local_steps)
        found = self._train_rows(rows, task.parameters, task.learning_rate)
        return self._release(found, task)

    def train_tasks(self, tasks: Sequence[Task]) -> list[LocalUpdates]:
        """Run the local steps of every client of these tasks, on stacked arrays.

        Clients with the same number of steps train together.
        """
        if len(tasks) < 2 and all(task.local_steps is None for task in tasks):
            return [self.train_task(task) for task in tasks]
        counts = [task.clients.size for task in tasks]
        steps = np.concatenate([self._steps_of(task) for task in tasks])
        models = np.repeat(np.array([task.parameters for task in tasks]), counts, axis=0)
        rates = np.repeat([task.learning_rate for task in tasks], counts)
        rounds = np.repeat([task.round_index for task in tasks], counts)
        clients = np.concatenate([task.clients for task in tasks])
        updates, norms = np.empty(models.shape), np.empty(clients.size)
        for count in np.unique(steps).tolist():
            alike = steps == count
            rows = self._batches(rounds[alike], clients[alike], count)
            found = self._train_rows(rows, models[alike], rates[alike])
            updates[alike], norms[alike] = found
        ends = np.cumsum(counts)[:-1]
        parts = np.split(updates, ends), np.split(norms, ends)
        each_trained = [LocalUpdates(*each) for each in zip(*parts, strict=True)]
        return [self._release(*each) for each in zip(each_trained, tasks, strict=True)]

    def _steps_of(self, task: Task) -> IntArray:
        steps = task.local_steps
        return np.full(task.clients.size, self.local_steps) if steps is None else steps

    def _release(self, trained: LocalUpdates, task: Task) -> LocalUpdates:
        """Return the updates that the clients send."""
        if self.privacy is None:
            return trained
        streams = (self.seeds.stream("noise", task.round_index, i) for i in task.clients.tolist())
        updates = [
            self.privacy.release(update, rng)
            for update, rng in zip(trained.updates, streams, strict=True)
        ]
        norms = [
            self.privacy.released_norm(update, steps=steps, rate=task.learning_rate)
            for update, steps in zip(updates, self._steps_of(task).tolist(), strict=True)
        ]
        return LocalUpdates(np.array(updates), np.array(norms))

    def _train_rows(
        self, rows: NDArray[np.int64], parameters: FloatArray, rate: float | FloatArray
    ) -> LocalUpdates:
        x, y = self._train_x, self.data.train.y
        return replace(self.steps, count=len(rows)).train(self.model, parameters, x, y, rows, rate)

    def client_losses(self, task: Task) -> ClientLosses:
        """Return the losses of a task's model on all samples of its clients."""
        return self._evaluate_clients(task, self.data.train, None)

    def probe(self, task: Task, *, samples: int | None = None, held_out: bool = False) -> Probe:
        """Let clients evaluate a model, without training.

        Evaluating m samples takes a client the share m / (3 E b) of its round: a round is E steps
        with batches of b, and the forward pass is a third of a step. Receiving the model is not
        counted.
        """
        found = self._evaluate_clients(
            task, self.data.test if held_out else self.data.train, samples
        )
        times = self.times.at(task.seconds, task.clients, round_index=task.round_index)
        share = found.counts / (FORWARD_AND_BACKWARD * self.local_steps * self.batch)
        return Probe(task.clients, found.mean, found.accuracies, times * share)

    def evaluate(self, parameters: FloatArray, *, due: bool = True) -> Evaluation | None:
        """Return the mean loss over all training samples and the accuracy on held-out ones."""
        if not due:
            return None
        correct = self.correct(parameters)
        slow = correct[self._slowest]
        self.slow_accuracy = float(slow.mean()) if slow.size else math.nan
        return Evaluation(self.loss(parameters), float(correct.mean()))

    @cached_property
    def _slowest(self) -> NDArray[np.bool_]:
        """Which held-out samples are of the slowest fifth of clients."""
        usual, sizes = self.times.usual, self.data.test.sizes
        slow = np.zeros(usual.size, dtype=np.bool_)
        slow[np.argsort(-usual, kind="stable")[: math.ceil(SLOW * usual.size)]] = True
        return np.repeat(slow, sizes)

    def _batches(self, rounds: IntArray, clients: IntArray, count: int) -> NDArray[np.int64]:
        """Return the rows of x that each client uses in each of `count` steps, (E, m, batch)."""
        offsets, steps = self.data.train.offsets, replace(self.steps, count=count)
        rows = np.empty((count, clients.size, steps.batch), dtype=np.int64)
        for i, (index, client) in enumerate(zip(rounds.tolist(), clients.tolist(), strict=True)):
            first, end = offsets[client : client + 2].tolist()
            rows[:, i] = steps.rows(self.seeds, index, client, first, end)
        return rows

    def _evaluate_clients(self, task: Task, shards: Shards, samples: int | None) -> ClientLosses:
        """Evaluate a task's model on all samples of its clients, or on `samples` drawn of each."""
        rows, counts = [], []
        for client in task.clients.tolist():
            first, end = shards.offsets[client : client + 2].tolist()
            mine = np.arange(first, end)
            if samples is not None and samples < mine.size:
                rng = self.seeds.stream("probe", task.round_index, client)
                mine = rng.choice(mine, samples, replace=False)
            rows.append(mine)
            counts.append(mine.size)
        every = np.concatenate(rows)
        return evaluate_clients(self.model, task.parameters, shards, every, np.array(counts))

    @cached_property
    def steps(self) -> LocalSteps:
        """How clients train."""
        return LocalSteps(
            self.local_steps,
            self.batch,
            self.weight_decay,
            self.clip,
            self.optimiser,
            self.proximal,
        )
