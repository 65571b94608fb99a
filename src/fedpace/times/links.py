"""Real devices and their links: traces, speeds that vary, and one link that clients share."""

from __future__ import annotations

import json
import math
import os
import warnings
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray, number, refuse_first
from fedpace.errors import InputError, nearest
from fedpace.files import UNREADABLE
from fedpace.seeds import Seeds
from fedpace.times.round_times import BaseTimes, Presence, RoundTimes, as_times

FLASH_USERS = "traces/flash_speed_distribution.json"
LINK_COLUMNS = ("down_u", "down_sigma", "up_u", "up_sigma")
# A link is never slower than this part of its mean: a normal speed may come out negative.
SLOWEST = 0.1
KILOBITS = 8.0  # of a kilobyte


@dataclass(frozen=True, eq=False)
class Linked(BaseTimes):
    """Times with a varying link: its speed is drawn for every task.

    t_i · (a_i + link) / (a_i + usual link), with a_i the seconds of computing, and both speeds of
    the link normal around their mean, at least a tenth of it.

    Parameters
    ----------
    times : RoundTimes
        With the usual links.
    compute : array of N, seconds
        a_i.
    speeds : array of (N, 4), KB/s
        Mean and standard deviation, down and up.
    megabits : float
        Traffic of a round in both directions together: half each way.
    seeds : Seeds
        A task's link depends on these, the round and the client.
    """

    times: BaseTimes
    compute: FloatArray
    speeds: FloatArray
    megabits: float
    seeds: Seeds

    @property
    def usual(self) -> FloatArray:
        """The times with the usual links."""
        return self.times.usual

    def at(self, seconds: float, clients: IntArray, *, round_index: int) -> FloatArray:
        """Return the times of these clients."""
        compute, means = self.compute[clients], self.speeds[clients, ::2]
        ratio = compute + self._draw_link(clients, round_index)
        ratio /= compute + link_seconds(means, self.megabits)
        return self.times.at(seconds, clients, round_index=round_index) * ratio

    @property
    def computing(self) -> FloatArray:
        """The share of computing with the usual links."""
        shares: FloatArray = self.compute / (
            self.compute + link_seconds(self.speeds[:, ::2], self.megabits)
        )
        return shares

    def computing_of(self, clients: IntArray, *, round_index: int) -> FloatArray:
        """Return the share of computing with the links as drawn."""
        compute = self.compute[clients]
        shares: FloatArray = compute / (compute + self._draw_link(clients, round_index))
        return shares

    def _draw_link(self, clients: IntArray, round_index: int) -> FloatArray:
        z = [self.seeds.stream("link", round_index, i).standard_normal(2) for i in clients.tolist()]
        means, sigmas = self.speeds[clients, ::2], self.speeds[clients, 1::2]
        drawn = np.maximum(means + sigmas * np.reshape(z, (-1, 2)), SLOWEST * means)
        return link_seconds(drawn, self.megabits)

    def present(self, seconds: float) -> Presence:
        """Return which clients are available."""
        return self.times.present(seconds)


def link_seconds(speeds: FloatArray, megabits: float) -> FloatArray:
    """Return the seconds for half of the megabits down and half up, at (down, up) in KB/s.

    >>> link_seconds(np.array([[125.0, 250.0]]), 2.0)
    array([1.5])
    """
    found: FloatArray = (1000 * megabits / 2 / KILOBITS / speeds).sum(axis=-1)
    return found


def flash_devices(
    n: int, rng: np.random.Generator, *, samples: float, megabits: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the usual times, the seconds of computing, and the links' speeds of n devices.

    Computing is that of a device of FedScale's trace, the link that of one of FLASH's users.
    """
    devices, users = trace_devices("fedscale"), read_speeds(data_file(FLASH_USERS))
    drawn = rng.choice(len(devices), n, replace=n > len(devices))
    compute = FORWARD_AND_BACKWARD * samples * devices[drawn, 0] / 1000
    speeds = users[rng.integers(len(users), size=n)]
    return compute + link_seconds(speeds[:, ::2], megabits), compute, speeds


def with_links(
    times: RoundTimes, rng: np.random.Generator, seeds: Seeds, *, samples: float, megabits: float
) -> Linked:
    """Return times with varying links; `rng` is the one that the usual times were drawn with."""
    usual, compute, speeds = flash_devices(
        times.usual.size, rng, samples=samples, megabits=megabits
    )
    whose = np.empty(usual.size, dtype=np.int64)
    whose[np.argsort(times.usual, kind="stable")] = np.argsort(usual, kind="stable")
    return Linked(as_times(times), compute[whose], speeds[whose], megabits, seeds)


def read_speeds(path: Path) -> FloatArray:
    """Read mean and standard deviation of each user's link, down and up, in KB/s."""
    try:
        users = json.loads(path.read_text(encoding="utf-8"))
        speeds = np.array([[float(user[name]) for name in LINK_COLUMNS] for user in users.values()])
    except UNREADABLE as error:
        remedy = f"give JSON with {', '.join(LINK_COLUMNS)} for each user"
        raise InputError(f"{path}: cannot be read as link speeds: {error!r}; {remedy}") from None
    if not len(speeds) or not (np.isfinite(speeds).all() and (speeds[:, ::2] > 0).all()):
        raise InputError(f"{path}: must hold positive speeds, got others; download it again")
    return speeds


FAIR, OPTIMAL = "fair", "optimal"
EXAMPLE = 'write "shared:20", or "shared:20:optimal"'
# Transfers that end within this fraction of the time end together: they differ by rounding.
TOGETHER = 1e-12
# Newton's steps for the optimal allocation; from the left it converges after a few.
NEWTON_STEPS = 100


@dataclass(frozen=True)
class SharedLink:
    """A link of `capacity` megabits a second, which all clients in transfer share.

    With the `rule` "fair" each of those in transfer has the same part, as TCP shares it, but never
    more than its own link carries; what it leaves is shared by the others. With "optimal" each
    client of a round has a fixed part, so that all finish together, at the T with
    Σ m_i / (T − c_i) = capacity: the allocation of [Luo24]. It is the best fixed one; the fair
    rule ends sooner, as it gives a finished client's part to the others.

    Examples
    --------
    Two clients with one megabit each; the second computes for two seconds first.

    >>> link = SharedLink.parse("shared:1")
    >>> ready, megabits = np.array([0.0, 2.0]), np.ones(2)
    >>> link.ends(ready, megabits)
    array([1., 3.])
    >>> SharedLink.parse("shared:1:optimal").ends(ready, megabits).round(3)
    array([3.414, 3.414])
    """

    capacity: float
    rule: str = FAIR

    def __post_init__(self) -> None:
        capacity = number("link", self.capacity, EXAMPLE)
        if not 0 < capacity < math.inf:
            raise InputError(
                f"link must have a positive, finite capacity, got {capacity:g}; {EXAMPLE}"
            )
        if self.rule not in (FAIR, OPTIMAL):
            raise InputError(f"link must be shared fair or optimal, got '{self.rule}'; {EXAMPLE}")

    @classmethod
    def parse(cls, text: str) -> SharedLink:
        """Return the link of a text: shared:CAPACITY or shared:CAPACITY:optimal, in Mbit/s."""
        name, _, rest = text.partition(":")
        capacity, _, rule = rest.partition(":")
        try:
            if name != "shared":
                raise ValueError
            found = float(capacity)
        except ValueError:
            raise InputError(
                f"link must be shared:CAPACITY in Mbit/s, got '{text}'; {EXAMPLE}"
            ) from None
        return cls(found, rule or FAIR)

    def ends(
        self, ready: FloatArray, megabits: FloatArray, own: FloatArray | None = None
    ) -> FloatArray:
        """Return when each client of a round is done; transfers begin when they are `ready`.

        `own` is the capacity of each client's own link, by default without limit.
        """
        own = np.full(ready.size, np.inf) if own is None else own
        remedy = "leave out clients that never finish"
        for name, column in (("ready", ready), ("megabits", megabits)):
            bad = ~((column >= 0) & (column < np.inf))
            refuse_first(name, column, bad, "be at least 0 and finite", remedy)
        remedy = "a client without a link never finishes"
        refuse_first("own", own, ~(own > 0), "be positive", remedy)
        if self.rule == OPTIMAL:
            return np.full(ready.size, optimal_end(ready, megabits, own, self.capacity))
        never = np.full(ready.size, np.inf)
        return share_fairly(Transfers(ready, megabits, own, never), self.capacity).ends

    def usual(
        self, computing: FloatArray, megabits: FloatArray, own: FloatArray, at_once: int
    ) -> FloatArray:
        """Return each client's time if `at_once` clients are always in transfer [Luo24]."""
        seconds: FloatArray = computing + megabits / np.minimum(own, self.capacity / at_once)
        return seconds


class Transfers(NamedTuple):
    """Clients that compute or transfer: ready when, how much is left, and how fast their own link.

    They quit at `quits`, done or not.
    """

    ready: FloatArray
    left: FloatArray
    own: FloatArray
    quits: FloatArray

    def part(self, chosen: NDArray[np.bool_]) -> Transfers:
        """Return those of some of the clients."""
        return Transfers(*(each[chosen] for each in self))


class Shared(NamedTuple):
    """When each client is done or quits, whether it is lost, and what is left at the end."""

    ends: FloatArray
    lost: NDArray[np.bool_]
    left: FloatArray


def share_fairly(
    transfers: Transfers,
    capacity: float,
    *,
    now: float = 0.0,
    until: float = math.inf,
    count: int | None = None,
) -> Shared:
    """Share a link by max-min fairness from `now` on, event by event.

    An event is a client that begins, ends or quits; between two of them rates are constant. Stop
    after `until`, or when `count` clients are done or have quit; the others' ends are infinite.
    """
    ready, own = transfers.ready, transfers.own
    left, quits = transfers.left.copy(), transfers.quits
    ends, lost = np.full(ready.size, np.inf), np.zeros(ready.size, dtype=np.bool_)
    going = np.ones(ready.size, dtype=np.bool_)
    going_on = 0 if count is None else going.size - count
    while np.count_nonzero(going) > max(going_on, 0) and now < until:
        active = np.flatnonzero(going & (ready <= now))
        waiting = going & (ready > now)
        due = min(until, float(quits[going].min()), float(ready[waiting].min(initial=np.inf)))
        rates = fair_rates(own[active], capacity)
        done = now + left[active] / rates
        due = min(due, float(done.min(initial=np.inf)))
        over = done <= due + TOGETHER * abs(due)
        left[active] -= rates * (due - now)
        left[active[over]] = 0.0
        ends[active[over]] = due
        going[active[over]] = False
        gone = going & (quits <= due)
        ends[gone], lost[gone], going[gone] = quits[gone], True, False
        now = due
    return Shared(ends, lost, np.maximum(left, 0.0))


def fair_rates(own: FloatArray, capacity: float) -> FloatArray:
    """Return min(own_i, level), with the level at which they use the capacity, or their own links.

    >>> fair_rates(np.array([1.0, 9.0, 9.0]), 7.0)
    array([1., 3., 3.])
    """
    n = own.size
    if not n or own.min() >= capacity / n:
        return np.full(n, capacity / max(n, 1))
    ranked = np.sort(own)
    levels = (capacity - np.append(0.0, np.cumsum(ranked[:-1]))) / np.arange(n, 0, -1)
    above = np.flatnonzero(ranked >= levels)
    return np.minimum(own, levels[above[0]]) if above.size else own.copy()


def optimal_end(ready: FloatArray, megabits: FloatArray, own: FloatArray, capacity: float) -> float:
    """Return the T with Σ m_i / (T − c_i) = capacity, or later if an own link needs longer.

    The sum falls and is convex in T, so Newton's method rises to the root. It starts from
    T ≥ Σ m/B + Σ c m/Σ m, by the inequality of Jensen.

    >>> optimal_end(np.zeros(2), np.array([1.0, 3.0]), np.full(2, np.inf), 1.0)
    4.0
    """
    alone = float((ready + megabits / np.minimum(own, capacity)).max())
    moving = megabits > 0
    if not moving.any():
        return alone
    m, c = megabits[moving] / capacity, ready[moving]
    last = float(c.max())
    before, total = last - c, float(m.sum())
    after = max(total - float(before @ m) / total, float(m[before == 0].max()))
    for _ in range(NEWTON_STEPS):
        parts = m / (after + before)
        step = (float(parts.sum()) - 1) / float(parts @ (1 / (after + before)))
        after += step
        if step <= TOGETHER * after:
            break
    return max(last + after, alone)


def fair_end(ready: FloatArray, megabits: FloatArray, capacity: float) -> float:
    """Return when all are done, if only the shared link limits them.

    However it is shared, as long as it is used whenever a client is ready, the last is done at
    max_j (c_j + Σ_{c_i ≥ c_j} m_i / B); no way to share it ends sooner.

    >>> fair_end(np.array([0.0, 2.0]), np.ones(2), 1.0)
    3.0
    """
    order = np.argsort(-ready, kind="stable")
    return float((ready[order] + np.cumsum(megabits[order]) / capacity).max())


# Defaults for the samples that a client computes on in a round, and the megabits it transfers:
# 50 local steps with batches of 24, and a model of a million parameters.
SAMPLES, MEGABITS = 1200.0, 64.0
# The trace gives the time of inference; the backward pass takes about twice as long again.
FORWARD_AND_BACKWARD = 3.0
DEVICE_COLUMNS = ("compute_ms_per_sample", "bandwidth_kbps")
# Phones take 15 to 199 ms a sample in the trace; a device slower than 10 s, or with a link below
# 1 kbit/s or above 10 Gbit/s, is an error in the data.
SLOWEST_MS, LEAST_KBPS, MOST_KBPS = 1e4, 1.0, 1e7
TRACES = ("fedscale", "fedscale:all")
# The trace with all devices, in the folder given by the environment variable.
VARIABLE, WHOLE = "FEDPACE_DATA", "traces/fedscale_capacity_51496.csv"


def trace_seconds(
    name: str, n: int, rng: np.random.Generator, *, samples: float, megabits: float
) -> tuple[FloatArray, FloatArray]:
    """Return the seconds of n devices from a trace: of computing, and of the link.

    Devices are drawn without replacement while the trace lasts. Device i takes 3 s a_i / 1000 +
    1000 B / b_i seconds for a round, as in FedScale: a_i is its milliseconds per sample for the
    inference of a model of MobileNet's class, and b_i its kbit/s.

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
    >>> rng = np.random.default_rng(0)
    >>> computing, link = trace_seconds("fedscale", 100, rng, samples=10, megabits=1)
    >>> bool((computing > 0).all()), bool((link > 0).all())
    (True, True)
    """
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
    return _shipped_devices() if name == "fedscale" else read_trace(whole_file())


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
        columns = [header.split(",").index(name) for name in DEVICE_COLUMNS]
        if not rows:
            raise ValueError("it holds no device")
        devices = np.loadtxt(rows, delimiter=",", usecols=columns, ndmin=2)
    except UNREADABLE as error:
        remedy = f"give a CSV file with the columns {' and '.join(DEVICE_COLUMNS)}"
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
def _shipped_devices() -> FloatArray:
    """Read the devices that come with fedpace, once, on first use."""
    devices = read_trace(resources.files("fedpace.times") / "fedscale.csv")
    devices.setflags(write=False)
    return devices


class QueueTime(NamedTuple):
    """The mean seconds between two completions, and their derivative by the mean computing time."""

    seconds: float
    slope: float


def queue_time(computing: float, transfer: float, at_once: int) -> QueueTime:
    """Return how often one of C tasks ends that compute, then share a link fairly.

    With Z = `computing` and D = `transfer`, the mean seconds of a task alone, the queue has
    X_n = n / (Z + D (1 + Q_{n−1})) completions a second with n tasks, and Q_n = n − Z X_n of them
    in transfer. This mean value analysis is exact for any times, if tasks are of clients drawn at
    random [BCMP75]. By ∂ log(1/X_C)/∂Z = X_C − X_{C−1} times are worth less as the link fills.

    Two tasks that transfer all the time share the link.

    >>> queue_time(0.0, 1.0, 2)
    QueueTime(seconds=1.0, slope=0.0)
    >>> round(queue_time(1.0, 1.0, 2).seconds, 3)  # of the two, 1.2 transfer
    1.25
    """
    rate, before, waiting = 0.0, 0.0, 0.0
    for n in range(1, at_once + 1):
        before, rate = rate, n / (computing + transfer * (1 + waiting))
        waiting = n - computing * rate
    return QueueTime(1 / rate, (rate - before) / rate)
