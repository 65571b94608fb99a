"""The sampling policy: what to draw from now, given all that was seen, and in which phase."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray
from fedpace.errors import InputError, listed
from fedpace.profile import Profile
from fedpace.rounds.backend import Probe, Reply
from fedpace.rounds.rows import Row
from fedpace.rounds.state import State
from fedpace.rounds.stopping import TIME_IS_UP, Stop
from fedpace.sampling.design import Design, Draw
from fedpace.sampling.turns import Dispatch

# What is known of a model that is kept for a later phase.
MEASURED = ("round", "loss", "accuracy")


class Known(NamedTuple):
    """What a run knows before a draw.

    `weights` are p_i; `times` are t_i where they need not be learned, else None; `present` says
    who is there, None for everyone. `round` and `seconds` lie behind us. `chance` is uniform in
    [0, 1) and stays the same for the whole run. `probe(clients)` asks clients how the model does,
    and costs what that costs; it is for designs that ask while they draw, and None elsewhere.
    `rate` is the learning rate of the round to come, NaN where clients alone know it.
    """

    weights: FloatArray
    times: FloatArray | None = None
    present: NDArray[np.bool_] | None = None
    round: int = 0
    seconds: float = 0.0
    chance: float = 0.5
    probe: Callable[..., Probe] | None = None
    rate: float = math.nan

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

    def ending(self, stop: Stop) -> Stop:
        """Return the rule that holds in it, in a run that ends by `stop`."""
        if self.until is None:
            return stop
        return replace(self.until, seconds=stop.seconds, blind=stop.blind)

    def over(self, stop: Stop, state: State, row: Row) -> str:
        """Return why the run is over, by the rule of now: a resumed run may be given more."""
        if self.until is not None:
            late = stop.seconds is not None and row.seconds >= stop.seconds
            return TIME_IS_UP if late and row.ended == TIME_IS_UP else ""
        if self.model is not None and row.phase != self.name:
            model = self._model(state)
            row = row._replace(**{name: model[name] for name in MEASURED})
        return stop.reason(row) if row.round else ""

    def entered(self, state: State) -> State:
        """Return the state at its beginning, with the model that it asks for."""
        if self.model is not None:
            model = self._model(state)
            state = state._replace(
                parameters=model["parameters"],
                round=model["round"],
                server=deepcopy(model["server"]),
            )
        return state._replace(phase=self.name)

    def kept(self, name: str, state: State, row: Row) -> State:
        """Return the state with its model kept for later phases, where this one has an end."""
        if self.until is None:
            return state
        model = {each: getattr(row, each) for each in MEASURED}
        model |= {"parameters": state.parameters, "server": deepcopy(state.server)}
        return state._replace(models={**state.models, name: model})

    def _model(self, state: State) -> Mapping[str, Any]:
        if self.model is None or self.model not in state.models:
            raise InputError(
                f"phase must begin with a model that was kept, got '{self.model}' of "
                f"{listed(state.models) or 'none'}; give the first phase, and that one, an `until`"
            )
        return state.models[self.model]  # type: ignore[no-any-return]


TRAIN = Phase()
START = "start"


class Plan(NamedTuple):
    """A design, with the profile that it was solved for and notes to be stored with the run.

    `why` says in a short sentence why this design, for the history. Without a barrier, `buffer` is
    how many updates make a step; None: as many as are at work at once.
    """

    design: Design | Dispatch
    profile: Profile | None = None
    notes: Mapping[str, Any] = {}
    why: str = ""
    buffer: int | None = None


class Sampler(Protocol):
    """Decides what to draw from, and learns from every round.

    State is made of numbers, text, None, lists, tuples, dicts with text as keys, and NumPy
    arrays. The run carries it, and the checkpoint keeps it whole. A sampler whose run has parts
    with other rules, such as pilots, also has `phase(state) -> Phase`. One that wants to look at
    the updates also has `see(state, seen: Seen) -> state`, called before `observe` in every round
    in which somebody answered. One that draws best with a certain server has it as `server`.

    One that decides by the replies whose count has `choose(state, draw, reply, rng) -> Draw`, of
    some of those who answered. `biased = True` says that weights are meant as they are: they are
    not corrected for replies that did not come. With `reads_losses = True` clients say how the
    model that they got does, also where no network lies between. Without a barrier, one that has
    `steps_now(state, passed, at_work, known) -> bool` decides whenever somebody is back whether the
    server steps with all that came, `passed` seconds after it did last.
    """

    def init(self, n: int) -> Any:
        """Return the state before the first round, for `n` clients; more may come later."""

    def design(self, state: Any, known: Known) -> Design | Dispatch | Plan:
        """Return what to draw from now. Called before every round: keep what is dear to solve.

        Without a barrier it is called before every task, and the design is a `Dispatch`, or draws
        with replacement, by probabilities that become shares of completions.
        """

    def observe(self, state: Any, row: Row) -> Any:
        """Return the state after a round; arrays of the old one may be changed in place.

        The first row is that of the initial model: round 0, with nobody drawn.
        """


def phase_of(sampler: Sampler, state: Any) -> Phase:
    """Return the phase that a sampler is in; one without phases just trains."""
    phase = getattr(sampler, "phase", None)
    found: Phase = TRAIN if phase is None else phase(state)
    return found


def chosen(
    sampler: Sampler,
    state: Any,
    draw: Draw,
    reply: Reply,
    rng: np.random.Generator,
    *,
    take: int | None,
) -> tuple[Draw, Reply]:
    """Return the part of a draw and of its replies that counts, by the sampler's own rule if any.

    Of more than `take` replies the first count, where the backend has waited for all.
    """
    if take is not None and reply.clients.size > take:
        keep = np.zeros(reply.clients.size, dtype=np.bool_)
        keep[np.argsort(reply.seconds, kind="stable")[:take]] = True
        reply = reply.only(keep)
    choose = getattr(sampler, "choose", None)
    if choose is None or not reply.clients.size:
        return draw, reply
    wanted: Draw = choose(state, draw, reply, rng)
    left_out = np.setdiff1d(reply.clients, wanted.clients, assume_unique=True)
    weights = draw.weights.copy()
    weights[np.searchsorted(draw.clients, wanted.clients)] = wanted.weights
    rest = ~np.isin(draw.clients, left_out)
    draw = draw._replace(clients=draw.clients[rest], weights=weights[rest])
    return draw, reply.only(np.isin(reply.clients, wanted.clients))


def plan_of(sampler: Sampler, state: Any, known: Known) -> Plan:
    """Return what a sampler wants to draw from, as a plan."""
    design = sampler.design(state, known)
    return design if isinstance(design, Plan) else Plan(design)
