"""Completions without training: C clients at work, one task each, event by event."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from fedpace.checks import FloatArray
from fedpace.sampling.dispatch import BaseDispatch


class Completions(NamedTuple):
    """How often each client completed a task, what its updates weighed in all, and how long."""

    counts: FloatArray
    weights: FloatArray
    seconds: float

    @property
    def weight_shares(self) -> FloatArray:
        """Each client's part of all weight, to be compared with p."""
        return np.asarray(self.weights / self.weights.sum(), dtype=np.float64)


def completions(
    design: BaseDispatch,
    times: FloatArray,
    count: int,
    *,
    seed: int = 0,
    noise: float = 0.0,
    away: float = 0.0,
) -> Completions:
    """Run `count` completions.

    With `noise` a task takes t_i times a log-normal factor of mean 1 and that deviation. With
    `away` every client is gone for that part of the time, in spells of ten mean times; it ends
    its task before.
    """
    rng = np.random.default_rng(seed)
    n = design.n
    counts, weights = np.zeros(n), np.zeros(n)
    turns = design.turns(design.start(rng))
    period = 10 * design.at_once * design.seconds_per_completion(times) / max(away, 1e-9)
    phase = rng.random(n)
    running: list[tuple[float, int, float]] = []  # when, who, its weight
    now = 0.0
    for _ in range(count):
        there = (now / period + phase) % 1 >= away if away else None
        while len(running) < design.at_once and (found := turns.next(there, rng)):
            client, weight = found
            factor = np.exp(rng.normal(-(noise**2) / 2, noise)) if noise else 1.0
            heapq.heappush(running, (now + times[client] * factor, client, weight))
        now, client, weight = heapq.heappop(running)
        turns.end(client)
        counts[client] += 1
        weights[client] += weight
    return Completions(counts, weights, now)
