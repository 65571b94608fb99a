"""Adaptive sampling as a Flower strategy."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedpace.checks import positive_count
from fedpace.errors import InputError, TooFewClientsError
from fedpace.flower.composing import Aggregating
from fedpace.flower.grid_backend import CentralEvaluation, GridBackend, Training
from fedpace.flower.keeping import FleetCheckpoint, alone_with, checkpoint_of, stored
from fedpace.flower.reading import without_failures
from fedpace.flower.recording import Recorded
from fedpace.flower.records import Layout, mean_metrics
from fedpace.flower.settings import Settings
from fedpace.remote.roster import Roster
from fedpace.rounds.buffers import Buffered
from fedpace.rounds.privacy import told
from fedpace.rounds.rows import History
from fedpace.rounds.run import Run
from fedpace.rounds.server import Server
from fedpace.rounds.stopping import Stop
from fedpace.rounds.stream import Stream
from fedpace.rounds.training import Outcome
from fedpace.seeds import Seeds

log = logging.getLogger("flwr")

# Seconds; Flower's own `timeout`.
TIMEOUT = 3600.0


@dataclass(eq=False)
class AdaptiveSampling(Settings, Strategy):
    """Draw clients so that the target is reached sooner in wall-clock time; stay unbiased.

    ::

        strategy = AdaptiveSampling(k=10)  # or AdaptiveSampling(FedAdam(eta=0.1), k=10)
        result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=100)
        strategy.history.write_csv("history.csv")

    The parameters are those of `Settings`. After `start`, `outcome` holds the last design and what
    was known of the clients.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.outcome: Outcome | None = None
        self._run: Run | Stream | None = None
        self._backend: GridBackend | None = None
        self._driven: tuple[Run, GridBackend] | None = None  # by Flower's own loop, or a user's

    @property
    def history(self) -> History:
        """What happened, one row per round; also while it happens."""
        return History([] if self._run is None else self._run.rows)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = TIMEOUT,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: CentralEvaluation | None = None,
    ) -> Result:
        """Train for `num_rounds` rounds, or go on from the checkpoint up to there.

        The arguments are those of every Flower strategy. `evaluate_fn` is called before the first
        round and after each.
        """
        self.summary()
        rounds = positive_count("num_rounds", num_rounds, "give the rounds to train")
        self._warn(rounds, evaluated=evaluate_fn is not None)
        training = Training(
            initial_arrays,
            self.deadline or timeout,
            ConfigRecord() if train_config is None else train_config,
            ConfigRecord() if evaluate_config is None else evaluate_config,
            evaluate_fn,
        )
        self._driven = None
        stop = Stop(self.target_loss, self.target_accuracy, rounds, blind=True)
        with alone_with(self.checkpoint):
            checkpoint = checkpoint_of(self, Layout.of(initial_arrays))
            run, backend = self._begun(grid, training, stop, checkpoint)
            try:
                while not run.ended:
                    for row in run.go_on():
                        log.info(
                            "[ROUND %d/%d] fedpace: %d of %d clients answered in %.1f s",
                            row.round, rounds, row.clients.size,
                            row.clients.size + row.missing.size, row.round_seconds,
                        )  # fmt: skip
            finally:
                run.safe()
        self.outcome = run.outcome()
        backend.result.arrays = backend.layout.record(run.state.parameters)
        log.info("fedpace: ended after round %d: %s", run.state.round, run.ended)
        if not run.state.answered.sum():
            raise TooFewClientsError(
                f"a client must answer, got no reply of use in {run.state.round} rounds, the "
                f"latest: {backend.latest_failure or 'nobody answered in time'}; mend the "
                "ClientApp, or give a longer timeout"
            )
        if self.privacy is not None:
            log.info("fedpace: %s", told(self.privacy.noise, [run.rows]))
        if self.out is not None:
            clients = backend.weights.size
            path = stored(Path(self.out), self, self.outcome, rounds=rounds, clients=clients)
            log.info("fedpace: stored %s", path)
        return backend.result

    def recorded(self, strategy: Strategy) -> Recorded:
        """Return another strategy, whose run is stored beside ours: `.start` it as ever.

        ::

            ours = AdaptiveSampling(k=10, target_loss=0.5, out="runs")
            ours.recorded(FedAvg(fraction_train=0.1)).start(grid, arrays, num_rounds=100)
        """
        return Recorded(strategy, self)

    def configure_train(
        self,
        server_round: int,  # noqa: ARG002 - a pilot counts its own rounds
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        """Return one message for each distinct client drawn.

        Within `start` the loop has drawn already; Flower's own loop, or a user's, draws here.
        """
        backend = self._backend
        if backend is not None and backend.task is not None:
            clients = backend.task.clients.tolist()
            return backend.messages(MessageType.TRAIN, clients, arrays, config)
        if self._driven is None:
            if self.asynchronous:
                remedy = "call start, or give mode='synchronous'"
                raise InputError(f"mode asynchronous has no rounds for another loop; {remedy}")
            training = Training(arrays, self.deadline or TIMEOUT, config)
            run, backend = self._begun(grid, training, Stop(blind=True))
            assert isinstance(run, Run)
            self._driven = run, backend
        run, backend = self._driven
        kept = backend.layout.vector(backend.layout.record(run.state.parameters))
        given = backend.layout.vector(arrays)
        # Ours is not yet rounded to the arrays' types.
        task = run.draw(None if np.array_equal(kept, given) else given)
        return backend.hand_out(task, arrays, config)

    def aggregate_train(
        self,
        server_round: int,  # noqa: ARG002 - Flower's signature
        replies: Iterable[Message],
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the model that the next round begins with, and the clients' metrics averaged.

        `start` does not call this: its loop does the same. If nobody answered the model stays.
        """
        if self._driven is None:
            raise InputError("configure_train must come before aggregate_train, got none; call it")
        run, backend = self._driven
        run.complete(backend.take_in(replies))
        return backend.layout.record(run.state.parameters), backend.metrics

    def configure_evaluate(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,  # noqa: ARG002 - Flower's signature
    ) -> Iterable[Message]:
        """Return one message for each client that evaluates: a share of those connected now."""
        backend = self._backend
        if backend is None or self.fraction_evaluate == 0:
            return []
        backend.training.evaluate_config = config  # in Flower's own loop it is news
        clients = np.flatnonzero(backend.census.idle())
        if not clients.size:
            return []
        count = max(1, round(self.fraction_evaluate * clients.size))
        rng = Seeds(self.seed).stream("evaluate", server_round)
        chosen = np.sort(rng.choice(clients, count, replace=False))
        config["server-round"] = server_round
        return backend.messages(MessageType.EVALUATE, chosen.tolist(), arrays, config)

    def aggregate_evaluate(
        self,
        server_round: int,
        replies: Iterable[Message],
    ) -> MetricRecord | None:
        """Return the clients' metrics, averaged by their sample counts; one alone decides none.

        Another strategy averages them in its own way.
        """
        if self.strategy is not None:
            return self.strategy.aggregate_evaluate(server_round, without_failures(replies))
        return mean_metrics(without_failures(replies), self.keys.samples, judged=True)

    def summary(self) -> None:
        """Log what the strategy does."""
        scheme, server = self.scheme_name, self.server_name
        log.info("fedpace: %s, K = %d, seed %d, server %s", scheme, self.k, self.seed, server)
        if self.learning_rounds:
            log.info("fedpace: %s, solved again every %d rounds", self.learning, self.refresh)

    def _warn(self, rounds: int, *, evaluated: bool) -> None:
        if type(self).aggregate_train is not AdaptiveSampling.aggregate_train:
            log.warning("fedpace: start does not call aggregate_train: its loop aggregates")
        for doubt in self.doubts(evaluated=evaluated):
            log.warning("fedpace: %s", doubt)
        for remark in self.remarks(rounds):
            log.info("fedpace: %s", remark)

    def backend_on(
        self, grid: Grid, training: Training, checkpoint: FleetCheckpoint | None = None
    ) -> GridBackend:
        """Return the federation as a backend, for any loop, once enough clients are there."""
        roster = Roster(given=self.given) if checkpoint is None else checkpoint.roster
        memory = None if checkpoint is None else checkpoint.memory
        self._backend = backend = GridBackend(grid, self, training, roster, memory)
        if checkpoint is not None:
            checkpoint.keep(backend)
        backend.census.present()
        return backend

    def _server_on(self, backend: GridBackend) -> Server:
        """Return what makes the next model, which another strategy may have a say in."""
        own = Buffered(self.made_server(), backend.layout.trained)
        return own if self.strategy is None else Aggregating(own, self.strategy, backend)

    def _begun(
        self,
        grid: Grid,
        training: Training,
        stop: Stop,
        checkpoint: FleetCheckpoint | None = None,
    ) -> tuple[Run | Stream, GridBackend]:
        self.outcome = self._run = None
        backend = self.backend_on(grid, training, checkpoint)
        how: dict[str, Any] = {
            "schedule": self.schedule or (lambda _: math.nan),
            "stop": stop,
            "seeds": Seeds(self.seed),
            "server": self._server_on(backend),
            "evaluate_every": self.evaluate_every,
            "journal": checkpoint,
        }
        sampler = self.sampler()
        if self.asynchronous:
            self._run = Stream(backend, sampler, at_once=self.k, buffer=self.buffer, **how)
        else:
            self._run = Run(backend, sampler, **how)
        return self._run, backend
