"""Who is there: nodes that come and go, and what each says of itself."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from numpy.typing import NDArray

from fedpace.flower.client import PARTITION, SAMPLES
from fedpace.flower.exchange import Arrival, Mail
from fedpace.flower.nodes import Nodes
from fedpace.flower.records import metrics_of
from fedpace.flower.settings import Settings
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


class Described(NamedTuple):
    """What a node says of itself."""

    node: int
    partition: int | None = None
    samples: int | None = None


class Census:
    """Keep track of the federation's nodes.

    New nodes are asked for their partition and sample count, where `settings.query` says so. The
    first is asked alone: if its ClientApp has no function for that, the others are not asked.
    """

    def __init__(self, mail: Mail, nodes: Nodes, settings: Settings) -> None:
        self.mail, self.nodes, self._settings = mail, nodes, settings
        self._asks, self._answered, self._raised = settings.query, False, 0

    def present(self) -> NDArray[np.bool_]:
        """Return which clients are there and owe no reply; wait while they are too few."""
        needed = self._settings.min_available_nodes
        if not len(self.nodes.roster):  # before the first round
            needed = max(needed, self._settings.expected_nodes or 0)
        return waited_for(
            lambda: self._admitted(needed),
            patience=self._settings.wait,
            pause=LOOK,
            missing=lambda: (
                f"at least {needed} clients must be there, got {len(self._connected())} "
                f"with {len(self.mail.busy)} busy"
            ),
            remedy="start more SuperNodes, or lower min_available_nodes and expected_nodes",
            say=lambda line: log.info("fedpace: %s", line),
            clock=self.mail.clock,
        )

    def now(self) -> NDArray[np.bool_]:
        """Return the same at once; new nodes are admitted."""
        self.mail.look()
        self._admit([node for node in self._connected() if node not in self.nodes])
        return self.idle()

    def idle(self) -> NDArray[np.bool_]:
        """Return which of the clients seen so far are there and owe no reply; do not wait."""
        return self.nodes.among({*self._connected()} - self.mail.busy)

    def _connected(self) -> list[int]:
        return sorted(self.mail.grid.get_node_ids())

    def _admitted(self, needed: int) -> NDArray[np.bool_] | None:
        """Give new nodes numbers; return who is idle, or None if there are too few."""
        self.mail.look()
        connected = self._connected()
        if len(connected) < needed:
            return None
        self._admit([node for node in connected if node not in self.nodes])
        idle = self.idle()
        return idle if idle.any() else None

    def _admit(self, new: Sequence[int]) -> None:
        """Give new nodes numbers in the order of their partitions, or else of their ids."""
        told = {each.node: each for each in self._described(new)}
        numbers: set[int] = set()
        for node, partition, samples in sorted(
            (told.get(node, Described(node)) for node in new),
            key=lambda each: (each.partition is None, each.partition or 0, each.node),
        ):
            client = self.nodes.admit(node, partition)
            if samples is not None:
                self.nodes.roster.learn(client, samples)
            if client in numbers:
                log.warning("fedpace: several nodes are %s", self.nodes.roster.names[client])
            numbers.add(client)

    def _described(self, nodes: Sequence[int]) -> Iterable[Described]:
        wave = 1
        while self._asks and nodes:
            wave = AT_ONCE if self._answered or self.nodes.partitioned else wave
            arrivals = self._asked(nodes[:wave])
            self._judge([arrival.message for arrival in arrivals])
            for node, message, _ in arrivals:
                if not message.has_error():
                    yield _described(node, metrics_of(message))
            nodes, wave = nodes[wave:], min(2 * wave, AT_ONCE)

    def _asked(self, nodes: Sequence[int]) -> list[Arrival]:
        content = RecordDict({"config": ConfigRecord()})
        messages = [Message(content, node, MessageType.QUERY) for node in nodes]
        # Mail of its own: whoever is silent here may still train.
        return Mail(self.mail.grid, self.mail.clock).exchange(messages, LONGEST_QUERY)

    def _judge(self, replies: Sequence[Message]) -> None:
        """Ask nobody else if the ClientApp answers no queries; one node's failure tells nothing."""
        failed = [reply.error for reply in replies if reply.has_error()]
        raised = [str(error.reason) for error in failed if error.code == RAISED]
        self._raised += len(raised)
        self._answered |= len(failed) < len(replies) or self.nodes.partitioned
        if not self._answered and (self._raised > 1 or any(NO_FUNCTION in each for each in raised)):
            self._asks = False
            log.info(
                "fedpace: clients answer no queries: sample counts are learned from replies, and "
                "until then all count alike (see fedpace.flower.described)"
            )


def _described(node: int, metrics: dict[str, object]) -> Described:
    """Return what was said, as far as it makes sense."""
    partition, samples = metrics.get(PARTITION), metrics.get(SAMPLES)
    return Described(
        node,
        partition if isinstance(partition, int) and partition >= 0 else None,
        samples if isinstance(samples, int) and 0 < samples < 2**53 else None,
    )
