"""Store finished runs, and record the rounds of any other Flower strategy beside ours."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedpace.backends.remote.roster import Roster
from fedpace.errors import InputError
from fedpace.flower.backend import StartUp
from fedpace.flower.messages import Arrival, Mailbox, metrics_of
from fedpace.flower.nodes import NodeMap
from fedpace.flower.replies import metric_named
from fedpace.flower.settings import LEARNED, Settings
from fedpace.samplers.build import Pilots
from fedpace.sampling.design import Everyone
from fedpace.training.checkpoint import State
from fedpace.training.history import History, Row, sustained_loss
from fedpace.training.sampler import SamplerContext
from fedpace.training.stopping import Stop
from fedpace.training.training import Outcome

log = logging.getLogger("flwr")


def store_run(
    settings: Settings, outcome: Outcome, *, rounds: int, clients: int, scheme: str | None = None
) -> None:
    """Add a finished run to the directory `settings.out`, for `fedpace report`.

    `scheme` is the name of another strategy's run.
    """
    if settings.out is None:
        return
    # Imported here, so that Pydantic is not needed otherwise.
    from fedpace.studies.store import Store
    from fedpace.studies.study import Study

    pilots = settings.learning
    warm_up = None if isinstance(pilots, Pilots) else pilots.rounds
    sections = {
        "name": "flower",
        "title": f"Flower federation of {clients} clients",
        "data": {"kind": "own", "clients": clients},
        "training": {
            "k": settings.k, "server": settings.server_name, "mode": settings.mode,
            "buffer": settings.buffer, "take": settings.take,
        },
        "sampling": {
            "max_weight": settings.cap, "c_over_s0": settings.c_over_s0,
            "refresh": settings.refresh, "warm_up": warm_up,
        },
        "pilots": asdict(pilots) if warm_up is None else None,
        "stop": {
            "loss": settings.target_loss, "accuracy": settings.target_accuracy, "rounds": rounds,
        },
        "privacy": None if settings.privacy is None else asdict(settings.privacy),
        "network": {
            "how": "flower",
            "deadline": None if settings.deadline == LEARNED else settings.deadline,
            "evaluate_every": settings.evaluate_every if settings.clients_evaluate else 0,
        },
    }  # fmt: skip
    study = Study.model_validate(sections)
    name = scheme or settings.scheme_name
    path = Store(Path(settings.out)).save(study, name, settings.seed, outcome)
    log.info("fedpace: stored %s", path)


class Recorded:
    """Run any Flower strategy as it is, and store its rounds in `settings.out`.

    Its `start` gets a grid that times the replies, and polls for them more often than every three
    seconds. Targets, seed and all that distinguishes setups in a report are those of `settings`.
    """

    def __init__(self, strategy: Strategy, settings: Settings) -> None:
        if not callable(getattr(strategy, "start", None)):
            problem = f"strategy must be a Flower strategy, got {strategy!r:.60}"
            raise InputError(f"{problem}; give FedAvg()")
        self._strategy, self._settings = strategy, settings
        self._rows: list[Row] = []

    @property
    def history(self) -> History:
        """One row per round."""
        return History(self._rows)

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, **how: Any
    ) -> Result:
        """Run the strategy's own `start`, and store its rounds; the arguments are Flower's."""
        evaluate_fn = how.pop("evaluate_fn", None)
        recording = _RecordingGrid(grid, self._settings)
        self._rows = recording.rows

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            found: MetricRecord | None = evaluate_fn(server_round, arrays)
            recording.note_evaluation(server_round, found)
            return found

        aggregate = self._strategy.aggregate_evaluate

        def aggregate_noted(server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
            found = aggregate(server_round, replies)
            recording.note_evaluation(server_round, found)
            return found

        vars(self._strategy)["aggregate_evaluate"] = aggregate_noted
        try:
            result = self._strategy.start(
                cast(Grid, recording), initial_arrays, num_rounds,
                evaluate_fn=evaluate if evaluate_fn else None, **how,
            )  # fmt: skip
        finally:
            del vars(self._strategy)["aggregate_evaluate"]
        recording.finish()
        if clients := len(recording.nodes.roster):
            name = type(self._strategy).__name__
            store_run(
                self._settings, recording.outcome(), rounds=num_rounds, clients=clients, scheme=name
            )
        return result


class _RecordingGrid:
    """A grid that records which nodes were asked to train, and when each answered."""

    def __init__(self, grid: Grid, settings: Settings) -> None:
        self._grid, self._settings = grid, settings
        self._mailbox = Mailbox(grid, settings.clock)
        self.nodes = NodeMap(Roster(most=settings.most_samples))
        self._stop = Stop(settings.target_loss, settings.target_accuracy, blind=True)
        self.rows = [Row("train", 0, 0.0, math.nan, math.nan, 0.0, 0.0)]
        self._start_up = StartUp(counted=settings.count_start)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send, wait, and record the round if it was for training."""
        sent, deadline = list(messages), math.inf if timeout is None else timeout
        began = self._settings.clock.now()
        arrivals = self._mailbox.exchange(sent, deadline)
        waited = self._settings.clock.now() - began
        if any(each.metadata.message_type == MessageType.TRAIN for each in sent):
            self._note_round(sent, arrivals, waited)
        return [each.message for each in arrivals]

    def _note_round(self, sent: list[Message], arrivals: list[Arrival], waited: float) -> None:
        for node in sorted(self._grid.get_node_ids()):
            self.nodes.admit(node)
        asked = np.array([self.nodes.client(each.metadata.dst_node_id) for each in sent])
        fine = {self.nodes.client(a.node): a for a in arrivals if not a.message.has_error()}
        clients = np.array(sorted(fine), dtype=np.int64)
        times, waited = self._start_up.correct(
            {client: each.seconds for client, each in fine.items()}, waited, at_work=asked.tolist()
        )
        samples = np.ones(len(fine))
        for i, client in enumerate(clients.tolist()):
            value = metrics_of(fine[client].message).get(self._settings.keys.samples)
            if isinstance(value, (int, float)) and value > 0:
                samples[i] = value
                self.nodes.roster.learn(client, int(value))
        before = self.rows[-1]
        self.rows.append(
            Row(
                "train", before.round + 1, before.seconds + waited, math.nan, math.nan, math.nan,
                waited, clients, samples / max(samples.sum(), 1),
                np.array([times[client] for client in clients.tolist()]),
                np.full(len(fine), np.nan), missing=np.setdiff1d(asked, clients),
            )
        )  # fmt: skip

    def note_evaluation(self, server_round: int, found: MetricRecord | None) -> None:
        """Record the evaluation after a round; the server's own comes last, and counts."""
        if found is not None and server_round < len(self.rows):
            row = self.rows[server_round]
            loss, accuracy = (metric_named([found], word) for word in ("loss", "acc"))
            self.rows[server_round] = row._replace(
                loss=row.loss if math.isnan(loss) else loss,
                accuracy=row.accuracy if math.isnan(accuracy) else accuracy,
            )

    def finish(self) -> None:
        """Cut the rows where AdaptiveSampling would have ended, and note the reason."""
        for index, row in enumerate(self.rows):
            row = row._replace(sustained_loss=sustained_loss(self.rows[:index], row))
            self.rows[index] = row
            if ended := self._stop.reason(row):
                self.rows[index:] = [row._replace(ended=ended)]
                return
        self.rows[-1] = self.rows[-1]._replace(ended="rounds")

    def outcome(self) -> Outcome:
        """Return the rounds as those of a run."""
        last, weights = self.rows[-1], self.nodes.roster.weights
        state = State(np.empty(0), last.round, last.seconds, ended=last.ended, phase="train")
        known = SamplerContext(weights, None)
        return Outcome(History(self.rows), state, Everyone(weights), known.blank_profile)
