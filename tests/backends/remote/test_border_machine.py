"""In whatever order clients come, fail, lie and answer, the asynchronous border keeps its word."""

import json
import math

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedpace.backends.remote.screening import (
    LONGEST_UPDATE,
    BadReplyError,
    Border,
    Claims,
    FirstReplies,
)
from fedpace.training.updates import length_of

SIZE = 3
# Honest updates differ between clients, and become shorter as training goes on, for most.
BETWEEN, BY_TRAINING = 4.0, 2_000.0
LIES = (math.nan, math.inf, 0.0, 1e-30, 1e-3, 1.0, 99.0, 1e3, 1e6, 1e37, 1e300)


class AsynchronousBorder(RuleBasedStateMachine):
    """A fleet of 5 to 60 clients, of which up to an eighth lie as they like and as often."""

    @initialize(n=st.integers(5, 60), part=st.floats(0, 1), seed=st.integers(0, 99))
    def begin(self, n: int, part: float, seed: int) -> None:
        self.n, self.rng = n, np.random.default_rng(seed)
        order = self.rng.permutation(n).tolist()
        self.liars = order[: round(part * max(n // 8, 1))]
        self.honest = order[len(self.liars) :]
        self.unlike = self.honest[: n // 8]  # the others' training does not help these
        self.stage = 1.0
        self.away: set[int] = set()
        self.sent: dict[int, np.ndarray] = {}  # the latest update of each client
        self.restart_with(Border())
        self.longest, self.failures = 0.0, 0

    def restart_with(self, border: Border) -> None:
        self.border, self.first = border, FirstReplies[tuple[int, np.ndarray]](border)

    def answer(self, client: int, update: np.ndarray) -> None:
        self.sent[client] = update
        reachable = {*range(self.n)} - self.away
        self.judge(self.first.release({client: (client, update)}, reachable=reachable))

    def judge(self, replies: list[tuple[int, np.ndarray]]) -> None:
        lengths = {client: length_of(update) for client, update in replies}
        self.border.meet(Claims(*each) for each in lengths.items())
        for client, length in lengths.items():
            self.judge_one(client, length)

    def judge_one(self, client: int, length: float) -> None:
        try:
            factor = self.border.update(client, length)
        except BadReplyError:
            self.border.forget(client)
            assert client in self.liars
            return
        assert factor == 1 or client in self.liars or client in self.unlike
        # As many honest updates, and no more, would move the model as far.
        assert factor * length <= LONGEST_UPDATE * self.longest * (1 + 1e-9)

    @precondition(lambda self: len(self.border.clients) > 4)
    @rule(factor=st.floats(1, 30))
    def most_converge(self, factor: float) -> None:
        self.stage = min(self.stage * factor, BY_TRAINING)

    @rule(place=st.integers(0, 99), own=st.floats(1, BETWEEN))
    def an_honest_client_answers(self, place: int, own: float) -> None:
        here = [each for each in self.honest if each not in self.away]
        client = here[place % len(here)]
        length = own if client in self.unlike else own / self.stage
        self.longest = max(self.longest, length)
        direction = self.rng.normal(size=SIZE)
        update = length * direction / np.linalg.norm(direction)
        self.answer(client, update)

    @precondition(lambda self: self.liars)
    @rule(
        place=st.integers(0, 99),
        scale=st.sampled_from(LIES),
        sign=st.sampled_from([1, -10]),
        often=st.integers(1, 5),
    )
    def a_liar_answers(self, place: int, scale: float, sign: int, often: int) -> None:
        liar = self.liars[place % len(self.liars)]
        for _ in range(often):
            if liar not in self.first.clients:  # who is held is not asked again
                self.answer(liar, np.full(SIZE, sign * scale))

    @precondition(lambda self: self.sent)
    @rule(place=st.integers(0, 99), often=st.integers(1, 5))
    def a_client_sends_its_latest_update_again(self, place: int, often: int) -> None:
        client = sorted(self.sent)[place % len(self.sent)]
        for _ in range(often):
            if client not in self.first.clients:
                self.answer(client, self.sent[client])

    @rule(place=st.integers(0, 99))
    def an_honest_client_leaves(self, place: int) -> None:
        if len(self.away) < len(self.honest) // 4:
            self.away.add(self.honest[place % len(self.honest)])

    @precondition(lambda self: self.away)
    @rule()
    def a_client_comes_back(self) -> None:
        self.away.pop()

    @rule(place=st.integers(0, 99))
    def a_client_fails(self, place: int) -> None:
        client = place % self.n
        if self.failures < self.n // 8:
            self.failures += 1
            self.first.drop([client])
            reachable = {*range(self.n)} - self.away
            self.judge(self.first.release({}, reachable=reachable, failed=1))

    @rule()
    def the_server_restarts(self) -> None:
        memory = json.loads(json.dumps(self.border.memory))
        self.restart_with(Border(memory))
        assert self.border.memory == memory

    @invariant()
    def whoever_is_held_has_not_counted(self) -> None:
        if hasattr(self, "first"):
            assert len(self.first.clients) <= 16


TestAsynchronousBorder = AsynchronousBorder.TestCase
TestAsynchronousBorder.settings = settings(
    max_examples=40, stateful_step_count=50, deadline=None, print_blob=True, derandomize=True
)
