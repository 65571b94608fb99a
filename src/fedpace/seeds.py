"""One random stream per purpose, spawned by name from one seed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache

import numpy as np


@dataclass(frozen=True)
class Seeds:
    """Name the random streams of a run.

    Streams with different names, or different numbers after the name, are independent; the same
    name and numbers give the same stream. So every scheme of a run shares the data, the initial
    model and the device times, and what a client draws in a round depends on nothing but the
    seed, the round and the client.

    >>> Seeds(7).stream("data").random() == Seeds(7).stream("data").random()
    True
    >>> Seeds(7).stream("batch", 3, 1).random() == Seeds(7).stream("batch", 3, 2).random()
    False
    """

    seed: int

    def stream(self, name: str, *numbers: int) -> np.random.Generator:
        """Return the generator of that name; `numbers` are, say, a round and a client."""
        sequence = np.random.SeedSequence((self.seed, _number(name)), spawn_key=numbers)
        return np.random.Generator(np.random.PCG64(sequence))


@cache
def _number(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
