"""A lab of four devices in namespaces, shared by all tests that leave it as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.devices.lab.labs import lab, lab_name, write_setup


class Up(NamedTuple):
    name: str
    setup: Path
    state: Path
    said: str

    @property
    def options(self) -> tuple[object, ...]:
        return ("--name", self.name, "--state", self.state)


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("lab")
    name, setup, state = lab_name("four"), write_setup(folder), folder / "state"
    try:
        done = lab("up", "--setup", setup, "--devices", 4, "--name", name, "--state", state)
        assert done.returncode == 0, done.stderr
        yield Up(name, setup, state, done.stdout)
    finally:
        lab("down", "--name", name, "--state", state)
