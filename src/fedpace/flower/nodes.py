"""Track the federation's nodes, and which client runs on which node."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from numpy.typing import NDArray

from fedpace.backends.remote.roster import Roster, wait_until
from fedpace.flower.client import PARTITION, PROPERTIES, SAMPLES
from fedpace.flower.messages import Arrival, Mailbox, metrics_of

log = logging.getLogger("flwr")

# Prefixes of clients' names: by the node's id, or by the partition of the data.
BY_NODE, BY_PARTITION = "node ", "partition "
# Seconds between looks for nodes, and the longest wait for the answer to a query.
LOOK = 1.0
LONGEST_QUERY = 60.0
# Nodes queried at once: each starts a process for it.
AT_ONCE = 10
# Flower's code for an exception in the ClientApp, and its text if there is no query function.
RAISED = 2
NO_FUNCTION = "No query function registered"


class NodeMap:
    """The clients by number, and the node that each runs on now.

    A client is identified by its partition if the node reports one, else by the node's id: a
    restarted SuperNode has a new id and the same partition.

    >>> nodes = NodeMap(Roster())
    >>> nodes.admit(11, partition=3), nodes.admit(12), nodes.roster.names
    (0, 1, ['partition 3', 'node 12'])
    >>> nodes.admit(99, partition=3), nodes.of([0])
    (0, [99])
    """

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self._clients: dict[int, int] = {}  # by node
        self._latest: dict[int, int] = {}  # node by client
        for name in [*roster.names]:  # after a restart the same SuperNodes may still be connected
            if name.startswith(BY_NODE):
                self.admit(int(name.removeprefix(BY_NODE)))

    def __contains__(self, node: object) -> bool:
        return node in self._clients

    def admit(self, node: int, partition: int | None = None) -> int:
        """Return the number of a node's client; a new client gets the next number."""
        name = f"{BY_NODE}{node}" if partition is None else f"{BY_PARTITION}{partition}"
        client = self.roster.number(name)
        self._clients[node], self._latest[client] = client, node
        return client

    @property
    def partitioned(self) -> bool:
        """Whether any client has reported its partition."""
        return any(name.startswith(BY_PARTITION) for name in self.roster.names)

    def client(self, node: int) -> int:
        """Return the number of an admitted node's client."""
        return self._clients[node]

    def of(self, clients: Iterable[int]) -> list[int]:
        """Return the node that each client runs on now."""
        return [self._latest[client] for client in clients]

    def among(self, nodes: Iterable[int]) -> NDArray[np.bool_]:
        """Return for each client whether its current node is one of these."""
        wanted, count = set(nodes), len(self.roster)
        return np.array([self._latest.get(i) in wanted for i in range(count)], dtype=np.bool_)


class Node(NamedTuple):
    """A node, and what it answered to a query; None and empty where it did not."""

    node: int
    partition: int | None = None
    samples: int | None = None
    properties: Mapping[str, Any] = {}


class Nodes:
    """Find connected nodes, admit new ones, and wait while there are too few.

    With `query`, new nodes are asked for their partition and sample count. The first is asked
    alone: if its ClientApp has no query function, the others are not asked. `at_least` nodes are
    needed in any round, `expected` in the first, within `wait` seconds.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        node_map: NodeMap,
        *,
        at_least: int = 1,
        expected: int | None = None,
        wait: float = 600.0,
        query: bool = False,
        eligible: Collection[int] | Callable[[Node], bool] | None = None,
    ) -> None:
        self._eligible, self._refused = eligible, set[int]()
        self.mailbox, self.node_map = mailbox, node_map
        self._at_least, self._expected, self._wait = at_least, expected or 0, wait
        self._query, self._answered, self._raised = query, False, 0

    def wait_for_idle(self) -> NDArray[np.bool_]:
        """Return which clients are connected and owe no reply; wait while they are too few."""
        needed = self._at_least
        if not len(self.node_map.roster):  # before the first round
            needed = max(needed, self._expected)
        return wait_until(
            lambda: self._admit_idle(needed),
            patience=self._wait,
            pause=LOOK,
            missing=lambda: (
                f"at least {needed} clients must be there, got {len(self._connected())} "
                f"with {len(self.mailbox.busy)} busy"
                + f" and {len(self._refused)} more not eligible"
                * bool(self._refused)
            ),
            remedy="start more SuperNodes, or lower min_available_nodes and expected_nodes",
            say=lambda line: log.info("fedpace: %s", line),
            clock=self.mailbox.clock,
        )

    def refresh(self) -> NDArray[np.bool_]:
        """Admit new nodes, and return which clients are idle now."""
        self.mailbox.poll()
        self._admit([node for node in self._connected() if node not in self.node_map])
        return self.idle()

    def idle(self) -> NDArray[np.bool_]:
        """Return which of the known clients are connected and owe no reply."""
        return self.node_map.among({*self._connected()} - self.mailbox.busy)

    def _connected(self) -> list[int]:
        return sorted({*self.mailbox.grid.get_node_ids()} - self._refused)

    def _admit_idle(self, needed: int) -> NDArray[np.bool_] | None:
        """Admit new nodes and return the idle clients; None while there are too few."""
        self.mailbox.poll()
        idle = self.refresh() if len(self._connected()) >= needed else self.idle()[:0]
        return idle if idle.any() and len(self._connected()) >= needed else None

    def _admit(self, new: Sequence[int]) -> None:
        """Admit new nodes in the order of their partitions, then of their ids."""
        answers = {each.node: each for each in self._descriptions(new)}
        numbers: set[int] = set()
        for each in sorted(
            (answers.get(node, Node(node)) for node in new),
            key=lambda each: (each.partition is None, each.partition or 0, each.node),
        ):
            node, partition, samples, _ = each
            if not self._may_join(each):
                self._refused.add(node)
                log.info("fedpace: node %d is not eligible", node)
                continue
            client = self.node_map.admit(node, partition)
            if samples is not None:
                self.node_map.roster.learn(client, samples)
            if client in numbers:
                log.warning("fedpace: several nodes are %s", self.node_map.roster.names[client])
            numbers.add(client)

    def _may_join(self, node: Node) -> bool:
        if callable(self._eligible):
            return bool(self._eligible(node))
        return self._eligible is None or not {node.node, node.partition}.isdisjoint(self._eligible)

    def _descriptions(self, nodes: Sequence[int]) -> Iterable[Node]:
        wave = 1
        while self._query and nodes:
            wave = AT_ONCE if self._answered or self.node_map.partitioned else wave
            arrivals = self._send_queries(nodes[:wave])
            self._judge([arrival.message for arrival in arrivals])
            for node, message, _ in arrivals:
                if not message.has_error():
                    records = message.content.config_records
                    properties = dict(records.get(PROPERTIES, {}))
                    yield _description(node, metrics_of(message), properties)
            nodes, wave = nodes[wave:], min(2 * wave, AT_ONCE)

    def _send_queries(self, nodes: Sequence[int]) -> list[Arrival]:
        content = RecordDict({"config": ConfigRecord()})
        messages = [Message(content, node, MessageType.QUERY) for node in nodes]
        # A mailbox of its own: a node that does not answer queries may still train.
        return Mailbox(self.mailbox.grid, self.mailbox.clock).exchange(messages, LONGEST_QUERY)

    def _judge(self, replies: Sequence[Message]) -> None:
        """Stop querying if the ClientApp answers no queries; one failing node is no evidence."""
        failed = [reply.error for reply in replies if reply.has_error()]
        raised = [str(error.reason) for error in failed if error.code == RAISED]
        self._raised += len(raised)
        self._answered |= len(failed) < len(replies) or self.node_map.partitioned
        if not self._answered and (self._raised > 1 or any(NO_FUNCTION in each for each in raised)):
            self._query = False
            log.info(
                "fedpace: clients answer no queries: sample counts are learned from replies, and "
                "until then all count alike (see fedpace.flower.answer_query)"
            )


def _description(node: int, metrics: dict[str, object], properties: dict[str, Any]) -> Node:
    """Return the valid parts of an answer."""
    partition, samples = metrics.get(PARTITION), metrics.get(SAMPLES)
    return Node(
        node,
        partition if isinstance(partition, int) and partition >= 0 else None,
        samples if isinstance(samples, int) and 0 < samples < 2**53 else None,
        properties,
    )
