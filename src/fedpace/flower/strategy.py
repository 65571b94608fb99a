"""Adaptive sampling as a Flower strategy."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedpace.backends.privacy import describe_epsilon
from fedpace.backends.remote.roster import Roster
from fedpace.checks import positive_count
from fedpace.errors import InputError, TooFewClientsError
from fedpace.flower.backend import (
    CentralEvaluation,
    FleetCheckpoint,
    GridBackend,
    StartArguments,
    lock_checkpoint,
    open_checkpoint,
)
from fedpace.flower.messages import DrawnGrid, Layout
from fedpace.flower.replies import drop_failures, mean_metrics
from fedpace.flower.settings import Settings
from fedpace.flower.wrapped import (
    Recorded,
    WrappedServer,
    configure_wrapped,
    refuse_privacy_wrapper,
    store_run,
)
from fedpace.seeds import Seeds
from fedpace.servers.build import AverageBuffers
from fedpace.training.asynchronous import AsynchronousTraining
from fedpace.training.history import History, Row
from fedpace.training.server import BaseServer
from fedpace.training.stopping import Stop
from fedpace.training.synchronous import SynchronousTraining
from fedpace.training.training import Outcome, Training

log = logging.getLogger("flwr")

# Seconds; Flower's own `timeout`.
TIMEOUT = 3600.0


@dataclass(eq=False)
class AdaptiveSampling(Settings):
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
        self._run: Training | None = None
        self._backend: GridBackend | None = None
        # Driven by Flower's own loop, or a user's, instead of `start`.
        self._driven: tuple[SynchronousTraining, GridBackend] | None = None

    @property
    def history(self) -> History:
        """One row per round; also during the run."""
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
        """Train for `num_rounds` rounds, or resume from the checkpoint up to there.

        The arguments are those of every Flower strategy. `evaluate_fn` is called before the first
        round and after each. A TooFewClientsError has what was trained until then as `result`.
        """
        self.summary()
        rounds = positive_count("num_rounds", num_rounds, "give the rounds to train")
        self._log_remarks(rounds, evaluated=evaluate_fn is not None)
        arguments = StartArguments(
            initial_arrays,
            self.patience(timeout),
            ConfigRecord() if train_config is None else train_config,
            ConfigRecord() if evaluate_config is None else evaluate_config,
            evaluate_fn,
        )
        self._driven = None
        stop = Stop(self.target_loss, self.target_accuracy, rounds, blind=True)
        with lock_checkpoint(self.checkpoint):
            checkpoint = open_checkpoint(self, Layout.of(initial_arrays))
            run: Training
            run, backend = self._begin(grid, arguments, stop, checkpoint)
            try:
                while not (run := self._handed_over(run, backend)).ended:
                    run.advance()
                run.finish()
            except TooFewClientsError as error:
                error.result = _finish(backend, run)
                raise
            finally:
                run.flush()
        self.outcome, result = run.outcome(), _finish(backend, run)
        log.info("fedpace: ended after round %d: %s", run.state.round, run.ended)
        if not run.state.answered.sum():
            raise TooFewClientsError(
                f"a client must answer, got no valid reply in {run.state.round} rounds, the "
                f"latest: {backend.latest_failure or 'no client answered in time'}; correct the "
                "ClientApp, or give a longer timeout",
                result,
            )
        if self.privacy is not None:
            log.info("fedpace: %s", describe_epsilon(self.privacy.noise, [run.rows]))
        store_run(self, self.outcome, rounds=rounds, clients=backend.weights.size)
        return result

    def recorded(self, strategy: Strategy) -> Recorded:
        """Return another strategy whose run is stored beside ours; call its `start` as usual.

        ::

            ours = AdaptiveSampling(k=10, target_loss=0.5, out="runs")
            ours.recorded(FedAvg(fraction_train=0.1)).start(grid, arrays, num_rounds=100)
        """
        return Recorded(strategy, self)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message for each distinct client drawn.

        `start` has drawn already, and passes a grid of the drawn nodes. Flower's own loop, or a
        user's, passes the federation's grid, and the clients are drawn here.
        """
        if isinstance(grid, DrawnGrid):
            return self._messages(MessageType.TRAIN, server_round, arrays, config, grid)
        if self._driven is None:
            refuse_privacy_wrapper()
            if self.asynchronous:
                remedy = "call start, or give mode='synchronous'"
                raise InputError(f"mode asynchronous has no rounds for another loop; {remedy}")
            arguments = StartArguments(arrays, self.patience(TIMEOUT), config)
            run, backend = self._begin(grid, arguments, Stop(blind=True), rounds=True)
            assert isinstance(run, SynchronousTraining)
            self._driven = run, backend
        run, backend = self._driven
        kept = backend.layout.vector(backend.layout.record(run.state.parameters))
        given = backend.layout.vector(arrays)
        # Our own parameters are not yet rounded to the arrays' types.
        task = run.draw(None if np.array_equal(kept, given) else given)
        drawn = backend.begin(task, config)
        messages = self._messages(MessageType.TRAIN, backend.round, arrays, config, drawn)
        backend.hand_out(messages, arrays, config)
        return messages

    def aggregate_train(
        self,
        server_round: int,  # noqa: ARG002 - Flower's signature
        replies: Iterable[Message],
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the next round's model, and the averaged metrics of the clients.

        `start` does not call this: its loop does the same. Without replies the model stays.
        """
        if self._driven is None:
            raise InputError("configure_train must come before aggregate_train, got none; call it")
        run, backend = self._driven
        run.complete(backend.take_in(replies))
        return backend.record(run.state.parameters), backend.metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message for each client that evaluates: a share of those connected now."""
        backend = self._backend
        if backend is None or self.evaluating_share == 0:
            return []
        backend.start.evaluate_config = config  # Flower's own loop passes it here first
        clients = np.flatnonzero(backend.nodes.idle())
        if not clients.size:
            return []
        count = max(1, round(self.evaluating_share * clients.size))
        rng = Seeds(self.seed).stream("evaluate", server_round)
        chosen = np.sort(rng.choice(clients, count, replace=False))
        config["server-round"] = server_round
        drawn = DrawnGrid(grid, backend.node_map.of(chosen.tolist()))
        return self._messages(MessageType.EVALUATE, server_round, arrays, config, drawn)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the clients' metrics, averaged by sample counts, each bounded by the others.

        A wrapped strategy averages them in its own way.
        """
        if self.strategy is not None:
            return self.strategy.aggregate_evaluate(server_round, drop_failures(replies))
        most = self.most_samples
        return mean_metrics(drop_failures(replies), self.keys.samples, most=most, judged=True)

    def _messages(
        self,
        kind: str,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        drawn: DrawnGrid,
    ) -> list[Message]:
        """Return one message to each drawn node."""
        if self.strategy is not None:
            return configure_wrapped(self.strategy, kind, server_round, arrays, config, drawn)
        content = RecordDict({self.keys.arrays: arrays, self.keys.config: config})
        return [Message(content, node, kind, group_id=str(server_round)) for node in drawn.nodes]

    def summary(self) -> None:
        """Log the scheme, K, the seed, the server and how the scheme learns."""
        scheme, server = self.scheme_name, self.server_name
        log.info("fedpace: %s, K = %d, seed %d, server %s", scheme, self.k, self.seed, server)
        if self.learning_rounds:
            log.info("fedpace: %s, solved again every %d rounds", self.learning, self.refresh)

    def initialize_parameters(self, *_: object, **__: object) -> NoReturn:
        """Refuse Flower's legacy `ServerAppComponents`, which call this first."""
        raise InputError(
            "AdaptiveSampling is a strategy of Flower's Message API, got legacy "
            "ServerAppComponents; write @app.main() and call strategy.start(grid, initial_arrays)"
        )

    def _log_remarks(self, rounds: int, *, evaluated: bool) -> None:
        if type(self).aggregate_train is not AdaptiveSampling.aggregate_train:
            log.warning("fedpace: start does not call aggregate_train: its loop aggregates")
        for doubt in self.doubts(evaluated=evaluated):
            log.warning("fedpace: %s", doubt)
        for remark in self.remarks(rounds):
            log.info("fedpace: %s", remark)

    def backend_on(
        self, grid: Grid, start: StartArguments, checkpoint: FleetCheckpoint | None = None
    ) -> GridBackend:
        """Return the federation as a backend, for any loop, once enough clients are connected."""
        roster = Roster(**self.roster_settings) if checkpoint is None else checkpoint.roster
        memory = None if checkpoint is None else checkpoint.memory
        self._backend = backend = GridBackend(grid, self, start, roster, memory)
        if checkpoint is not None:
            checkpoint.keep(backend)
        backend.nodes.wait_for_idle()
        return backend

    def _server_on(self, backend: GridBackend) -> BaseServer:
        """Return the server rule, around which a wrapped strategy aggregates."""
        own, layout = self.build_server(), backend.layout
        if not all(layout.are_trained):
            own = AverageBuffers(own, layout.trained)
        if self.strategy is None or self.averages_itself:
            return own
        return WrappedServer(own, self.strategy, backend)

    def _begin(
        self,
        grid: Grid,
        start: StartArguments,
        stop: Stop,
        checkpoint: FleetCheckpoint | None = None,
        *,
        rounds: bool = False,
    ) -> tuple[SynchronousTraining | AsynchronousTraining, GridBackend]:
        self.outcome = self._run = None
        backend = self.backend_on(grid, start, checkpoint)
        how: dict[str, Any] = {
            "schedule": self.schedule or (lambda _: math.nan),
            "stop": stop,
            "seeds": Seeds(self.seed),
            "server": self._server_on(backend),
            "evaluate_every": self.evaluate_every,
            "callbacks": [each for each in (checkpoint, _row_logger(stop)) if each is not None],
        }
        run: SynchronousTraining | AsynchronousTraining
        if self.asynchronous:
            how |= {"at_once": self.k, "buffer": self.buffer}
            run = AsynchronousTraining(backend, self.sampler(), **how)
        else:
            run = SynchronousTraining(backend, self.sampler(rounds=rounds), take=self.take, **how)
        self._run = run
        backend.follow(run)
        return run, backend

    def _handed_over(self, run: Training, backend: GridBackend) -> Training:
        """Return the training to continue with, of which the mode may be another."""
        after = run.hand_over()
        if after is not run:
            self._run = after
            backend.follow(after)
        return after


def _row_logger(stop: Stop) -> Callable[[Row], None] | None:
    """Return a callback that logs rounds, as Flower's own loop does; None if that one drives."""
    if stop.rounds is None:
        return None

    latest = [""]

    def log_row(row: Row) -> None:
        if row.why != latest[0]:
            log.info("fedpace: from round %d: %s", row.round, row.why)
            latest[0] = row.why
        answered, asked = row.clients.size, row.clients.size + row.missing.size
        text = "[ROUND %d/%d] fedpace: %d of %d clients answered in %.1f s"
        log.info(text, row.round, stop.rounds, answered, asked, row.round_seconds)

    return log_row


def _finish(backend: GridBackend, run: Training) -> Result:
    """Put the model as it is now into the result."""
    backend.result.arrays = backend.record(run.state.handed_out)
    return backend.result
