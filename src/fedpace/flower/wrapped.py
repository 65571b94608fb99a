"""Other Flower strategies: aggregate with one what fedpace draws, or record its own rounds."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from fedpace.backends.remote.roster import Roster
from fedpace.backends.remote.screening import BadReplyError
from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.flower.backend import GridBackend, StartUp
from fedpace.flower.messages import Arrival, DrawnGrid, Mailbox, metrics_of
from fedpace.flower.nodes import NodeMap
from fedpace.flower.replies import metric_named
from fedpace.flower.settings import LEARNED, Settings
from fedpace.samplers.build import Pilots
from fedpace.sampling.design import Everyone
from fedpace.training.checkpoint import State
from fedpace.training.history import History, Row, SustainedLoss
from fedpace.training.sampler import SamplerContext
from fedpace.training.server import BaseServer
from fedpace.training.stopping import Stop
from fedpace.training.training import Outcome
from fedpace.training.updates import RoundUpdates

# What the class names of Flower's wrappers for differential privacy begin with.
PRIVACY_WRAPPER = "DifferentialPrivacy"


def refuse_privacy_wrapper() -> None:
    """Refuse to be called by one of Flower's wrappers for differential privacy.

    Their noise is calibrated for a mean in which each of n clients weighs 1/n. Here a client weighs
    p_i / (K q_i), up to 1, and the server's memory uses an update in many rounds: the noise would
    be too small for the ε that the wrapper promises. A wrapper passes nothing that identifies it,
    so that the calling frames are searched.
    """
    frame = sys._getframe(1)
    while frame is not None:
        name = type(frame.f_locals.get("self")).__name__
        if name.startswith(PRIVACY_WRAPPER):
            raise InputError(
                f"{name} must not wrap AdaptiveSampling: its noise is for equal weights, which a "
                "weighted draw exceeds; add fedpace.flower.privacy_mod to the ClientApp and give "
                f"AdaptiveSampling(privacy=…), or write {name}(FedAvg(), …)"
            )
        frame = frame.f_back  # type: ignore[assignment]


def configure_wrapped(
    strategy: FedAvg,
    kind: str,
    server_round: int,
    arrays: ArrayRecord,
    config: ConfigRecord,
    grid: DrawnGrid,
) -> list[Message]:
    """Let the strategy configure its messages, to "train" or "evaluate", for the drawn nodes."""
    if not grid.nodes:
        return []
    only = cast(Grid, grid)
    with _sampling_all(strategy):
        if kind == "evaluate":
            return list(strategy.configure_evaluate(server_round, arrays, config, only))
        if "current_arrays" in vars(strategy):  # FedAvgM keeps its own, which a resume outdates
            vars(strategy)["current_arrays"] = None
        return list(strategy.configure_train(server_round, arrays, config, only))


@contextmanager
def _sampling_all(strategy: FedAvg) -> Iterator[None]:
    """Let a strategy select all nodes that it sees: fedpace has drawn them."""
    everything: dict[str, Any] = {
        "fraction_train": 1.0, "min_train_nodes": 1, "fraction_evaluate": 1.0,
        "min_evaluate_nodes": 1, "min_available_nodes": 1,
    }  # fmt: skip
    before = {name: getattr(strategy, name) for name in everything}
    vars(strategy).update(everything)
    try:
        yield
    finally:
        vars(strategy).update(before)


@dataclass(eq=False)
class WrappedServer(BaseServer):
    """Let another strategy make the next model.

    It receives one reply per client that answered, weighted so that their mean, as FedAvg computes
    it, is exactly the aggregate w' of `inner`: client i counts with its weight of the draw, and its
    arrays are w' + (w_i − w) less the weighted mean of these. FedAvg then returns w', and FedAdam
    takes w' − w as its gradient. Buffers stay those of `inner`.

    Attributes of the strategy that are None at the start, such as FedAdam's moments, are part of
    the server's state: a checkpoint keeps them.
    """

    inner: BaseServer
    strategy: FedAvg
    backend: GridBackend

    def __post_init__(self) -> None:
        unset = (name for name, value in vars(self.strategy).items() if value is None)
        self._remembered = [name for name in unset if name != "current_arrays"]

    def weigh(self, updates: RoundUpdates) -> FloatArray:
        """Return the inner server's weights."""
        return self.inner.weigh(updates)

    def residual_norms(self, state: Any, updates: RoundUpdates) -> FloatArray:
        """Return the lengths of the residuals of the inner server."""
        return self.inner.residual_norms(state["inner"], updates)

    def init(self, parameters: FloatArray) -> Any:
        """Return the states of the inner server and of the strategy."""
        return {"inner": self.inner.init(parameters), "strategy": self._strategy_state()}

    def step(self, state: Any, updates: RoundUpdates) -> tuple[FloatArray, Any]:
        """Return the strategy's model, or the old one if the strategy returns none."""
        vars(self.strategy).update(state["strategy"])
        after, inner = self.inner.step(state["inner"], updates)
        draw, reply = updates.draw, updates.reply
        layout, backend = self.backend.layout, self.backend
        shares = draw.weights / draw.weights.sum()
        vectors = after + reply.updates - shares @ reply.updates
        replies = [
            self._reweight(backend.replies[client], layout.record(vector), float(weight))
            for client, vector, weight in zip(
                reply.clients.tolist(), vectors, draw.weights, strict=True
            )
        ]
        arrays, metrics = self.strategy.aggregate_train(backend.round, replies)
        backend.note_metrics(metrics)
        state = {"inner": inner, "strategy": self._strategy_state()}
        if arrays is None:
            return updates.parameters, state
        try:
            made = layout.vector(arrays)
        except BadReplyError as error:
            name = type(self.strategy).__name__
            problem = f"aggregate_train of {name} must return the model's arrays: {error}"
            raise InputError(f"{problem}; keep their names and shapes") from None
        return np.where(layout.trained, made, after), state

    def _strategy_state(self) -> dict[str, Any]:
        held = vars(self.strategy)
        return {name: held[name] for name in self._remembered if _is_plain(held.get(name))}

    def _reweight(self, message: Message, arrays: ArrayRecord, weight: float) -> Message:
        """Return a client's reply with other arrays, and its weight instead of its samples."""
        strategy = self.strategy
        metrics = MetricRecord({**metrics_of(message), strategy.weighted_by_key: weight})
        message.content = RecordDict({strategy.arrayrecord_key: arrays, "metrics": metrics})
        return message


def _is_plain(value: Any) -> bool:
    """Whether a value consists of numbers, text, arrays, lists and dicts."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, np.ndarray, np.generic))


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
        sustained = SustainedLoss()
        for index, row in enumerate(self.rows):
            row = row._replace(sustained_loss=sustained.add(row))
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
