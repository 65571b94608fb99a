from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace.devices.lab.lab import (
    FASTEST,
    LONGEST_PACKET,
    SHORTEST_PACKET,
    packet_size,
    rates_for,
    shape,
    wire_bytes,
)
from fedpace.devices.lab.launch import create_network, ip_json, remove_network
from fedpace.devices.lab.register import Names
from tests.devices.lab.labs import in_namespaces, lab_name

payloads = st.integers(1000, 10**8)


@given(payloads)
def test_more_crosses_the_wire_than_is_sent_but_not_much(payload: int) -> None:
    assert payload < wire_bytes(payload) < 1.2 * payload + 200


@given(payloads, st.floats(0.01, 100), st.floats(1.1, 10))
def test_half_the_time_takes_twice_the_rate(payload: int, seconds: float, factor: float) -> None:
    slow, fast = rates_for(np.array([seconds, seconds / factor]), payload)
    assert fast == pytest.approx(min(factor * slow, FASTEST))


def test_times_that_cannot_be_met_get_the_fastest_rate() -> None:
    assert rates_for(np.array([0.0, -1.0]), 80_000).tolist() == [FASTEST, FASTEST]


@given(payloads)
def test_packets_are_of_a_length_that_networks_carry(payload: int) -> None:
    assert SHORTEST_PACKET <= packet_size(payload) <= LONGEST_PACKET


@in_namespaces
def test_both_ends_of_each_link_keep_the_rate(tmp_path: Path) -> None:
    from fedpace.devices.lab import launch

    names = Names(lab_name("shape"))
    try:
        create_network(names, 2, 1500, tmp_path)
        shape(names, [1000.0, 2_000_000.0], 1500)
        for device, rate in enumerate((1000, 2_000_000)):
            up = ("-netns", names.namespace(device), "qdisc", "show", "dev", "eth0")
            down = ("qdisc", "show", "dev", names.veth(device))
            for arguments in (up, down):
                text = launch._call(["tc", "-json", *arguments])
                assert f'"rate":{rate}' in text.replace(" ", "")
    finally:
        remove_network(names)
    assert not [link for link in ip_json("link", "show") if names.owns_link(link["ifname"])]
