"""What the figures of a fleet show: probabilities, and predicted times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpace.checks import FloatArray, IntArray
from fedpace.profile import Profile
from fedpace.report.drawing import Drawing, Level, Line, Mark, colour, log_axis, looks
from fedpace.sampling.plan import Prediction

# More points than this only make one blob, and a page that is slow to open.
MOST_CLIENTS = 5_000


def chances_drawing(
    profile: Profile, q: FloatArray, *, scheme: str, title: str, setup: str = ""
) -> Drawing:
    """Show each client's probability against its time, coloured by its importance."""
    share = np.asarray(profile.importance / profile.importance.mean())
    order = drawn_clients(share)
    few = f", {order.size:,} of {profile.n:,} clients shown" * (order.size < profile.n)
    size = max(2.5, 5.5 * min(1.0, 100 / order.size) ** 0.25)
    points = Line(
        profile.times[order],
        q[order],
        dash="",
        symbol="dot",
        size=size,
        values=share[order],
        scheme=scheme,
        hover="client {0}, importance {1}\n{x:.3g} s, q = {y:.3g}",
        told=[(i, float(share[i])) for i in order.tolist()],
    )
    return Drawing(
        name="probabilities",
        title=title + few,
        setup=setup,
        note="One point per client, coloured by its importance p·G." * bool(setup),
        x=log_axis("round time of the client, s", profile.times, most=6),
        y=log_axis("probability per draw, q", [*q, 0.5 / q.size, 2 / q.size]),
        marks=[Level(1 / q.size, "uniform, 1/N"), points],
        scale="importance p·G, mean = 1",
    )


def drawn_clients(share: FloatArray) -> IntArray:
    """Return the clients to draw, the most important last, on top; of very many, some."""
    order = np.argsort(share)
    if order.size <= MOST_CLIENTS:
        return order
    some = np.random.default_rng(0).choice(order.size, MOST_CLIENTS, replace=False)
    return order[np.sort(some)]


def plan_drawing(rows: Sequence[Prediction], *, k: int) -> Drawing:
    """Show each scheme's predicted time against the number of clients per round."""
    marks: list[Mark] = [Level(1)]
    for scheme in dict.fromkeys(row.scheme for row in rows):
        mine = [row for row in rows if row.scheme == scheme]
        places = [row.k for row in mine], [row.relative_time for row in mine]
        marks.append(Line(*places, symbol="dot", **looks(scheme) | {"dash": "solid"}))
    best = min(rows, key=lambda row: row.relative_time)
    star: dict[str, Any] = {"dash": "", "symbol": "star", "size": 16, "colour": colour(best.scheme)}
    marks.append(Line([best.k], [best.relative_time], **star))
    with_k = "" if best.scheme == "full" else f" with K = {best.k:,}"
    return Drawing(
        name="plan",
        title=f"Best (star): {best.scheme}{with_k}, {best.relative_time:.3g}",
        x=log_axis("clients drawn per round, K", [row.k for row in rows]),
        y=log_axis(
            f"predicted time to the target\n(uniform with K = {k:,} is 1)",
            [row.relative_time for row in rows],
        ),
        marks=marks,
    )
