"""Tables for the terminal, with Rich."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fedpace.clients_file import Clients
from fedpace.sampling.design import WithReplacement
from fedpace.sampling.plan import Prediction

if TYPE_CHECKING:
    from fedpace.report.summary import Interval, Summary


def schemes_table(rows: Sequence[Prediction], *, k: int) -> Table:
    """Show what each scheme costs, the best in bold."""
    table = _table(f"Schemes, K = {k:,}")
    table.add_column("scheme")
    for title in (
        "expected\nround, s",
        "variance\nterm S",
        "largest\nweight",
        "predicted time,\nuniform = 1",
    ):
        table.add_column(title, justify="right")
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


def clients_table(clients: Clients, design: WithReplacement, *, scheme: str, show: int) -> Table:
    """Show the probabilities of the fastest and the slowest clients."""
    profile = clients.profile
    importance = profile.importance
    share = importance / importance.sum()
    table = _table(f"Probabilities of {scheme}, fastest and slowest clients")
    table.add_column("client", overflow="fold", no_wrap=False)
    for title in ("time, s", "importance\np·G, share", "probability\nper draw", "weight\np/(Kq)"):
        table.add_column(title, justify="right")
    order = np.argsort(profile.times, kind="stable")
    groups = [order] if order.size <= 2 * show else [order[:show], order[-show:]]
    for group in groups:
        for i in group.tolist():
            table.add_row(
                Text("".join(c if c.isprintable() else "�" for c in clients.names[i])),
                f"{profile.times[i]:.4g}",
                f"{share[i]:.3g}",
                f"{design.q[i]:.4g}",
                f"{profile.weights[i] / (design.k * design.q[i]):.3g}",
            )
        table.add_section()
    return table


def runs_table(summary: Summary) -> Table:
    """Show the seconds to the target of each scheme."""
    table = _table(f"Seconds to {summary.target}")
    table.add_column("scheme")
    for title in ("runs", "reached\ntarget", "mean seconds\nto target", "ratio to\noptimal-mean"):
        table.add_column(title, justify="right")
    for row in summary.rows:
        seconds, ratio = _number(row.seconds, ".1f"), _number(row.to_proposed, ".2f")
        table.add_row(row.scheme, str(row.runs), str(row.reached), seconds, ratio)
    return table


def plan_tables(rows: Sequence[Prediction], *, k: int) -> list[Table]:
    """Show the predicted time, the expected round time and the variance term, K by scheme."""
    return [
        _by_k(f"Predicted time to the target (uniform with K = {k:,} is 1)", rows,
              lambda row: row.relative_time, "{:.3f}", mark_best=True),
        _by_k("Expected round, s", rows, lambda row: row.round_time, "{:.4g}"),
        _by_k("Variance term S", rows, lambda row: row.variance_term, "{:.4g}"),
    ]  # fmt: skip


def print_tables(*tables: Table) -> None:
    """Print tables as wide as they need: a number that is cut is a wrong number."""
    for table in tables:
        console = Console()
        wide = console.options.update(max_width=10_000)
        needed = Measurement.get(console, wide, table).maximum
        Console(width=max(console.width, needed)).print(table)


def _by_k(
    title: str,
    rows: Sequence[Prediction],
    value: Callable[[Prediction], float],
    form: str,
    *,
    mark_best: bool = False,
) -> Table:
    table = _table(title)
    schemes = list(dict.fromkeys(row.scheme for row in rows))
    table.add_column("K", justify="right")
    for scheme in schemes:
        table.add_column(scheme, justify="right")
    best = min(rows, key=value)
    cells = {(row.k, row.scheme): row for row in rows}
    for k in dict.fromkeys(row.k for row in rows):
        texts = []
        for scheme in schemes:
            row = cells[k, scheme]
            text = form.format(value(row))
            texts.append(f"[bold]{text} *[/bold]" if mark_best and row is best else text)
        table.add_row(f"{k:,}", *texts)
    return table


def _number(value: Interval, form: str) -> str:
    """Return "≥ 12.3" where runs that never got there would make it larger, "–" for nothing."""
    if math.isnan(value.value):
        return "–"
    return f"{value.bound} {value.value:{form}}".strip()


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD)
