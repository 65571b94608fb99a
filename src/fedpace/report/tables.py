"""Tables for the terminal, with Rich."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fedpace.checks import IntArray
from fedpace.clients_file import Clients
from fedpace.profile import Profile
from fedpace.registry import mark_biased
from fedpace.sampling.plan import Prediction
from fedpace.sampling.tiers import Tiered

if TYPE_CHECKING:
    from fedpace.report.summary import Summary
    from fedpace.report.time_to_target import Interval

TITLES = {
    "q": "probability\nper draw",
    "aggregation_weight": "weight\nof a draw",
    "inclusion": "inclusion\nprobability",
}
# Long names in narrow columns.
BREAKS = {
    "statistical": "statis-\ntical",
    "optimal-independent": "optimal-\ninde-\npendent",
}


def schemes_table(rows: Sequence[Prediction], *, k: int) -> Table:
    """Show what each scheme costs, the best in bold."""
    titles = ("expected\nround, s", "variance\nterm S", "largest\nweight")
    table = new_table(f"Schemes, K = {k:,}", "scheme", *titles, "predicted time,\nuniform = 1")
    best = min(rows, key=lambda row: row.relative_time)
    for row in rows:
        table.add_row(
            row.scheme,
            f"{row.round_time:.4g}",
            f"{row.variance_term:.4g}",
            f"{row.largest_weight:.3g}",
            f"{row.relative_time:.3f}",
            style="bold" if row is best else None,
        )
    return table


def clients_table(
    clients: Clients, columns: Mapping[str, NDArray[Any]], *, scheme: str, show: int
) -> Table:
    """Show what a design says of the fastest and the slowest clients."""
    profile = clients.profile
    share = profile.importance / profile.importance.sum()
    titles = ("time, s", "importance\np·G, share", *(TITLES.get(name, name) for name in columns))
    table = new_table(f"Probabilities of {scheme}, fastest and slowest clients", "client", *titles)
    table.columns[0].overflow = "fold"
    for group in _ends(np.argsort(profile.times, kind="stable"), show):
        for i in group.tolist():
            table.add_row(
                Text(printable(clients.names[i])),
                f"{profile.times[i]:.4g}",
                f"{share[i]:.3g}",
                *(f"{column[i]:.4g}" for column in columns.values()),
            )
        table.add_section()
    return table


def tiers_table(profile: Profile, design: Tiered, *, show: int) -> Table:
    """Show how often the fastest and the slowest tiers are drawn, and what their rounds are."""
    titles = ("slowest, s", "chance\nper round", "expected\nround, s", "weight of\na round")
    table = new_table(f"Tiers: {design.chances.size:,}", "tier", "clients", *titles)
    sizes, slowest = np.bincount(design.tiers), np.zeros(design.chances.size)
    np.maximum.at(slowest, design.tiers, profile.times)
    times, weights = design.tier_times(profile.times), design.round_weights
    for group in _ends(np.arange(sizes.size), show):
        for g in group.tolist():
            numbers = (slowest[g], design.chances[g], times[g], weights[g])
            table.add_row(str(g), f"{sizes[g]:,}", *(f"{each:.4g}" for each in numbers))
        table.add_section()
    return table


def runs_table(summary: Summary) -> Table:
    """Show the seconds to the target of each scheme, in 80 columns."""
    titles = ("reached\ntarget", "seconds\nto target", "until\nsustained")
    title = f"Mean seconds to {summary.target}"
    table = new_table(title, "scheme", *titles, "ratio to\noptimal-mean")
    for row in summary.rows:
        seconds = (_number(each, ".1f") for each in (row.seconds, row.sustained_seconds))
        ratio = _number(row.to_proposed, ".2f")
        table.add_row(mark_biased(row.scheme), f"{row.reached} of {row.runs}", *seconds, ratio)
    return table


def plan_tables(rows: Sequence[Prediction], *, k: int, of: str = "K") -> list[Table]:
    """Show predicted times, expected round times and variance terms; `of` is K or C."""
    best = min(rows, key=lambda row: row.relative_time)
    rounds = "in rounds " if of == "C" else ""
    title = f"Predicted time to the target (uniform {rounds}with K = {k:,} is 1)"
    seconds = "Expected round, s" if of == "K" else "C completions, s"
    return [
        _by_k(title, rows, lambda row: f"{row.relative_time:.3f}", of, best),
        _by_k(seconds, rows, lambda row: f"{row.round_time:.4g}", of),
        _by_k("Variance term S", rows, lambda row: f"{row.variance_term:.4g}", of),
    ]


def print_tables(*tables: Table) -> None:
    """Print tables as wide as they need: a number that is cut is a wrong number."""
    for table in tables:
        console = Console()
        wide = console.options.update(max_width=10_000)
        needed = Measurement.get(console, wide, table).maximum
        Console(width=max(console.width, needed)).print(table)


def printable(text: str) -> str:
    r"""Return a text that cannot move the cursor of a terminal.

    >>> printable("a\x1b[2Jb\nc")
    'a�[2Jb\nc'
    """
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in text)


def new_table(title: str, first: str, *others: str) -> Table:
    """Return an empty table with these columns: the first for names, the others for numbers."""
    table = Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD)
    table.add_column(first)
    for each in others:
        table.add_column(each, justify="right")
    return table


def _ends(order: IntArray, show: int) -> list[IntArray]:
    """Return the first and the last few, or all of them where they are few."""
    return [order] if order.size <= 2 * show else [order[:show], order[-show:]]


def _by_k(
    title: str,
    rows: Sequence[Prediction],
    text: Callable[[Prediction], str],
    of: str,
    best: Prediction | None = None,
) -> Table:
    schemes = list(dict.fromkeys(row.scheme for row in rows))
    table = new_table(title, of, *(BREAKS.get(name, name.replace("-", "-\n")) for name in schemes))
    table.columns[0].justify = "right"
    table.padding = (0, 1, 0, 0)  # for 80 columns
    texts = {
        (row.k, row.scheme): f"[bold]{text(row)} *[/bold]" if row is best else text(row)
        for row in rows
    }
    for k in dict.fromkeys(row.k for row in rows):
        table.add_row(f"{k:,}", *(texts[k, scheme] for scheme in schemes))
    return table


def _number(value: Interval, form: str) -> str:
    """Return "≥ 12.3" where runs that never got there would make it larger, "–" for nothing."""
    return "–" if math.isnan(value.value) else f"{value.bound} {value.value:{form}}".strip()
