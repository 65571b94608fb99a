"""Our backend over Flower's grid: its nodes are the clients."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.flower.census import Census
from fedpace.flower.composing import messages_of
from fedpace.flower.exchange import Arrival, Mail, refuse_strangers
from fedpace.flower.nodes import Nodes
from fedpace.flower.reading import Given, Reader
from fedpace.flower.records import Layout, mean_metrics, metric_named, size_of
from fedpace.remote.replies import as_reply
from fedpace.remote.roster import Roster
from fedpace.remote.screening import Border
from fedpace.rounds.backend import Evaluation, Reply, Task
from fedpace.times.round_times import Presence

if TYPE_CHECKING:
    from fedpace.flower.strategy import AdaptiveSampling

log = logging.getLogger("flwr")

# The share of the quickest first reply that counts as its client's where it does not say.
COUNTED = 0.1
# Seconds of start-up from which on the log says so.
NOTED = 1.0

CentralEvaluation: TypeAlias = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass
class Training:
    """Hold the arguments of a strategy's `start`; `deadline` is how long replies are waited for."""

    initial: ArrayRecord
    deadline: float
    train_config: ConfigRecord = field(default_factory=ConfigRecord)
    evaluate_config: ConfigRecord = field(default_factory=ConfigRecord)
    evaluate_fn: CentralEvaluation | None = None


class _ByHand(NamedTuple):
    """Messages that somebody else delivers, and since when."""

    messages: list[Message]
    given: Given
    when: float


class GridBackend:
    """Train on the nodes of a Flower federation.

    Parameters
    ----------
    grid : Grid
        Flower's.
    strategy : AdaptiveSampling
        Has the settings, and says what is sent in a round and in an evaluation.
    training : Training
        What to train.
    roster : Roster
        The clients known before.
    memory : dict, optional
        The `memory` of the same run before a restart.
    """

    usual_times = None  # measured

    def __init__(
        self,
        grid: Grid,
        strategy: AdaptiveSampling,
        training: Training,
        roster: Roster,
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        self.strategy, self.training = strategy, training
        self.mail, self.nodes = Mail(grid, strategy.clock), Nodes(roster)
        self.census = Census(self.mail, self.nodes, strategy)
        self.layout = Layout.of(training.initial)
        self._reader = Reader(
            self.nodes,
            self.layout,
            strategy.keys.samples,
            strategy.local_steps,
            border=Border(memory),
        )
        self.round = 0
        self.task: Task | None = None  # that the strategy is making messages for
        self.metrics: MetricRecord | None = None  # of the latest replies, averaged
        self.replies: dict[int, Message] = {}  # the latest that were accepted, by client
        self.result = Result(arrays=training.initial)
        self._underway: dict[str, Given] = {}
        self._late: dict[str, Given] = {}  # of which a reply may still come
        self._asked_of: dict[str, int] = {}  # the client of each message
        self._unsent: list[int] = []
        # Whether clients are known to have started: one has answered.
        self._started = strategy.count_start
        self._since = 0.0  # when the run's clock was last read
        self._by_hand: _ByHand | None = None

    @property
    def largest_share(self) -> float:
        """Of the rounds that one client may be in."""
        return self.strategy.largest_share

    @property
    def asks_to_evaluate(self) -> bool:
        """Whether clients are asked to evaluate the model."""
        return self.strategy.clients_evaluate

    @property
    def memory(self) -> dict[str, Any]:
        """What is usual in replies, as JSON values."""
        return self._reader.border.memory

    @property
    def weights(self) -> FloatArray:
        """p_i, as far as sample counts are known."""
        return self.nodes.roster.weights

    def initial(self) -> FloatArray:
        """Return the arrays that the run starts from."""
        return self.layout.vector(self.training.initial)

    def present(self, round_index: int, seconds: float) -> Presence:  # noqa: ARG002
        """Return who is there and idle, and how long was waited; new nodes are admitted."""
        if self._underway:  # those at work are not waited for here
            return Presence(self.census.now())
        began = self.mail.clock.now()
        clients = self.census.present()
        waited = self.mail.clock.now() - began
        self._since += waited  # counted here, not in what is underway
        return Presence(clients, waited)

    def submit(self, task: Task) -> None:
        """Send the model to the clients of a task."""
        config, arrays = self.training.train_config, self.layout.record(task.parameters)
        self._begin(task, config)
        self.task = task
        try:
            told = self.strategy.configure_train(self.round, arrays, config, self.mail.grid)
            messages = list(told)
        finally:
            self.task = None
        refuse_strangers(messages, self.nodes.of(task.clients.tolist()))
        if not self._underway:
            self._since = self.mail.clock.now()
        names = self.mail.send(messages, self.training.deadline)
        given = self._given(arrays, config, messages)
        self._underway |= dict.fromkeys(names, given)
        clients = {name: self.nodes.client(self.mail.open[name].node) for name in names}
        self._asked_of |= clients
        self._unsent += sorted({*task.clients.tolist()} - {*clients.values()})

    def collect(self, count: int | None = None) -> Reply:
        """Wait for the next replies, each at most to its deadline.

        Where only some are waited for, replies that came after their deadline are handed over too.
        """
        arrivals = self.mail.collect(self._underway, count)
        now = self.mail.clock.now()
        waited, self._since = (now - self._since if self._underway else 0.0), now
        if arrivals and not self._started:
            arrivals, waited = self._without_start_up(arrivals, waited)
        read = [(arrival, self._underway[name]) for name, arrival in arrivals.items()]
        done = {n: each for n, each in self._underway.items() if n not in self.mail.open}
        self._underway = {n: each for n, each in self._underway.items() if n in self.mail.open}
        late = self._taken_late(done, count)
        asked = [*(self._asked_of[name] for name in done), *self._unsent]
        self._unsent = []
        reply = self._read([*read, *late], waited)
        came = {self.nodes.client(arrival.node) for arrival, _ in read}
        accepted = came & {*reply.clients.tolist()}
        missing = sorted({*asked} - accepted)
        return reply._replace(missing=np.array(missing, dtype=np.int64))

    def _taken_late(self, done: dict[str, Given], count: int | None) -> list[tuple[Arrival, Given]]:
        """Return replies that came too late, of nodes that have had no other task since."""
        overdue, self.mail.overdue = self.mail.overdue, {}
        if count is None:
            self._late = {}
            return []
        latest = {client: name for name, client in self._asked_of.items()}
        current = {name for name in overdue if latest.get(self._asked_of.get(name, -1)) == name}
        late = [(overdue[name], self._late[name]) for name in current if name in self._late]
        here = self.mail.late
        self._late = {n: each for n, each in (self._late | done).items() if n in here}
        open_names = {*self._underway, *self._late}
        self._asked_of = {
            n: client for n, client in self._asked_of.items() if n in open_names | {*done}
        }
        return late

    def _without_start_up(
        self, arrivals: dict[str, Arrival], waited: float
    ) -> tuple[dict[str, Arrival], float]:
        """Take the start of the federation out of the first replies, and out of the clock.

        Ray or a SuperNode's first process may take half a minute to start, which tells nothing of
        the clients. It is what the quickest reply did not compute, where it says so, and else all
        but a tenth of its time.
        """
        self._started = True
        spent = [(each.seconds, self._reader.computing(each.message)) for each in arrivals.values()]
        start_up = min(
            seconds - computing if 0 < computing <= seconds else (1 - COUNTED) * seconds
            for seconds, computing in spent
        )
        if start_up > NOTED:
            log.info("fedpace: the first %.1f s, until clients had started, do not count", start_up)
        shorter = {n: a._replace(seconds=a.seconds - start_up) for n, a in arrivals.items()}
        return shorter, max(waited - start_up, 0.0)

    def hand_out(self, task: Task, arrays: ArrayRecord, config: ConfigRecord) -> list[Message]:
        """Return the messages of a task, for somebody else to deliver."""
        self._begin(task, config)
        messages = self.messages(MessageType.TRAIN, task.clients.tolist(), arrays, config)
        given = self._given(arrays, config, messages)
        self._by_hand = _ByHand(messages, given, self.mail.clock.now())
        return messages

    def take_in(self, replies: Iterable[Message]) -> Reply:
        """Return what was brought back for `hand_out`; whoever was not asked is not heard.

        Nobody says when a reply arrived: its time is that until it was made, by the client's
        clock. A client whose clock is wrong counts as the whole wait.
        """
        if self._by_hand is None:
            raise InputError("configure_train must come before aggregate_train, got none; call it")
        (messages, given, when), self._by_hand = self._by_hand, None
        waited = self.mail.clock.now() - when
        made = min((each.metadata.created_at for each in messages), default=0.0)
        asked = {each.metadata.dst_node_id for each in messages}
        arrivals: dict[int, Arrival] = {}
        for reply in replies:
            node, seconds = reply.metadata.src_node_id, reply.metadata.created_at - made
            if node in asked:
                arrivals[node] = Arrival(node, reply, seconds if 0 < seconds <= waited else waited)
        return self._read([(each, given) for each in arrivals.values()], waited)

    def evaluate(self, parameters: FloatArray, *, due: bool = True) -> Evaluation | None:
        """Return loss and accuracy: the server's own, else the clients' where they are due.

        None if nobody evaluates.
        """
        if not np.isfinite(parameters).all():
            return Evaluation(math.inf, math.nan)
        began, arrays = self.mail.clock.now(), self.layout.record(parameters)
        clients = self._asked(arrays) if due and self.strategy.clients_evaluate else None
        central = self.training.evaluate_fn and self.training.evaluate_fn(self.round, arrays)
        if clients is not None:
            self.result.evaluate_metrics_clientapp[self.round] = clients
        if central is not None:
            self.result.evaluate_metrics_serverapp[self.round] = central
        if not self._underway:
            self._since += self.mail.clock.now() - began  # not counted
        found = [each for each in (central, clients) if each is not None]
        if not found:
            return None
        log.info("fedpace: evaluation after round %d: %s", self.round, [*map(dict, found)])
        return Evaluation(metric_named(found, "loss"), metric_named(found, "acc"))

    def messages(
        self, kind: str, clients: Iterable[int], arrays: ArrayRecord, config: ConfigRecord
    ) -> list[Message]:
        """Return one message to the node of each client."""
        keys, other = self.strategy.keys, self.strategy.strategy
        if kind == MessageType.TRAIN and other is not None:
            nodes = self.nodes.of(clients)
            return messages_of(other, self.round, arrays, config, self.mail.grid, nodes)
        content = RecordDict({keys.arrays: arrays, keys.config: config})
        nodes = self.nodes.of(clients)
        return [Message(content, node, kind, group_id=str(self.round)) for node in nodes]

    def note_metrics(self, metrics: MetricRecord | None) -> None:
        """Keep the clients' metrics of this round, averaged."""
        self.metrics = metrics
        if metrics is not None:
            self.result.train_metrics_clientapp[self.round] = metrics

    @property
    def latest_failure(self) -> str:
        """Why the latest client that failed did so; empty if none has."""
        return self._reader.latest_failure

    def _begin(self, task: Task, config: ConfigRecord) -> None:
        steps = task.round_index if task.version < 0 else task.version
        self.round = config["server-round"] = steps + 1
        if not math.isnan(task.learning_rate):
            config[self.strategy.keys.learning_rate] = task.learning_rate

    def _given(self, arrays: ArrayRecord, config: ConfigRecord, messages: list[Message]) -> Given:
        rate = config.get(self.strategy.keys.learning_rate)
        return Given(
            self.layout.vector(arrays),  # as rounded to the model's own types
            float(rate) if isinstance(rate, (int, float)) else None,
            size_of(messages[0]) if messages else 0,
        )

    @np.errstate(over="ignore", invalid="ignore")  # a model that diverges
    def _read(self, arrivals: Iterable[tuple[Arrival, Given]], waited: float) -> Reply:
        accepted, used, refused = self._reader.read_all(arrivals)
        clients = (each.client for each in accepted)
        self.replies = dict(zip(clients, used, strict=True))
        self.note_metrics(mean_metrics(used, self.strategy.keys.samples))
        return as_reply(accepted, length=self.layout.floats.size, refused=refused, waited=waited)

    def _asked(self, arrays: ArrayRecord) -> MetricRecord | None:
        """Let clients evaluate a model."""
        config = self.training.evaluate_config
        messages = self.strategy.configure_evaluate(self.round, arrays, config, self.mail.grid)
        arrivals = self.mail.exchange(messages, self.training.deadline)
        return self.strategy.aggregate_evaluate(self.round, [each.message for each in arrivals])
