"""Another Flower strategy aggregates what fedpace draws and weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.flower.records import metrics_of
from fedpace.remote.screening import BadReplyError
from fedpace.rounds.backend import Reply
from fedpace.rounds.memory import residuals
from fedpace.rounds.seen import Seen
from fedpace.rounds.server import Server
from fedpace.sampling.design import Draw

if TYPE_CHECKING:
    from fedpace.flower.grid_backend import GridBackend

# Strategies that take no weights, or choose among the replies, and why they cannot be unbiased.
UNWEIGHTED = "takes no weights, so that whoever is drawn more often counts for more"
CHOOSING = "chooses among the replies, so that weights of a draw lose their meaning"
REFUSED = {
    "FedMedian": UNWEIGHTED,
    "FedTrimmedAvg": UNWEIGHTED,
    "Krum": CHOOSING,
    "MultiKrum": CHOOSING,
    "Bulyan": CHOOSING,
    "QFedAvg": "weights replies by their losses",
    "FedXgbBagging": "joins trees instead of averaging",
    "FedXgbCyclic": "trains one client after the other",
}


def check_composable(strategy: object) -> None:
    """Refuse what is no strategy, or one that cannot aggregate a weighted draw without bias."""
    if not isinstance(strategy, FedAvg):
        raise InputError(
            f"strategy must be FedAvg, FedAdam, FedYogi, FedProx, FedAvgM or a subclass of these, "
            f"got {strategy!r:.60}; write AdaptiveSampling(k=10), or give one"
        )
    for kind in type(strategy).__mro__:
        if reason := REFUSED.get(kind.__name__):
            raise InputError(
                f"strategy must aggregate by weights, got {type(strategy).__name__}, which "
                f"{reason}; give FedAvg or FedAdam, or use {kind.__name__} without fedpace"
            )


def messages_of(
    strategy: FedAvg,
    server_round: int,
    arrays: ArrayRecord,
    config: ConfigRecord,
    grid: Grid,
    nodes: Sequence[int],
) -> list[Message]:
    """Let the strategy configure its messages to the nodes that were drawn, and to no other."""
    if not nodes:
        return []
    only = cast(Grid, _Only(grid, nodes))
    with _asking_all(strategy):
        return list(strategy.configure_train(server_round, arrays, config, only))


@dataclass(frozen=True, eq=False)
class Aggregating:
    """Let another strategy make the next model.

    It gets one reply per client that answered, weighted so that their mean, as FedAvg takes it, is
    exactly the aggregate w' that `inner` would have made: client i counts with its weight of the
    draw, and its arrays are w' + (w_i − w) less the weighted mean of these. FedAvg then returns w',
    and FedAdam takes w' − w as its gradient. Buffers stay those of `inner`.
    """

    inner: Server
    strategy: FedAvg
    backend: GridBackend

    @property
    def informed(self) -> bool:
        """Whether the inner server is told more."""
        return getattr(self.inner, "informed", False)

    def residuals(self, state: Any, seen: Seen) -> FloatArray:
        """Return what the inner server weights."""
        return residuals(self.inner, state, seen)

    def init(self, parameters: FloatArray) -> Any:
        """Return the inner server's state; the strategy keeps its own."""
        return self.inner.init(parameters)

    def apply(
        self, state: Any, parameters: FloatArray, draw: Draw, reply: Reply, **more: Any
    ) -> tuple[FloatArray, Any]:
        """Return what the strategy makes of the aggregate; the model as it was where it is none."""
        after, state = self.inner.apply(state, parameters, draw, reply, **more)
        layout, backend = self.backend.layout, self.backend
        shares = draw.weights / draw.weights.sum()
        vectors = after + reply.updates - shares @ reply.updates
        replies = [
            self._reply(backend.replies[client], layout.record(vector), float(weight))
            for client, vector, weight in zip(
                reply.clients.tolist(), vectors, draw.weights, strict=True
            )
        ]
        arrays, metrics = self.strategy.aggregate_train(backend.round, replies)
        backend.note_metrics(metrics)
        if arrays is None:
            return parameters, state
        try:
            made = layout.vector(arrays)
        except BadReplyError as error:
            name = type(self.strategy).__name__
            problem = f"aggregate_train of {name} must return the model's arrays: {error}"
            raise InputError(f"{problem}; keep their names and shapes") from None
        return np.where(layout.trained, made, after), state

    def _reply(self, message: Message, arrays: ArrayRecord, weight: float) -> Message:
        """Return a client's reply with other arrays, and its weight in the place of its samples."""
        strategy = self.strategy
        metrics = MetricRecord({**metrics_of(message), strategy.weighted_by_key: weight})
        message.content = RecordDict({strategy.arrayrecord_key: arrays, "metrics": metrics})
        return message


class _Only:
    """A grid in which only some nodes are connected."""

    def __init__(self, grid: Grid, nodes: Sequence[int]) -> None:
        self._grid, self._nodes = grid, nodes

    def get_node_ids(self) -> list[int]:
        return list(self._nodes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


@contextmanager
def _asking_all(strategy: FedAvg) -> Iterator[None]:
    """Let a strategy ask everyone whom it sees: the draw was fedpace's."""
    all_of_them = {"fraction_train": 1.0, "min_train_nodes": 1, "min_available_nodes": 1}
    before = {name: getattr(strategy, name) for name in all_of_them}
    vars(strategy).update(all_of_them)
    try:
        yield
    finally:
        vars(strategy).update(before)
