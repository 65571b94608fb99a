"""What does it cost to weigh each client by p_i? A server that cuts off what is above 1 in a step.

Without a barrier a large, slow client is at work once at a time, so each of its updates has a large
weight. To cut it off makes steps shorter and favours the others: the model is biased, as FedBuff's.

    A="--set training.mode=asynchronous --schemes pace"
    fedpace run prototype-simulated $A --seeds 20 --out whole
    fedpace run prototype-simulated $A --seeds 20 --out cut \
        --set training.server=benchmarks/cut_weights.py:Cut
    python benchmarks/sooner.py whole:pace cut:pace
    python benchmarks/who_gains.py whole cut
"""

from __future__ import annotations

from dataclasses import dataclass

from fedpace.checks import FloatArray
from fedpace.rounds.backend import Reply
from fedpace.rounds.memory import Memory, Remembered
from fedpace.rounds.seen import Seen
from fedpace.sampling.design import Draw

MOST = 1.0


@dataclass(frozen=True)
class Cut(Memory):
    """`Memory`, where the weights of a step sum to 1 at most."""

    def apply(
        self,
        state: Remembered,
        parameters: FloatArray,
        draw: Draw,
        reply: Reply,
        *,
        seen: Seen,
    ) -> tuple[FloatArray, Remembered]:
        """Return the model after the step, with smaller weights where their sum is above 1."""
        total = float(draw.weights.sum())
        if total > MOST:
            draw = Draw(draw.clients, MOST / total * draw.weights)
            seen = seen._replace(draw=draw)
        return super().apply(state, parameters, draw, reply, seen=seen)
