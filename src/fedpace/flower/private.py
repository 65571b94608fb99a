"""A mod that lets an update say little of a client's data before it leaves the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from flwr.app import Context, Message, MessageType, MetricRecord, RecordDict

from fedpace.flower.client import COMPUTING, PARTITION, SAMPLES, STEPS
from fedpace.flower.records import Layout, arrays_of, metrics_of
from fedpace.rounds.privacy import Privacy

Next: TypeAlias = Callable[[Message, Context], Message]
# What is told beside the update: how much, not what.
TOLD = (SAMPLES, STEPS, COMPUTING, PARTITION)


def private(clip: float, noise: float) -> Callable[[Message, Context, Next], Message]:
    """Return a Flower mod that clips the update and adds Gaussian noise to it.

    Give it first, `ClientApp(mods=[private(1.0, 4.0), measured])`, so that nothing is added after
    it. Metrics that depend on the samples are left out of the reply, the gradient norm too: the
    server takes it from the update. Integers, such as a counter of batches, stay as they were sent.
    For the account give the server `AdaptiveSampling(privacy=Privacy(1.0, 4.0), …)`.

    Parameters
    ----------
    clip, noise : float > 0, float ≥ 0
        As in `fedpace.rounds.privacy.Privacy`.
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
        floats = layout.floats
        after = before.copy()
        update = (layout.vector(arrays_of(reply)) - before)[floats]
        after[floats] += privacy.released(update, np.random.default_rng())
        told = {name: value for name, value in metrics_of(reply).items() if name in TOLD}
        name = next(iter(reply.content.array_records))
        reply.content = RecordDict({name: layout.record(after), "metrics": MetricRecord(told)})
        return reply

    return mod
