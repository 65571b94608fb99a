"""How the time to the target depends on c, and where the estimates of c lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedpace.report.arrivals import times_of
from fedpace.report.intervals import Interval, mean_interval
from fedpace.report.setups import Sweep
from fedpace.report.summary import BASELINE


class Sensitivity(NamedTuple):
    """Seconds to the target of a scheme over given c/S_0, and with c estimated.

    `chosen` holds the estimates of c/S_0 by seed order, `defaults` how many are the default.
    `star` says where they go on the axis: their median, between the ends of the central 80 %.
    """

    scheme: str
    seconds: list[Interval]
    estimated: Interval
    chosen: list[float]
    defaults: int
    star: list[float]


def sensitivities(sweep: Sweep) -> list[Sensitivity]:
    """Return, for each scheme of a sweep, the time to the target against c."""
    schemes = dict.fromkeys(scheme for setup in sweep.members for scheme in setup.schemes)
    return [_sensitivity(sweep, scheme) for scheme in schemes]


def places(values: Sequence[float]) -> list[float]:
    """Return where values of c/S_0 go on a logarithmic axis: 0 a step left of all others.

    >>> places([0.0, 0.3, 1.0])
    [0.1, 0.3, 1.0]
    """
    zero = round(min((value for value in values if value > 0), default=1.0) / 3, 12)
    return [value if value > 0 else zero for value in values]


def estimate_note(sweep: Sweep) -> str:
    """Say in how many runs c could not be estimated; empty if none tried."""
    lines = sensitivities(sweep)
    total = sum(len(line.chosen) for line in lines)
    default = sum(line.defaults for line in lines)
    note = f"Star: c estimated; not identified, so near S₀, in {default} of {total} runs"
    return note if total else ""


def baseline_seconds(sweep: Sweep) -> Interval:
    """Return uniform's time to the target in the same setup, which does not depend on c."""
    runs = [] if sweep.base is None else sweep.base.of(BASELINE)
    return mean_interval(times_of(runs).gross.values())


def _sensitivity(sweep: Sweep, scheme: str) -> Sensitivity:
    runs = [] if sweep.base is None else sweep.base.of(scheme)
    chosen = [
        run.ratio.value / float(run.profile.importance.sum()) ** 2 for run in runs if run.ratio
    ]
    span = np.percentile(chosen, (10, 50, 90)).tolist() if chosen else []
    return Sensitivity(
        scheme,
        [mean_interval(times_of(setup.of(scheme)).gross.values()) for setup in sweep.members],
        mean_interval(times_of(runs).gross.values()),
        chosen,
        sum(run.ratio is not None and not run.ratio.identified for run in runs),
        places([*sweep.values, *span])[len(sweep.values) :],
    )
