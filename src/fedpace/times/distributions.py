"""Draw each client's usual round time from a named distribution."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, positive_column
from fedpace.errors import InputError, nearest

# What each distribution wants after its name.
DISTRIBUTIONS = {
    "constant": "seconds",
    "uniform": "low:high",
    "exponential": "mean",
    "lognormal": "median:sigma",
    "file": "path",
    "correlated": "distribution",
}


def usual_times(spec: str, sizes: NDArray[np.int64], rng: np.random.Generator) -> FloatArray:
    """Return one time per client from a text such as "uniform:0.187:7.159".

    constant:1, uniform:LOW:HIGH, exponential:MEAN, lognormal:MEDIAN:SIGMA, file:PATH (one number
    per line), or correlated:SPEC, which gives the longest time to the client with most samples.

    Parameters
    ----------
    spec : str
        The distribution and its parameters, in seconds.
    sizes : array of N
        Samples per client.
    rng : Generator
        The stream of the times.

    Examples
    --------
    >>> usual_times("constant:2", np.array([5, 9]), np.random.default_rng(0))
    array([2., 2.])
    """
    name, _, rest = spec.partition(":")
    if name not in DISTRIBUTIONS:
        raise InputError(
            f"times must be a known distribution, got '{spec}'; {nearest(name, DISTRIBUTIONS)}"
        )
    n = len(sizes)
    if name == "file":
        return _from_file(Path(rest), n)
    if name == "correlated":
        times = np.empty(n)
        times[np.argsort(sizes, kind="stable")] = np.sort(usual_times(rest, sizes, rng))
        return times
    values = _parameters(spec, name, rest)
    if name == "constant":
        drawn = np.full(n, values[0])
    elif name == "uniform":
        drawn = rng.uniform(values[0], values[1], n)
    elif name == "exponential":
        drawn = rng.exponential(values[0], n)
    else:
        drawn = values[0] * rng.lognormal(0.0, values[1], n)
    return positive_column("times", drawn)


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
