"""From a scheme's name, or a user's own, to the sampler of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from fedpace.errors import InputError, listed
from fedpace.estimation.no_barrier import (
    BUFFERS,
    BY_COUNTS,
    LEARNING,
    PUBLISHED,
    SERVERS,
    Shares,
)
from fedpace.estimation.pace import Pace
from fedpace.estimation.pace_stream import PaceStream
from fedpace.estimation.pilots import Piloted
from fedpace.estimation.solve import Solve
from fedpace.lookup import found
from fedpace.rivals import RIVALS
from fedpace.rivals.pisces import Pisces
from fedpace.rounds.sampler import Sampler
from fedpace.sampling.schemes import GROUP, SCHEMES, Scheme, is_scheme, needs_counts_only


@dataclass(frozen=True)
class Pilots:
    """Learn from the two pilots of Algorithm 2, from which c is estimated.

    Parameters
    ----------
    thresholds : losses F_s
        Both pilots run until they pass the lowest.
    rounds : int
        Or until this many rounds are over.
    """

    thresholds: Sequence[float]
    rounds: int

    def __post_init__(self) -> None:
        falling = all(a > b for a, b in pairwise(self.thresholds))
        if not falling:
            raise InputError(
                f"thresholds must fall, as the loss does, got {list(self.thresholds)!s:.60}; "
                "give the highest first"
            )


@dataclass(frozen=True)
class WarmUp:
    """Learn from `rounds` rounds of weighted sampling that count as training; then c = S_0.

    For a live federation, where training a model twice from the start is too dear, and where the
    two pilots would hardly ever identify c.
    """

    rounds: int


# Rounds of weighted sampling that a scheme learns from where nobody says how many.
USUAL_WARM_UP = 10
# Samplers of ours, by name, and with those of other papers.
OURS: dict[str, Any] = {
    "pace": Pace,
    "optimal-mean-no-pilots": partial(Solve, SCHEMES["optimal-mean"]),
}
SAMPLERS: dict[str, Any] = OURS | RIVALS
# All that comes with fedpace; what others have published without a barrier needs more to be made.
KNOWN = (
    SCHEMES | SAMPLERS | {name: partial(Shares, name) for name in PUBLISHED} | {"pisces": Pisces}
)
# What works where no round is waited for.
WITHOUT_BARRIER = ("pace", *BY_COUNTS, *LEARNING, *PUBLISHED)
# Rounds that the latter of ours learns from, and after which it solves again, where nobody says: as
# `pace`.
USUAL = {"warm_up": 3, "refresh": 10}


def named(name: object, *, argument: str = "scheme") -> Any:
    """Return what a name stands for: a scheme, a sampler, or a class of samplers.

    >>> named("uniform") is SCHEMES["uniform"]
    True
    """
    value = found(name, KNOWN, argument=argument, group=GROUP)
    if callable(value) or hasattr(value, "observe"):
        return value
    raise InputError(
        f"{argument} must be a function, a sampler or a class of samplers, got '{name}', a "
        f"{type(value).__name__}; see docs/extend.md"
    )


def sampler_for(
    scheme: str | Scheme | Sampler | type[Any],
    k: int,
    *,
    learn: Pilots | WarmUp | None = None,
    refresh: int | None = None,
    max_weight: float | None = None,
    c_over_s0: float | None = None,
    knobs: Mapping[str, Any] | None = None,
) -> Sampler:
    """Return the sampler of a run.

    Parameters
    ----------
    scheme : str, Scheme, Sampler, or a class of samplers
        A name (see `named`), or the object itself. A sampler is taken as it is,
        and a class is called with `k=k`; the other settings are for schemes.
    k : int ≥ 1
        K, the draws per round.
    learn : Pilots or WarmUp, optional
        How a scheme that needs more than sample counts learns before its first design; by default
        a warm-up of ten rounds. `pace` has a warm-up of three, or of as many as are given here.
    refresh, max_weight, c_over_s0
        As in `Solve`.
    knobs : mapping of names to values, optional
        Settings of a sampler's own, for one given by name or as a class: {"d": 30} for pow-d.

    Examples
    --------
    >>> sampler_for("weighted", 4, learn=WarmUp(10)).k
    4
    """
    check_with_barrier(scheme)
    given: Any = named(scheme) if isinstance(scheme, str) else scheme
    common: dict[str, Any] = {"refresh": refresh, "max_weight": max_weight, "c_over_s0": c_over_s0}
    if isinstance(scheme, str) and scheme in OURS:
        warm_up = learn.rounds if isinstance(learn, WarmUp) else None
        chosen = {name: x for name, x in {**common, "warm_up": warm_up}.items() if x is not None}
        ours: Sampler = _made(given, k, scheme, USUAL | chosen | dict(knobs or {}))
        return ours
    if isinstance(given, (type, partial)):
        given = _made(given, k, scheme, knobs or {})
    elif knobs:
        got = f"{listed(knobs)} for {scheme!r:.80}"
        raise InputError(f"knobs must be those of a class of samplers, got {got}; leave them out")
    if not is_scheme(given):
        return _own_sampler(given, scheme)
    if isinstance(learn, Pilots) and not needs_counts_only(given):
        return Piloted(given, k, learn.thresholds, learn.rounds, **common)
    return Solve(given, k, warm_up=USUAL_WARM_UP if learn is None else learn.rounds, **common)


def stream_sampler_for(
    scheme: str | Scheme | Sampler | type[Any],
    at_once: int,
    *,
    buffer: int | None = None,
    times_known: bool = True,
    warm_up: int | None = None,
    refresh: int | None = None,
    max_weight: float | None = None,
    c_over_s0: float | None = None,
    knobs: Mapping[str, Any] | None = None,
) -> Sampler:
    """Return the sampler of a run without a barrier.

    Parameters
    ----------
    scheme : str, Scheme, Sampler, or a class of samplers
        As in `sampler_for`; names are those in `WITHOUT_BARRIER`, or of your own. Of a scheme
        that draws with replacement, the probabilities become shares of completions.
    at_once, buffer : int ≥ 1
        C, the clients at work, and B, the updates in a step, by default C.
    times_known : bool
        Whether the clients' times are known before; else they are learned.
    warm_up, refresh : int ≥ 1, optional
        As in `Solve`, in rounds of C completions.
    max_weight, c_over_s0
        As in `Solve`.
    knobs : mapping of names to values, optional
        Settings of a scheme's own, for one given by name: `buffer`, and those of its server or
        sampler, {"mixing": 0.3} for fedasync.

    Examples
    --------
    >>> stream_sampler_for("weighted", 4, buffer=2).k
    2
    """
    check_without_barrier(scheme)
    chosen: dict[str, Any]
    own_knobs = dict(knobs or {})
    buffer = own_knobs.pop("buffer", buffer)
    if isinstance(scheme, str) and scheme == "pace":  # which caps weights in its own way
        own = {"warm_up": warm_up, "refresh": refresh, "c_over_s0": c_over_s0, **own_knobs}
        chosen = {name: value for name, value in own.items() if value is not None}
        return PaceStream(at_once, buffer=buffer, **chosen)
    if isinstance(scheme, str) and scheme == "pisces":  # which steps at a pace of its own
        pisces: Sampler = _made(Pisces, at_once, scheme, own_knobs)
        return pisces
    given: Any = named(scheme) if isinstance(scheme, str) else scheme
    if not is_scheme(given) and scheme not in WITHOUT_BARRIER:
        if isinstance(given, (type, partial)):
            given = _made(given, at_once, scheme, {})
        return _own_sampler(given, scheme)
    k = at_once if buffer is None else buffer
    first: Any = Shares("weighted", at_once)
    chosen = {}
    if isinstance(scheme, str) and scheme in WITHOUT_BARRIER:
        given = Shares(scheme, at_once, times_known)
        chosen = {"server": _server(scheme, own_knobs), "buffer": BUFFERS.get(scheme, buffer)}
        if scheme in BY_COUNTS and refresh is None:
            refresh = USUAL["refresh"]  # times change
    rounds = USUAL_WARM_UP if warm_up is None else warm_up
    return Solve(
        given,
        k,
        warm_up=_steps(rounds, at_once, k),
        refresh=None if refresh is None else _steps(refresh, at_once, k),
        max_weight=max_weight,
        c_over_s0=c_over_s0,
        first=first,
        **chosen,
    )


def check_with_barrier(scheme: object) -> None:
    """Refuse a scheme that comes with fedpace and has no rounds."""
    if isinstance(scheme, str) and scheme in PUBLISHED:
        remedy = "choose mode asynchronous, or another scheme"
        raise InputError(f"{scheme} has no rounds, got mode synchronous; {remedy}")


def check_without_barrier(scheme: object) -> None:
    """Refuse a scheme that comes with fedpace and needs rounds."""
    if isinstance(scheme, str) and scheme in KNOWN and scheme not in WITHOUT_BARRIER:
        raise InputError(
            f"{scheme} needs rounds, got mode asynchronous; choose one of "
            f"{listed(WITHOUT_BARRIER)}, or mode synchronous"
        )


def _steps(rounds: int, at_once: int, buffer: int) -> int:
    """Return the steps that take as many updates as these rounds."""
    return math.ceil(rounds * at_once / buffer)


def _made(make: Callable[..., Any], k: int, name: object, settings: Mapping[str, Any]) -> Any:
    """Make a sampler, or say why it cannot be made."""
    try:
        return make(k=k, **settings)
    except Exception as error:  # whatever a user's own raises
        given = ", ".join(f"{key}={value!r}" for key, value in {"k": k, **settings}.items())
        raise InputError(
            f"scheme must be made with {given}, got {name!r:.80}: {type(error).__name__}: "
            f"{error}; see docs/extend.md"
        ) from None


def _server(scheme: str, knobs: Mapping[str, Any]) -> Any:
    """Return the server that is part of a scheme without a barrier, None where none is."""
    if scheme not in SERVERS:
        if knobs:
            got = f"{listed(knobs)} for '{scheme}'"
            raise InputError(
                f"knobs must be buffer, or those of a server, got {got}; leave them out"
            )
        return None
    try:
        return SERVERS[scheme](**knobs)
    except TypeError as error:
        got = f"{listed(knobs)} for '{scheme}': {error}"
        raise InputError(
            f"knobs must be those of its server, got {got}; see docs/rivals.md"
        ) from None


def _own_sampler(given: Any, name: object) -> Sampler:
    """Return a sampler of a user's own, or say why it is none."""
    if not all(hasattr(given, each) for each in ("init", "design", "observe")):
        raise InputError(
            f"scheme must have init, design and observe, got {name!r:.80}; see docs/extend.md"
        )
    return given  # type: ignore[no-any-return]
