from ipaddress import IPv4Network
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fedpace.devices.lab.launch import (
    PREFIX,
    PRIVATE,
    create_network,
    free_subnet,
    ip_json,
    network_left,
    remove_network,
    server_address,
    taken_subnets,
)
from fedpace.devices.lab.register import Names
from tests.devices.lab.labs import in_namespaces, lab_name


@given(st.text("abc", min_size=1), st.lists(st.integers(0, 2**14 - 1), max_size=20))
def test_a_subnet_overlaps_with_none_that_is_taken(name: str, places: list[int]) -> None:
    taken = [IPv4Network((PRIVATE.network_address + place * 1024, PREFIX)) for place in places]
    subnet = free_subnet(name, taken)
    assert subnet.subnet_of(PRIVATE)
    assert not any(subnet.overlaps(other) for other in taken)


@in_namespaces
def test_two_networks_at_once_do_not_collide_and_leave_nothing(tmp_path: Path) -> None:
    first, second = Names(lab_name("one")), Names(lab_name("two"))
    try:
        subnets = [
            create_network(first, 2, 1500, tmp_path),
            create_network(second, 3, 576, tmp_path),
        ]
        assert not subnets[0].overlaps(subnets[1])
        assert len(network_left(first)) == 2 + 2 + 1
        assert len(network_left(second)) == 3 + 3 + 1
        remove_network(first)
        assert network_left(first) == []
        assert len(network_left(second)) == 3 + 3 + 1
    finally:
        remove_network(first)
        remove_network(second)
    assert network_left(second) == []


@in_namespaces
def test_the_bridge_has_the_servers_address(tmp_path: Path) -> None:
    names = Names(lab_name("address"))
    try:
        subnet = create_network(names, 1, 1500, tmp_path)
        (bridge,) = ip_json("-4", "address", "show", "dev", names.bridge)
        assert bridge["addr_info"][0]["local"] == str(server_address(subnet))
        assert subnet in taken_subnets()
        assert names.namespace(0) in network_left(names)
    finally:
        remove_network(names)


@in_namespaces
def test_removing_what_is_not_there_is_no_error() -> None:
    remove_network(Names(lab_name("nothing")))
