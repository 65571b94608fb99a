"""How many local steps a task has: E, from noise, differences between clients, and times.

A task of E steps takes τ E + κ seconds, and its direction, the update per step, has the mean square
h² + σ²/E: σ² is the noise of one stochastic gradient. The time per progress,
(τ E + κ) (h² + σ²/E), is least at E = √(σ² κ / (h² τ)). The noise and delay of other tasks, the
constant c of P3, would count beside h²; E without it was closer to the best where the link
dominates.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypedDict

import numpy as np

from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.samplers.client_stats import SHORT_TIME, ClientStats, snapshot
from fedpace.times.round_times import COMPUTING
from fedpace.training.sampler import SamplerContext
from fedpace.training.updates import RoundUpdates, blocks

AUTO = "auto"
# E at first and at least: with two steps some small tasks never arrived, and one shows no noise.
FIRST, FEWEST = 5, 4
# Largest change at a time, and largest E η λ: further steps of a task would undo its first.
CHANGE, DRIFT = 2.0, 0.5
# Replies that sums remember, in units of C.
MEMORY = 5.0
# σ² / h² where clients report no plain gradients' norms, and the least that shows them.
USUAL_NOISE, LEAST_NOISE = 5.0, 1e-3
# While τ and κ are not told apart, every second task is longer by this factor.
LONGER = 1.5
# Limits of the share of computing; the spread of E, relative to its mean and squared, that weighs
# as much as the prior: of all clients, and of one; and the spread of all that is enough.
SHARES = (0.01, 0.99)
PRIOR_SPREAD, OWN_SPREAD, ENOUGH_SPREAD = 0.1, 0.3, 2.0


class LocalWork(TypedDict):
    """E (0 before the first choice), and weighted sums of σ² and h² over the latest replies.

    `count` is the sum of the weights; `fixed` is whether clients take another number than asked.
    """

    steps: int
    noise: float
    signal: float
    count: float
    fixed: bool


class SplitTimes(NamedTuple):
    """τ and κ of every client: a task of E local steps takes τ E + κ seconds.

    `clear` is false as long as tasks of different length have not told them apart.
    """

    compute: FloatArray
    link: FloatArray
    clear: bool = True

    def at(self, steps: int) -> FloatArray:
        """Return the seconds of a task of so many local steps."""
        times: FloatArray = self.compute * steps + self.link
        return times


def check_local_steps(value: object) -> None:
    """Refuse what is neither "auto" nor a number of steps."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not (value is None or value == AUTO or (whole and value >= 1)):  # type: ignore[operator]
        got = f"{value!r:.40}; leave it out for as many as clients are set to"
        raise InputError(f"local_steps must be at least 1, or {AUTO}, got {got}")


def first_work() -> LocalWork:
    """Return the state before the first reply."""
    return LocalWork(steps=0, noise=0.0, signal=0.0, count=0.0, fixed=False)


def learn_work(work: LocalWork, updates: RoundUpdates, at_once: int) -> LocalWork:
    """Add replies: σ² = (G² − ‖d‖²) E/(E − 1) and h² = ‖d‖² − σ²/E.

    G² is the mean square of a task's stochastic gradients, and d their mean, the direction.
    """
    reply, steps = updates.reply, updates.reply.local_steps
    if not steps.size:
        return LocalWork(**{**work, "fixed": True})
    lengths = np.zeros(steps.size)
    with np.errstate(all="ignore"):
        for piece in blocks(steps.size, updates.parameters.size):
            directions = updates.directions(piece)
            lengths += np.vecdot(directions, directions)
        noise = (reply.grad_norms**2 - lengths) * steps / (steps - 1)
        signal = lengths - noise / steps
    weights = updates.draw.weights * steps.size
    fine = (steps > 1) & np.isfinite(noise) & np.isfinite(weights)
    kept = math.exp(-steps.size / (MEMORY * at_once))
    return LocalWork(
        steps=work["steps"],
        noise=kept * work["noise"] + float(weights[fine] @ noise[fine]),
        signal=kept * work["signal"] + float(weights[fine] @ signal[fine]),
        count=kept * work["count"] + float(weights[fine].sum()),
        fixed=work["fixed"],
    )


def best_steps(
    work: LocalWork,
    split: SplitTimes,
    context: SamplerContext,
    *,
    progress: float,
    bend: float,
) -> int:
    """Return E for the next tasks.

    Parameters
    ----------
    work, split, context : LocalWork, SplitTimes, SamplerContext
        What was measured, τ and κ, and p.
    progress : float ≥ 0
        ‖d̄‖², the least that h² can be.
    bend : float
        η λ, so that E η λ is how far a task goes towards its client's own optimum.
    """
    before = work["steps"]
    if not before:
        return max(min(context.local_steps or FIRST, FIRST), FEWEST)
    compute, link = (float(context.weights @ each) for each in (split.compute, split.link))
    noise = USUAL_NOISE
    if work["noise"] > LEAST_NOISE * abs(work["signal"]):
        noise = work["noise"] / max(work["signal"], work["count"] * progress)
    best = math.sqrt(noise * link / compute)
    if bend > 0:
        best = min(best, DRIFT / bend)
    return max(round(min(max(best, before / CHANGE), before * CHANGE)), FEWEST)


def split_times(stats: ClientStats, context: SamplerContext) -> SplitTimes:
    """Return τ and κ, as known beforehand, or from tasks of different length.

    A client's τ is the slope of its times over E. The prior of its share of computing is what it
    reports, else the slope of all clients relative to their times; it is between 0.01 and 0.99. A
    client without a reply is as a fast one.
    """
    if context.times is not None and context.computing is not None and context.local_steps:
        compute = context.times * context.computing
        return SplitTimes(compute / context.local_steps, context.times - compute)
    tasks = snapshot(stats, context.n)["tasks"]
    count, known = np.maximum(tasks[:, 0], 1e-12), tasks[:, 0] > 0
    if not known.any():
        return SplitTimes(np.full(context.n, COMPUTING), np.full(context.n, 1 - COMPUTING), False)
    steps, seconds = tasks[:, 1] / count, tasks[:, 3] / count
    for values in (steps, seconds):
        values[~known] = np.quantile(values[known], SHORT_TIME)
    # Relative to each client's mean time and steps, where the slope is the share of computing.
    spread = np.where(known, tasks[:, 2] - count * steps**2, 0.0) / steps**2
    slope = np.where(known, tasks[:, 4] - count * steps * seconds, 0.0) / (steps * seconds)
    told, measured = float(spread.sum()), tasks[:, 5] > 0
    prior = np.where(measured, tasks[:, 5] * steps / seconds, COMPUTING)
    mean = float(np.median(prior[measured])) if measured.any() else COMPUTING
    share = np.clip((float(slope.sum()) + PRIOR_SPREAD * mean) / (told + PRIOR_SPREAD), *SHARES)
    prior = np.where(measured, np.clip(prior * share / mean, *SHARES), share)
    shares = np.clip((slope + OWN_SPREAD * prior) / (spread + OWN_SPREAD), *SHARES)
    return SplitTimes(shares * seconds / steps, (1 - shares) * seconds, told > ENOUGH_SPREAD)
