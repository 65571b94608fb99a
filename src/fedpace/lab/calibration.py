"""Measure real rounds, and correct the rates until each device takes as long as asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedpace.checks import FloatArray
from fedpace.lab.shaping import FASTEST
from fedpace.network.measure import medians
from fedpace.rounds.backend import Backend, Task

# Rounds of each device whose median counts: for the first correction, for the second, and to
# verify.
PASSES = (1, 3, 3)
# A correction beyond this factor would follow a disturbance, not the link.
LARGEST_CORRECTION = 4.0


class Measured(NamedTuple):
    """Medians over rounds, one entry per device; NaN for one that never answered."""

    seconds: FloatArray
    computing: FloatArray


class Calibrated(NamedTuple):
    """The rates found, and the round times measured with them afterwards."""

    rates: FloatArray
    measured: Measured


def calibrate(
    backend: Backend,
    wanted: FloatArray,
    rates: FloatArray,
    set_rates: Callable[[FloatArray], None],
    *,
    at_once: int,
    rng: np.random.Generator,
    say: Callable[[str], None],
) -> Calibrated:
    """Find the rates with which a round of device i takes wanted_i seconds, and verify them.

    What a device takes, beyond its computing, is its link's part: the rate is corrected in
    proportion. The times of the last rates are measured anew, so that the errors reported are
    not those that were corrected.

    Parameters
    ----------
    backend : Backend
        The devices, with rates that `set_rates` changes.
    wanted, rates : arrays of N, seconds and bytes per second
        Round times, and the rates that are set already: `rates_for` computes them.
    set_rates : callable of rates
        Sets all links, and returns when all devices are there.
    at_once : int
        How many devices train at a time: as many as a round of the study draws, because they
        compete for the cores.
    rng : Generator
        Who trains together.
    say : callable of a str
        Told what is done.
    """
    for index, rounds in enumerate(PASSES):
        if index:
            set_rates(rates)
        say(f"measuring real rounds, {index + 1} of {len(PASSES)}")
        now = measure(backend, at_once=at_once, rounds=rounds, rng=rng)
        if index < len(PASSES) - 1:
            rates = corrected(rates, wanted, now)
    return Calibrated(rates, now)


def corrected(rates: FloatArray, wanted: FloatArray, measured: Measured) -> FloatArray:
    """Return rate_i · (measured_i − computing_i) / (wanted_i − computing_i).

    A device that computes for longer than it may take gets the fastest rate; one that was not
    measured keeps its own.

    >>> measured = Measured(np.array([1.1, 3.0]), np.array([0.1, 2.5]))
    >>> corrected(np.array([100.0, 100.0]), np.array([0.6, 2.0]), measured)
    array([2.e+02, 1.e+09])
    """
    left = wanted - measured.computing
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = (measured.seconds - measured.computing) / left
    factors = np.clip(factors, 1 / LARGEST_CORRECTION, LARGEST_CORRECTION)
    better = np.where(left > 0, np.minimum(rates * factors, FASTEST), FASTEST)
    return np.where(np.isfinite(measured.seconds), better, rates)


def measure(backend: Backend, *, at_once: int, rounds: int, rng: np.random.Generator) -> Measured:
    """Let every device train a few times, in groups that are drawn anew, and return the medians."""
    parameters = backend.initial()
    n = backend.weights.size
    seconds, computing = np.full((2, rounds, n), np.nan)
    for index in range(rounds):
        order = rng.permutation(n)
        for first in range(0, n, at_once):
            clients = np.sort(order[first : first + at_once])
            backend.submit(Task(clients, parameters, index, learning_rate=0.01, seconds=0.0))
            reply = backend.collect()
            seconds[index, reply.clients] = reply.seconds
            computing[index, reply.clients] = reply.computing_seconds
    return Measured(medians(seconds), medians(computing))


def errors(wanted: FloatArray, measured: FloatArray) -> FloatArray:
    """Return |measured − wanted| / wanted, of those that were measured.

    >>> errors(np.array([1.0, 2.0]), np.array([1.1, np.nan])).round(3)
    array([0.1])
    """
    relative: FloatArray = np.abs(measured - wanted) / wanted
    return relative[np.isfinite(relative)]
