"""Rates that make a device's round last as long as asked, and `tc` to set them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedpace.checks import FloatArray
from fedpace.lab.iproute import tc_batch
from fedpace.lab.names import Names

# What a TLS 1.3 record of at most 16 KiB adds: header, type and authentication tag.
RECORD, RECORD_EXTRA = 16384, 22
# What Ethernet adds to a packet, and within it IPv4 and TCP with time stamps.
ETHERNET, HEADERS = 14, 52
# A model should make many packets, because a token bucket lets one pass at once. No network has to
# carry packets longer than the first; the last is what any has to carry.
LONGEST_PACKET, PACKETS, SHORTEST_PACKET = 1500, 32, 576
# Bytes that may wait in front of a slow link. More than any window: nothing is dropped there.
QUEUE = 16 * 1024 * 1024
# Bytes per second: faster than any device asked for, slower than what tc refuses.
FASTEST = 1e9


def packet_size(payload: int) -> int:
    """Return the longest packet of a link over which models of so many bytes go.

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
    """Return what `tc` is told: a rate in bytes per second, and one packet at once.

    >>> token_bucket(1000.0, 1500)
    'tbf rate 8000bit burst 1514 limit 16777216'
    """
    return f"tbf rate {max(round(8 * rate), 8)}bit burst {packet + ETHERNET} limit {QUEUE}"
