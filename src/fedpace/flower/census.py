"""Which nodes are connected, and what each says of itself."""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from numpy.typing import NDArray

from fedpace.flower.client import PARTITION, SAMPLES
from fedpace.flower.exchange import Mail
from fedpace.flower.nodes import Nodes
from fedpace.flower.records import metrics_of
from fedpace.remote.waiting import waited_for

log = logging.getLogger("flwr")

# Seconds between looks for nodes, and the longest wait for the answer to a query.
LOOK = 1.0
LONGEST_QUERY = 60.0
# Nodes queried at once: each starts a process for it.
AT_ONCE = 10
# Flower's code for an exception in the ClientApp, and what it says if there is no function.
RAISED = 2
NO_FUNCTION = "No query function registered"


@dataclass(eq=False)
class Census:
    """Keep track of the federation's nodes.

    A round waits, for `wait` seconds at most, until `at_least` nodes are connected and one of them
    is idle; the first round until `expected` are, where that is more. With `query`, new nodes are
    asked for their partition and sample count: the first alone, and if its ClientApp has no
    function for that, the others not at all.
    """

    mail: Mail
    nodes: Nodes
    at_least: int
    wait: float
    expected: int = 0
    query: bool = True
    _answered: bool = field(default=False, init=False)
    _raised: int = field(default=0, init=False)

    def present(self) -> NDArray[np.bool_]:
        """Return which clients are connected and owe no reply; wait while there are too few."""
        needed = max(self.at_least, 0 if len(self.nodes.roster) else self.expected)
        return waited_for(
            lambda: self._admitted(needed),
            patience=self.wait,
            pause=LOOK,
            missing=lambda: (
                f"at least {needed} clients must be there, got {len(self._connected())} "
                f"with {len(self.mail.busy)} busy"
            ),
            remedy="start more SuperNodes, or lower min_available_nodes and expected_nodes",
            say=lambda line: log.info("fedpace: %s", line),
            clock=self.mail.clock,
        )

    def idle(self) -> NDArray[np.bool_]:
        """Return which known clients are connected and owe no reply; do not wait."""
        return self.nodes.among({*self._connected()} - self.mail.busy)

    def _connected(self) -> list[int]:
        return sorted(self.mail.grid.get_node_ids())

    def _admitted(self, needed: int) -> NDArray[np.bool_] | None:
        """Give new nodes numbers; return who is idle, or None while there are too few."""
        self.mail.look()
        connected = self._connected()
        if len(connected) < needed:
            return None
        self._admit([node for node in connected if node not in self.nodes])
        idle = self.nodes.among({*connected} - self.mail.busy)
        return idle if idle.any() else None

    def _admit(self, new: Sequence[int]) -> None:
        """Give new nodes numbers in the order of their partitions, or else of their ids."""
        partitions, samples, seen = dict[int, int](), dict[int, int](), set[int]()
        for node, metrics in self._answers(new):  # what makes no sense does not count
            partition, count = metrics.get(PARTITION), metrics.get(SAMPLES)
            if isinstance(partition, int) and partition >= 0:
                partitions[node] = partition
            if isinstance(count, int) and 0 < count < 2**53:
                samples[node] = count
        for node in sorted(new, key=lambda node: (partitions.get(node, math.inf), node)):
            client = self.nodes.admit(node, partitions.get(node))
            if node in samples:
                self.nodes.roster.learn(client, samples[node])
            if client in seen:
                log.warning("fedpace: several nodes are %s", self.nodes.roster.names[client])
            seen.add(client)

    def _answers(self, nodes: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Ask nodes what they are, more at once as they answer; yield the metrics of each."""
        wave, content = 1, RecordDict({"config": ConfigRecord()})
        while self.query and nodes:
            wave = AT_ONCE if self._answered or self.nodes.partitioned else wave
            messages = [Message(content, node, MessageType.QUERY) for node in nodes[:wave]]
            # Mail of its own: a node that is silent here may still train.
            arrivals = Mail(self.mail.grid, self.mail.clock).exchange(messages, LONGEST_QUERY)
            self._judge([arrival.message for arrival in arrivals])
            for node, message, _ in arrivals:
                if not message.has_error():
                    yield node, metrics_of(message)
            nodes, wave = nodes[wave:], min(2 * wave, AT_ONCE)

    def _judge(self, replies: Sequence[Message]) -> None:
        """Stop asking if the ClientApp answers no queries; one node's failure tells nothing."""
        failed = [reply.error for reply in replies if reply.has_error()]
        raised = [str(error.reason) for error in failed if error.code == RAISED]
        self._raised += len(raised)
        self._answered |= len(failed) < len(replies) or self.nodes.partitioned
        if not self._answered and (self._raised > 1 or any(NO_FUNCTION in each for each in raised)):
            self.query = False
            log.info(
                "fedpace: clients answer no queries: sample counts are learned from replies, and "
                "until then all count alike (see fedpace.flower.described)"
            )
