"""What a run has taught of its clients: gradient norms G_i and round times t_i."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.profile import Profile
from fedpace.remote.screening import LARGEST_NORM
from fedpace.rounds.rows import Row
from fedpace.rounds.sampler import Known

# How much the latest time counts: old ones are forgotten after some ten rounds.
LATEST = 0.2
# Times the largest that a norm counts for at least, and norms whose squares are within float64:
# whatever was reported, or is in the checkpoint of a run, no estimate may fail.
LEAST_PART, LARGEST_REPORT = 1e-9, 1e100
# A first time beyond this many of the second was a cold start.
COLD = 2.0
# Not knowing a client is a reason to look, not to look away: one that was never drawn counts as
# one of the more instructive tenth, and of the faster tenth.
LARGE_NORM, SHORT_TIME = 0.9, 0.1


class Learned(TypedDict):
    """One entry per client: reported norms, squared and summed, and how many; times and how many.

    `seconds` is a running mean.
    """

    squares: FloatArray
    reports: FloatArray
    seconds: FloatArray
    replies: FloatArray


def nothing_learned(n: int) -> Learned:
    """Return the state before the first reply."""
    squares, reports, seconds, replies = np.zeros((4, n))
    return Learned(squares=squares, reports=reports, seconds=seconds, replies=replies)


def snapshot(learned: Learned, n: int = 0) -> Learned:
    """Return a copy that later rounds do not change, for at least `n` clients."""
    more = np.zeros(max(n - learned["squares"].size, 0))
    return Learned(
        squares=np.append(learned["squares"], more),
        reports=np.append(learned["reports"], more),
        seconds=np.append(learned["seconds"], more),
        replies=np.append(learned["replies"], more),
    )


def learn(learned: Learned, row: Row) -> Learned:
    """Add a round: norms as they were reported, and t ← t + 0.2 (measured − t).

    The first few times count alike: t is the plain mean of up to five, without the first where it
    was more than twice the second. A reply that never came
    counts as long as it was waited for: the whole round, or as the row says.
    """
    asked = np.concatenate([row.clients, row.missing])
    newest = int(asked.max(initial=-1)) + 1
    if newest > learned["squares"].size:
        learned = snapshot(learned, newest)
    _add_norms(learned, row)
    _add_times(learned, row, asked)
    return learned


def _add_norms(learned: Learned, row: Row) -> None:
    fine = np.isfinite(row.grad_norms)
    clients = row.clients[fine]
    squares = np.minimum(row.grad_norms[fine], LARGEST_REPORT) ** 2
    np.add.at(learned["squares"], clients, squares)
    np.add.at(learned["reports"], clients, 1)


def _add_times(learned: Learned, row: Row, asked: IntArray) -> None:
    waited = row.missing_seconds
    if not waited.size:
        waited = np.full(row.missing.size, row.round_seconds)
    measured = np.append(row.client_seconds, waited)
    seconds, replies = learned["seconds"], learned["replies"]
    while asked.size:  # once in a round; a step without a barrier may hold a client twice
        now = np.sort(np.unique(asked, return_index=True)[1])
        who, took = asked[now], measured[now]
        replies[who] += 1
        # A client's first task may find it cold: what the second shows to be no speed is forgotten.
        cold = (replies[who] == 2) & (seconds[who] > COLD * took)
        seconds[who[cold]] = took[cold]
        seconds[who] += np.maximum(LATEST, 1 / replies[who]) * (took - seconds[who])
        asked, measured = np.delete(asked, now), np.delete(measured, now)


def estimated_grad_norms(learned: Learned, n: int) -> FloatArray:
    """Return G_i, the root mean square of the norms that client i reported.

    A client without a report gets the 0.9 quantile of the others, or 1 if nobody reported. More
    than ten times the median is cut to that, so that nobody buys draws without end.

    Differs from the paper's published code, which takes the largest full-batch norm at the global
    model: a maximum grows with the number of rounds in which a client happened to be drawn.
    """
    every = snapshot(learned, n)
    norms: FloatArray = np.sqrt(every["squares"] / np.maximum(every["reports"], 1))
    known = every["reports"] > 0
    if known.any():
        norms[known] = _within_reach(norms[known])
    return _filled(norms, known, LARGE_NORM)


def _within_reach(norms: FloatArray) -> FloatArray:
    """Cut norms to ten times their median, and to what can be computed with."""
    norms = np.minimum(norms, LARGEST_REPORT)  # a checkpoint may hold more
    norms = np.minimum(norms, LARGEST_NORM * np.median(norms))
    largest = float(norms.max())
    if not largest > 1 / LARGEST_REPORT:
        return np.ones_like(norms) if largest > 0 else norms
    return np.where(norms > 0, np.maximum(norms, LEAST_PART * largest), norms)


def estimated_times(learned: Learned, n: int) -> FloatArray:
    """Return t_i; without any, the 0.1 quantile of the others, or 1 if nobody has one."""
    every = snapshot(learned, n)
    known = (every["replies"] > 0) & (every["seconds"] > 0)
    return _filled(every["seconds"], known, SHORT_TIME)


def _filled(values: FloatArray, known: NDArray[np.bool_], quantile: float) -> FloatArray:
    if not known.any():
        return np.ones(values.size)
    values[~known] = np.quantile(values[known], quantile)
    return values


def profile_of(
    learned: Learned,
    known: Known,
    *,
    c_over_s0: float | None = None,
    beta_over_alpha: float | None = None,
) -> Profile:
    """Return what is known of all clients, with c in units of S_0, or as given, or S_0."""
    times = estimated_times(learned, known.n) if known.times is None else known.times
    norms = estimated_grad_norms(learned, known.n)
    profile = Profile(known.weights, times, norms, beta_over_alpha)
    if c_over_s0 is None:
        return profile
    return profile.with_ratio(c_over_s0 * float(profile.importance.sum()) ** 2)
