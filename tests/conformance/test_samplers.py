"""The suite accepts samplers that keep the rules, and says which one another breaks."""

from typing import Any

import numpy as np
import pytest

from fedpace import SCHEMES, Known, Piloted, Row, Sampler, Solve, WithReplacement
from fedpace.conformance import check_sampler
from fedpace.estimation.pace import Pace
from fedpace.rounds.seen import Seen


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_passes_with_a_warm_up_and_with_pilots(scheme: str) -> None:
    function = SCHEMES[scheme]
    check_sampler(lambda: Solve(function, k=3, warm_up=5, refresh=4))
    check_sampler(lambda: Piloted(function, 3, [1.0, 0.5], 9, refresh=4))


PACES: dict[str, dict[str, Any]] = {
    "usual": {"k": 3},
    "K = 1": {"k": 1},
    "K = N": {"k": 6},
    "K > N": {"k": 20},
    "given tiers": {"k": 2, "tiers": 5, "c_over_s0": 0.5, "refresh": 2},
    "more tiers than clients": {"k": 2, "tiers": 50},
    "by chance": {"k": 2, "in_turn": False, "warm_up": 1},
    "capped": {"k": 2, "max_weight": 1.0},
}


@pytest.mark.parametrize("name", PACES)
def test_pace_passes(name: str) -> None:
    check_sampler(lambda: Pace(**PACES[name]))
    check_sampler(lambda: Pace(**PACES[name]), n=12, seed=1)


class Weighted:
    """A sampler that keeps the rules; those below break one each."""

    def init(self, n: int) -> Any:
        return {"n": n}

    def design(self, state: Any, known: Known) -> WithReplacement:
        return WithReplacement(known.weights, 2, known.weights)

    def observe(self, state: Any, row: Row) -> Any:
        return state


class Hidden(Weighted):
    """Keeps in itself what belongs into the state."""

    def __init__(self) -> None:
        self.rounds = 0

    def design(self, state: Any, known: Known) -> WithReplacement:
        q = known.weights ** (1 + self.rounds)
        return WithReplacement(q / q.sum(), 2, known.weights)

    def observe(self, state: Any, row: Row) -> Any:
        self.rounds += 1
        return state


class Object(Weighted):
    """Has a state that no file can hold."""

    def init(self, n: int) -> Any:
        return {"rng": np.random.default_rng(n)}


class Hasty(Weighted):
    """Changes what it is shown."""

    def see(self, state: Any, seen: Seen) -> Any:
        seen.reply.updates[:] = 0.0
        return state


class Forgetful(Weighted):
    """Keeps in itself what it saw."""

    seen = 0

    def see(self, state: Any, seen: Seen) -> Any:
        self.seen += 1
        return state

    def design(self, state: Any, known: Known) -> WithReplacement:
        q = known.weights ** (1 + self.seen)
        return WithReplacement(q / q.sum(), 2, known.weights)


class Deaf(Weighted):
    """Returns a design for clients of whom nobody may be there."""

    def design(self, state: Any, known: Known) -> WithReplacement:
        return WithReplacement([1.0], 2, [1.0])


class Crowded(Weighted):
    """Knows clients that do not exist."""

    def design(self, state: Any, known: Known) -> WithReplacement:
        even = np.full(known.n + 1, 1 / (known.n + 1))
        return WithReplacement(even, 2, even)


def test_a_sampler_in_a_few_lines_passes() -> None:
    check_sampler(Weighted)


@pytest.mark.parametrize(
    ("sampler", "sentence"),
    [
        (Hidden, "keep in the state whatever the design depends on"),
        (Hasty, "see must leave the model, updates and weights as they are"),
        (Forgetful, "keep in the state whatever the design depends on"),
        (Object, "the state must be storable: .*got Generator"),
        (Deaf, "the design must know somebody who is present"),
        (Crowded, "must not know more clients than there are"),
    ],
)
def test_a_broken_rule_is_told_in_a_sentence(sampler: type[Sampler], sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_sampler(sampler)
