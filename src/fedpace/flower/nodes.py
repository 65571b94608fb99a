"""Which client runs on which of Flower's nodes."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fedpace.remote.roster import Roster

NODE, PARTITION = "node ", "partition "


class Nodes:
    """The clients by number, and the node that each runs on now.

    A node is known by its partition where it tells one, and by its id otherwise: an id is new
    whenever a SuperNode is started, a partition is not.

    >>> nodes = Nodes(Roster())
    >>> nodes.admit(11, partition=3), nodes.admit(12), nodes.roster.names
    (0, 1, ['partition 3', 'node 12'])
    >>> nodes.admit(99, partition=3), nodes.of([0])
    (0, [99])
    """

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self._clients: dict[int, int] = {}  # of a node
        self._latest: dict[int, int] = {}  # node of a client
        for name in [*roster.names]:  # after a restart the same SuperNodes may still be there
            if name.startswith(NODE):
                self.admit(int(name.removeprefix(NODE)))

    def __contains__(self, node: object) -> bool:
        return node in self._clients

    def admit(self, node: int, partition: int | None = None) -> int:
        """Return the number of a node's client; one not seen before gets the next."""
        name = f"{NODE}{node}" if partition is None else f"{PARTITION}{partition}"
        client = self.roster.number(name)
        self._clients[node], self._latest[client] = client, node
        return client

    @property
    def partitioned(self) -> bool:
        """Whether a client has ever told its partition."""
        return any(name.startswith(PARTITION) for name in self.roster.names)

    def client(self, node: int) -> int:
        """Return the number of an admitted node's client."""
        return self._clients[node]

    def of(self, clients: Iterable[int]) -> list[int]:
        """Return the node that each client runs on now."""
        return [self._latest[client] for client in clients]

    def among(self, nodes: Iterable[int]) -> NDArray[np.bool_]:
        """Return for each client whether the node it runs on is one of these."""
        here = set(nodes)
        count = len(self.roster)
        return np.array([self._latest.get(i) in here for i in range(count)], dtype=np.bool_)
