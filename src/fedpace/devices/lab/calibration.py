"""Calibrate the rates of links, so that each device's round takes as long as asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedpace.checks import FloatArray
from fedpace.devices.lab.launch import tc_batch
from fedpace.devices.lab.register import Names
from fedpace.devices.measure import medians
from fedpace.training.backend import BaseBackend, Task

# Overhead of a TLS 1.3 record of at most 16 KiB: header, type and authentication tag.
RECORD, RECORD_EXTRA = 16384, 22
# Overhead of Ethernet per packet, and within it of IPv4 and TCP with time stamps.
ETHERNET, HEADERS = 14, 52
# Longest packet; how many a model should have, because a token bucket lets one pass at once; and
# the packet length that every network must carry.
LONGEST_PACKET, PACKETS, SHORTEST_PACKET = 1500, 32, 576
# Bytes that may wait before a slow link: more than any TCP window, so that nothing is dropped.
QUEUE = 16 * 1024 * 1024
# Bytes per second: faster than any device asked for, slower than what tc refuses.
FASTEST = 1e9
# Rounds per device, whose median counts: for the first correction, the second, and to verify.
PASSES = (1, 3, 3)
# A larger correction would follow a disturbance, not the link.
LARGEST_CORRECTION = 4.0


def packet_size(payload: int) -> int:
    """Return the longest packet of a link for models of `payload` bytes.

    >>> packet_size(81_640), packet_size(2_440)
    (1500, 576)
    """
    return min(LONGEST_PACKET, max(SHORTEST_PACKET, payload // PACKETS))


def wire_bytes(payload: int) -> int:
    """Return the bytes that cross the wire for a payload under TLS over TCP.

    >>> wire_bytes(81_640)
    85512
    """
    encrypted = payload + math.ceil(payload / RECORD) * RECORD_EXTRA
    packets = math.ceil(encrypted / (packet_size(payload) - HEADERS))
    return encrypted + packets * (HEADERS + ETHERNET)


def rates_for(transfer_seconds: FloatArray, payload: int) -> FloatArray:
    """Return the bytes per second at which a payload goes down and comes up in given seconds.

    Both directions have the same rate: 2 · wire bytes / seconds, without the packet that passes
    at once. Times that cannot be met are given the fastest rate.

    >>> rates_for(np.array([2.0]), 81_640).round()
    array([83998.])
    """
    shaped = 2 * (wire_bytes(payload) - packet_size(payload) - ETHERNET)
    with np.errstate(divide="ignore"):
        rates = np.where(transfer_seconds > 0, shaped / transfer_seconds, FASTEST)
    return np.minimum(rates, FASTEST)


def shape(names: Names, rates: Sequence[float], packet: int) -> None:
    """Set the rate of every device's link, down and up, in bytes per second."""
    tc_batch(
        f"qdisc replace dev {names.veth(device)} root {token_bucket(rate, packet)}"
        for device, rate in enumerate(rates)
    )
    for device, rate in enumerate(rates):
        tc_batch(
            [f"qdisc replace dev eth0 root {token_bucket(rate, packet)}"], names.namespace(device)
        )


def token_bucket(rate: float, packet: int) -> str:
    """Return arguments of `tc` for a rate in bytes per second, with a burst of one packet.

    >>> token_bucket(1000.0, 1500)
    'tbf rate 8000bit burst 1514 limit 16777216'
    """
    return f"tbf rate {max(round(8 * rate), 8)}bit burst {packet + ETHERNET} limit {QUEUE}"


class RoundMedians(NamedTuple):
    """Medians over rounds, one entry per device; NaN for one that never answered."""

    seconds: FloatArray
    computing: FloatArray


class Calibrated(NamedTuple):
    """The rates found, and the round times measured with them afterwards."""

    rates: FloatArray
    measured: RoundMedians


def calibrate(
    backend: BaseBackend,
    wanted: FloatArray,
    rates: FloatArray,
    set_rates: Callable[[FloatArray], None],
    *,
    at_once: int,
    rng: np.random.Generator,
    say: Callable[[str], None],
) -> Calibrated:
    """Find the rates with which a round of device i takes wanted_i seconds, and verify them.

    The time beyond computing is the link's: the rate is corrected in proportion. The final rates
    are measured again, so that the reported errors were not used for a correction. `at_once`
    devices train at a time, as many as a round of the study draws: they compete for the cores.
    """
    for index, rounds in enumerate(PASSES):
        if index:
            set_rates(rates)
        say(f"measuring real rounds, {index + 1} of {len(PASSES)}")
        now = measure(backend, at_once=at_once, rounds=rounds, rng=rng)
        if index < len(PASSES) - 1:
            rates = correct_rates(rates, wanted, now)
    return Calibrated(rates, now)


def correct_rates(rates: FloatArray, wanted: FloatArray, measured: RoundMedians) -> FloatArray:
    """Return rate_i · (measured_i − computing_i) / (wanted_i − computing_i).

    A device that computes for longer than its time gets the fastest rate; one that was not
    measured keeps its rate.

    >>> measured = RoundMedians(np.array([1.1, 3.0]), np.array([0.1, 2.5]))
    >>> correct_rates(np.array([100.0, 100.0]), np.array([0.6, 2.0]), measured)
    array([2.e+02, 1.e+09])
    """
    left = wanted - measured.computing
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = (measured.seconds - measured.computing) / left
    factors = np.clip(factors, 1 / LARGEST_CORRECTION, LARGEST_CORRECTION)
    better = np.where(left > 0, np.minimum(rates * factors, FASTEST), FASTEST)
    return np.where(np.isfinite(measured.seconds), better, rates)


def measure(
    backend: BaseBackend, *, at_once: int, rounds: int, rng: np.random.Generator
) -> RoundMedians:
    """Let every device train a few times, in random groups, and return the medians."""
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
    return RoundMedians(medians(seconds), medians(computing))


def errors(wanted: FloatArray, measured: FloatArray) -> FloatArray:
    """Return |measured − wanted| / wanted of the measured devices.

    >>> errors(np.array([1.0, 2.0]), np.array([1.1, np.nan])).round(3)
    array([0.1])
    """
    relative: FloatArray = np.abs(measured - wanted) / wanted
    return relative[np.isfinite(relative)]
