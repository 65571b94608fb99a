"""Who is there: nodes that come and go, and what each says of itself."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedpace.errors import TooFewClientsError
from fedpace.flower.client import PARTITION, SAMPLES
from fedpace.flower.exchange import Arrival, Clock, exchanged
from fedpace.flower.fleet import Fleet
from fedpace.flower.records import metrics_of

log = logging.getLogger("flwr")

# Seconds between looks for nodes, and the longest wait for the answer to a query.
LOOK = 1.0
LONGEST_QUERY = 60.0
# So many nodes are queried at once: each starts a process for it.
AT_ONCE = 10
# Flower's code for an exception in the ClientApp, and what it says if there is no function.
RAISED = 2
NO_FUNCTION = "No query function registered"
# A node that has not answered for so many deadlines is drawn again: its reply may be lost.
MOST_DEADLINES = 3.0


class Answer(NamedTuple):
    """What a node says of itself."""

    node: int
    partition: int | None = None
    samples: int | None = None


class Late(NamedTuple):
    """A node whose deadline is over, and until when it counts as busy."""

    node: int
    until: float


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
        if its ClientApp has no function for that, the others are not asked.
    """

    def __init__(
        self, at_least: int, wait: float, *, expected: int | None = None, query: bool = True
    ) -> None:
        self.at_least, self.wait, self.query = at_least, wait, query
        self.expected = max(at_least, expected or 0)
        self.fleet = Fleet()
        self._answered = False
        self._raised = 0
        self.late: dict[str, Late] = {}  # messages past their deadline, and the node behind each

    def present(self, grid: Grid, clock: Clock) -> NDArray[np.bool_]:
        """Return which clients are there and idle; wait while they are too few.

        A node that missed a deadline is busy until its reply, or word of its failure, comes, or a
        few more deadlines are over.
        """
        limit = clock.now() + self.wait
        needed = self.at_least if len(self.fleet) else self.expected
        said = False
        while True:
            self._forget_late(grid, clock)
            nodes = sorted(grid.get_node_ids())
            if len(nodes) >= needed:
                self._admit([node for node in nodes if node not in self.fleet], grid, clock)
                present = self._idle(nodes)
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

    def idle(self, grid: Grid) -> NDArray[np.bool_]:
        """Return which of the clients seen so far are there and idle, without waiting."""
        return self._idle(grid.get_node_ids())

    def busy(self, late: Mapping[str, int], deadline: float, clock: Clock) -> None:
        """Note the nodes that have not answered these messages by their deadline."""
        until = clock.now() + MOST_DEADLINES * deadline
        self.late |= {name: Late(node, until) for name, node in late.items()}

    def _idle(self, nodes: Iterable[int]) -> NDArray[np.bool_]:
        return self.fleet.among(set(nodes) - {late.node for late in self.late.values()})

    def _forget_late(self, grid: Grid, clock: Clock) -> None:
        if self.late:
            for message in grid.pull_messages(set(self.late)):
                self.late.pop(message.metadata.reply_to_message_id, None)
        now = clock.now()
        self.late = {name: late for name, late in self.late.items() if now < late.until}

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
        answers: list[Answer] = []
        wave = 1
        while self.query and nodes:
            wave = AT_ONCE if self._answered or self.fleet.partitioned else wave
            arrivals = _asked(nodes[:wave], grid, clock)
            self._judge([arrival.message for arrival in arrivals])
            answers += [
                _answer(node, metrics_of(message))
                for node, message, _ in arrivals
                if not message.has_error()
            ]
            nodes, wave = nodes[wave:], min(2 * wave, AT_ONCE)
        return answers

    def _judge(self, replies: Sequence[Message]) -> None:
        """Ask nobody else if the ClientApp answers no queries; one node's failure tells nothing."""
        failed = [reply.error for reply in replies if reply.has_error()]
        raised = [str(error.reason) for error in failed if error.code == RAISED]
        self._raised += len(raised)
        self._answered |= len(failed) < len(replies) or self.fleet.partitioned
        if not self._answered and (self._raised > 1 or any(NO_FUNCTION in each for each in raised)):
            self.query = False
            log.info(
                "fedpace: clients answer no queries: sample counts are learned from replies, and "
                "until then all count alike (see fedpace.flower.described)"
            )


def _asked(nodes: Sequence[int], grid: Grid, clock: Clock) -> list[Arrival]:
    content = RecordDict({"config": ConfigRecord()})
    messages = [Message(content, node, MessageType.QUERY) for node in nodes]
    return exchanged(grid, messages, deadline=LONGEST_QUERY, clock=clock).arrivals


def _answer(node: int, metrics: dict[str, object]) -> Answer:
    """Return what was said, as far as it makes sense."""
    partition, samples = metrics.get(PARTITION), metrics.get(SAMPLES)
    return Answer(
        node,
        partition if isinstance(partition, int) and partition >= 0 else None,
        samples if isinstance(samples, int) and 0 < samples < 2**53 else None,
    )
