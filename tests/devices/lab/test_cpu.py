import os
import sys
import time
from pathlib import Path

import pytest

from fedpace.devices.lab import launch
from fedpace.devices.lab.register import Names
from fedpace.errors import InputError
from tests.devices.lab.labs import lab_name

BUSY = (sys.executable, "-c", "while True: pass")


@pytest.mark.parametrize("text", ["", "x", "-1", "0,4096", "1-0"])
def test_refuses_cores_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="--cores must be some of"):
        launch.parse_cores(text)


def test_a_process_stays_on_its_core(tmp_path: Path) -> None:
    name = lab_name("pin")
    core = max(os.sched_getaffinity(0))
    try:
        pid = launch.start(BUSY, lab=name, device="a", log=tmp_path / "log")
        launch.pin(pid, core)
        assert os.sched_getaffinity(pid) == {core}
    finally:
        launch.stop(name)


@pytest.mark.parametrize("share", [0.0, 0.05, 1.5, float("nan")])
def test_refuses_shares_that_cannot_be_kept(share: float) -> None:
    with pytest.raises(InputError, match="--cpu-share must be"):
        launch.check_cpu_share(share)


def test_a_share_of_a_core_is_kept_and_its_group_goes(tmp_path: Path) -> None:
    name = lab_name("share")
    try:
        launch.check_cpu_share(0.25)
    except InputError:
        pytest.skip("control groups cannot be written here")
    try:
        pid = launch.start(BUSY, lab=name, device="a", log=tmp_path / "log")
        launch.limit(Names(name), 0, pid, 0.25)
        before, begin = _cpu_seconds(pid), time.monotonic()
        time.sleep(1.0)
        used = (_cpu_seconds(pid) - before) / (time.monotonic() - begin)
        assert used < 0.4  # it would take a whole core, or half of one on a busy machine
        assert launch.limits_left(Names(name))
    finally:
        launch.stop(name)
        launch.remove_limits(Names(name))
    assert launch.limits_left(Names(name)) == []


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
