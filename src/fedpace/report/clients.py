"""What each client holds, how often it was drawn, and what became of its replies."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

import altair as alt
import numpy as np
from rich.table import Table

from fedpace.checks import IntArray
from fedpace.data.shards import Shards, Split
from fedpace.report.charts import Figure, chart_of, log_position, log_ticks, records
from fedpace.report.tables import new_table
from fedpace.studies.store import StoredRun

BARS = "#56B4E9"
# Pixels: a wider picture does not fit a screen, and a narrower one has no room for its labels.
NARROWEST, WIDEST = 420.0, 900.0
PER_CLIENT, PER_CLASS = 7, 18
# Less than this factor between numbers needs no logarithms, and leaves them no labels.
DECADE = 10
# More lines than this leave nothing between them.
MOST_LINES = 200


def class_counts(shards: Shards, classes: int) -> IntArray:
    """Count samples, client by class.

    >>> shards = Shards(np.zeros((3, 1)), np.array([0, 2, 2]), np.array([0, 1, 3]))
    >>> class_counts(shards, 3)
    array([[1, 0, 0],
           [0, 0, 2]])
    """
    clients = np.repeat(np.arange(shards.n), shards.sizes)
    cells = np.bincount(clients * classes + shards.y, minlength=shards.n * classes)
    return cells.reshape(shards.n, classes)


def sizes_table(split: Split, counts: IntArray, *, title: str) -> Table:
    """Show how sizes and numbers of classes spread over the clients."""
    titles = ("smallest", "median", "largest", "all together")
    table = new_table(title, f"{split.train.n:,} clients", *titles)
    for row, values, total in (
        ("samples to train on", split.train.sizes, split.train.sizes.sum()),
        ("samples held back for testing", split.test.sizes, split.test.sizes.sum()),
        ("classes", (counts > 0).sum(axis=1), counts.any(axis=0).sum()),
    ):
        numbers = (values.min(), np.median(values), values.max(), total)
        table.add_row(row, *(f"{number:,.10g}" for number in numbers))
    return table


def classes_table(counts: IntArray, names: Sequence[str]) -> Table:
    """Show how much there is of every class, and how it spreads over its clients."""
    titles = ("samples", "clients", "largest client's\nshare, %")
    table = new_table("Samples to train on, by class", "class", *titles)
    for name, column in zip(names, counts.T, strict=True):
        total = int(column.sum())
        share = f"{100 * column.max() / total:.0f}" if total else "–"
        table.add_row(name, f"{total:,}", f"{int((column > 0).sum()):,}", share)
    return table


def distribution_figure(counts: IntArray, *, names: Sequence[str], title: str) -> Figure:
    """Show the samples of each class at each client, and the totals of clients and classes.

    `counts` are those of `class_counts`, `names` those of the classes.
    """
    n, classes = counts.shape
    width = float(np.clip(150 + PER_CLIENT * n, NARROWEST, WIDEST))
    height = float(np.clip(PER_CLASS * classes, 120, 700))
    order = list(names)
    x = alt.X("left:Q", title="client").scale(domain=[-0.5, n - 0.5], nice=False)
    few = alt.Axis(grid=False, tickMinStep=1, format="d")
    y = alt.Y("class:N", title="class", sort=order)
    cells = chart_of("cells").mark_rect().encode(
        x=x.axis(few),
        x2=alt.X2("right"),
        y=y.axis(labelOverlap=True, labelLimit=120),
        color=alt.Color("samples:Q", title="samples of the class at the client; white: none")
        .scale(type="log", scheme="viridis", reverse=True, domain=_ends(counts), nice=False)
        .legend(orient="bottom", gradientLength=300, gradientThickness=10, titleLimit=500,
                values=log_ticks(*_ends(counts), 8), format=",~g"),
        tooltip=["client:Q", "class:N", "samples:Q"],
    )  # fmt: skip
    sizes, totals = counts.sum(axis=1), counts.sum(axis=0)
    wide = bool(sizes.max() > DECADE * max(sizes.min(), 1))
    log = log_position([max(int(sizes.min()), 1) / 1.5, int(sizes.max())], most=4)
    base = float(log["scale"].domain[0]) if wide else 0.0
    scaled = log if wide else {"axis": alt.Axis(tickCount=4, format=",d")}
    title_y = ["samples,", "log scale"] if wide else "samples"
    above = chart_of("clients").transform_calculate(base=f"{base}").mark_rect(
        fill=BARS, stroke="white", strokeWidth=0.5 if n <= MOST_LINES else 0, clip=True
    ).encode(
        x=x.axis(alt.Axis(labels=False, ticks=False, title=None, grid=False)), x2=alt.X2("right"),
        y=alt.Y("samples:Q", title=title_y, **scaled), y2=alt.Y2("base"),
        tooltip=["client:Q", "samples:Q"],
    )  # fmt: skip
    beside = (
        chart_of("classes")
        .mark_bar(fill=BARS)
        .encode(
            y=y.axis(None),
            x=alt.X("samples:Q", title="samples", axis=alt.Axis(tickCount=3, format=",d")),
            tooltip=["class:N", "samples:Q"],
        )
    )
    clients, held = np.nonzero(counts)
    chart = alt.vconcat(
        above.properties(width=width, height=80),
        alt.hconcat(
            cells.properties(width=width, height=height),
            beside.properties(width=90, height=height),
            spacing=10,
        ),
        spacing=10,
    )
    return Figure(
        name="data-distribution",
        title=title,
        chart=chart,
        data={
            "cells": records(
                client=clients.tolist(),
                left=(clients - 0.5).tolist(),
                right=(clients + 0.5).tolist(),
                **{"class": [order[at] for at in held.tolist()]},
                samples=counts[clients, held].tolist(),
            ),
            "clients": records(
                client=list(range(n)),
                left=[at - 0.5 for at in range(n)],
                right=[at + 0.5 for at in range(n)],
                samples=sizes.tolist(),
            ),
            "classes": records(**{"class": order}, samples=totals.tolist()),
        },
        legend=True,
        width=int(width) + 100,
    )


def _ends(counts: IntArray) -> tuple[float, float]:
    """Return the ends of the scale of colours, at least a decade."""
    least = int(counts[counts > 0].min())
    return float(least), float(max(DECADE * least, counts.max()))


# Clients that are shown at most, those in most rounds first; the run's file has them all.
MOST_CLIENTS = 40
TITLES = (
    "client", "share of data", "rounds drawn", "share of rounds", "missing", "refused",
    "mean weight", "agreement",
)  # fmt: skip


class Account(NamedTuple):
    """The counts of a client; `data` is p_i, as it counted in the run.

    `weight` and `agreement` are means over its replies. `agreement` is the cosine between its
    update and the others' of the round, NaN if never known.
    """

    client: int
    data: float
    drawn: int
    share: float
    missing: int
    refused: int
    weight: float
    agreement: float


def accounts(run: StoredRun) -> list[Account]:
    """Return the accounts of all clients that were ever drawn, those in most rounds first."""
    rows = [row for row in run.history.rows if row.round]
    found = []
    n = 1 + max((int(i) for row in rows for i in (*row.clients, *row.missing)), default=-1)
    answered, missing, refused = (np.zeros(n, dtype=np.int64) for _ in range(3))
    weights, agreed, compared = (np.zeros(n) for _ in range(3))
    for row in rows:
        answered[row.clients] += 1
        missing[row.missing] += 1
        refused[row.refused] += 1
        weights[row.clients] += row.weights
        if row.agreement.size:
            known = np.isfinite(row.agreement)
            agreed[row.clients[known]] += row.agreement[known]
            compared[row.clients[known]] += 1
    for client in np.flatnonzero(answered + missing).tolist():
        drawn = int(answered[client] + missing[client])
        found.append(
            Account(
                client,
                float(run.profile.weights[client]),
                drawn,
                drawn / len(rows),
                int(missing[client]),
                int(refused[client]),
                float(weights[client] / answered[client]) if answered[client] else math.nan,
                float(agreed[client] / compared[client]) if compared[client] else math.nan,
            )
        )
    return sorted(found, key=lambda each: (-each.drawn, each.client))


def html_accounts(run: StoredRun) -> str:
    """Return the accounts of a measured run as a table for the page; empty of a simulated one."""
    if run.study.network is None:
        return ""
    every = accounts(run)
    head = "".join(f"<th scope=col>{title}</th>" for title in TITLES)
    body = "".join(_line(each) for each in every[:MOST_CLIENTS])
    more = len(every) - MOST_CLIENTS
    rest = f"<p>And {more:,} more.</p>" if more > 0 else ""
    title = html.escape(f"Each client of {run.scheme}, seed {run.seed}")
    return (
        f'<details class="wide"><summary>{title}</summary>'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        f"</div>{rest}<p>Curvature: cosine between its update and the others' of the round; below "
        "0 it pulls against them.</p></details>\n"
    )


def _line(account: Account) -> str:
    cells = (
        f"{account.client}", f"{100 * account.data:.1f} %", f"{account.drawn:,}",
        f"{100 * account.share:.1f} %",
        f"{account.missing:,}", f"{account.refused:,}",
        _number(account.weight, ".3f"), _number(account.agreement, "+.2f"),
    )  # fmt: skip
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _number(value: float, form: str) -> str:
    return f"{value:{form}}" if math.isfinite(value) else "–"
