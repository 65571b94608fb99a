"""From a scheme's name, or a user's own, to the sampler of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedpace.errors import InputError
from fedpace.estimation.pace import Pace
from fedpace.estimation.pilots import Piloted
from fedpace.estimation.solve import Solve
from fedpace.lookup import found
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


@dataclass(frozen=True)
class WarmUp:
    """Learn from `rounds` rounds of weighted sampling that count as training; then c = S_0.

    For a live federation, where training a model twice from the start is too dear, and where the
    two pilots would hardly ever identify c.
    """

    rounds: int


# Rounds of weighted sampling that a scheme learns from where nobody says how many.
USUAL_WARM_UP = 10
# Samplers that come with fedpace, by name.
SAMPLERS: dict[str, Any] = {
    "pace": Pace,
    "optimal-mean-no-pilots": partial(Solve, SCHEMES["optimal-mean"]),
}
# Rounds that the latter learns from, and after which it solves again, where nobody says: as `pace`.
USUAL = {"warm_up": 3, "refresh": 10}


def named(name: object, *, argument: str = "scheme") -> Any:
    """Return what a name stands for: a scheme, a sampler, or a class of samplers.

    >>> named("uniform") is SCHEMES["uniform"]
    True
    """
    value = found(name, SCHEMES | SAMPLERS, argument=argument, group=GROUP)
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

    Examples
    --------
    >>> sampler_for("weighted", 4, learn=WarmUp(10)).k
    4
    """
    given: Any = named(scheme) if isinstance(scheme, str) else scheme
    common: dict[str, Any] = {"refresh": refresh, "max_weight": max_weight, "c_over_s0": c_over_s0}
    if isinstance(scheme, str) and scheme in SAMPLERS:
        warm_up = learn.rounds if isinstance(learn, WarmUp) else None
        chosen = {name: x for name, x in {**common, "warm_up": warm_up}.items() if x is not None}
        made: Sampler = given(k=k, **(USUAL | chosen))
        return made
    if not is_scheme(given):
        return _own_sampler(given, k, scheme)
    if isinstance(learn, Pilots) and not needs_counts_only(given):
        return Piloted(given, k, learn.thresholds, learn.rounds, **common)
    return Solve(given, k, warm_up=USUAL_WARM_UP if learn is None else learn.rounds, **common)


def _own_sampler(given: Any, k: int, name: object) -> Sampler:
    """Return a sampler of a user's own, or say why it is none."""
    if isinstance(given, type):
        try:
            given = given(k=k)
        except Exception as error:  # whatever a user's own raises
            raise InputError(
                f"scheme must be made with k={k}, got {name!r:.80}: {type(error).__name__}: "
                f"{error}; see docs/extend.md"
            ) from None
    if not all(hasattr(given, each) for each in ("init", "design", "observe")):
        raise InputError(
            f"scheme must have init, design and observe, got {name!r:.80}; see docs/extend.md"
        )
    return given  # type: ignore[no-any-return]
