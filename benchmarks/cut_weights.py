"""What does it cost to weigh each client by p_i? A server that cuts off what is above 1 in a step.

Asynchronously, a large, slow client is at work once at a time, so each of its updates has a large
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
from fedpace.sampling.design import Draw
from fedpace.servers.memory import Memory, Remembered
from fedpace.training.updates import RoundUpdates

MOST = 1.0


@dataclass(frozen=True)
class Cut(Memory):
    """`Memory`, where the weights of a step sum to 1 at most."""

    def step(self, state: Remembered, updates: RoundUpdates) -> tuple[FloatArray, Remembered]:
        """Return the model after the step, with smaller weights where their sum is above 1."""
        draw = updates.draw
        total = float(draw.weights.sum())
        if total > MOST:
            draw = Draw(draw.clients, MOST / total * draw.weights)
        return super().step(state, updates._replace(draw=draw))
