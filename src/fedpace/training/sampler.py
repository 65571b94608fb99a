"""The sampling policy: which design to draw from now, given everything seen so far."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpace.adapt import adapt, defines, original
from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError, join_names
from fedpace.profile import Profile
from fedpace.sampling.design import Design, Draw
from fedpace.sampling.dispatch import Dispatch
from fedpace.training.backend import Probe, Reply
from fedpace.training.checkpoint import State
from fedpace.training.history import Row
from fedpace.training.stopping import TIME_IS_UP, Stop
from fedpace.training.updates import RoundUpdates

if TYPE_CHECKING:
    from fedpace.training.server import BaseServer

# Columns that are kept with a model for a later phase.
MEASURED = ("round", "loss", "accuracy")


class SamplerContext(NamedTuple):
    """What a run knows before a draw.

    `weights` are p_i; `times` are t_i where they are known beforehand, else None; `present` marks
    the clients that can be drawn, None for all. `round` and `seconds` are those completed so far.
    `chance` is uniform in [0, 1) and stays the same for the whole run. `probe(clients)` asks
    clients for the loss of the model, and its time counts; None where clients cannot be asked.
    `rate` is the learning rate of the coming round, NaN where only the clients know it.
    `local_steps` is E of a task that does not say, None where only the clients know it; `times` are
    for so many steps, and `computing` is the share of them that grows with E, where it is known
    beforehand. `shared_by` clients transfer at the same time in `times`, if they share a link.
    """

    weights: FloatArray
    times: FloatArray | None = None
    present: NDArray[np.bool_] | None = None
    round: int = 0
    seconds: float = 0.0
    chance: float = 0.5
    probe: Callable[..., Probe] | None = None
    rate: float = math.nan
    local_steps: int | None = None
    computing: FloatArray | None = None
    shared_by: int | None = None

    @property
    def n(self) -> int:
        """The number of clients, present or not."""
        return self.weights.size

    @property
    def blank_profile(self) -> Profile:
        """The profile before the first reply: clients differ only in p, and in t if known."""
        ones = np.ones(self.n)
        return Profile(self.weights, ones if self.times is None else self.times, ones)


@dataclass(frozen=True)
class Phase:
    """A part of a run, and where it begins.

    Parameters
    ----------
    name : str
        The name in the rows.
    stream : name and numbers
        The random stream of its draws: see `Seeds.stream`.
    model : str, optional
        The model that it begins with: "start" for the initial one, or the name of an earlier
        phase that has an `until`, for the model at its end. None: continue with the latest.
    until : Stop, optional
        When it ends. Reaching the run's target in it does not end the run. None: the run's own
        stopping rule applies.
    """

    name: str = "train"
    stream: tuple[Any, ...] = ("draw",)
    model: str | None = None
    until: Stop | None = None

    def stopping_rule(self, stop: Stop) -> Stop:
        """Return the stopping rule of this phase in a run that ends by `stop`."""
        if self.until is None:
            return stop
        return replace(self.until, seconds=stop.seconds, blind=stop.blind)

    def end_reason(self, stop: Stop, state: State, row: Row) -> str:
        """Return why the run ends, by the current rule: a resumed run may have a later one."""
        if self.until is not None:
            late = stop.seconds is not None and row.seconds >= stop.seconds
            return TIME_IS_UP if late and row.ended == TIME_IS_UP else ""
        if self.model is not None and row.phase != self.name:
            model = self._model(state)
            row = row._replace(**{name: model[name] for name in MEASURED})
        return stop.reason(row) if row.round else ""

    def enter(self, state: State) -> State:
        """Return the state at its beginning, with the model that it asks for."""
        if self.model is not None:
            model = self._model(state)
            state = state._replace(
                parameters=model["parameters"],
                round=model["round"],
                server=deepcopy(model["server"]),
            )
        return state._replace(phase=self.name)

    def keep_model(self, name: str, state: State, row: Row) -> State:
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
                f"{join_names(state.models) or 'none'}; "
                "give the first phase, and that one, an `until`"
            )
        return state.models[self.model]  # type: ignore[no-any-return]


TRAIN = Phase()
START = "start"


class Plan(NamedTuple):
    """A design, the profile that it was solved for, and notes to store with the run.

    `why` is a short reason for the history. In asynchronous training, `buffer` is the number of
    updates in a server step; None: as many as clients are at work at once. `local_steps` is E for
    all clients, or one number for each of them; None: as the backend is configured. In asynchronous
    training, `step` is how far the server steps along the directions per update; None: each update
    as it was made.
    """

    design: Design | Dispatch
    profile: Profile | None = None
    notes: Mapping[str, Any] = {}
    why: str = ""
    buffer: int | None = None
    local_steps: int | IntArray | None = None
    step: float | None = None

    def steps_of(self, clients: IntArray) -> IntArray | None:
        """Return the local steps of these clients; None: as the backend is configured."""
        if self.local_steps is None:
            return None
        steps = np.asarray(self.local_steps, dtype=np.int64)
        if steps.min(initial=1) < 1 or (steps.ndim and steps.size <= clients.max(initial=-1)):
            got = f"{self.local_steps!r:.60}; give one number, or one for each client"
            raise InputError(
                f"local_steps of a plan must be at least 1 for every client, got {got}"
            )
        return steps[clients] if steps.ndim else np.full(clients.size, steps)


class Handover(NamedTuple):
    """An asynchronous sampler to continue with and its state, C, and the reason."""

    sampler: BaseSampler
    state: Any
    at_once: int
    why: str


class BaseSampler(ABC):
    """Decide what to draw from, and learn from every round.

    A subclass implements `design` and overrides what else it needs. State consists of numbers,
    text, None, lists, tuples, dicts with text keys, and NumPy arrays; the run carries it and the
    checkpoint stores it.

    Attributes
    ----------
    server : BaseServer, optional
        The server to use where the run names none.
    biased : bool
        Whether weights are used as they are, not corrected for missing replies.
    reads_losses : bool
        Whether clients report the loss of the model that they received, in simulation too.
    returns_to_best : bool
        Whether asynchronous training goes back to its best model when the loss is far above the
        first.
    """

    server: BaseServer | None = None
    biased: bool = False
    reads_losses: bool = False
    returns_to_best: bool = False

    def init(self, n: int) -> Any:  # noqa: ARG002
        """Return the state before the first round, for `n` clients; more may join later."""
        return None

    @abstractmethod
    def design(self, state: Any, context: SamplerContext) -> Design | Dispatch | Plan:
        """Return what to draw from now. Called before every round: cache expensive solutions.

        In asynchronous training it is called before every task, and the design is a `Dispatch`, or
        draws with replacement, by probabilities that become shares of completions.
        """

    def observe(self, state: Any, row: Row) -> Any:  # noqa: ARG002
        """Return the state after a round; arrays of the old one may be changed in place.

        The first row is that of the initial model: round 0, without clients.
        """
        return state

    def see(self, state: Any, updates: RoundUpdates) -> Any:  # noqa: ARG002
        """Return the state after a look at the updates; called before `observe`, with replies."""
        return state

    def phase(self, state: Any) -> Phase:  # noqa: ARG002
        """Return the phase of the run, for samplers whose runs have parts, such as pilots."""
        return TRAIN

    def choose(self, state: Any, draw: Draw, reply: Reply, rng: np.random.Generator) -> Draw | None:  # noqa: ARG002
        """Return the part of a draw that counts, of those who answered; None for all."""
        return None

    def steps_now(
        self,
        state: Any,  # noqa: ARG002
        passed: float,  # noqa: ARG002
        at_work: IntArray,  # noqa: ARG002
        context: SamplerContext,  # noqa: ARG002
    ) -> bool | IntArray | None:
        """Decide whether the server steps now, `passed` seconds after its last asynchronous step.

        None, the default: step whenever the buffer is full. True: with all updates in the buffer.
        An array of clients: with all but the updates of these.
        """
        return None

    def handover(self, state: Any, context: SamplerContext) -> Handover | None:  # noqa: ARG002
        """Return what to continue with asynchronously; None, the default, to stay in rounds."""
        return None

    def plan(self, state: Any, context: SamplerContext) -> Plan:
        """Return `design` as a plan."""
        design = self.design(state, context)
        return design if isinstance(design, Plan) else Plan(design)

    @property
    def sees_updates(self) -> bool:
        """Whether `see` is implemented, so that residuals must be computed."""
        return defines(original(self), BaseSampler, "see")


def as_sampler(value: Any, *, argument: str = "sampler") -> BaseSampler:
    """Return a sampler; an object that does not subclass `BaseSampler` is wrapped."""
    return adapt(value, BaseSampler, argument=argument, required=("design",))  # type: ignore[type-abstract]
