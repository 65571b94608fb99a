"""Who is who: a number for each client's name, and how many samples it has."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from fedpace.checks import FloatArray

# Times the mean of all who hold less that a client's count weighs for at most, where only the
# client says it. In the data that the paper's setups fix, the largest holds eleven times the mean.
MOST_SAMPLES = 12.0


class Roster:
    """The clients by name, numbered as they came, with their sample counts.

    `samples` are counts that clients told before, `given` those that the operator sets: these are
    neither learned nor bounded.

    >>> roster = Roster(["kitchen", "attic"])
    >>> roster.learn(0, 30), roster.number("cellar")
    (True, 2)
    >>> roster.learn(1, 10), roster.weights
    (True, array([0.5       , 0.16666667, 0.33333333]))

    Nobody knows the third client's count: it gets the mean of the others. A count far beyond the
    others' weighs for twelve times the mean of them:

    >>> roster = Roster(samples={"kitchen": 30, "attic": 10, "liar": 2**52})
    >>> roster.weights.round(3)
    array([0.107, 0.036, 0.857])
    """

    def __init__(
        self,
        names: Iterable[str] = (),
        samples: Mapping[str, int] | None = None,
        *,
        given: Mapping[str, int] | None = None,
    ) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._samples: dict[int, int] = {}
        self._given = dict(given or {})
        for name in names:
            self.number(name)
        for name, count in (samples or {}).items():
            self.learn(self.number(name), count)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._numbers

    def number(self, name: str) -> int:
        """Return a client's number; a name not seen before gets the next."""
        if name not in self._numbers:
            self._numbers[name] = client = len(self.names)
            self.names.append(name)
            if name in self._given:
                self._samples[client] = self._given[name]
        return self._numbers[name]

    def learn(self, client: int, samples: int) -> bool:
        """Note how many samples a client has; return whether that is news."""
        if self.names[client] in self._given:
            return False
        news = self._samples.get(client) != samples
        self._samples[client] = samples
        return news

    def count(self, client: int) -> int | None:
        """Return how many samples a client has, where that is known."""
        return self._samples.get(client)

    @property
    def samples(self) -> dict[str, int]:
        """The counts that are known, by name."""
        # A copy: devices may join meanwhile.
        return {self.names[client]: count for client, count in sorted(self._samples.copy().items())}

    @property
    def counts(self) -> dict[int, float]:
        """The counts that are known, by client, bounded where only the client says it."""
        known = self._samples.copy()
        counts, total = {}, 0.0
        for below, (client, count) in enumerate(sorted(known.items(), key=lambda each: each[1])):
            most = math.inf
            if below and self.names[client] not in self._given:
                most = MOST_SAMPLES * total / below
            counts[client] = min(float(count), most)
            total += counts[client]
        return counts

    @property
    def weights(self) -> FloatArray:
        """p_i = n_i / Σ n; a client whose n_i is not known counts as an average one."""
        known = self.counts
        counts = np.full(len(self), np.mean(list(known.values())) if known else 1.0)
        counts[list(known)] = list(known.values())
        weights: FloatArray = counts / counts.sum()
        return weights
