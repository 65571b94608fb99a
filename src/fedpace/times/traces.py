"""Round times of real devices: the capacity trace of FedScale."""

from __future__ import annotations

import os
import warnings
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray
from fedpace.errors import InputError, nearest
from fedpace.files import UNREADABLE

# Defaults for the samples that a client computes on in a round, and the megabits it transfers:
# 50 local steps with batches of 24, and a model of a million parameters.
SAMPLES, MEGABITS = 1200.0, 64.0
# The trace gives the time of inference; the backward pass takes about twice as long again.
FORWARD_AND_BACKWARD = 3.0
COLUMNS = ("compute_ms_per_sample", "bandwidth_kbps")
# Phones take 15 to 199 ms a sample in the trace; a device slower than 10 s, or with a link below
# 1 kbit/s or above 10 Gbit/s, is an error in the data.
SLOWEST_MS, LEAST_KBPS, MOST_KBPS = 1e4, 1.0, 1e7
TRACES = ("fedscale", "fedscale:all")
# The trace with all devices, in the folder given by the environment variable.
VARIABLE, WHOLE = "FEDPACE_DATA", "traces/fedscale_capacity_51496.csv"


def trace_times(
    name: str,
    n: int,
    rng: np.random.Generator,
    *,
    samples: float = SAMPLES,
    megabits: float = MEGABITS,
) -> FloatArray:
    """Return the times of n devices from a trace, drawn without replacement while it lasts.

    Device i takes 3 s a_i / 1000 + 1000 B / b_i seconds for a round, as in FedScale: a_i is its
    milliseconds per sample for the inference of a model of MobileNet's class, and b_i its kbit/s.

    Parameters
    ----------
    name : "fedscale" or "fedscale:all"
        The 3,000 devices that come with fedpace, or all, from the folder FEDPACE_DATA.
    n : int
        Number of clients.
    rng : Generator
        The generator of the times.
    samples : float > 0
        s, samples that a client computes on in a round. For a model lighter than MobileNet, fewer
        in proportion.
    megabits : float > 0
        B, traffic of a client in a round, both ways together.

    Examples
    --------
    >>> def times(samples, megabits):
    ...     work = {"samples": samples, "megabits": megabits}
    ...     return trace_times("fedscale", 100, np.random.default_rng(0), **work)
    >>> bool(np.allclose(times(20, 2), 2 * times(10, 1)))
    True
    """
    compute, link = trace_seconds(name, n, rng, samples=samples, megabits=megabits)
    times: FloatArray = compute + link
    return times


def trace_seconds(
    name: str, n: int, rng: np.random.Generator, *, samples: float, megabits: float
) -> tuple[FloatArray, FloatArray]:
    """Return the two terms of `trace_times`: the seconds of computing, and of the link."""
    for argument, value in (("samples", samples), ("megabits", megabits)):
        if not 0 < value < np.inf:
            raise InputError(f"{argument} must be positive, got {value}; give those of a round")
    devices = trace_devices(name)
    drawn = devices[rng.choice(len(devices), n, replace=n > len(devices))]
    compute = FORWARD_AND_BACKWARD * samples * drawn[:, 0] / 1000
    return compute, 1000 * megabits / drawn[:, 1]


def trace_devices(name: str) -> FloatArray:
    """Return the milliseconds per sample and the kbit/s of all devices in a trace.

    >>> trace_devices("fedscale").shape
    (3000, 2)
    """
    if name not in TRACES:
        got = f"'trace:{name}'; {nearest(name, (*TRACES, 'flash'))}"
        raise InputError(f"times must name a known trace, got {got}")
    return _shipped() if name == "fedscale" else read_trace(whole_file())


def whole_file() -> Path:
    """Return the path of the trace with all devices; raise InputError if it is missing."""
    return data_file(WHOLE)


def data_file(name: str) -> Path:
    """Return the path of a data file in FEDPACE_DATA; raise InputError if it is missing."""
    folder = os.environ.get(VARIABLE)
    path = Path(folder or ".", name)
    if folder and path.is_file():
        return path
    where = f"in the folder {VARIABLE}"
    got = f"no file {path}" if folder else f"{VARIABLE} not set"
    remedy = "put it there, or use trace:fedscale, which comes with fedpace"
    raise InputError(f"{name} must be {where}, got {got}; {remedy}")


def read_trace(path: Traversable) -> FloatArray:
    """Read the milliseconds per sample and the kbit/s of devices; warn about dropped ones."""
    try:
        text = path.read_text(encoding="utf-8")
        header, *rows = [line for line in text.splitlines() if not line.startswith("#")]
        columns = [header.split(",").index(name) for name in COLUMNS]
        if not rows:
            raise ValueError("it holds no device")
        devices = np.loadtxt(rows, delimiter=",", usecols=columns, ndmin=2)
    except UNREADABLE as error:
        remedy = f"give a CSV file with the columns {' and '.join(COLUMNS)}"
        raise InputError(f"{path}: cannot be read as a trace: {error}; {remedy}") from None
    kept = devices[_possible(devices)]
    if not len(kept):
        raise InputError(
            f"{path}: must hold devices with positive values, got none; download it again"
        )
    if len(kept) < len(devices):
        dropped = f"{len(devices) - len(kept)} of {len(devices)} devices"
        warnings.warn(f"{path}: dropped {dropped} with impossible values", stacklevel=2)
    return kept


def _possible(devices: FloatArray) -> NDArray[np.bool_]:
    compute, bandwidth = devices.T
    computes = (compute > 0) & (compute <= SLOWEST_MS)
    possible: NDArray[np.bool_] = computes & (bandwidth >= LEAST_KBPS) & (bandwidth <= MOST_KBPS)
    return possible


@cache
def _shipped() -> FloatArray:
    """Read the devices that come with fedpace, once, on first use."""
    devices = read_trace(resources.files("fedpace.times") / "fedscale.csv")
    devices.setflags(write=False)
    return devices
