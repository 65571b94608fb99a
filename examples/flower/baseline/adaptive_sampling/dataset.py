"""Synthetic(1, 1) of Li et al. (MLSys 2020), with few clients that hold most of it."""

from functools import lru_cache

import numpy as np

from fedpace.data.partition import power_law_sizes, synthetic
from fedpace.data.shards import Split

SAMPLES_PER_CLIENT, FEWEST = 200, 46


@lru_cache(maxsize=1)
def split(nodes: int, seed: int) -> Split:
    """Return the data of all clients; every node draws the same."""
    rng = np.random.default_rng(seed)
    sizes = power_law_sizes(nodes, SAMPLES_PER_CLIENT * nodes, rng, smallest=FEWEST)
    return synthetic(sizes, rng)


def seconds(nodes: int, seed: int, scale: float) -> list[float]:
    """Return how long each client takes for a round: exponential, as in the paper."""
    drawn: list[float] = np.random.default_rng((seed, 1)).exponential(scale, nodes).tolist()
    return drawn
