"""What is recorded of a lab."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedpace.devices.lab.register import FILE, Lab, claim, forget, known_labs, read_lab
from fedpace.errors import InputError
from tests.devices.lab.labs import TWO, begin, finished, lab, lab_name, write_setup

LAB = Lab(
    name="one",
    devices=2,
    setup="four",
    asked=[1.0, 2.0],
    time_scale=0.5,
    how="paced",
    host="127.0.0.1",
    port=7100,
    packet=1500,
    rates=[],
    measured=[],
)


def test_a_lab_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    claim(LAB, tmp_path / "one")
    assert read_lab("one", tmp_path) == LAB
    assert known_labs(tmp_path) == ["one"]


def test_of_two_who_claim_a_name_the_second_is_refused(tmp_path: Path) -> None:
    claim(LAB, tmp_path)
    with pytest.raises(InputError, match=r"--name must be free, got 'one'.*lab down --name one"):
        claim(replace(LAB, port=7200), tmp_path)
    assert '"port": 7100' in (tmp_path / FILE).read_text()


@pytest.mark.slow
def test_two_labs_of_one_name_at_once_leave_one_that_is_up(tmp_path: Path) -> None:
    setup, state, name = write_setup(tmp_path), tmp_path / "state", lab_name("twice")
    options = ("--name", name, "--state", state)
    both = [begin("up", "--setup", setup, *TWO, "--paced", *options) for _ in range(2)]
    try:
        done = sorted((finished(each) for each in both), key=lambda each: each.returncode)
        assert [each.returncode for each in done] == [0, 2], done
        assert f"--name must be free, got '{name}'" in done[1].stderr
        assert "2 of 2 devices live" in lab("status", *options).stdout
    finally:
        lab("down", *options)


def test_forgets_all_of_a_lab(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    (folder / "certs").mkdir(parents=True)
    (folder / "certs" / "ca.pem").write_text("x")
    (folder / "notes.txt").write_text("x")
    claim(LAB, folder)
    forget(folder)
    assert not folder.exists()


def test_what_cannot_be_removed_is_still_known_as_a_lab(tmp_path: Path, small_disk: Path) -> None:
    claim(LAB, tmp_path)
    (small_disk / "log").write_text("x")
    forget(tmp_path)  # a disk that is mounted cannot be
    assert (tmp_path / FILE).exists()
    assert tmp_path.name in known_labs(tmp_path.parent)
