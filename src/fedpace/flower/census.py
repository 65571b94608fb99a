"""Who is there: nodes that come and go, and what each says of itself."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedpace.errors import TooFewClientsError
from fedpace.flower.client import PARTITION, SAMPLES
from fedpace.flower.exchange import Clock, exchanged
from fedpace.flower.fleet import Fleet
from fedpace.flower.records import metrics_of

log = logging.getLogger("flwr")

# Seconds between looks for nodes, and the longest wait for the answer to a query.
LOOK = 1.0
LONGEST_QUERY = 60.0
# So many nodes are queried at once: each starts a process for it.
AT_ONCE = 10


class Answer(NamedTuple):
    """What a node says of itself."""

    node: int
    partition: int | None = None
    samples: int | None = None


class Census:
    """Keep track of the federation's nodes.

    Parameters
    ----------
    at_least : int ≥ 1
        So many must be connected for a round, and one of them idle.
    wait : float, seconds
        How long to wait for them.
    expected : int, optional
        So many must be connected before the first round, where that is more.
    query : bool
        Whether new nodes are asked for their partition and sample count. The first is asked alone:
        if it has no answer the others are not asked.
    """

    def __init__(
        self, at_least: int, wait: float, *, expected: int | None = None, query: bool = True
    ) -> None:
        self.at_least, self.wait, self.query = at_least, wait, query
        self.expected = max(at_least, expected or 0)
        self.fleet = Fleet()
        self._answered = False
        self.late: dict[str, int] = {}  # messages past their deadline, and the node behind each

    def present(self, grid: Grid, clock: Clock) -> NDArray[np.bool_]:
        """Return which clients are there and idle; wait while they are too few.

        A node that missed a deadline is busy until its reply, or word of its failure, comes.
        """
        limit = clock.now() + self.wait
        needed = self.at_least if len(self.fleet) else self.expected
        said = False
        while True:
            self._forget_late(grid)
            nodes = sorted(grid.get_node_ids())
            if len(nodes) >= needed:
                self._admit([node for node in nodes if node not in self.fleet], grid, clock)
                present = self.fleet.among(set(nodes) - set(self.late.values()))
                if present.any():
                    return present
            if clock.now() >= limit:
                raise TooFewClientsError(
                    f"{len(nodes)} of at least {needed} clients are there after {self.wait:g} s, "
                    f"{len(self.late)} of them late; start more SuperNodes, or lower "
                    "min_available_nodes and expected_nodes"
                )
            if not said:
                said = True
                log.info(
                    "fedpace: waiting for clients: %d connected, at least %d needed, %d late",
                    len(nodes), needed, len(self.late),
                )  # fmt: skip
            clock.sleep(LOOK)

    def _forget_late(self, grid: Grid) -> None:
        if self.late:
            for message in grid.pull_messages(set(self.late)):
                self.late.pop(message.metadata.reply_to_message_id, None)

    def _admit(self, nodes: Sequence[int], grid: Grid, clock: Clock) -> None:
        """Give new nodes numbers in the order of their partitions, or else of their ids."""
        answers = {answer.node: answer for answer in self._answers(nodes, grid, clock)}
        numbers: set[int] = set()
        for answer in sorted(
            (answers.get(node, Answer(node)) for node in nodes),
            key=lambda each: (each.partition is None, each.partition or 0, each.node),
        ):
            client = self.fleet.admit(*answer)
            if client in numbers:
                log.warning("fedpace: several nodes are %s", self.fleet.names[client])
            numbers.add(client)

    def _answers(self, nodes: Sequence[int], grid: Grid, clock: Clock) -> list[Answer]:
        if not self.query or not nodes:
            return []
        first = _asked(nodes[:1], grid, clock)
        self._answered |= bool(first)
        if not self._answered:
            self.query = False
            log.info(
                "fedpace: clients answer no queries: sample counts are learned from replies, and "
                "until then all count alike (see fedpace.flower.described)"
            )
            return []
        rest = nodes[1:]
        waves = [rest[start : start + AT_ONCE] for start in range(0, len(rest), AT_ONCE)]
        return [*first, *(answer for wave in waves for answer in _asked(wave, grid, clock))]


def _asked(nodes: Sequence[int], grid: Grid, clock: Clock) -> list[Answer]:
    content = RecordDict({"config": ConfigRecord()})
    messages = [Message(content, node, MessageType.QUERY) for node in nodes]
    arrivals = exchanged(grid, messages, deadline=LONGEST_QUERY, clock=clock).arrivals
    return [
        _answer(node, metrics_of(message))
        for node, message, _ in arrivals
        if not message.has_error()
    ]


def _answer(node: int, metrics: dict[str, object]) -> Answer:
    """Return what was said, as far as it makes sense."""
    partition, samples = metrics.get(PARTITION), metrics.get(SAMPLES)
    return Answer(
        node,
        partition if isinstance(partition, int) and partition >= 0 else None,
        samples if isinstance(samples, int) and 0 < samples < 2**53 else None,
    )
