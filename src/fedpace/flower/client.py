"""What a client may add: how long it computed, and how much its data still teach."""

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from flwr.app import Context, Message, MessageType, MetricRecord, RecordDict

from fedpace.errors import InputError

# Names of metrics in a reply; the first is Flower's own.
SAMPLES = "num-examples"
GRAD_NORM = "grad-norm"
STEPS = "local-steps"
COMPUTING = "computing-seconds"
LOSS = "initial-loss"
PARTITION = "partition-id"

log = logging.getLogger("flwr")


class GradientNorms:
    """Collect gradients step by step, for those who prefer it explicit.

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
        """Note the gradients of one step: NumPy arrays or PyTorch tensors."""
        squares = [_square(each) for each in gradients if each is not None]
        if squares:  # numbers stay where they are: on a GPU, reading them would make it wait
            self._squares.append(sum(squares[1:], start=squares[0]))

    def metrics(self) -> dict[str, int | float]:
        """Return what to add to the reply's metrics."""
        seconds, steps = time.perf_counter() - self._began, len(self._squares)
        if not steps:
            return {COMPUTING: seconds}
        mean = math.fsum(map(float, self._squares)) / steps
        return {COMPUTING: seconds, STEPS: steps, GRAD_NORM: math.sqrt(mean)}


def _square(gradient: Any) -> Any:
    """Return the sum of the squares, in 32 bits or more: those of 16 bits end at 65504."""
    if gradient.dtype.itemsize < 4:
        gradient = gradient.float() if hasattr(gradient, "float") else gradient.astype("float32")
    return (gradient * gradient).sum()


def measured(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Add computing seconds, and with PyTorch gradient norms, to the replies of a train function.

    A Flower mod: `ClientApp(mods=[measured])`. The train function stays as it is. Every step of a
    PyTorch optimiser in it counts; with another framework use `GradientNorms`, or add nothing.
    """
    if not message.metadata.message_type.startswith(MessageType.TRAIN):
        return call_next(message, context)
    norms = GradientNorms()
    with _watched_optimisers(norms):
        reply = call_next(message, context)
    if reply.has_content():
        if not reply.content.metric_records:
            reply.content["metrics"] = MetricRecord()
        metrics = next(iter(reply.content.metric_records.values()))
        _check_samples(metrics)
        for name, value in norms.metrics().items():
            metrics.setdefault(name, value)
    return reply


def described(message: Message, context: Context, samples: int | None = None) -> Message:
    """Answer a query: which partition this is, and how many samples it has.

    With it the server knows p_i before the first round, and a SuperNode that is started again is
    the client it was::

        @app.query()
        def query(message, context):
            return described(message, context, samples=len(my_data(context)))
    """
    metrics = MetricRecord()
    partition = context.node_config.get(PARTITION)
    if isinstance(partition, int):
        metrics[PARTITION] = partition
    if samples is not None:
        metrics[SAMPLES] = samples
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def _check_samples(metrics: MetricRecord) -> None:
    value = metrics.get(SAMPLES)
    if value is None:
        log.warning("fedpace: the reply holds no '%s'; the server takes an average", SAMPLES)
    elif not (isinstance(value, (int, float)) and value > 0 and float(value).is_integer()):
        got = f"{value!r:.40}; return the number of training samples"
        raise InputError(f"{SAMPLES} must be a positive integer, got {got}")


@contextmanager
def _watched_optimisers(norms: GradientNorms) -> Iterator[None]:
    """Note the gradients of every step that a PyTorch optimiser takes in this thread."""
    if "torch" not in sys.modules:  # whoever trains with it has imported it
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
