"""Slow, plain ways to compute what fedpace computes: the other side of every comparison."""

import contextlib
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import TypeAlias

import numpy as np
from scipy.optimize import minimize

from fedpace.checks import FloatArray
from tests.sampling.fleets import Fleet

Objective: TypeAlias = Callable[[FloatArray], tuple[float, FloatArray]]


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Fail what does not end instead of waiting for it; of CPU time, whatever else is running."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    previous = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


def round_times(q: FloatArray, times: FloatArray, k: int) -> FloatArray:
    """Return T for every row of q, from the form of the paper's Theorem 2."""
    order = np.argsort(times)
    powers = np.minimum(np.cumsum(q[..., order], axis=-1), 1.0) ** k
    powers[..., -1] = 1.0
    return np.asarray(np.diff(powers, axis=-1, prepend=0.0) @ times[order], dtype=np.float64)


def objectives(q: FloatArray, fleet: Fleet, c: float, k: int) -> FloatArray:
    """Return T (S + c), the exact objective, for every row of q; K = 1 is the surrogate."""
    variance = (fleet.importance**2 / q).sum(axis=-1)
    return np.asarray(round_times(q, fleet.times, k) * (variance + c), dtype=np.float64)


def logit_grid(n: int, points: int, widest: float) -> FloatArray:
    """Return rows of probabilities, dense in log q_i/q_N up to ±widest, for N = 2 or 3."""
    axes = [np.linspace(-widest, widest, points)] * (n - 1)
    logits = np.stack([axis.ravel() for axis in np.meshgrid(*axes)], axis=-1)
    logits = np.pad(logits, ((0, 0), (0, 1)))
    rows = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(rows / rows.sum(axis=1, keepdims=True), dtype=np.float64)


def above_floors(rows: FloatArray, floors: FloatArray) -> FloatArray:
    """Squeeze the simplex into the part of it where q ≥ floors."""
    return floors + (1 - float(floors.sum())) * rows


def log_objective(fleet: Fleet, c: float, k: int) -> Objective:
    """Return log T (S + c) with its gradient, for a solver that wants both."""
    order = np.argsort(fleet.times)
    gaps = np.diff(fleet.times[order])
    a = fleet.importance

    def value(q: FloatArray) -> tuple[float, FloatArray]:
        cumulative = np.minimum(np.cumsum(q[order])[:-1], 1.0)
        round_time = float(fleet.times[order[0]] + (1 - cumulative**k) @ gaps)
        spread = float(a @ (a / q)) + c
        slope = np.zeros(fleet.times.size)
        slope[order[:-1]] = -np.cumsum((k * cumulative ** (k - 1) * gaps)[::-1])[::-1]
        return float(np.log(round_time * spread)), slope / round_time - (a / q) ** 2 / spread

    return value


def softmax_descent(
    objective: Objective, starts: Iterable[FloatArray], floors: FloatArray | None = None
) -> float:
    """Return the least value that L-BFGS finds from any start, with q − l a softmax."""
    best = np.inf
    for start in starts:
        low = np.zeros_like(start) if floors is None else floors
        room = 1 - float(low.sum())

        def of_logits(
            logits: FloatArray, low: FloatArray = low, room: float = room
        ) -> tuple[float, FloatArray]:
            share = np.exp(logits - logits.max())
            share /= share.sum()
            value, slope = objective(low + room * share)
            return value, room * share * (slope - share @ slope)

        found = minimize(
            of_logits,
            np.log(start),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 400, "ftol": 1e-14, "gtol": 1e-10},
        )
        best = min(best, float(found.fun))
    return float(np.exp(best))


def constrained_descent(
    objective: Objective, starts: Iterable[FloatArray], floors: FloatArray
) -> float:
    """Return the least value that SLSQP finds from any start, under q ≥ floors and Σ q = 1."""
    best = np.inf
    for start in starts:
        with warnings.catch_warnings():
            # It steps outside its bounds now and then; only what it ends on counts.
            warnings.simplefilter("ignore")
            found = minimize(
                objective,
                above_floors(start, floors),
                jac=True,
                method="SLSQP",
                bounds=[(low, 1.0) for low in floors],
                constraints={"type": "eq", "fun": lambda q: q.sum() - 1},
                options={"maxiter": 500, "ftol": 1e-15},
            )
        inside = np.maximum(found.x - floors, 0)
        best = min(best, objective(above_floors(inside / inside.sum(), floors))[0])
    return float(np.exp(best))
