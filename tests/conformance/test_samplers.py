"""The suite accepts samplers that keep the rules, and says which one another breaks."""

from typing import Any, cast

import numpy as np
import pytest

from fedpace import SCHEMES, BaseSampler, Piloted, Row, SamplerContext, Solve, WithReplacement
from fedpace.conformance import check_sampler
from fedpace.samplers.pace import Pace
from fedpace.training.updates import RoundUpdates


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

    def design(self, state: Any, context: SamplerContext) -> WithReplacement:
        return WithReplacement(context.weights, 2, context.weights)

    def observe(self, state: Any, row: Row) -> Any:
        return state


class Hidden(Weighted):
    """Keeps in itself what belongs into the state."""

    def __init__(self) -> None:
        self.rounds = 0

    def design(self, state: Any, context: SamplerContext) -> WithReplacement:
        q = context.weights ** (1 + self.rounds)
        return WithReplacement(q / q.sum(), 2, context.weights)

    def observe(self, state: Any, row: Row) -> Any:
        self.rounds += 1
        return state


class Object(Weighted):
    """Has a state that no file can hold."""

    def init(self, n: int) -> Any:
        return {"rng": np.random.default_rng(n)}


class Hasty(Weighted):
    """Changes what it is shown."""

    def see(self, state: Any, seen: RoundUpdates) -> Any:
        seen.reply.updates[:] = 0.0
        return state


class Forgetful(Weighted):
    """Keeps in itself what it saw."""

    seen = 0

    def see(self, state: Any, seen: RoundUpdates) -> Any:
        self.seen += 1
        return state

    def design(self, state: Any, context: SamplerContext) -> WithReplacement:
        q = context.weights ** (1 + self.seen)
        return WithReplacement(q / q.sum(), 2, context.weights)


class Deaf(Weighted):
    """Returns a design for clients that may all be away."""

    def design(self, state: Any, context: SamplerContext) -> WithReplacement:
        return WithReplacement([1.0], 2, [1.0])


class Crowded(Weighted):
    """Knows clients that do not exist."""

    def design(self, state: Any, context: SamplerContext) -> WithReplacement:
        even = np.full(context.n + 1, 1 / (context.n + 1))
        return WithReplacement(even, 2, even)


def test_a_sampler_in_a_few_lines_passes() -> None:
    check_sampler(cast(Any, Weighted))


@pytest.mark.parametrize(
    ("sampler", "sentence"),
    [
        (Hidden, "keep everything that the design depends on in the state"),
        (Hasty, "see must not change the model, updates and weights"),
        (Forgetful, "keep everything that the design depends on in the state"),
        (Object, "the state must be storable: .*got Generator"),
        (Deaf, "the design must have a client that is present"),
        (Crowded, "must not have more clients than N"),
    ],
)
def test_a_broken_rule_is_named(sampler: type[BaseSampler], sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_sampler(sampler)
