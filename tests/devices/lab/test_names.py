import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace.devices.device import MOST_DEVICES, device_names
from fedpace.devices.lab.register import Names
from fedpace.errors import InputError

labs = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True)
devices = st.integers(0, MOST_DEVICES - 1)


@given(labs, devices)
def test_interfaces_have_at_most_fifteen_characters(name: str, device: int) -> None:
    names = Names(name)
    assert len(names.veth(device)) <= 15
    assert len(names.bridge) <= 15
    assert len(names.shared) <= 15


@given(labs, devices)
def test_a_lab_owns_what_it_names(name: str, device: int) -> None:
    names = Names(name)
    assert names.owns_namespace(names.namespace(device))
    assert names.owns_link(names.veth(device))
    assert names.owns_link(names.bridge)
    assert names.owns_link(names.shared)


@given(labs, labs, devices)
def test_a_lab_owns_nothing_of_another(name: str, other: str, device: int) -> None:
    if name != other:
        assert not Names(name).owns_namespace(Names(other).namespace(device))
        assert not Names(name).owns_link(Names(other).veth(device))


@pytest.mark.parametrize("name", ["", "a b", "../x", "A", "x" * 33, "-a", "a-", "a;b", "ä"])
def test_refuses_names_that_are_not_plain(name: str) -> None:
    with pytest.raises(InputError, match="--name must be"):
        Names(name)


def test_device_names_sort_in_order() -> None:
    names = device_names(1000)
    assert names == sorted(names)


@pytest.mark.parametrize("count", [0, -1, MOST_DEVICES + 1])
def test_refuses_a_number_of_devices_that_cannot_be(count: int) -> None:
    with pytest.raises(InputError, match="--devices must"):
        device_names(count)
