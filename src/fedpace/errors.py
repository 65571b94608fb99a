"""Exceptions, and hints for misspelt names."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class InputError(ValueError):
    """An argument, a file or a setting is wrong; the message names it, its value and the remedy."""


class InUseError(InputError):
    """Another process holds the lock of a file or a run."""


class MissingExtraError(ImportError):
    """An optional package is needed; the message names the extra to install."""


class TooFewClientsError(RuntimeError):
    """Too few clients are there, and the limit for waiting is over; what was done is safe.

    In Flower `result` is what was trained until then: a `Result` with the model's `arrays`.
    """

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class UnknownNameError(InputError, KeyError):
    """A name is not known; the message gives the nearest that is."""

    __str__ = InputError.__str__


class Named(dict[str, T]):
    """Values by name; for an unknown name the error suggests the nearest.

    >>> Named("fruit", {"apple": 1})["aple"]
    Traceback (most recent call last):
    ...
    fedpace.errors.UnknownNameError: fruit must be a known name, got 'aple'; did you mean 'apple'?
    """

    def __init__(self, what: str, values: Mapping[str, T]) -> None:
        super().__init__(values)
        self._what = what

    def __missing__(self, name: object) -> T:
        hint = nearest(str(name), self)
        raise UnknownNameError(f"{self._what} must be a known name, got {name!r:.60}; {hint}")


@contextmanager
def needs(what: str, extra: str) -> Iterator[None]:
    """Raise MissingExtraError, naming the extra, if an import in this block fails."""
    try:
        yield
    except ModuleNotFoundError:
        raise MissingExtraError(
            f"{what}; install it with: pip install 'fedpace[{extra}]'"
        ) from None


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint that names the known name nearest to `name`, or all of them.

    >>> nearest("unifrom", ["full", "uniform"])
    "did you mean 'uniform'?"
    >>> nearest("xyz", ["full", "uniform"])
    'use one of: full, uniform'
    """
    known = list(known)
    # Abbreviations such as "max" for "optimal-max" are not close, but contained.
    matches = difflib.get_close_matches(name, known, n=1) or [
        each for each in known if name and name in each
    ]
    return f"did you mean '{matches[0]}'?" if matches else f"use one of: {join_names(known)}"


def join_names(names: Iterable[str], most: int = 12) -> str:
    """Join names with commas, the first few of many.

    >>> join_names(["a", "b", "c"], most=2)
    'a, b, …'
    """
    names = list(names)
    return ", ".join([*names[:most], *(["…"] if len(names) > most else [])])
