"""From the name of a method, or an object of your own, to the sampler of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, cast

from fedpace.errors import InputError, join_names
from fedpace.lookup import find
from fedpace.registry import (
    ASYNCHRONOUS,
    AUTO,
    METHODS,
    MODES,
    SAMPLER,
    SYNCHRONOUS,
    Entry,
    entry_of,
    load,
    method_names,
)
from fedpace.samplers.pilots import Piloted
from fedpace.samplers.solve import BY_COUNTS, Shares, Solve
from fedpace.sampling.schemes import GROUP, Scheme, is_scheme, needs_counts_only
from fedpace.servers.asynchronous import ArrivalServer
from fedpace.training.sampler import BaseSampler, as_sampler


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

    For a live federation, where training a model twice is too expensive, and where the two pilots
    would hardly ever identify c.
    """

    rounds: int


# Default rounds of weighted sampling that a scheme learns from.
DEFAULT_WARM_UP = 10
# Default warm-up and refresh of samplers with state, and the refresh of asynchronous shares.
SAMPLER_DEFAULTS = {"warm_up": 3, "refresh": 10}


def resolve(name: object, *, argument: str = "scheme") -> Any:
    """Return what a name stands for: a scheme, a sampler, or a class of samplers.

    >>> from fedpace.sampling.schemes import SCHEMES
    >>> resolve("uniform") is SCHEMES["uniform"]
    True
    """
    value = find(name, METHODS, argument=argument, group=GROUP)
    if isinstance(value, Entry):
        return value.load(value.modes[0])
    if callable(value):
        return value
    return as_sampler(value, argument=f"{argument} '{name}'")


def check_mode(scheme: object, mode: str) -> None:
    """Refuse a registered method that does not work in a mode."""
    entry = entry_of(scheme)
    if mode not in (*MODES, AUTO):
        known = ", ".join(MODES)
        raise InputError(f"mode must be {known} or {AUTO}, got '{mode}'; leave it out")
    if entry is None or mode in entry.modes or (mode == AUTO and SYNCHRONOUS in entry.modes):
        return
    if mode != ASYNCHRONOUS:
        remedy = "choose mode asynchronous, or another scheme"
        raise InputError(f"{entry.name} has no rounds, got mode {mode}; {remedy}")
    raise InputError(
        f"{entry.name} needs rounds, got mode asynchronous; choose one of "
        f"{join_names(method_names(mode=ASYNCHRONOUS))}, or mode synchronous"
    )


def sampler_for(
    scheme: str | Scheme | BaseSampler | type[Any],
    k: int,
    *,
    mode: str = SYNCHRONOUS,
    learn: Pilots | WarmUp | None = None,
    refresh: int | None = None,
    max_weight: float | None = None,
    c_over_s0: float | None = None,
    buffer: int | None = None,
    times_known: bool = True,
    knobs: Mapping[str, Any] | None = None,
) -> BaseSampler:
    """Return the sampler of a run.

    Parameters
    ----------
    scheme : str, Scheme, BaseSampler, or a class of samplers
        A registered name, `module:name`, `file.py:name`, or the object itself. A sampler is used
        as it is, and a class is called with `k=k`; the other settings are for schemes. In
        asynchronous training the probabilities of a scheme become shares of completions.
    k : int ≥ 1
        K, the draws per round; in asynchronous training C, the clients at work.
    mode : str
        "synchronous", "asynchronous", or "auto": `pace` then begins with rounds and may continue
        asynchronously, see `AutoPace`; all others stay synchronous.
    learn : Pilots or WarmUp, optional
        How a scheme that needs more than sample counts learns before its first design; by default
        a warm-up of ten rounds. `pace` has a warm-up of three. Asynchronous training knows no
        pilots, and a round there means C completions.
    refresh, max_weight, c_over_s0
        As in `Solve`.
    buffer : int ≥ 1, optional
        Asynchronous: B, the updates per step, by default C.
    times_known : bool
        Asynchronous: whether the clients' times are known beforehand; else they are learned.
    knobs : mapping of names to values, optional
        A method's own settings: {"d": 30} for pow-d, {"mixing": 0.3} for fedasync.

    Examples
    --------
    >>> sampler_for("weighted", 4, learn=WarmUp(10)).k
    4
    >>> sampler_for("weighted", 4, mode="asynchronous", buffer=2).k
    2
    """
    check_mode(scheme, mode)
    entry = entry_of(scheme)
    given: Any = resolve(scheme) if isinstance(scheme, str) else scheme
    if entry is None:
        entry = entry_of(given)
        check_mode(given, mode)
    common: dict[str, Any] = {"refresh": refresh, "max_weight": max_weight, "c_over_s0": c_over_s0}
    if mode == ASYNCHRONOUS:
        if isinstance(learn, Pilots):
            remedy = "give learn=WarmUp(10), or mode='synchronous'"
            raise InputError(
                f"learn must be a WarmUp in asynchronous training, got {learn}; {remedy}"
            )
        warm_up = None if learn is None else learn.rounds
        settings = {**common, "warm_up": warm_up}
        shares = _Asynchronous(k, buffer, times_known, settings, dict(knobs or {}))
        return shares.sampler(scheme, given, entry)
    if isinstance(scheme, str) and entry is not None and entry.kind == SAMPLER:
        warm_up = learn.rounds if isinstance(learn, WarmUp) else None
        chosen = _without_none({**common, "warm_up": warm_up})
        make = entry.load(mode)
        return as_sampler(_make(make, k, scheme, SAMPLER_DEFAULTS | chosen | dict(knobs or {})))
    given = _instantiate(given, k, scheme, knobs or {})
    if not is_scheme(given):
        return _own_sampler(given, scheme)
    if isinstance(learn, Pilots) and not needs_counts_only(given):
        return Piloted(given, k, learn.thresholds, learn.rounds, **common)
    return Solve(given, k, warm_up=DEFAULT_WARM_UP if learn is None else learn.rounds, **common)


@dataclass(frozen=True)
class _Asynchronous:
    """How an asynchronous sampler is made: C, B and the settings of `sampler_for`."""

    at_once: int
    buffer: int | None
    times_known: bool
    settings: dict[str, Any]
    knobs: dict[str, Any]

    def sampler(self, scheme: object, given: Any, entry: Entry | None) -> BaseSampler:
        knobs = dict(self.knobs)
        buffer = knobs.pop("buffer", self.buffer)
        if entry is None:
            return self._adapt_own(scheme, _instantiate(given, self.at_once, scheme, knobs), buffer)
        made = entry.load(ASYNCHRONOUS)
        if entry.kind == SAMPLER:  # caps weights in its own way
            own = {**self.settings, "max_weight": None, "buffer": buffer, **knobs}
            return as_sampler(_make(made, self.at_once, scheme, _without_none(own)))
        if made is not Shares:
            if entry.server:
                steps = entry.buffer or buffer or self.at_once
                knobs = {"server": _server(entry, self.at_once, knobs), "buffer": steps}
            return as_sampler(_make(made, self.at_once, scheme, knobs))
        server = _server(entry, self.at_once, knobs)
        refresh = self.settings["refresh"]
        if entry.name in BY_COUNTS and refresh is None:
            refresh = SAMPLER_DEFAULTS["refresh"]  # times change
        shares = Shares(entry.name, self.at_once, self.times_known)
        steps = buffer if entry.buffer is None else entry.buffer
        return self._solve(shares, buffer, refresh, server=server, buffer=steps)

    def _adapt_own(self, scheme: object, given: Any, buffer: int | None) -> BaseSampler:
        if is_scheme(given):
            return self._solve(given, buffer, self.settings["refresh"])
        return _own_sampler(given, scheme)

    def _solve(self, scheme: Any, updates: int | None, refresh: int | None, **more: Any) -> Solve:
        k = self.at_once if updates is None else updates
        warm_up = self.settings["warm_up"]
        return Solve(
            scheme,
            k,
            warm_up=self._steps(DEFAULT_WARM_UP if warm_up is None else warm_up, k),
            refresh=None if refresh is None else self._steps(refresh, k),
            max_weight=self.settings["max_weight"],
            c_over_s0=self.settings["c_over_s0"],
            first=cast(Any, Shares("weighted", self.at_once)),
            **more,
        )

    def _steps(self, rounds: int, buffer: int) -> int:
        """Return the steps that take as many updates as these rounds."""
        return math.ceil(rounds * self.at_once / buffer)


def _without_none(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _instantiate(given: Any, k: int, name: object, knobs: Mapping[str, Any]) -> Any:
    """Return a scheme or sampler as it is; call a class of samplers with k and its knobs."""
    if isinstance(given, (type, partial)):
        return _make(given, k, name, knobs)
    if knobs:
        got = f"{join_names(knobs)} for {name!r:.80}"
        raise InputError(f"knobs must be those of a class of samplers, got {got}; leave them out")
    return given


def _make(make: Callable[..., Any], k: int, name: object, settings: Mapping[str, Any]) -> Any:
    """Call a class of samplers; its errors become InputError."""
    try:
        return make(k=k, **settings)
    except Exception as error:  # of a user's own code
        given = ", ".join(f"{key}={value!r}" for key, value in {"k": k, **settings}.items())
        raise InputError(
            f"scheme must be made with {given}, got {name!r:.80}: {type(error).__name__}: "
            f"{error}; see docs/extend.md"
        ) from None


def _server(entry: Entry, at_once: int, knobs: Mapping[str, Any]) -> Any:
    """Return the server that belongs to an asynchronous method, or None."""
    if not entry.server:
        if knobs:
            got = f"{join_names(knobs)} for '{entry.name}'"
            raise InputError(
                f"knobs must be buffer, or those of a server, got {got}; leave them out"
            )
        return None
    try:
        made = load(entry.server)
        return made(**({"slots": at_once} if issubclass(made, ArrivalServer) else {}), **knobs)
    except TypeError as error:
        got = f"{join_names(knobs)} for '{entry.name}': {error}"
        raise InputError(
            f"knobs must be those of its server, got {got}; see docs/rivals.md"
        ) from None


def _own_sampler(given: Any, name: object) -> BaseSampler:
    return as_sampler(given, argument=f"scheme {name!r:.80}")
