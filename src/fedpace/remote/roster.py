"""Who is who: a number for each client's name, and how many samples it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from fedpace.checks import FloatArray


class Roster:
    """The clients by name, numbered as they came, with their sample counts.

    >>> roster = Roster(["kitchen", "attic"])
    >>> roster.learn(0, 30), roster.number("cellar")
    (True, 2)
    >>> roster.learn(1, 10), roster.weights
    (True, array([0.5       , 0.16666667, 0.33333333]))

    Nobody knows the third client's count: it gets the mean of the others.
    """

    def __init__(self, names: Iterable[str] = (), samples: Mapping[str, int] | None = None) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._samples: dict[int, int] = {}
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
            self._numbers[name] = len(self.names)
            self.names.append(name)
        return self._numbers[name]

    def learn(self, client: int, samples: int) -> bool:
        """Note how many samples a client has; return whether that is news."""
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
    def weights(self) -> FloatArray:
        """p_i = n_i / Σ n; a client whose n_i is not known counts as an average one."""
        known = self._samples.copy()
        counts = np.full(len(self), np.mean(list(known.values())) if known else 1.0)
        counts[list(known)] = list(known.values())
        weights: FloatArray = counts / counts.sum()
        return weights
