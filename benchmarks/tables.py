"""Markdown tables on standard output, and the figures in them."""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print the first column left-aligned and the others right-aligned."""
    print(f"\n| {' | '.join(header)} |")
    print(f"|{'|'.join(['---', *['---:'] * (len(header) - 1)])}|")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def seconds(value: float) -> str:
    """Return a time with three significant digits and a unit.

    >>> seconds(0.0001234)
    '0.123 ms'
    """
    return f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def span(values: Iterable[float], form: str = ".1e") -> str:
    """Return the least and the largest, or a dash for none.

    >>> span([0.5, 0.25, 2.0])
    '2.5e-01 … 2.0e+00'
    """
    kept = list(values)
    return f"{min(kept):{form}} … {max(kept):{form}}" if kept else "–"


def median_time(function: Callable[[], object], calls: int) -> float:
    """Return the median seconds of a call, after one call that does not count."""
    function()
    return statistics.median(time_of(function) for _ in range(calls))


def time_of(function: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
