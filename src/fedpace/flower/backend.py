"""Train on the nodes of a Flower federation: the backend over Flower's grid."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedpace.backends.remote.replies import SMALL, as_reply
from fedpace.backends.remote.roster import Deadlines, Roster
from fedpace.backends.remote.screening import Border, FirstReplies
from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.files import hold_lock
from fedpace.flower.client import STEPS
from fedpace.flower.messages import Arrival, DrawnGrid, Layout, Mailbox, check_recipients, size_of
from fedpace.flower.nodes import NodeMap, Nodes
from fedpace.flower.replies import Given, ReplyReader, metric_named
from fedpace.flower.settings import LEARNED, Settings
from fedpace.times.round_times import Presence
from fedpace.training.backend import BaseBackend, Difference, Evaluation, Reply, Task
from fedpace.training.checkpoint import Checkpoint
from fedpace.training.training import Training

log = logging.getLogger("flwr")

# The part of the quickest first reply that counts as its client's if it reports no computing time.
COUNTED = 0.1
# A first reply after a resume was a cold start if it took this many times the client's usual time.
COLD = 2.0
# Seconds of start-up that are worth a line in the log.
NOTED = 1.0
# Names of what a checkpoint keeps besides the state: screening statistics, and replies' times.
SCREEN, TIMES = "screen", "times"

CentralEvaluation: TypeAlias = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass
class StartArguments:
    """The arguments of a strategy's `start`; `deadline` is the longest wait for a reply."""

    initial: ArrayRecord
    deadline: float
    train_config: ConfigRecord = field(default_factory=ConfigRecord)
    evaluate_config: ConfigRecord = field(default_factory=ConfigRecord)
    evaluate_fn: CentralEvaluation | None = None


class StartUp:
    """Subtract the federation's start-up from the first replies, and give back what recurs.

    Ray, or the first process of a SuperNode, may take half a minute to start, which says nothing
    about a client. In a new federation the start-up is what the quickest first reply did not spend
    computing, or 90 % of its time. A second reply of the same node shows how much of it recurs,
    for instance because every message starts a process: that part counts after all. After a
    resume, with the clients' latest `times`, it is what a first reply takes beyond them. If it is
    `counted`, nothing is subtracted.
    """

    def __init__(self, times: Mapping[str, float] | None = None, *, counted: bool = False) -> None:
        self.times = {int(client): float(seconds) for client, seconds in (times or {}).items()}
        self._seconds: float | None = 0.0 if counted else None  # None before the first reply
        self._cold: set[int] = set()  # clients whose task was sent before the first reply came
        self._subtracted: dict[int, float] = {}  # what was left of a client's first reply
        self._settled = False

    def correct(
        self,
        seconds: Mapping[int, float],
        waited: float,
        *,
        at_work: Iterable[int],
        computing: Mapping[int, float] | None = None,
    ) -> tuple[dict[int, float], float]:
        """Return the seconds of these replies, by client, and of the wait, without the start-up.

        `at_work` are the clients that were asked when the first reply came.
        """
        corrected = dict(seconds)
        if self._seconds is None and seconds:
            self._seconds = self._estimate(seconds, computing or {})
            self._cold, self._settled = {*at_work}, bool(self.times)
            waited = max(waited - self._seconds, 0.0)
            if self._seconds > NOTED:
                log.info("fedpace: the start-up of %.1f s does not count", self._seconds)
        start_up = self._seconds or 0.0
        for client, took in seconds.items():
            self.times[client] = took
            if client in self._cold:
                self._cold.remove(client)
                corrected[client] = max(took - start_up, 0.0)
                if self._settled:
                    self.times[client] = corrected[client]
                else:
                    self._subtracted[client] = corrected[client]
            elif client in self._subtracted:
                recurring = min(max(took - self._subtracted.pop(client), 0.0), start_up)
                corrected[client] += recurring  # so that the mean of the two is right
                if not self._settled:
                    self._settled, waited = True, waited + recurring
                    if recurring > NOTED:
                        text = "fedpace: %.1f s of the start-up recur in every reply, and count"
                        log.info(text, recurring)
        return corrected, waited

    def _estimate(self, seconds: Mapping[int, float], computing: Mapping[int, float]) -> float:
        if self.times:
            known = {client: self.times[client] for client in seconds if client in self.times}
            cold = (seconds[i] - usual for i, usual in known.items() if seconds[i] > COLD * usual)
            return min(cold, default=0.0)
        spent = ((took, computing.get(client, math.nan)) for client, took in seconds.items())
        return min(
            took - busy if 0 < busy <= took else (1 - COUNTED) * took for took, busy in spent
        )


class _HandedOut(NamedTuple):
    """Messages that another loop delivers, and when they were handed out."""

    messages: list[Message]
    given: Given
    when: float


class GridBackend(BaseBackend):
    """Train on the nodes of a Flower federation.

    `strategy` has the settings and configures messages, `start` the model to train; `roster` and
    `memory` are the clients and the backend's `memory` before a restart.
    """

    def __init__(
        self,
        grid: Grid,
        strategy: Settings,
        start: StartArguments,
        roster: Roster,
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        self.strategy, self.start = strategy, start
        self.largest_share = strategy.largest_share
        self.asks_to_evaluate = strategy.clients_evaluate
        self.mailbox, self.node_map = Mailbox(grid, strategy.clock), NodeMap(roster)
        self.nodes = Nodes(
            self.mailbox,
            self.node_map,
            at_least=strategy.min_available_nodes,
            expected=strategy.expected_nodes,
            wait=strategy.wait,
            query=strategy.query or callable(strategy.eligible),
            eligible=strategy.eligible,
        )
        given = None if strategy.deadline == LEARNED else start.deadline
        self._deadlines = Deadlines(0, given, unknown=start.deadline)
        self._take: int | None = None
        self.layout = Layout.of(start.initial)
        keys, border = strategy.keys, Border(memory)
        self._reader = ReplyReader(
            self.node_map, self.layout, keys.samples, strategy.usual_steps, border
        )
        self._first = FirstReplies[tuple[Arrival, Given]](border)
        self._start_up = StartUp((memory or {}).get(TIMES), counted=strategy.count_start)
        self.round = 0  # of the latest task
        self.metrics: MetricRecord | None = None  # of the latest replies, averaged
        self.replies: dict[int, Message] = {}  # the latest that were accepted, by client
        self.result = Result(arrays=start.initial)
        self._training: Training | None = None
        self._used: list[Message] = []  # accepted replies since the latest round began
        self._capped: dict[int, float] = {}
        self._underway: dict[str, Given] = {}
        self._late: dict[str, Given] = {}  # of which a reply may still come
        self._asked_of: dict[str, int] = {}  # the client of each message
        self._unsent: list[int] = []
        self._steps: int | None = None  # that the latest task asked for
        self._since = 0.0  # when the run's clock was last read
        self._handed_out: _HandedOut | None = None
        self._recorded: tuple[FloatArray, ArrayRecord, FloatArray] | None = None

    @property
    def memory(self) -> dict[str, Any]:
        """Screening statistics and the clients' latest times, as JSON values."""
        times = {str(client): seconds for client, seconds in self._start_up.times.items()}
        return self._reader.border.memory | {TIMES: times}

    @property
    def weights(self) -> FloatArray:
        """p_i, as far as sample counts are known."""
        return self.node_map.roster.weights

    @property
    def latest_failure(self) -> str:
        """Why the latest client that failed did so; empty if none has."""
        return self._reader.latest_failure

    def follow(self, training: Training) -> None:
        """Count evaluations by the rounds of this training, which may have been resumed."""
        self._training = training

    def initial(self) -> FloatArray:
        """Return the initial arrays as a vector."""
        return self.layout.vector(self.start.initial)

    def present(self, round_index: int, seconds: float) -> Presence:  # noqa: ARG002
        """Return which clients are idle, and how long it took to find enough; admit new nodes."""
        held = self._first.clients
        if self._underway:  # no need to wait for others
            clients = self.nodes.refresh()
            clients[held] = False
            return Presence(clients)
        began = self.mailbox.clock.now()
        clients = self.nodes.wait_for_idle()
        if clients.sum() > clients[held].sum():
            clients[held] = False
        waited = self.mailbox.clock.now() - began
        self._since += waited  # counted here, not as the time of a task
        return Presence(clients, waited)

    def begin(self, task: Task, config: ConfigRecord) -> DrawnGrid:
        """Set round and learning rate of a task in `config`; return a grid of its nodes."""
        steps = task.round_index if task.version < 0 else task.version
        if steps + 1 != self.round:
            self._used = []
        self.round = config["server-round"] = steps + 1
        if not math.isnan(task.learning_rate):
            config[self.strategy.keys.learning_rate] = task.learning_rate
        self._steps, before = task.common_steps, self._steps
        if self._steps is not None:
            config[STEPS] = self._steps
        elif before is not None:
            del config[STEPS]
        return DrawnGrid(self.mailbox.grid, self.node_map.of(task.clients.tolist()))

    def submit(self, task: Task) -> None:
        """Send the model to the clients of a task."""
        self._first.drop(task.clients.tolist())
        config, arrays = self.start.train_config, self.record(task.parameters)
        drawn = self.begin(task, config)
        grid = cast(Grid, drawn)
        messages = list(self.strategy.configure_train(self.round, arrays, config, grid))
        check_recipients(messages, drawn.nodes)
        if not self._underway:
            self._since = self.mailbox.clock.now()
        deadline = min(self._deadlines.wait(task.clients), self.start.deadline)
        names, self._take = self.mailbox.send(messages, deadline), task.take
        self._underway |= dict.fromkeys(names, self._given(arrays, config, messages))
        clients = {name: self.node_map.client(self.mailbox.open[name].node) for name in names}
        self._asked_of |= clients
        self._unsent += sorted({*task.clients.tolist()} - {*clients.values()})

    def collect(self, count: int | None = None) -> Reply:
        """Wait for the next replies, each until its deadline at most.

        If only some are waited for, replies that came after their deadline are returned too, and
        the first are held until they can be judged together.
        """
        arrivals = self.mailbox.collect(self._underway, self._take if count is None else count)
        if count is None:
            self.mailbox.give_up([*self._underway])
        for name, arrival in arrivals.items():
            self._deadlines.observe(self._asked_of[name], arrival.seconds)
        now = self.mailbox.clock.now()
        waited, self._since = (now - self._since if self._underway else 0.0), now
        arrivals, waited = self._without_start_up(arrivals, waited)
        read = [(arrival, self._underway[name]) for name, arrival in arrivals.items()]
        done = {n: each for n, each in self._underway.items() if n not in self.mailbox.open}
        self._underway = {n: each for n, each in self._underway.items() if n in self.mailbox.open}
        late = self._take_late(done, count)
        asked = [*(self._asked_of[name] for name in done), *self._unsent]
        self._unsent = []
        judged = read if count is None else self._release([*read, *late])
        reply = self._read(judged, waited)
        asked += [self.node_map.client(arrival.node) for arrival, _ in judged]
        held = self._first.clients
        missing = sorted({*asked} - {*reply.clients.tolist(), *held})
        return reply._replace(
            missing=np.array(missing, dtype=np.int64), held=np.array(held, dtype=np.int64)
        )

    def _release(self, came: list[tuple[Arrival, Given]]) -> list[tuple[Arrival, Given]]:
        """Return what can be read now: errors, and replies that need not be held."""
        failed = [each for each in came if each[0].message.has_error()]
        client = self.node_map.client
        fine = {client(each[0].node): each for each in came if not each[0].message.has_error()}
        at_work = {self._asked_of[name] for name in self._underway}
        reachable = at_work.union(np.flatnonzero(self.nodes.idle()).tolist())
        return failed + self._first.release(fine, reachable=reachable, failed=len(failed))

    def _without_start_up(
        self, arrivals: dict[str, Arrival], waited: float
    ) -> tuple[dict[str, Arrival], float]:
        clients = {name: self.node_map.client(each.node) for name, each in arrivals.items()}
        seconds, waited = self._start_up.correct(
            {clients[name]: each.seconds for name, each in arrivals.items()},
            waited,
            at_work=[self._asked_of[name] for name in self._underway],
            computing={clients[n]: self._reader.computing(a.message) for n, a in arrivals.items()},
        )
        timed = {n: a._replace(seconds=seconds[clients[n]]) for n, a in arrivals.items()}
        return timed, waited

    def _take_late(self, done: dict[str, Given], count: int | None) -> list[tuple[Arrival, Given]]:
        """Return replies that came too late, of nodes that have had no other task since."""
        overdue, self.mailbox.overdue = self.mailbox.overdue, {}
        for arrival in overdue.values():
            self._deadlines.observe(self.node_map.client(arrival.node), arrival.seconds)
        if count is None:
            self._late = {}
            return []
        latest = {client: name for name, client in self._asked_of.items()}
        current = {name for name in overdue if latest.get(self._asked_of.get(name, -1)) == name}
        late = [(overdue[name], self._late[name]) for name in current if name in self._late]
        self._late = {n: x for n, x in (self._late | done).items() if n in self.mailbox.late}
        names = {*self._underway, *self._late, *done}
        self._asked_of = {n: client for n, client in self._asked_of.items() if n in names}
        return late

    def record(self, parameters: FloatArray) -> ArrayRecord:
        """Return a model as arrays; they are made once."""
        return self._record(parameters)[0]

    def received(self, parameters: FloatArray) -> FloatArray:
        """Return a model as clients receive it; a large one is not kept twice."""
        return self._record(parameters)[1]

    def _record(self, parameters: FloatArray) -> tuple[ArrayRecord, FloatArray]:
        if self._recorded is None or self._recorded[0] is not parameters:
            arrays, received = self.layout.record(parameters), parameters
            if parameters.size > SMALL:
                precision = self.layout.precision
                received = cast(Any, Difference(self.layout.opened(arrays), None, precision))
            self._recorded = parameters, arrays, received
        return self._recorded[1:]

    def hand_out(self, messages: list[Message], arrays: ArrayRecord, config: ConfigRecord) -> None:
        """Note messages that another loop delivers."""
        given = self._given(arrays, config, messages)
        self._handed_out = _HandedOut(messages, given, self.mailbox.clock.now())

    def take_in(self, replies: Iterable[Message]) -> Reply:
        """Return the replies to `hand_out`; those of nodes that were not asked are ignored.

        Arrival times are not known: a reply's time is that until it was made, by the client's
        clock. A client whose clock is wrong gets the duration of the complete wait.
        """
        if self._handed_out is None:
            raise InputError("configure_train must come before aggregate_train, got none; call it")
        (messages, given, when), self._handed_out = self._handed_out, None
        waited = self.mailbox.clock.now() - when
        made = min((each.metadata.created_at for each in messages), default=0.0)
        asked = {each.metadata.dst_node_id for each in messages}
        arrivals: dict[int, Arrival] = {}
        for reply in replies:
            node, seconds = reply.metadata.src_node_id, reply.metadata.created_at - made
            if node in asked:
                arrivals[node] = Arrival(node, reply, seconds if 0 < seconds <= waited else waited)
        return self._read([(each, given) for each in arrivals.values()], waited)

    def evaluate(self, parameters: FloatArray, *, due: bool = True) -> Evaluation | None:
        """Return loss and accuracy: the server's own, else the clients' if `due`, else None."""
        arrays = self.record(parameters)
        if not all(np.isfinite(each).all() for each in self.layout.opened(arrays)):
            return Evaluation(math.inf, math.nan)
        asked = due and self.strategy.clients_evaluate
        if not asked and self.start.evaluate_fn is None:
            return None
        number = self.round if self._training is None else self._training.state.round
        began = self.mailbox.clock.now()
        clients = None
        if asked:
            clients = self._ask_clients(number, arrays)
        central = self.start.evaluate_fn and self.start.evaluate_fn(number, arrays)
        if clients is not None:
            self.result.evaluate_metrics_clientapp[number] = clients
        if central is not None:
            self.result.evaluate_metrics_serverapp[number] = central
        if not self._underway:
            self._since += self.mailbox.clock.now() - began  # not counted
        found = [each for each in (central, clients) if each is not None]
        if not found:
            return None
        log.info("fedpace: evaluation after round %d: %s", number, [*map(dict, found)])
        return Evaluation(metric_named(found, "loss"), metric_named(found, "acc"))

    def _ask_clients(self, number: int, arrays: ArrayRecord) -> MetricRecord | None:
        strategy, config = self.strategy, self.start.evaluate_config
        messages = strategy.configure_evaluate(number, arrays, config, self.mailbox.grid)
        arrivals = self.mailbox.exchange(messages, self.start.deadline)
        return strategy.aggregate_evaluate(number, [each.message for each in arrivals])

    def note_metrics(self, metrics: MetricRecord | None) -> None:
        """Keep the averaged metrics of the clients in this round."""
        self.metrics = metrics
        if metrics is not None:
            self.result.train_metrics_clientapp[self.round] = metrics

    def _given(self, arrays: ArrayRecord, config: ConfigRecord, messages: list[Message]) -> Given:
        rate = config.get(self.strategy.keys.learning_rate)
        return Given(
            self.layout.opened(arrays),  # as rounded to the model's own types
            float(rate) if isinstance(rate, (int, float)) else None,
            size_of(messages[0]) if messages else 0,
            self._steps,
        )

    @np.errstate(over="ignore", invalid="ignore")  # a model that diverges
    def _read(self, arrivals: Iterable[tuple[Arrival, Given]], waited: float) -> Reply:
        accepted, used, refused = self._reader.read(arrivals)
        clients = (each.client for each in accepted)
        self.replies = dict(zip(clients, used, strict=True))
        self._used += used
        self.note_metrics(self.strategy.average_train_metrics(self._used))
        self._log_capped()
        return as_reply(accepted, length=self.layout.size, refused=refused, waited=waited)

    def _log_capped(self) -> None:
        """Log sample counts that `most_samples` has reduced since the last call."""
        roster = self.node_map.roster
        for client, counted in roster.counts.items():
            reported = roster.count(client) or 0
            if counted < reported and self._capped.get(client) != reported:
                self._capped[client] = reported
                log.info(
                    "fedpace: client %d (%s) reports %d samples and counts as %.0f: most_samples "
                    "= %g", client, roster.names[client], reported, counted,
                    self.strategy.most_samples,
                )  # fmt: skip


class FleetCheckpoint(Checkpoint):
    """A checkpoint that also keeps the clients' names and sample counts, and a backend's memory."""

    def __init__(self, path: Path, about: dict[str, Any], **how: Any) -> None:
        super().__init__(path, about)
        known = {name: self.notes[name] for name in ("names", "samples") if name in self.notes}
        self.roster = Roster(**known, **how)
        self.live = {"names": lambda: self.roster.names, "samples": lambda: self.roster.samples}

    def keep(self, backend: GridBackend) -> None:
        """Keep a backend's memory, from the next round on."""
        self.live[SCREEN] = lambda: backend.memory

    @property
    def memory(self) -> dict[str, Any] | None:
        """The memory of the backend before a restart."""
        return self.notes.get(SCREEN)


def lock_checkpoint(checkpoint: str | Path | None) -> AbstractContextManager[None]:
    """Hold a checkpoint's file; a second server that wants it gets an InUseError."""
    if checkpoint is None:
        return nullcontext()
    path = Path(checkpoint)
    return hold_lock(path.with_name(f".{path.name}.lock"), f"checkpoint {path}")


def open_checkpoint(settings: Settings, layout: Layout) -> FleetCheckpoint | None:
    """Return the run's checkpoint, read if the file exists; None if no file is set."""
    if settings.checkpoint is None:
        return None
    arrays = [[*each] for each in zip(layout.names, layout.shapes, strict=True)]
    about = settings.about() | {"arrays": arrays}
    return FleetCheckpoint(Path(settings.checkpoint), about, **settings.roster_settings)
