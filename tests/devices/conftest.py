from collections.abc import Iterator

import pytest

from fedpace.devices.server import DeviceServer
from tests.devices.fleet import NAMES, ended


@pytest.fixture
def server() -> Iterator[DeviceServer]:
    with DeviceServer(NAMES, heartbeat=0.2, silence=10.0) as server:
        yield server


@pytest.fixture
def processes() -> Iterator[list]:  # type: ignore[type-arg]
    """A list whose processes are ended after the test."""
    started: list = []  # type: ignore[type-arg]
    yield started
    ended(started)
