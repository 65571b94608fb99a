import json
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace.devices.lab import launch
from fedpace.devices.lab.lab import (
    FASTEST,
    LONGEST_PACKET,
    SHORTEST_PACKET,
    packet_size,
    rates_for,
    shape,
    shared_rate,
    wire_bytes,
)
from fedpace.devices.lab.launch import (
    create_network,
    ip_json,
    remove_network,
    server_address,
    share_server_link,
)
from fedpace.devices.lab.register import Names
from fedpace.studies.study import DevicesSection
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


# Send 40 kB from a device to the server, and read them back.
ECHO = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.sendall(bytes(40_000))
left = 40_000
while left:
    left -= len(connection.recv(left))
"""


@in_namespaces
def test_a_shared_link_carries_both_directions_of_all_devices(tmp_path: Path) -> None:
    names = Names(lab_name("shared"))
    try:
        subnet = create_network(names, 2, 1500, tmp_path)
        host = str(server_address(subnet))
        share_server_link(names, 1e6, 1514, [subnet[2], subnet[3]])
        for device in range(2):
            with socket.create_server((host, 0)) as server:
                port = str(server.getsockname()[1])
                where = ["ip", "netns", "exec", names.namespace(device)]
                with subprocess.Popen([*where, sys.executable, "-c", ECHO, host, port]) as sender:
                    connection, _ = server.accept()
                    left = 40_000
                    with connection:
                        while left:
                            left -= len(connection.recv(left))
                        connection.sendall(bytes(40_000))
                        assert sender.wait() == 0
            text = launch._call(["tc", "-s", "-json", "qdisc", "show", "dev", names.shared])
            sent = {each.get("parent"): each["bytes"] for each in json.loads(text)}
            assert 80_000 * (device + 1) < sent[None] < 100_000 * (device + 1)
            assert 80_000 < sent[f"1:{device + 2}"] < 100_000
    finally:
        remove_network(names)
    assert not [link for link in ip_json("link", "show") if names.owns_link(link["ifname"])]


def test_the_servers_link_carries_as_many_rounds_as_the_studys() -> None:
    devices = DevicesSection(link="shared:20", megabits=64.0)
    full = shared_rate(devices, 80_000, 1.0)
    assert full == pytest.approx(20 / 64 * 2 * wire_bytes(80_000), rel=0.03)
    assert shared_rate(devices, 80_000, 0.2) == pytest.approx(5 * full)
    less = devices.model_copy(update={"megabits": 32.0})
    assert shared_rate(less, 80_000, 1.0) == pytest.approx(2 * full)
