"""Predict each scheme's time to a target from the first rounds of one run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.report.setups import plain_name
from fedpace.report.time_to_target import arrival
from fedpace.samplers.solve import Shares
from fedpace.sampling.design import BaseDesign
from fedpace.sampling.schemes import SCHEMES
from fedpace.studies.store import StoredRun
from fedpace.training.history import Row

# Rounds of which losses are known, at least, and losses of the end that are averaged.
LEAST_ROUNDS = 8
# Curves F + a (r + 1)^-g that are tried, and where F lies between 0 and the least loss seen.
POWERS = np.linspace(0.1, 2.0, 20)
LIMITS = np.linspace(0.0, 0.98, 15)
# Errors of a curve that do not count, over the mean loss.
NOISE = 0.005
# Losses of successive rounds are correlated: this many count as one.
ALIKE = 5
# Values of c over S_0 that are thought possible, and the ends of the interval that is given.
C_OVER_S0 = (0.1, 0.3, 1.0, 3.0, 10.0)
ENDS = (10, 50, 90)
# Rounds that are replayed to get the length of a scheme's rounds, and curves that are drawn.
REPLAYED, CURVES = 200, 300
ASYNCHRONOUS = ("weighted", "optimal-mean")
# pace draws from tiers, too.
DESIGNS = {**SCHEMES, "pace": SCHEMES["optimal-tiers"]}
NAMES = (*DESIGNS, *(f"{name} (asynchronous)" for name in ASYNCHRONOUS))


class Seen(NamedTuple):
    """What the first rounds of a run showed.

    `seconds` of each client, a list of those measured; `overhead` is how much longer rounds took
    than their slowest client; `variance` is S of the draws that were made.
    """

    profile: Profile
    k: int
    rounds: FloatArray
    losses: FloatArray
    seconds: list[FloatArray]
    overhead: float
    variance: float


class Forecast(NamedTuple):
    """Seconds to the target that are predicted, and the ends of an 80 % interval."""

    scheme: str
    seconds: float
    low: float
    high: float
    round_seconds: float


def first_rounds(
    rows: Sequence[Row], count: int, *, weights: FloatArray | None = None, k: int | None = None
) -> Seen:
    """Return what the first `count` rounds of training showed, pilots left out.

    Parameters
    ----------
    rows : sequence of Row
        The history of a run in rounds.
    count : int
        How many rounds to use.
    weights : array of N, optional
        p_i; by default all clients that were seen count alike.
    k : int, optional
        Clients per round; by default the most that answered in one of the rounds.
    """
    used = [row for row in rows if row.round and not row.phase.startswith("pilot")][:count]
    losses = np.array([row.loss for row in used])
    if any(row.versions.size for row in used):
        raise InputError("the run must be in rounds, got an asynchronous one; give another")
    if np.isfinite(losses).sum() < LEAST_ROUNDS:
        got = f"{int(np.isfinite(losses).sum())} with a loss"
        raise InputError(f"the run must have {LEAST_ROUNDS} rounds with a loss, got {got}")
    clients = np.concatenate([row.clients for row in used])
    n = int(clients.max(initial=-1)) + 1 if weights is None else weights.size
    if not clients.size or clients.max() >= n:
        got = f"client {int(clients.max(initial=-1))} of {n}"
        raise InputError(f"clients must be those of the file, got {got}; give --clients")
    every = np.concatenate([row.client_seconds for row in used])
    norms = np.concatenate([row.grad_norms for row in used])
    seconds = [every[clients == i] for i in range(n)]
    known = np.array([each.mean() if each.size else np.nan for each in seconds])
    usual = np.where(np.isfinite(known), known, np.nanmean(known))
    squares = np.array([np.mean(norms[clients == i] ** 2) if (clients == i).any() else np.nan
                        for i in range(n)])  # fmt: skip
    if not (squares > 0).any():
        squares = np.ones(n)
    squares = np.where(squares > 0, squares, np.nanmean(squares))
    p = np.full(n, 1 / n) if weights is None else weights
    k = k or max(row.clients.size for row in used)
    variance = k * np.mean([row.weights**2 @ squares[row.clients] for row in used])
    waits = [row.round_seconds - row.client_seconds.max(initial=0.0) for row in used]
    return Seen(
        Profile(p, usual, np.sqrt(squares)),
        k,
        np.array([row.round for row in used])[np.isfinite(losses)],
        losses[np.isfinite(losses)],
        seconds,
        max(float(np.median(waits)), 0.0),
        float(variance),
    )


def forecasts(
    seen: Seen, target: float, schemes: Iterable[str], *, seed: int = 0
) -> list[Forecast]:
    """Return the time to the target loss of each scheme, soonest first.

    The rounds that the run itself needs are those of curves F + a (r + 1)^-g through the losses,
    weighted by how well they fit. Another scheme needs (S + c) / (S_run + c) times as many
    [Luo22, Thm. 1], with c from 0.1 to 10 S_0. A round is as long as the slowest of the clients
    that the scheme draws, with the seconds that were measured, many times over. Asynchronous
    schemes, "NAME (asynchronous)", need as many completions, and C of them at a time.
    """
    rng = np.random.default_rng(seed)
    needed = _rounds_needed(seen, target, rng)
    found = [_forecast(seen, scheme, needed, rng) for scheme in schemes]
    return sorted(found, key=lambda each: each.seconds)


def _forecast(seen: Seen, scheme: str, needed: FloatArray, rng: np.random.Generator) -> Forecast:
    profile, k = seen.profile, seen.k
    name, _, mode = scheme.partition(" ")
    if mode:
        dispatch = Shares(name, k)(profile, k)
        lengths = np.full(1, k * dispatch.seconds_per_completion(profile.times))
        variance = dispatch.variance_term(profile)
    else:
        design = DESIGNS[name](profile, k)
        lengths = _replay(seen, design, rng) + seen.overhead
        variance = design.variance_term(profile)
    s0 = float(profile.importance.sum()) ** 2
    cs = s0 * rng.choice(C_OVER_S0, needed.size)
    means = rng.choice(lengths, (needed.size, min(lengths.size, 50))).mean(axis=1)
    seconds = needed * (variance + cs) / (seen.variance + cs) * means
    low, middle, high = _quantiles(seconds)
    return Forecast(scheme, middle, low, high, float(lengths.mean()))


def _replay(seen: Seen, design: BaseDesign, rng: np.random.Generator) -> FloatArray:
    """Return the lengths of rounds, each client with one of its own seconds."""
    usual, lengths = seen.profile.times, np.empty(REPLAYED)
    for index in range(REPLAYED):
        clients = design.draw(rng).clients.tolist()
        drawn = (rng.choice(seen.seconds[i]) if seen.seconds[i].size else usual[i] for i in clients)
        lengths[index] = max(drawn)
    return lengths


def _rounds_needed(seen: Seen, target: float, rng: np.random.Generator) -> FloatArray:
    """Return rounds to the target, a sample of the curves that fit; ∞ where one stays above."""
    x, y = seen.rounds + 1.0, seen.losses
    if y.min() <= target:
        return np.full(CURVES, float(seen.rounds[np.argmax(y <= target)]))
    curves, errors = [], []
    late = x >= np.quantile(x, 0.25)  # the first steps are unlike the later ones
    for power in POWERS:
        for limit in LIMITS * min(y.min(), max(target, 0.0)):
            over, curve = y[late] - limit, x[late] ** -power
            scale = float(over @ curve / (curve @ curve))
            curves.append((limit, scale, power))
            errors.append(float(np.mean((over - scale * curve) ** 2)))
    best = max(min(errors), float(NOISE * y.mean()) ** 2)
    chances = np.exp(-0.5 * late.sum() / ALIKE * (np.array(errors) / best - 1))
    drawn = rng.choice(len(curves), CURVES, p=chances / chances.sum())
    limits, scales, powers = np.array(curves)[drawn].T
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        needed = ((target - limits) / scales) ** (-1 / powers) - 1
    reachable = (target > limits) & (scales > 0)
    return np.where(reachable, np.maximum(needed, seen.rounds[-1]), np.inf)


def _quantiles(values: FloatArray) -> tuple[float, float, float]:
    low, middle, high = np.sort(values)[[round(end / 100 * (values.size - 1)) for end in ENDS]]
    return float(low), float(middle), float(high)


class Score(NamedTuple):
    """How predictions from the first rounds did: one line per run that was made.

    `found` is the forecast of the run's scheme, `took` what it took, and `recommended` and `best`
    are the scheme that was predicted to be soonest and the one that was, of those made.
    """

    scheme: str
    seed: int
    found: Forecast
    took: float
    recommended: str
    best: str


def scores(runs: Sequence[StoredRun], source: str, count: int) -> Iterator[Score]:
    """Predict all runs of each seed from the first rounds of its run of `source`."""
    for seed in sorted({run.seed for run in runs}):
        mine = {_name(run): run for run in runs if run.seed == seed}
        made = {name: run for name, run in mine.items() if name in NAMES}
        base = mine.get(source)
        if base is None or base.study.stop.loss is None or len(made) < 2:
            continue
        seen = seen_of(base, count)
        found = {each.scheme: each for each in forecasts(seen, base.study.stop.loss, made)}
        took = {name: (row.seconds if (row := arrival(run)) else math.inf)
                for name, run in made.items()}  # fmt: skip
        best, recommended = min(took, key=lambda each: took[each]), next(iter(found))
        for name, seconds in took.items():
            yield Score(name, seed, found[name], seconds, recommended, best)


def seen_of(run: StoredRun, count: int) -> Seen:
    """Return what the first rounds of a stored run showed; times that are known are used."""
    seen = first_rounds(
        run.history.rows, count, weights=run.profile.weights, k=run.study.training.k
    )
    if run.study.devices.known and run.study.network is None:
        profile = Profile(seen.profile.weights, run.profile.times, seen.profile.grad_norms)
        return seen._replace(profile=profile)
    return seen


def _name(run: StoredRun) -> str:
    return plain_name(run.scheme) + " (asynchronous)" * run.study.training.asynchronous
