"""What a caller can handle."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """An argument, a file or a setting is wrong; the message names it, its value and the remedy."""


class MissingExtraError(ImportError):
    """An optional package is needed; the message names the extra to install."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint that names the known name nearest to `name`, or all of them.

    >>> nearest("unifrom", ["full", "uniform"])
    "did you mean 'uniform'?"
    >>> nearest("xyz", ["full", "uniform"])
    'use one of: full, uniform'
    """
    known = list(known)
    # The default cut-off of 0.6 misses abbreviations such as "max" for "optimal-max".
    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f"did you mean '{matches[0]}'?" if matches else f"use one of: {', '.join(known)}"
