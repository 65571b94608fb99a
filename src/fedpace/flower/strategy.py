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
from fedpace.errors import InputError
from fedpace.estimation.adaptive import Live, Outcome, run_adaptive, run_known
from fedpace.flower.census import Census
from fedpace.flower.grid_backend import GridBackend
from fedpace.flower.job import CentralEvaluation, Job
from fedpace.flower.keeping import Kept, Until, checkpoint_of, stored
from fedpace.flower.records import mean_metrics
from fedpace.flower.replies import Reader, without_failures
from fedpace.flower.settings import Settings
from fedpace.flower.stepwise import Stepwise
from fedpace.rounds.history import History
from fedpace.sampling.schemes import SCHEMES, WITHOUT_PILOTS
from fedpace.seeds import Seeds

log = logging.getLogger("flwr")


@dataclass(eq=False)
class AdaptiveSampling(Settings, Strategy):
    """Draw clients so that the target is reached sooner in wall-clock time; stay unbiased.

    ::

        strategy = AdaptiveSampling(k=10, scheme="optimal-mean")
        result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=100)
        strategy.history.write_csv(Path("history.csv"))

    The parameters are those of `Settings`. After `start`, `outcome` holds the last design and what
    was known of the clients.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.outcome: Outcome | None = None
        self._backend: GridBackend | None = None
        self._kept = Kept(None)
        self._steps: Stepwise | None = None

    @property
    def history(self) -> History:
        """What happened, one row per round; also while it happens."""
        if self.outcome is not None:
            return self.outcome.history
        return History(self._kept.rows if self._steps is None else self._steps.rows)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: CentralEvaluation | None = None,
    ) -> Result:
        """Train for so many rounds, or go on from the checkpoint up to there.

        The arguments are those of every Flower strategy. `evaluate_fn` is called before the first
        round and after each.
        """
        self.summary()
        job = Job(
            initial_arrays,
            self.deadline or timeout,
            positive_count("num_rounds", num_rounds, "give the rounds to train"),
            ConfigRecord() if train_config is None else train_config,
            ConfigRecord() if evaluate_config is None else evaluate_config,
            evaluate_fn,
            self.evaluate_every if self.fraction_evaluate > 0 else 0,
            self.schedule is not None,
            self.ending_loss,
        )
        self._warn(job)
        self.outcome, self._steps = None, None
        backend = self._backend = self._opened(grid, job)
        self._kept = backend.kept = Kept(checkpoint_of(self, backend.layout))
        backend.present()
        self.outcome = outcome = self._run(backend)
        backend.result.arrays = backend.layout.record(outcome.state.parameters)
        log.info("fedpace: ended after round %d: %s", outcome.state.round, outcome.state.ended)
        if self.out is not None:
            path = stored(Path(self.out), self, job, len(backend.fleet), outcome)
            log.info("fedpace: stored %s", path)
        return backend.result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message for each distinct client drawn.

        Within `start` the loop has drawn already; Flower's own loop, or a user's, draws here.
        """
        config["server-round"] = server_round
        backend = self._backend
        if backend is not None and backend.draw is not None:
            clients = backend.draw.clients.tolist()
            return backend.messages(MessageType.TRAIN, clients, arrays, config)
        steps = self._stepwise(grid, arrays, config)
        clients = steps.draw(server_round, arrays).clients.tolist()
        return steps.sent(steps.backend.messages(MessageType.TRAIN, clients, arrays, config))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return w + Σ weights_i (w_i − w), and the clients' metrics averaged.

        `start` does not call this: its loop does the same. If nobody answered the model stays.
        """
        if self._steps is None:
            raise InputError("configure_train must come before aggregate_train, got none; call it")
        arrays = self._steps.complete(replies)
        return arrays, self._steps.backend.result.train_metrics_clientapp.get(server_round)

    def configure_evaluate(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        """Return one message for each client that evaluates: a share of those connected now."""
        backend = self._backend
        if backend is None or self.fraction_evaluate == 0:
            return []
        clients = np.flatnonzero(backend.census.idle(grid))
        if not clients.size:
            return []
        count = max(1, round(self.fraction_evaluate * clients.size))
        rng = Seeds(self.seed).stream("evaluate", server_round)
        chosen = np.sort(rng.choice(clients, count, replace=False))
        config["server-round"] = server_round
        return backend.messages(MessageType.EVALUATE, chosen.tolist(), arrays, config)

    def aggregate_evaluate(
        self,
        server_round: int,  # noqa: ARG002 - Flower's signature
        replies: Iterable[Message],
    ) -> MetricRecord | None:
        """Return the clients' metrics, averaged by their sample counts."""
        return mean_metrics(without_failures(replies), self.keys.samples)

    def summary(self) -> None:
        """Log what the strategy does."""
        log.info("fedpace: %s sampling, K = %d, seed %d", self.scheme, self.k, self.seed)
        log.info("fedpace: learning by %s, solved again every %d rounds", self.pilots, self.refresh)

    def _warn(self, job: Job) -> None:
        if type(self).aggregate_train is not AdaptiveSampling.aggregate_train:
            log.warning("fedpace: start does not call aggregate_train: its loop aggregates")
        for doubt in self.doubts(job.rounds, evaluated=job.evaluate_fn is not None):
            log.warning("fedpace: %s", doubt)

    def _opened(self, grid: Grid, job: Job) -> GridBackend:
        census = Census(
            self.min_available_nodes, self.wait, expected=self.expected_nodes, query=self.query
        )
        fleet_file = None
        if self.checkpoint is not None:
            fleet_file = Path(f"{self.checkpoint}.clients.json")
            if Path(self.checkpoint).exists():
                census.fleet.load(fleet_file)
        return GridBackend(
            grid,
            self,
            job,
            census=census,
            reader=Reader(self.keys.samples, self.local_steps),
            keys=self.keys,
            fleet_file=fleet_file,
            clock=self.clock,
        )

    def _run(self, backend: GridBackend) -> Outcome:
        job = backend.job
        # Flower's users expect their own evaluation after every round.
        every = 1 if job.evaluate_fn is not None else job.evaluate_every
        common: dict[str, Any] = {
            "k": self.k,
            "schedule": self.schedule or (lambda _: math.nan),
            "stop": Until(self.target_loss, self.target_accuracy, rounds=job.rounds),
            "seeds": Seeds(self.seed),
            "max_weight": self.max_weight,
            "live": Live(self._kept, every, self.refresh),
        }
        scheme = SCHEMES[self.scheme]
        if self.scheme in WITHOUT_PILOTS:
            return run_known(backend, scheme, None, **common)
        return run_adaptive(backend, scheme, pilots=self.pilots, c_over_s0=self.c_over_s0, **common)

    def _stepwise(self, grid: Grid, arrays: ArrayRecord, config: ConfigRecord) -> Stepwise:
        if self._steps is None:
            job = Job(arrays, math.inf, 0, config)
            self._backend = self._opened(grid, job)
            self._steps = Stepwise(self._backend, self)
        return self._steps
