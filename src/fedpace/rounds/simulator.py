"""The simulator: all drawn clients train at once, on stacked arrays; time is simulated."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.data.shards import Shards, Split
from fedpace.errors import InputError
from fedpace.models.model import Model
from fedpace.rounds.backend import NOBODY, NOTHING, Evaluation, Probe, Reply, Task, together
from fedpace.rounds.judged import Judged, judged
from fedpace.rounds.local import Held, LocalSteps, Trained
from fedpace.rounds.optimisers import SGD
from fedpace.rounds.privacy import Privacy
from fedpace.seeds import Seeds
from fedpace.times.round_times import Presence, RoundTimes, usual_at
from fedpace.times.traces import FORWARD_AND_BACKWARD

# The share of clients whose accuracy is told apart.
SLOW = 0.2


class _Underway(NamedTuple):
    """A task, the seconds that each of its clients takes, and what came of it once trained."""

    task: Task
    seconds: FloatArray
    trained: Trained | None = None

    @property
    def arrivals(self) -> FloatArray:
        """When each reply comes, by the clock of the run."""
        return self.task.seconds + self.seconds

    @property
    def reply(self) -> Reply:
        """What its clients send back, once trained."""
        assert self.trained is not None
        updates, norms = self.trained
        return Reply(self.task.clients, updates, self.seconds, norms)

    def part(self, chosen: NDArray[np.bool_]) -> _Underway:
        """Return what some of the clients do."""
        if chosen.all():
            return self
        task = self.task._replace(clients=self.task.clients[chosen])
        trained = self.trained and Trained(*(each[chosen] for each in self.trained))
        return _Underway(task, self.seconds[chosen], trained)


class SimulatedClock(ABC):
    """Keep tasks until their time has come; whoever extends this trains.

    `times` says how long each client takes, and when it is there; `times_known` whether the
    server knows the usual ones, or must learn them.
    """

    times: RoundTimes
    times_known: bool

    def __init__(self) -> None:
        self._underway: list[_Underway] = []
        self._gone: list[_Underway] = []  # of which nothing will come
        self._now = 0.0
        self._asked = 0.0  # when the server last looked who is there

    @property
    def usual_times(self) -> FloatArray | None:
        """t_i of now without noise and drift, where the server knows them."""
        return usual_at(self.times, self._asked) if self.times_known else None

    def judged(self, task: Task) -> Judged:  # noqa: ARG002
        """Return how the model of a task does on the samples of its clients."""
        name = type(self).__name__
        raise InputError(f"task.losses must be False on {name}, got True; take another backend")

    @abstractmethod
    def trained_each(self, tasks: Sequence[Task]) -> list[Trained]:
        """Let the clients of some tasks train, all at once where that is faster."""

    def present(self, round_index: int, seconds: float) -> Presence:  # noqa: ARG002
        """Return who is there at this time of the simulated clock."""
        self._asked = seconds
        return self.times.present(seconds)

    def submit(self, task: Task) -> None:
        """Give out a task: its clients begin now."""
        busy = self._underway or self._gone
        self._now = max(self._now, task.seconds) if busy else task.seconds
        times = self.times.at(task.seconds, task.clients, round_index=task.round_index)
        seconds, lost = self._until_over(task, times)
        whole = _Underway(task, seconds)
        if lost.any():
            self._gone.append(whole.part(lost))
        if not lost.all():
            self._underway.append(whole.part(~lost) if lost.any() else whole)

    def collect(self, count: int | None = None) -> Reply:
        """Return the next replies by the simulated clock: `count`, and any at the same moment."""
        underway = [*self._underway, *self._gone]
        begun = all(each.task.seconds == self._now for each in underway)
        if (
            begun
            and len(self._underway) == len(underway) == 1
            and (count in (None, underway[0].seconds.size))
        ):
            self._train()
            (whole,), self._underway = self._underway, []
            return self._reply(whole)  # a round: exactly as long as its slowest client
        arrivals = np.sort(np.concatenate([NOTHING, *(each.arrivals for each in underway)]))
        if not arrivals.size:
            return Reply(NOBODY, NOTHING.reshape(0, 0), NOTHING, NOTHING)
        last = arrivals[-1 if count is None else min(count, arrivals.size) - 1]
        if any(not each.trained and (each.arrivals <= last).any() for each in self._underway):
            self._train()
        parts, self._underway = _parted(self._underway, last)
        gone, self._gone = _parted(self._gone, last)
        waited, self._now = max(last - self._now, 0.0), max(last, self._now)
        if begun:  # all of them now: exactly as long as the last
            waited = max(float(each.seconds.max(initial=0.0)) for each in (*parts, *gone))
        missing = np.concatenate([NOBODY, *(each.task.clients for each in gone)])
        wasted = sum(float(each.seconds.sum()) for each in gone)
        due = [self._reply(each) for each in parts]
        if not due:
            size = gone[0].task.parameters.size
            due = [Reply(NOBODY, NOTHING.reshape(0, size), NOTHING, NOTHING)]
        return together(due, waited=float(waited), missing=np.sort(missing), wasted=wasted)

    def drop(self) -> None:
        """Forget what is under way: nobody will collect it."""
        self._underway, self._gone = [], []

    def _train(self) -> None:
        """Train all that is under way and was not yet, at once: what is not due will be soon."""
        due = [each for each in self._underway if each.trained is None]
        trained = iter(self.trained_each([each.task for each in due]))
        self._underway = [
            each._replace(trained=next(trained)) if each.trained is None else each
            for each in self._underway
        ]

    def _reply(self, underway: _Underway) -> Reply:
        """Return what clients send back, with their losses where they were asked for."""
        if not underway.task.losses:
            return underway.reply
        found = self.judged(underway.task)
        return underway.reply._replace(losses=found.mean, rms_losses=found.root_mean_square)

    def _until_over(self, task: Task, times: FloatArray) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Return when it is over with each client, and who brings nothing: gone, or too late."""
        stays = np.full(times.size, np.inf)
        if hasattr(self.times, "leaves"):
            stays = self.times.leaves(task.seconds, task.clients)
        if task.deadline is not None:
            stays = np.minimum(stays, task.deadline)
        lost = stays < times
        seconds = np.minimum(times, stays)
        come = np.flatnonzero(~lost)
        if task.take is not None and come.size > task.take:
            come = come[np.argsort(seconds[come], kind="stable")]
            end = seconds[come[task.take - 1]]
            lost[come[task.take :]] = True
            seconds = np.minimum(seconds, end)
        return seconds, lost


def _parted(underway: list[_Underway], last: float) -> tuple[list[_Underway], list[_Underway]]:
    """Return what is over by then, and what is not; most are wholly one or the other."""
    over, rest = [], []
    for each in underway:
        now = each.arrivals <= last
        if now.any():
            over.append(each.part(now))
        if not now.all():
            rest.append(each.part(~now))
    return over, rest


@dataclass(eq=False)
class Simulator(Held, SimulatedClock):
    """Train drawn clients by local SGD; a round costs what its draw costs, not O(N).

    Parameters
    ----------
    data, model : Split, Model
        What clients hold, and what they train.
    times, times_known : RoundTimes, bool
        How long each takes, in simulated seconds, and whether the server knows the usual times.
    seeds : Seeds
        The batches of a client in a round depend on these alone, not on who else is drawn.
    local_steps, batch, weight_decay, clip, optimiser, proximal
        E, and the rest of `LocalSteps`.
    privacy : Privacy, optional
        What clients do to their updates.
    """

    data: Split
    model: Model
    times: RoundTimes
    seeds: Seeds
    local_steps: int = 50
    batch: int = 24
    weight_decay: float = 0.0
    clip: float | None = None
    optimiser: str = SGD
    proximal: float = 0.0
    times_known: bool = True
    privacy: Privacy | None = None

    def __post_init__(self) -> None:
        super().__init__()
        # Of the model evaluated last, on what the slowest fifth of clients hold back.
        self.slow_accuracy = math.nan

    @cached_property
    def weights(self) -> FloatArray:
        """p_i = n_i / Σ n."""
        sizes = self.data.train.sizes.astype(np.float64)
        weights: FloatArray = sizes / sizes.sum()
        return weights

    def initial(self) -> FloatArray:
        """Return the model's initial parameters."""
        return self.model.initial(self.seeds.stream("init"))

    def trained(self, task: Task) -> Trained:
        """Run E local steps of every client of the task."""
        rows = self._batches(task.round_index, task.clients)
        found = self._trained(rows, task.parameters, task.learning_rate)
        return self._released(found, task)

    def trained_each(self, tasks: Sequence[Task]) -> list[Trained]:
        """Run E local steps of every client of these tasks, on stacked arrays."""
        if len(tasks) < 2:
            return [self.trained(task) for task in tasks]
        counts = [task.clients.size for task in tasks]
        rows = [self._batches(task.round_index, task.clients) for task in tasks]
        models = np.repeat(np.array([task.parameters for task in tasks]), counts, axis=0)
        rates = np.repeat([task.learning_rate for task in tasks], counts)
        found = self._trained(np.concatenate(rows, axis=1), models, rates)
        ends = np.cumsum(counts)[:-1]
        parts = [np.split(each, ends) for each in found]
        each_trained = [Trained(*each) for each in zip(*parts, strict=True)]
        return [self._released(*each) for each in zip(each_trained, tasks, strict=True)]

    def _released(self, trained: Trained, task: Task) -> Trained:
        """Return what leaves the clients of a task."""
        if self.privacy is None:
            return trained
        streams = (self.seeds.stream("noise", task.round_index, i) for i in task.clients.tolist())
        updates = [
            self.privacy.released(update, rng)
            for update, rng in zip(trained.updates, streams, strict=True)
        ]
        steps, rate = self.local_steps, task.learning_rate
        norms = [self.privacy.released_norm(each, steps=steps, rate=rate) for each in updates]
        return Trained(np.array(updates), np.array(norms))

    def _trained(
        self, rows: NDArray[np.int64], parameters: FloatArray, rate: float | FloatArray
    ) -> Trained:
        x, y = self._train_x, self.data.train.y
        return self.steps.train(self.model, parameters, x, y, rows, rate)

    def judged(self, task: Task) -> Judged:
        """Return how the model of a task does on all samples of its clients."""
        return self._judged(task, self.data.train, None)

    def probe(self, task: Task, *, samples: int | None = None, held_out: bool = False) -> Probe:
        """Let clients say how a model does, without training.

        It takes a client the share m / (3 E b) of its round to evaluate m samples: its round is E
        steps with batches of b, and the forward pass is a third of a step. That it must also get
        the model is not counted.
        """
        found = self._judged(task, self.data.test if held_out else self.data.train, samples)
        times = self.times.at(task.seconds, task.clients, round_index=task.round_index)
        share = found.counts / (FORWARD_AND_BACKWARD * self.local_steps * self.batch)
        return Probe(task.clients, found.mean, found.accuracies, times * share)

    def evaluate(self, parameters: FloatArray, *, due: bool = True) -> Evaluation | None:
        """Return the mean loss over all training samples and the accuracy on all held out."""
        if not due:
            return None
        right = self.right(parameters)
        slow = right[self._slowest]
        self.slow_accuracy = float(slow.mean()) if slow.size else math.nan
        return Evaluation(self.loss(parameters), float(right.mean()))

    @cached_property
    def _slowest(self) -> NDArray[np.bool_]:
        """Which of the samples held out are of the slowest fifth of clients."""
        usual, sizes = self.times.usual, self.data.test.sizes
        slow = np.zeros(usual.size, dtype=np.bool_)
        slow[np.argsort(-usual, kind="stable")[: math.ceil(SLOW * usual.size)]] = True
        return np.repeat(slow, sizes)

    def _batches(self, round_index: int, clients: IntArray) -> NDArray[np.int64]:
        """Return the rows of x that each client uses in each step, (E, m, batch)."""
        offsets = self.data.train.offsets
        steps = self.steps
        rows = np.empty((steps.count, clients.size, steps.batch), dtype=np.int64)
        for i, client in enumerate(clients.tolist()):
            first, end = offsets[client : client + 2].tolist()
            rows[:, i] = steps.rows(self.seeds, round_index, client, first, end)
        return rows

    def _judged(self, task: Task, shards: Shards, samples: int | None) -> Judged:
        """Return how a model does on the samples of some clients, or on so many drawn of each."""
        rows, counts = [], []
        for client in task.clients.tolist():
            first, end = shards.offsets[client : client + 2].tolist()
            mine = np.arange(first, end)
            if samples is not None and samples < mine.size:
                rng = self.seeds.stream("probe", task.round_index, client)
                mine = rng.choice(mine, samples, replace=False)
            rows.append(mine)
            counts.append(mine.size)
        return judged(self.model, task.parameters, shards, np.concatenate(rows), np.array(counts))

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

    @property
    def trained_entries(self) -> NDArray[np.bool_] | None:
        """Which entries of the parameters gradients move; None for all."""
        return getattr(self.model, "trained", None)
