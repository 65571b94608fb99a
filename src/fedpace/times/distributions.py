"""Draw each client's usual round time from a named distribution."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from fedpace.checks import FloatArray, IntArray, positive_column
from fedpace.errors import InputError, nearest
from fedpace.times.links import MEGABITS, SAMPLES, flash_devices, trace_seconds
from fedpace.times.round_times import COMPUTING

# The parameters that follow each distribution's name.
DISTRIBUTIONS = {
    "constant": "seconds",
    "uniform": "low:high",
    "exponential": "mean",
    "lognormal": "median:sigma",
    "file": "path",
    "trace": "name",
    "correlated": "distribution",
    "anticorrelated": "distribution",
    "by-label": "distribution",
}
# Real devices whose links vary: see `fedpace.times.links`.
FLASH = "trace:flash"
# These assign another distribution's times according to the clients' data.
ORDERS = ("correlated", "anticorrelated", "by-label")


class DeviceTimes(NamedTuple):
    """The usual seconds of each client, and the share of them that is computing."""

    seconds: FloatArray
    computing: FloatArray


def device_times(
    spec: str,
    sizes: IntArray,
    rng: np.random.Generator,
    *,
    labels: IntArray | None = None,
    samples: float = SAMPLES,
    megabits: float = MEGABITS,
    correlation: float = 0.0,
    computing: float = COMPUTING,
) -> DeviceTimes:
    """Return the time of each client, and the share of computing, from a text.

    constant:1, uniform:LOW:HIGH, exponential:MEAN, lognormal:MEDIAN:SIGMA, file:PATH (one number
    per line), trace:fedscale (real devices, see `trace_seconds`), or trace:flash (with other
    links). A trace has a share of computing for each device; other times take `computing`.

    The same times in another order: correlated:SPEC gives the longest to the client with most
    samples, anticorrelated:SPEC the shortest, and by-label:SPEC sorts times by each client's most
    common label, so that slow clients share labels.

    Parameters
    ----------
    spec : str
        The distribution and its parameters, in seconds.
    sizes : array of N
        Samples per client.
    rng : Generator
        The generator of the times.
    labels : array of N, optional
        Each client's most common label; for by-label only.
    samples, megabits : float > 0
        Computed on and transferred in a round; for traces only.
    correlation : float in [−1, 1]
        Of times and sample counts: 1 is the order of correlated:, −1 that of anticorrelated:, 0
        keeps the times as drawn. In between, the order is that of
        |c| z + √(1 − c²) ε, with z the normal score of a client's rank and ε standard normal.
    computing : float in [0, 1]
        The share of computing where times do not come from a trace.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> device_times("constant:2", np.array([5]), rng, computing=0.5)
    DeviceTimes(seconds=array([2.]), computing=array([0.5]))
    >>> fast, slow = device_times("anticorrelated:exponential:1", np.array([9, 5]), rng).seconds
    >>> bool(fast < slow)
    True
    """
    work: dict[str, Any] = {"samples": samples, "megabits": megabits, "computing": computing}
    if correlation:
        times = device_times(spec, sizes, rng, labels=labels, **work)
        return _assign(times, _by_size(sizes, correlation, rng))
    name, _, rest = spec.partition(":")
    if name not in DISTRIBUTIONS:
        raise InputError(
            f"times must be a known distribution, got '{spec}'; {nearest(name, DISTRIBUTIONS)}"
        )
    n = len(sizes)
    if name in ORDERS:
        clients = _fastest_first(name, sizes, labels)
        return _assign(device_times(rest, sizes, rng, labels=labels, **work), clients)
    if spec == FLASH:
        seconds, compute, _speeds = flash_devices(n, rng, samples=samples, megabits=megabits)
        return DeviceTimes(seconds, compute / seconds)
    if name == "trace":
        compute, link = trace_seconds(rest, n, rng, samples=samples, megabits=megabits)
        seconds = positive_column("times", compute + link)
        return DeviceTimes(seconds, compute / seconds)
    if name == "file":
        return DeviceTimes(_from_file(Path(rest), n), np.full(n, computing))
    values = _parameters(spec, name, rest)
    if name == "constant":
        drawn = np.full(n, values[0])
    elif name == "uniform":
        drawn = rng.uniform(values[0], values[1], n)
    elif name == "exponential":
        drawn = rng.exponential(values[0], n)
    else:
        drawn = values[0] * rng.lognormal(0.0, values[1], n)
    return DeviceTimes(positive_column("times", drawn), np.full(n, computing))


def _assign(times: DeviceTimes, clients: IntArray) -> DeviceTimes:
    """Return the same times, the shortest for the first of these clients."""
    by_speed = np.argsort(times.seconds, kind="stable")
    seconds, computing = np.empty((2, clients.size))
    seconds[clients], computing[clients] = times.seconds[by_speed], times.computing[by_speed]
    return DeviceTimes(seconds, computing)


def _by_size(sizes: IntArray, correlation: float, rng: np.random.Generator) -> IntArray:
    """Return the clients, the fastest first."""
    if not -1 <= correlation <= 1:
        remedy = "1 gives the longest times to the largest clients"
        raise InputError(f"correlation must be from -1 to 1, got {correlation}; {remedy}")
    n = len(sizes)
    ranks = np.empty(n)
    ranks[np.argsort(np.sign(correlation) * sizes, kind="stable")] = np.arange(n)
    scores = abs(correlation) * ndtri((ranks + 0.5) / n)
    return np.argsort(scores + np.sqrt(1 - correlation**2) * rng.standard_normal(n), kind="stable")


def _fastest_first(order: str, sizes: IntArray, labels: IntArray | None) -> IntArray:
    """Return the clients, the fastest first; ties by their numbers."""
    if order != "by-label":
        return np.argsort(sizes if order == "correlated" else -sizes, kind="stable")
    if labels is None or len(labels) != len(sizes):
        got = "none" if labels is None else str(len(labels))
        raise InputError(
            f"labels must have one entry per client for by-label times, got {got} for "
            f"{len(sizes)} clients; give each client's most common label, or use correlated:SPEC"
        )
    return np.argsort(labels, kind="stable")


def _parameters(spec: str, name: str, rest: str) -> list[float]:
    wanted = DISTRIBUTIONS[name].split(":")
    try:
        values = [float(part) for part in rest.split(":")]
    except ValueError:
        values = []
    right = len(values) == len(wanted) and all(0 < value < np.inf for value in values)
    if not right or (name == "uniform" and values[0] > values[1]):
        raise InputError(
            f"times must give positive numbers {name}:{DISTRIBUTIONS[name]}, got '{spec}'; "
            "write for example uniform:0.2:7 or exponential:1"
        )
    return values


def _from_file(path: Path, n: int) -> FloatArray:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # an empty file is refused below
            times = np.loadtxt(path, dtype=np.float64, ndmin=1)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as times: {error}; one number a line") from None
    if times.shape != (n,):
        raise InputError(
            f"{path}: holds {times.size} times for {n} clients; give one number a line"
        )
    return positive_column(str(path), times)
