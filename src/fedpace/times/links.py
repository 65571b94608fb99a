"""Links that vary from task to task: FLASH's measured speeds with FedScale's compute times."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError
from fedpace.files import UNREADABLE
from fedpace.seeds import Seeds
from fedpace.times.round_times import BaseTimes, Presence, RoundTimes, as_times
from fedpace.times.traces import FORWARD_AND_BACKWARD, data_file, trace_devices

FLASH = "traces/flash_speed_distribution.json"
COLUMNS = ("down_u", "down_sigma", "up_u", "up_sigma")
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
        ratio = compute + self._drawn_link(clients, round_index)
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
        shares: FloatArray = compute / (compute + self._drawn_link(clients, round_index))
        return shares

    def _drawn_link(self, clients: IntArray, round_index: int) -> FloatArray:
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
    devices, users = trace_devices("fedscale"), read_speeds(data_file(FLASH))
    drawn = rng.choice(len(devices), n, replace=n > len(devices))
    compute = FORWARD_AND_BACKWARD * samples * devices[drawn, 0] / 1000
    speeds = users[rng.integers(len(users), size=n)]
    return compute + link_seconds(speeds[:, ::2], megabits), compute, speeds


def linked(
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
        speeds = np.array([[float(user[name]) for name in COLUMNS] for user in users.values()])
    except UNREADABLE as error:
        remedy = f"give JSON with {', '.join(COLUMNS)} for each user"
        raise InputError(f"{path}: cannot be read as link speeds: {error!r}; {remedy}") from None
    if not len(speeds) or not (np.isfinite(speeds).all() and (speeds[:, ::2] > 0).all()):
        raise InputError(f"{path}: must hold positive speeds, got others; download it again")
    return speeds
