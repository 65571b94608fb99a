"""How often each client of a measured run was drawn, and what became of its replies."""

from __future__ import annotations

import html
import math
from typing import NamedTuple

import numpy as np

from fedpace.studies.store import StoredRun

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
