"""Let another Flower strategy aggregate what fedpace draws and weights."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedpace.backends.remote.screening import BadReplyError
from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.flower.backend import GridBackend
from fedpace.flower.messages import DrawnGrid, metrics_of
from fedpace.training.server import BaseServer
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
            self._reweighted(backend.replies[client], layout.record(vector), float(weight))
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

    def _reweighted(self, message: Message, arrays: ArrayRecord, weight: float) -> Message:
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
