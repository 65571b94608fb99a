"""The sampling policy: what to draw from now, given all that was seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray
from fedpace.profile import Profile
from fedpace.rounds.rows import Row
from fedpace.rounds.stopping import Stop
from fedpace.sampling.design import Design


class Known(NamedTuple):
    """What a run knows before a draw.

    `weights` are p_i; `times` are t_i where they need not be learned, else None; `present` says
    who is there, None for everyone. `round` and `seconds` lie behind us.
    """

    weights: FloatArray
    times: FloatArray | None = None
    present: NDArray[np.bool_] | None = None
    round: int = 0
    seconds: float = 0.0

    @property
    def n(self) -> int:
        """The number of clients, present or not."""
        return self.weights.size

    @property
    def blank_profile(self) -> Profile:
        """What is known before the first reply: all clients alike but for p, and t if known."""
        ones = np.ones(self.n)
        return Profile(self.weights, ones if self.times is None else self.times, ones)


@dataclass(frozen=True)
class Phase:
    """A part of a run, and where it begins.

    Parameters
    ----------
    name : str
        What its rows are called.
    stream : name and numbers
        The random stream that its draws come from: see `Seeds.stream`.
    model : str, optional
        The model that it begins with: "start" for the initial one, or the name of an earlier
        phase that has an `until`, for the model at its end. None: go on with the latest.
    until : Stop, optional
        When it ends; the row that ends it says so. Reaching the run's target in it does not end
        the run. None: the run's own rule holds.
    """

    name: str = "train"
    stream: tuple[Any, ...] = ("draw",)
    model: str | None = None
    until: Stop | None = None


TRAIN = Phase()
START = "start"


class Plan(NamedTuple):
    """A design, with the profile that it was solved for and notes to be stored with the run."""

    design: Design
    profile: Profile | None = None
    notes: Mapping[str, Any] = {}


class Sampler(Protocol):
    """Decides what to draw from, and learns from every round.

    State is made of numbers, text, None, lists, tuples, dicts with text as keys, and NumPy
    arrays. The run carries it, and the checkpoint keeps it whole. A sampler whose run has parts
    with other rules, such as pilots, also has `phase(state) -> Phase`.
    """

    def init(self, n: int) -> Any:
        """Return the state before the first round, for `n` clients; more may come later."""

    def design(self, state: Any, known: Known) -> Design | Plan:
        """Return what to draw from now. Called before every round: keep what is dear to solve."""

    def observe(self, state: Any, row: Row) -> Any:
        """Return the state after a round; arrays of the old one may be changed in place.

        The first row is that of the initial model: round 0, with nobody drawn.
        """


def phase_of(sampler: Sampler, state: Any) -> Phase:
    """Return the phase that a sampler is in; one without phases just trains."""
    phase = getattr(sampler, "phase", None)
    found: Phase = TRAIN if phase is None else phase(state)
    return found


def plan_of(sampler: Sampler, state: Any, known: Known) -> Plan:
    """Return what a sampler wants to draw from, as a plan."""
    design = sampler.design(state, known)
    return design if isinstance(design, Plan) else Plan(design)
