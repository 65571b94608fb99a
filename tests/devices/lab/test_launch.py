import os
import signal
import sys
from pathlib import Path

from fedpace.devices.lab import launch
from tests.devices.lab.labs import lab_name, wait_until

SLEEP = (sys.executable, "-c", "import time; print('here', flush=True); time.sleep(60)")


def test_processes_are_found_by_their_lab_and_ended_even_when_stopped(tmp_path: Path) -> None:
    one, two = lab_name("one"), lab_name("two")
    started = {}
    try:
        for lab, device in ((one, "a"), (one, "b"), (two, "a")):
            log = tmp_path / f"{lab}-{device}.log"
            started[lab, device] = launch.start(SLEEP, lab=lab, device=device, log=log)
        wait_until(lambda: launch.running_devices(one).keys() == {"a", "b"})
        assert launch.running_devices(one) == {"a": started[one, "a"], "b": started[one, "b"]}
        wait_until(lambda: (tmp_path / f"{one}-b.log").read_text() == "here\n")
        assert launch.memory(started[one, "b"]) > 1_000_000
        os.kill(started[one, "a"], signal.SIGSTOP)
        assert launch.stop(one) == ["a", "b"]
        assert launch.running_devices(one) == {}
        assert launch.running_devices(two) == {"a": started[two, "a"]}
    finally:
        launch.stop(one)
        launch.stop(two)


def test_a_lab_whose_name_begins_alike_is_another(tmp_path: Path) -> None:
    short, long = lab_name("x"), f"{lab_name('x')}-1"
    try:
        launch.start(SLEEP, lab=long, device="a", log=tmp_path / "log")
        wait_until(lambda: bool(launch.running_devices(long)))
        assert launch.running_devices(short) == {}
        assert launch.stop(short) == []
    finally:
        assert launch.stop(long) == ["a"]


def test_memory_of_nobody_is_nothing() -> None:
    assert launch.memory(2**22 + 1) == 0
