"""Statistics of clients from their replies: gradient norms G_i and round times t_i."""

from __future__ import annotations

import math
from typing import Literal, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedpace.backends.remote.screening import FEWEST, LARGEST_NORM, LONGEST_UPDATE
from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.samplers.curvature import Curvature, compare_updates, empty_curvature, update_length
from fedpace.training.history import Row
from fedpace.training.sampler import SamplerContext
from fedpace.training.updates import RoundUpdates

# Weight of the latest time in the running mean, which forgets after about ten rounds.
LATEST = 0.2
# Floor on a norm as a part of the largest, and the largest norm whose square fits float64: no
# report, and no value in a checkpoint, can make an estimate fail.
LEAST_PART, LARGEST_REPORT = 1e-9, 1e100
# A first time of more than this many times the second is a cold start.
COLD = 2.0
# Quantiles that stand in for clients without a reply: unknown clients are worth drawing.
LARGE_NORM, SHORT_TIME = 0.9, 0.1
# Weight of a client's latest update in its expected norm.
LATEST_NORM = 0.5
# Clients, evenly spread, whose norms say what is usual in large fleets.
ENOUGH = 10_000
# Floor on expected norms, as a part of their median: no client has nothing left to contribute.
SHORTEST_NORM = 1e-3


class ClientStats(TypedDict):
    """One entry per client: the sum of squared reported norms, reports, mean seconds, replies.

    `seconds` is a running mean. `tasks` holds a client's sums of 1, E, E², t and E t over tasks of
    chosen lengths, with old ones forgotten, and its seconds of computing per local step.
    """

    squares: FloatArray
    reports: FloatArray
    seconds: FloatArray
    replies: FloatArray
    tasks: FloatArray


COLUMNS: tuple[Literal["squares", "reports", "seconds", "replies"], ...]
COLUMNS = ("squares", "reports", "seconds", "replies")


def empty_client_stats(n: int) -> ClientStats:
    """Return the state before the first reply."""
    squares, reports, seconds, replies = np.zeros((4, n))
    tasks = np.zeros((n, 6))
    return ClientStats(
        squares=squares, reports=reports, seconds=seconds, replies=replies, tasks=tasks
    )


def snapshot(stats: ClientStats, n: int = 0) -> ClientStats:
    """Return a copy that later rounds do not change, for at least `n` clients."""
    more = np.zeros(max(n - stats["squares"].size, 0))
    return ClientStats(
        squares=np.append(stats["squares"], more),
        reports=np.append(stats["reports"], more),
        seconds=np.append(stats["seconds"], more),
        replies=np.append(stats["replies"], more),
        tasks=np.append(stats["tasks"], np.zeros((more.size, 6)), axis=0),
    )


def learn(stats: ClientStats, row: Row) -> ClientStats:
    """Add a round: norms as reported, and t ← t + 0.2 (measured − t).

    t is the plain mean of the first five times, without the first if it was more than twice the
    second. A missing reply counts with the time that the server waited for it.
    """
    asked = np.concatenate([row.clients, row.missing])
    sizes = [len(stats["tasks"]), *(stats[name].size for name in COLUMNS)]
    if len(set(sizes)) > 1:  # a crafted checkpoint
        raise InputError(f"statistics must have one entry per client, got {sizes} entries")
    newest = int(asked.max(initial=-1)) + 1
    if newest > stats["squares"].size:
        stats = snapshot(stats, newest)
    _add_norms(stats, row)
    _add_times(stats, row, asked)
    _add_tasks(stats["tasks"], row)
    return stats


def _add_norms(stats: ClientStats, row: Row) -> None:
    fine = np.isfinite(row.grad_norms)
    clients = row.clients[fine]
    squares = np.minimum(row.grad_norms[fine], LARGEST_REPORT) ** 2
    np.add.at(stats["squares"], clients, squares)
    np.add.at(stats["reports"], clients, 1)


def _add_times(stats: ClientStats, row: Row, asked: IntArray) -> None:
    waited = row.missing_seconds
    if not waited.size:
        waited = np.full(row.missing.size, row.round_seconds)
    measured = np.append(row.client_seconds, waited)
    seconds, replies = stats["seconds"], stats["replies"]
    while asked.size:  # more than once if an asynchronous step has several updates of a client
        now = np.sort(np.unique(asked, return_index=True)[1])
        who, took = asked[now], measured[now]
        replies[who] = np.maximum(replies[who], 0) + 1  # below 0 in a crafted checkpoint only
        cold = (replies[who] == 2) & (seconds[who] > COLD * took)
        seconds[who[cold]] = took[cold]
        seconds[who] += np.maximum(LATEST, 1 / replies[who]) * (took - seconds[who])
        asked, measured = np.delete(asked, now), np.delete(measured, now)


def _add_tasks(tasks: FloatArray, row: Row) -> None:
    """Add tasks of a number of local steps that the sampler chose."""
    if not row.local_steps.size:
        return
    unknown = not row.computing_seconds.size
    computing = np.full(row.clients.size, math.nan) if unknown else row.computing_seconds
    for i, steps, took, part in zip(
        row.clients.tolist(), row.local_steps.tolist(), row.client_seconds, computing, strict=True
    ):
        count, length, _, seconds, _, per_step = tasks[i]
        if count == 1 and seconds > COLD * took * max(length / steps, 1.0):
            tasks[i] = 0.0
        tasks[i, :5] *= 1 - LATEST
        tasks[i, :5] += 1.0, steps, steps**2, took, steps * took
        if math.isfinite(part):
            part = min(part, took) / steps
            tasks[i, 5] = part if not per_step else per_step + LATEST * (part - per_step)


def estimated_grad_norms(stats: ClientStats, n: int) -> FloatArray:
    """Return G_i, the root mean square of the norms that client i reported.

    A client without a report gets the 0.9 quantile of the others, or 1 without any report. Norms
    are cut to ten times the median, so that no client can inflate its probability without limit.

    Differs from the paper's published code, which takes the largest full-batch norm at the global
    model: a maximum grows with the number of rounds in which a client happened to be drawn.
    """
    squares, reports = _extend(stats["squares"], n), _extend(stats["reports"], n)
    norms: FloatArray = np.sqrt(squares / np.maximum(reports, 1))
    known = reports > 0
    if known.any():
        norms[known] = _bound_norms(norms[known])
    return _fill_unknown(norms, known, LARGE_NORM)


def _bound_norms(norms: FloatArray) -> FloatArray:
    """Cut norms to ten times their median, and to what float64 can square."""
    norms = np.minimum(norms, LARGEST_REPORT)  # a checkpoint may hold more
    norms = np.minimum(norms, LARGEST_NORM * np.median(norms))
    largest = float(norms.max())
    if not largest > 1 / LARGEST_REPORT:
        return np.ones_like(norms) if largest > 0 else norms
    return np.where(norms > 0, np.maximum(norms, LEAST_PART * largest), norms)


def estimated_times(stats: ClientStats, n: int) -> FloatArray:
    """Return t_i; the 0.1 quantile of the others for a client without any, or 1 for all."""
    replies, seconds = _extend(stats["replies"], n), _extend(stats["seconds"], n)
    known = (replies > 0) & (seconds > 0)
    return _fill_unknown(seconds, known, SHORT_TIME)


def _extend(values: FloatArray, n: int) -> FloatArray:
    """Return a copy, with zeros for clients that are new."""
    return np.append(values, np.zeros(max(n - values.size, 0)))


def _fill_unknown(values: FloatArray, known: NDArray[np.bool_], quantile: float) -> FloatArray:
    if not known.any():
        return np.ones(values.size)
    values[~known] = np.quantile(values[known], quantile)
    return values


def current_times(stats: ClientStats, context: SamplerContext) -> FloatArray:
    """Return t_i as known beforehand, or as estimated."""
    return estimated_times(stats, context.n) if context.times is None else context.times


def profile_of(
    stats: ClientStats,
    context: SamplerContext,
    *,
    c_over_s0: float | None = None,
    beta_over_alpha: float | None = None,
) -> Profile:
    """Return the profile of all clients; c in units of S_0, or as given, or S_0."""
    times, norms = current_times(stats, context), estimated_grad_norms(stats, context.n)
    profile = Profile(context.weights, times, norms, beta_over_alpha)
    if c_over_s0 is None:
        return profile
    return profile.with_ratio(c_over_s0 * float(profile.importance.sum()) ** 2)


class UpdateStats(TypedDict):
    """Statistics of clients and of their updates.

    `norms` are of residuals over the learning rate, NaN before the first; `rate` is the latest
    learning rate.
    """

    stats: ClientStats
    norms: FloatArray
    rate: float
    curvature: Curvature


def empty_update_stats(n: int) -> UpdateStats:
    """Return the state before the first reply."""
    norms, rate = np.full(n, math.nan), math.nan
    return UpdateStats(
        stats=empty_client_stats(n), norms=norms, rate=rate, curvature=empty_curvature()
    )


Stats = TypeVar("Stats", bound=UpdateStats)


def learn_from_updates(state: Stats, updates: RoundUpdates) -> Stats:
    """Return the state with the norms and the curvature of these updates, but for outliers."""
    return learn_from_kept(state, drop_outliers(updates, state["norms"]))


def learn_from_kept(state: Stats, updates: RoundUpdates) -> Stats:
    """Return the state with the norms and the curvature of all of these updates."""
    state["rate"] = updates.learning_rate
    state["norms"] = update_norms(state["norms"], updates)
    curvature = compare_updates(state["curvature"], updates)
    state["curvature"] = update_length(curvature, updates.weights)
    return state


def drop_outliers(updates: RoundUpdates, norms: FloatArray) -> RoundUpdates:
    """Leave out updates that are not finite, or far longer than usual.

    `norms` are those known before; the limit is the one that remote replies are screened by.
    """
    latest = updates.residual_norms
    fine = np.isfinite(latest)
    some = norms[:: norms.size // ENOUGH or 1]
    usual = np.concatenate([some[np.isfinite(some)], latest[fine]])
    if usual.size >= FEWEST and (middle := float(np.median(usual))) > 0:
        fine &= latest <= LONGEST_UPDATE * middle
    return updates if fine.all() else updates.only(fine)


def update_norms(norms: FloatArray, updates: RoundUpdates) -> FloatArray:
    """Return the expected norms after these updates; a client's first one counts fully."""
    clients, latest = updates.draw.clients, updates.residual_norms
    more = int(clients.max(initial=-1)) + 1 - norms.size
    if more > 0:
        norms = np.append(norms, np.full(more, math.nan))
    before = np.where(np.isnan(norms[clients]), latest, norms[clients])
    norms[clients] = before + LATEST_NORM * (latest - before)
    return norms


def expected_norms(norms: FloatArray, n: int) -> FloatArray:
    """Return one norm per client, from 0.001 to 10 times the median."""
    every = np.append(norms, np.full(max(n - norms.size, 0), math.nan))
    known = np.isfinite(every)
    middle = float(np.median(every[known])) if known.any() else 0.0
    if not middle > 0:
        return np.ones(n)
    bounded = np.clip(every[known], SHORTEST_NORM * middle, LARGEST_NORM * middle)
    every[known] = bounded
    every[~known] = np.quantile(bounded, LARGE_NORM)
    return every
