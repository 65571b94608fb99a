"""Record the rounds of any Flower strategy, as a row beside ours in `fedpace report`."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedpace.errors import InputError
from fedpace.flower.exchange import Mail
from fedpace.flower.keeping import stored
from fedpace.flower.nodes import Nodes
from fedpace.flower.records import metric_named, metrics_of
from fedpace.flower.settings import Settings
from fedpace.remote.roster import Roster
from fedpace.rounds.rows import History, Row, sustained_loss
from fedpace.rounds.sampler import Known
from fedpace.rounds.state import State
from fedpace.rounds.stopping import Stop
from fedpace.rounds.training import Outcome
from fedpace.sampling.design import Everyone

log = logging.getLogger("flwr")


class Recorded:
    """Run another strategy as it is, and store its rounds where `settings.out` says.

    Parameters
    ----------
    strategy : Strategy
        Any of Flower's, or your own. Its `start` is called, with a grid that notes when replies
        arrive, and looks for them more often than every three seconds.
    settings : Settings
        Those of the AdaptiveSampling that it is to be compared with: its targets, its `out`, its
        seed, and what else tells setups apart in a report.
    """

    def __init__(self, strategy: Strategy, settings: Settings) -> None:
        if not callable(getattr(strategy, "start", None)):
            problem = f"strategy must be a Flower strategy, got {strategy!r:.60}"
            raise InputError(f"{problem}; give FedAvg()")
        self._strategy, self._settings = strategy, settings
        self._rows: list[Row] = []

    @property
    def history(self) -> History:
        """What happened, one row per round."""
        return History(self._rows)

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, **how: Any
    ) -> Result:
        """Run the strategy's own `start`, and store what happened; the arguments are Flower's."""
        evaluate_fn = how.pop("evaluate_fn", None)
        watched = _Watched(grid, self._settings)
        self._rows = watched.rows

        def evaluated(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            found: MetricRecord | None = evaluate_fn(server_round, arrays)
            watched.note(server_round, found)
            return found

        aggregate = self._strategy.aggregate_evaluate

        def aggregated(server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
            found = aggregate(server_round, replies)
            watched.note(server_round, found)
            return found

        vars(self._strategy)["aggregate_evaluate"] = aggregated
        try:
            result = self._strategy.start(
                cast(Grid, watched), initial_arrays, num_rounds,
                evaluate_fn=evaluated if evaluate_fn else None, **how,
            )  # fmt: skip
        finally:
            del vars(self._strategy)["aggregate_evaluate"]
        watched.finish()
        if self._settings.out is not None and len(watched.nodes.roster):
            path = stored(
                Path(self._settings.out), self._settings, watched.outcome(), rounds=num_rounds,
                clients=len(watched.nodes.roster), scheme=type(self._strategy).__name__,
            )  # fmt: skip
            log.info("fedpace: stored %s", path)
        return result


class _Watched:
    """A grid that notes who was asked to train, and when each answered."""

    def __init__(self, grid: Grid, settings: Settings) -> None:
        self._grid, self._settings = grid, settings
        self._mail, self.nodes = Mail(grid, settings.clock), Nodes(Roster())
        self._stop = Stop(settings.target_loss, settings.target_accuracy, blind=True)
        self.rows = [Row("train", 0, 0.0, math.nan, math.nan, 0.0, 0.0)]
        self._started = settings.count_start

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send, wait, and note the round if it was for training."""
        sent, deadline = list(messages), math.inf if timeout is None else timeout
        began = self._settings.clock.now()
        arrivals = self._mail.exchange(sent, deadline)
        waited = self._settings.clock.now() - began
        if any(each.metadata.message_type == MessageType.TRAIN for each in sent):
            self._note_round(sent, arrivals, waited)
        return [each.message for each in arrivals]

    def _note_round(self, sent: list[Message], arrivals: list[Any], waited: float) -> None:
        for node in sorted(self._grid.get_node_ids()):
            self.nodes.admit(node)
        asked = np.array([self.nodes.client(each.metadata.dst_node_id) for each in sent])
        fine = [each for each in arrivals if not each.message.has_error()]
        fine.sort(key=lambda each: self.nodes.client(each.node))
        clients = np.array([self.nodes.client(each.node) for each in fine], dtype=np.int64)
        seconds = np.array([each.seconds for each in fine])
        if fine and not self._started:  # as in ours: see GridBackend
            self._started = True
            start_up = 0.9 * seconds.min()
            seconds, waited = seconds - start_up, waited - start_up
        samples = np.ones(len(fine))
        for i, each in enumerate(fine):
            value = metrics_of(each.message).get(self._settings.keys.samples)
            if isinstance(value, (int, float)) and value > 0:
                samples[i] = value
                self.nodes.roster.learn(int(clients[i]), int(value))
        before = self.rows[-1]
        self.rows.append(
            Row(
                "train", before.round + 1, before.seconds + waited, math.nan, math.nan, math.nan,
                waited, clients, samples / max(samples.sum(), 1), seconds,
                np.full(len(fine), np.nan), missing=np.setdiff1d(asked, clients),
            )
        )  # fmt: skip

    def note(self, server_round: int, found: MetricRecord | None) -> None:
        """Keep what an evaluation after a round said; the server's own comes last, and counts."""
        if found is not None and server_round < len(self.rows):
            row = self.rows[server_round]
            loss, accuracy = (metric_named([found], word) for word in ("loss", "acc"))
            row = row._replace(
                loss=row.loss if math.isnan(loss) else loss,
                accuracy=row.accuracy if math.isnan(accuracy) else accuracy,
            )
            self.rows[server_round] = row

    def finish(self) -> None:
        """Cut the rows where ours would have ended, and say why."""
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
        known = Known(weights, None)
        return Outcome(History(self.rows), state, Everyone(weights), known.blank_profile)
