"""What `pace` learns from the updates themselves, with a barrier or without."""

from __future__ import annotations

from typing import TypedDict, TypeVar

from fedpace.checks import FloatArray
from fedpace.estimation.agreement import Agreement, compared, with_length
from fedpace.estimation.learned import Learned, estimated_times
from fedpace.estimation.norms import believed, with_norms
from fedpace.rounds.sampler import Known
from fedpace.rounds.seen import Seen


class Lessons(TypedDict):
    """How long updates are, and how they change.

    `norms` are of residuals over their learning rate, NaN where there was none. `rate` is the
    latest learning rate.
    """

    norms: FloatArray
    rate: float
    agreement: Agreement


State = TypeVar("State", bound=Lessons)


def taught(state: State, seen: Seen) -> State:
    """Return the state after a look at the updates."""
    seen = believed(seen, state["norms"])
    state["rate"] = seen.learning_rate
    state["norms"] = with_norms(state["norms"], seen)
    state["agreement"] = with_length(compared(state["agreement"], seen), seen.weights)
    return state


def times_of(learned: Learned, known: Known) -> FloatArray:
    """Return t_i as known, or as learned."""
    return estimated_times(learned, known.n) if known.times is None else known.times
