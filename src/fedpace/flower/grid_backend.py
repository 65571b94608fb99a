"""Our backend over Flower's grid: its nodes are the clients."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from fedpace.checks import FloatArray
from fedpace.flower.buffers import weights_in, with_averaged_buffers
from fedpace.flower.census import Census
from fedpace.flower.exchange import WALL, Arrival, Clock, exchanged, refuse_strangers
from fedpace.flower.fleet import Fleet
from fedpace.flower.job import Job
from fedpace.flower.keeping import Kept
from fedpace.flower.records import Layout, mean_metrics, metric_named, size_of
from fedpace.flower.replies import Reader, Reading, as_reply
from fedpace.flower.settings import Keys
from fedpace.rounds.backend import Evaluation, Reply
from fedpace.rounds.state import State
from fedpace.sampling.design import Draw

log = logging.getLogger("flwr")


class GridBackend:
    """Train on the nodes of a Flower federation.

    Parameters
    ----------
    grid : Grid
        Flower's.
    rules : Strategy
        Says what is sent in a round and in an evaluation.
    job : Job
        What to train.
    census : Census
        Who is there.
    reader : Reader
        Reads and screens replies.
    keys : Keys
        What things are called in messages.
    fleet_file : Path, optional
        Where numbers and sample counts of clients are kept.
    clock : Clock
        The time.
    """

    usual_times = None  # measured

    def __init__(
        self,
        grid: Grid,
        rules: Strategy,
        job: Job,
        *,
        census: Census,
        reader: Reader,
        keys: Keys,
        fleet_file: Path | None = None,
        clock: Clock = WALL,
    ) -> None:
        self.grid, self.rules, self.job, self.census = grid, rules, job, census
        self.reader, self.keys, self.fleet_file, self.clock = reader, keys, fleet_file, clock
        self.layout = Layout.of(job.initial)
        self.sent = self.layout.vector(job.initial)
        self.round = 0
        self.draw: Draw | None = None
        self.estimate = math.nan  # of the loss, from what the last round's clients reported
        self.kept = Kept(None)  # what the loop has told of itself
        self.result = Result(arrays=job.initial)

    @property
    def fleet(self) -> Fleet:
        """The clients, numbered."""
        return self.census.fleet

    @property
    def weights(self) -> FloatArray:
        """p_i, as far as sample counts are known."""
        return self.fleet.weights

    def initial(self) -> FloatArray:
        """Return the arrays that the run starts from."""
        return self.layout.vector(self.job.initial)

    def present(self) -> NDArray[np.bool_]:
        """Return who is there and idle; new nodes are admitted."""
        seen = len(self.fleet)
        present = self.census.present(self.grid, self.clock)
        if len(self.fleet) > seen:
            self._keep_fleet()
        return present

    def run(
        self, parameters: FloatArray, draw: Draw, *, round_index: int, learning_rate: float
    ) -> Reply:
        """Send the model to the drawn clients and wait for them, at most to the deadline."""
        self.round, self.draw = round_index + 1, draw
        if self.job.scheduled:
            self.job.train_config[self.keys.learning_rate] = learning_rate
        arrays = self.layout.record(parameters)
        self.sent = self.layout.vector(arrays)  # as rounded to the model's own types
        messages = list(
            self.rules.configure_train(self.round, arrays, self.job.train_config, self.grid)
        )
        self.draw = None
        refuse_strangers(messages, self.fleet.nodes(draw.clients.tolist()))
        arrivals, waited = self._exchanged(messages)
        down = size_of(messages[0]) if messages else 0
        reply = self.accepted(arrivals, draw, self.kept.state, bytes_down=down, waited=waited)
        log.info(
            "[ROUND %d/%d] fedpace: %d of %d clients answered in %.1f s",
            self.round, self.job.rounds, reply.clients.size, draw.clients.size, waited,
        )  # fmt: skip
        return reply

    def evaluate(self, parameters: FloatArray) -> Evaluation:
        """Return loss and accuracy: the server's own evaluation, else the clients'.

        Where neither is due the loss is that estimated from the replies, if it ends nothing, or
        else NaN. An estimate that would end the run is checked by the clients at once.
        """
        if not np.isfinite(parameters).all():
            return Evaluation(math.inf, math.nan)
        arrays = self.layout.record(parameters)
        job, promise = self.job, self.job.promises(self.estimate)
        check = promise and job.evaluate_fn is None and job.evaluate_every > 0
        clients = self._asked_clients(arrays) if check or job.evaluates_after(self.round) else None
        central = job.evaluate_fn and job.evaluate_fn(self.round, arrays)
        if central is not None:
            self.result.evaluate_metrics_serverapp[self.round] = central
            log.info("fedpace: evaluation on the server: %s", dict(central))
        losses = [metric_named(each, "loss") for each in (central, clients)]
        accuracies = [metric_named(each, "acc") for each in (central, clients)]
        estimate = math.nan if promise else self.estimate
        return Evaluation(_first_number([*losses, estimate]), _first_number(accuracies))

    def messages(
        self, kind: str, clients: Iterable[int], arrays: ArrayRecord, config: ConfigRecord
    ) -> list[Message]:
        """Return one message to the node of each client."""
        content = RecordDict({self.keys.arrays: arrays, self.keys.config: config})
        return [
            Message(content, node, kind, group_id=str(self.round))
            for node in self.fleet.nodes(clients)
        ]

    def accepted(
        self,
        arrivals: Iterable[Arrival],
        draw: Draw,
        state: State,
        *,
        bytes_down: int,
        waited: float,
    ) -> Reply:
        """Return what the replies say, without those that cannot be used."""
        rate = self.job.train_config.get(self.keys.learning_rate)
        readings, used, refused = self.reader.read_all(
            arrivals,
            self.fleet,
            layout=self.layout,
            sent=self.sent,
            learning_rate=float(rate) if isinstance(rate, (int, float)) else None,
        )
        self._learn(readings)
        metrics = mean_metrics(used, self.keys.samples)
        if metrics is not None:
            self.result.train_metrics_clientapp[self.round] = metrics
        reply = as_reply(readings, refused=refused, bytes_down=bytes_down, waited=waited)
        weights = weights_in(state, draw, reply, n=len(self.fleet))
        self.estimate = float(weights @ reply.losses) if reply.losses.size else math.nan
        return with_averaged_buffers(reply, weights, self.layout.trained)

    def _learn(self, readings: Iterable[Reading]) -> None:
        news = [
            self.fleet.learn(each.client, each.samples)
            for each in readings
            if each.samples is not None
        ]
        if any(news):
            self._keep_fleet()

    def _keep_fleet(self) -> None:
        if self.fleet_file is not None:
            self.fleet.save(self.fleet_file)

    def _exchanged(self, messages: Iterable[Message]) -> tuple[list[Arrival], float]:
        deadline = self.job.deadline
        arrivals, waited, late = exchanged(self.grid, messages, deadline=deadline, clock=self.clock)
        self.census.busy(late, deadline, self.clock)
        return arrivals, waited

    def _asked_clients(self, arrays: ArrayRecord) -> MetricRecord | None:
        config = self.job.evaluate_config
        messages = self.rules.configure_evaluate(self.round, arrays, config, self.grid)
        arrivals, _ = self._exchanged(messages)
        replies = [arrival.message for arrival in arrivals]
        metrics = self.rules.aggregate_evaluate(self.round, replies)
        if metrics is not None:
            self.result.evaluate_metrics_clientapp[self.round] = metrics
            log.info("fedpace: evaluation on clients: %s", dict(metrics))
        return metrics


def _first_number(values: Iterable[float]) -> float:
    return next((value for value in values if not math.isnan(value)), math.nan)
