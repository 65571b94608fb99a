"""Additions to a ClientApp: measurements, answers to queries, and local privacy."""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict

from fedpace.backends.privacy import Privacy
from fedpace.errors import InputError
from fedpace.flower.messages import Layout, arrays_of, metrics_of

# Names of metrics in a reply; the first is Flower's own.
SAMPLES = "num-examples"
GRAD_NORM = "grad-norm"
STEPS = "local-steps"
COMPUTING = "computing-seconds"
LOSS = "initial-loss"
PARTITION = "partition-id"
# The record of a client's own properties in its answer.
PROPERTIES = "properties"
# Metrics that a private client still reports: amounts, nothing that depends on the samples.
RELEASED = (SAMPLES, STEPS, COMPUTING, PARTITION)

Next: TypeAlias = Callable[[Message, Context], Message]
log = logging.getLogger("flwr")


class GradientNorms:
    """Collect gradients step by step, where `measure_mod` cannot see them.

    >>> import numpy as np
    >>> norms = GradientNorms()
    >>> norms.add([np.array([3.0, 4.0])])
    >>> norms.add([np.array([0.0]), None])  # None: no gradient
    >>> metrics = norms.metrics()
    >>> metrics["local-steps"], round(metrics["grad-norm"], 6)
    (2, 3.535534)

    The root mean square of the norms 5 and 0. In PyTorch, between `backward` and `step`:
    `norms.add(p.grad for p in model.parameters())`.
    """

    def __init__(self) -> None:
        self._squares: list[Any] = []
        self._began = time.perf_counter()

    def add(self, gradients: Iterable[Any]) -> None:
        """Add the gradients of one step: NumPy arrays or PyTorch tensors."""
        squares = [_square(each) for each in gradients if each is not None]
        if squares:  # numbers stay on their device: reading one from a GPU would synchronise it
            self._squares.append(sum(squares[1:], start=squares[0]))

    def metrics(self) -> dict[str, int | float]:
        """Return the metrics to add to the reply."""
        seconds, steps = time.perf_counter() - self._began, len(self._squares)
        if not steps:
            return {COMPUTING: seconds}
        mean = math.fsum(map(float, self._squares)) / steps
        return {COMPUTING: seconds, STEPS: steps, GRAD_NORM: math.sqrt(mean)}


def _square(gradient: Any) -> Any:
    """Return the sum of squares, in 32 bits or more: 16 bits overflow at 65504."""
    if gradient.dtype.itemsize < 4:
        gradient = gradient.float() if hasattr(gradient, "float") else gradient.astype("float32")
    return (gradient * gradient).sum()


def measure_mod(message: Message, context: Context, call_next: Next) -> Message:
    """Add computing seconds, and with PyTorch gradient norms, to the replies of a train function.

    A Flower mod: `ClientApp(mods=[measure_mod])`. The train function stays as it is. Every step of
    a PyTorch optimiser in it counts; with another framework use `GradientNorms`, or add nothing.
    """
    if not message.metadata.message_type.startswith(MessageType.TRAIN):
        return call_next(message, context)
    norms = GradientNorms()
    with _watch_optimisers(norms):
        reply = call_next(message, context)
    if reply.has_content():
        if not reply.content.metric_records:
            reply.content["metrics"] = MetricRecord()
        metrics = next(iter(reply.content.metric_records.values()))
        _check_samples(metrics)
        for name, value in norms.metrics().items():
            metrics.setdefault(name, value)
    return reply


def answer_query(
    message: Message,
    context: Context,
    samples: int | None = None,
    **properties: str | bool | float,
) -> Message:
    """Answer a query with this client's partition, number of samples, and own properties.

    The server then knows p_i before the first round, and recognises a restarted SuperNode::

        @app.query()
        def query(message, context):
            return answer_query(message, context, samples=len(my_data(context)))

    `AdaptiveSampling(eligible=…)` gets the properties, such as `charging=True`.
    """
    metrics = MetricRecord()
    partition = context.node_config.get(PARTITION)
    if isinstance(partition, int):
        metrics[PARTITION] = partition
    if samples is not None:
        metrics[SAMPLES] = samples
    content = RecordDict({"metrics": metrics})
    if properties:
        content[PROPERTIES] = ConfigRecord({**properties})
    return Message(content, reply_to=message)


def privacy_mod(clip: float, noise: float) -> Callable[[Message, Context, Next], Message]:
    """Return a Flower mod that clips the update and adds Gaussian noise to it.

    Give it first, `ClientApp(mods=[privacy_mod(1.0, 4.0), measure_mod])`, so that nothing is added
    after it. Metrics that depend on the samples are removed from the reply, including the gradient
    norm: the server computes it from the update. Integers, such as a counter of batches, stay as
    they were sent. For the privacy account give the server
    `AdaptiveSampling(privacy=Privacy(1.0, 4.0), …)`.

    Parameters
    ----------
    clip, noise : float > 0, float ≥ 0
        As in `fedpace.backends.privacy.Privacy`.
    """
    privacy = Privacy(clip, noise)

    def mod(message: Message, context: Context, call_next: Next) -> Message:
        if not message.metadata.message_type.startswith(MessageType.TRAIN):
            return call_next(message, context)
        sent = arrays_of(message)
        layout = Layout.of(sent)
        before = layout.vector(sent)
        reply = call_next(message, context)
        if not reply.has_content():
            return reply
        floats, after = layout.floats, before.copy()
        update = (layout.vector(arrays_of(reply)) - before)[floats]
        after[floats] += privacy.release(update, np.random.default_rng())
        metrics = {name: value for name, value in metrics_of(reply).items() if name in RELEASED}
        name = next(iter(reply.content.array_records))
        reply.content = RecordDict({name: layout.record(after), "metrics": MetricRecord(metrics)})
        return reply

    return mod


def _check_samples(metrics: MetricRecord) -> None:
    value = metrics.get(SAMPLES)
    if value is None:
        log.warning("fedpace: the reply holds no '%s'; the server takes an average", SAMPLES)
    elif not (isinstance(value, (int, float)) and value > 0 and float(value).is_integer()):
        got = f"{value!r:.40}; return the number of training samples"
        raise InputError(f"{SAMPLES} must be a positive integer, got {got}")


@contextmanager
def _watch_optimisers(norms: GradientNorms) -> Iterator[None]:
    """Add the gradients of every step that a PyTorch optimiser takes in this thread."""
    if "torch" not in sys.modules:  # a train function that uses it has imported it
        yield
        return
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    thread = threading.get_ident()

    def note(optimiser: Any, *_: Any) -> None:
        if threading.get_ident() == thread:
            groups = optimiser.param_groups
            norms.add(p.grad.detach() for g in groups for p in g["params"] if p.grad is not None)

    hook = register_optimizer_step_pre_hook(note)
    try:
        yield
    finally:
        hook.remove()
