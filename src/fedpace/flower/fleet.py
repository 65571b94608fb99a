"""Who is who: a client's number for each of Flower's nodes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.files import write_through


class Fleet:
    """The clients seen so far, numbered as they came, with their sample counts.

    A node is known by its partition where it tells one, and by its id otherwise: an id is new
    whenever a SuperNode is started, a partition is not.

    >>> fleet = Fleet()
    >>> fleet.admit(node=11, partition=3, samples=30), fleet.admit(node=12, samples=10)
    (0, 1)
    >>> fleet.admit(node=99, partition=3), fleet.nodes([0])
    (0, [99])
    >>> fleet.weights
    array([0.75, 0.25])
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._samples: list[int | None] = []
        self._clients: dict[int, int] = {}  # of a node
        self._latest: dict[int, int] = {}  # node of a client

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, node: object) -> bool:
        return node in self._clients

    def admit(self, node: int, partition: int | None = None, samples: int | None = None) -> int:
        """Return the number of a node's client; one not seen before gets the next."""
        name = f"node {node}" if partition is None else f"partition {partition}"
        if name not in self.names:
            self.names.append(name)
            self._samples.append(None)
        client = self.names.index(name)
        self._clients[node], self._latest[client] = client, node
        if samples is not None:
            self.learn(client, samples)
        return client

    def learn(self, client: int, samples: int) -> bool:
        """Note how many samples a client has; return whether that is news."""
        news = self._samples[client] != samples
        self._samples[client] = samples
        return news

    @property
    def weights(self) -> FloatArray:
        """p_i = n_i / Σ n; a client whose n_i is not known counts as an average one."""
        known = [each for each in self._samples if each is not None]
        average = sum(known) / len(known) if known else 1.0
        counts = np.array([average if each is None else each for each in self._samples], float)
        weights: FloatArray = counts / counts.sum()
        return weights

    @property
    def partitioned(self) -> bool:
        """Whether a client has ever told its partition."""
        return any(name.startswith("partition ") for name in self.names)

    def client(self, node: int) -> int:
        """Return the number of an admitted node's client."""
        return self._clients[node]

    def nodes(self, clients: Iterable[int]) -> list[int]:
        """Return the node that each client runs on now."""
        return [self._latest[client] for client in clients]

    def among(self, nodes: Iterable[int]) -> NDArray[np.bool_]:
        """Return for each client whether the node it runs on is one of these."""
        here = set(nodes)
        return np.array([self._latest.get(i) in here for i in range(len(self))], dtype=np.bool_)

    def save(self, path: Path) -> None:
        """Write names and sample counts; return when the disk has them."""
        text = json.dumps({"clients": self.names, "samples": self._samples}) + "\n"
        write_through(path, text.encode())

    def load(self, path: Path) -> None:
        """Take over names and sample counts; nodes are admitted as they are seen again."""
        if not path.exists():
            raise InputError(
                f"{path}: must lie beside the checkpoint, got none: it tells who is who; "
                "put it back, or remove the checkpoint to begin anew"
            )
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            self.names, self._samples = list(record["clients"]), list(record["samples"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise InputError(f"{path}: cannot be read: {error}; remove it to begin anew") from None
        for name in self.names:  # the same SuperNodes may still be there
            if name.startswith("node "):
                self.admit(int(name.removeprefix("node ")))
