"""Whole labs: up, status, run, down, and nothing left whatever was killed."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from fedpace.devices.device import device_names, join
from fedpace.devices.lab import launch
from fedpace.devices.lab.lab import Calibrated, calibrate, remains_of
from fedpace.devices.lab.launch import check_cpu_share, limits_left
from fedpace.devices.lab.register import Names, read_lab
from fedpace.errors import InputError
from tests.devices.fleet import free_port
from tests.devices.lab.conftest import Up
from tests.devices.lab.labs import (
    TWO,
    begin,
    finished,
    in_namespaces,
    lab,
    lab_name,
    nothing_left,
    only_run,
    rounds_done,
    wait_until,
    write_own,
    write_setup,
)
from tests.report.asking import asked, url_of

RUN = ("--schemes", "uniform")


def slowed_down(measured: ArrayLike, wanted: ArrayLike) -> bool:
    """Tell whether rates were kept; a machine that is busy with other tests may take longer."""
    return bool((np.asarray(measured) > 0.3 * np.asarray(wanted)).all())


@in_namespaces
def test_up_says_what_was_asked_and_what_was_measured(four: Up) -> None:
    assert "4 devices, tc in namespaces" in four.said
    assert "Asked against measured: median error" in four.said
    state = read_lab(four.name, four.state)
    assert len(state.rates) == len(state.measured) == 4
    assert slowed_down(state.measured, state.wanted)


@in_namespaces
def test_status_shows_every_device(four: Up) -> None:
    done = lab("status", *four.options)
    assert done.returncode == 0
    assert "4 of 4 devices live" in done.stdout
    assert all(f"device-0{number}" in done.stdout for number in range(4))


@in_namespaces
def test_a_run_must_have_the_link_of_its_lab(four: Up, tmp_path: Path) -> None:
    link = ("--set", "devices.link=shared:20")
    done = lab("run", four.setup, *RUN, *link, *four.options, "--out", tmp_path / "runs")
    assert done.returncode == 2
    assert "devices.link must be the link where it is measured, none, got shared:20" in done.stderr
    assert not (tmp_path / "runs").exists()


@in_namespaces
def test_a_study_runs_and_is_stored_with_its_times(four: Up, tmp_path: Path) -> None:
    done = lab("run", four.setup, *RUN, *four.options, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    run = only_run(tmp_path)
    assert [row.round for row in run.history.rows] == list(range(7))
    assert run.study.network is not None
    assert run.study.network.how == "namespaces"
    measured = read_lab(four.name, four.state).measured
    times = np.loadtxt(tmp_path / "times.txt")
    drawn = np.unique(np.concatenate([row.clients for row in run.history.rows]))
    assert slowed_down(times[drawn], np.array(measured)[drawn])
    assert not list((tmp_path / "checkpoints").iterdir())
    again = lab("run", four.setup, *RUN, *four.options, "--out", tmp_path)
    assert again.returncode == 0
    assert len(list((tmp_path / "runs").iterdir())) == 1


@in_namespaces
@pytest.mark.slow
def test_a_server_killed_at_any_moment_goes_on(four: Up, tmp_path: Path) -> None:
    options = (four.setup, *RUN, *four.options, "--set", "stop.rounds=25", "--out", tmp_path)
    process = begin("run", *options)
    wait_until(lambda: rounds_done(tmp_path) >= 3)
    os.killpg(process.pid, signal.SIGKILL)
    finished(process)
    done = lab("run", *options)
    assert done.returncode == 0, done.stderr
    rows = only_run(tmp_path).history.rows
    assert [row.round for row in rows] == list(range(26))
    assert (np.diff([row.seconds for row in rows]) > 0).all()


@in_namespaces
def test_ctrl_c_leaves_the_state_and_says_so(four: Up, tmp_path: Path) -> None:
    options = (four.setup, *RUN, *four.options, "--set", "stop.rounds=200", "--out", tmp_path)
    process = begin("run", *options)
    wait_until(lambda: rounds_done(tmp_path) >= 2)
    process.send_signal(signal.SIGINT)
    done = finished(process)
    assert done.returncode == 130
    assert "the same command continues from there" in done.stderr
    assert rounds_done(tmp_path) >= 2


@in_namespaces
def test_the_name_of_a_lab_that_is_up_is_taken(four: Up) -> None:
    done = lab("up", "--setup", four.setup, *four.options)
    assert done.returncode == 2
    assert f"fedpace lab down --name {four.name}" in done.stderr
    assert "4 of 4 devices live" in lab("status", *four.options).stdout


@in_namespaces
@pytest.mark.slow
def test_two_labs_run_at_once_and_do_not_touch(four: Up, tmp_path: Path) -> None:
    other = ("--name", lab_name("other"), "--state", tmp_path / "state")
    try:
        assert lab("up", "--setup", four.setup, *other).returncode == 0
        runs = [
            begin("run", four.setup, *RUN, *options, "--out", tmp_path / str(number))
            for number, options in enumerate((four.options, other))
        ]
        assert [finished(run).returncode for run in runs] == [0, 0]
    finally:
        assert lab("down", *other).returncode == 0
    # Same study, same seed, other links: the same models.
    first, second = (only_run(tmp_path / str(number)).history.rows for number in range(2))
    assert [row.loss for row in first] == [row.loss for row in second]
    assert "4 of 4 devices live" in lab("status", *four.options).stdout


@in_namespaces
@pytest.mark.slow
def test_computation_is_limited_and_the_limits_go(four: Up, tmp_path: Path) -> None:
    try:
        check_cpu_share(0.5)
    except InputError:
        pytest.skip("control groups cannot be written here")
    name, state = lab_name("limited"), tmp_path / "state"
    core = min(os.sched_getaffinity(0))
    limits = ("--cores", core, "--cpu-share", 0.5)
    try:
        up = lab("up", "--setup", four.setup, *TWO, *limits, "--name", name, "--state", state)
        assert up.returncode == 0, up.stderr
        assert limits_left(Names(name))
        for pid in launch.running_devices(name).values():
            assert os.sched_getaffinity(pid) == {core}
    finally:
        assert lab("down", "--name", name, "--state", state).returncode == 0
    assert nothing_left(name, state)


@in_namespaces
def test_nothing_is_left_after_every_kind_of_killing(four: Up, tmp_path: Path) -> None:
    name, state = lab_name("second"), tmp_path / "state"
    process = begin("up", "--setup", four.setup, "--name", name, "--state", state)
    wait_until(lambda: len(launch.running_devices(name)) == 4)
    os.killpg(process.pid, signal.SIGKILL)  # the lab itself, while it is coming up
    finished(process)
    devices = list(launch.running_devices(name).values())
    os.kill(devices[0], signal.SIGKILL)
    os.kill(devices[1], signal.SIGSTOP)
    assert remains_of(name, state)
    assert lab("down", "--name", name, "--state", state).returncode == 0
    assert nothing_left(name, state)
    assert "4 of 4 devices live" in lab("status", *four.options).stdout


@pytest.mark.slow
def test_a_paced_lab_of_a_users_own_study_needs_no_root_and_leaves_nothing(tmp_path: Path) -> None:
    setup, state, name = write_own(tmp_path), tmp_path / "state", lab_name("paced")
    options = ("--name", name, "--state", state)
    try:
        up = lab("up", "--setup", setup, "--paced", *options)
        assert up.returncode == 0, up.stderr
        assert "pacing inside the devices, server 127.0.0.1" in up.stdout
        lab_up = read_lab(name, state)
        assert slowed_down(lab_up.measured, lab_up.wanted)
        done = lab("run", setup, *RUN, *options, "--out", tmp_path / "runs")
        assert done.returncode == 0, done.stderr
        study = only_run(tmp_path / "runs").study
        assert study.network is not None
        assert study.network.how == "paced"
        assert study.data.kind == study.model.kind == "own"
    finally:
        assert lab("down", *options).returncode == 0
    assert nothing_left(name, state)


def test_ctrl_c_while_a_lab_comes_up_takes_it_down(tmp_path: Path) -> None:
    setup, state, name = write_setup(tmp_path), tmp_path / "state", lab_name("never")
    process = begin("up", "--setup", setup, *TWO, "--paced", "--name", name, "--state", state)
    wait_until(lambda: len(launch.running_devices(name)) == 2)
    process.send_signal(signal.SIGINT)
    assert finished(process).returncode == 130
    assert nothing_left(name, state)


@pytest.mark.slow
def test_a_lab_that_is_taken_down_while_it_comes_up_is_not_said_to_be_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup, state, name = write_setup(tmp_path), tmp_path / "state", lab_name("gone")
    options = ("--name", name, "--state", state)

    def calibrated(*arguments: Any, **more: Any) -> Calibrated:
        found = calibrate(*arguments, **more)
        assert finished(begin("down", *options)).returncode == 0  # after the last measurement
        return found

    monkeypatch.setattr("fedpace.devices.lab.lab.calibrate", calibrated)
    done = lab("up", "--setup", setup, *TWO, "--paced", *options)
    assert done.returncode == 2
    assert "must stay while it is brought up, got taken down meanwhile" in done.stderr
    assert nothing_left(name, state)


@pytest.mark.slow
def test_two_servers_do_not_run_into_one_folder(tmp_path: Path) -> None:
    setup, runs = write_setup(tmp_path), tmp_path / "runs"
    listen = ("--listen", f"127.0.0.1:{free_port()}", "--devices", "4", "--out", runs)
    first = begin("run", setup, *RUN, *listen)  # waits for devices that never come
    try:
        wait_until(lambda: (runs / ".lock").exists() and bool((runs / ".lock").read_text()))
        other = ("--listen", f"127.0.0.1:{free_port()}", "--devices", "4", "--out", runs)
        done = lab("run", setup, *RUN, *other)
        assert done.returncode == 2
        assert f"of --out must not be in use, got one that 'process {first.pid}: " in done.stderr
    finally:
        first.kill()
        first.communicate()


def test_a_page_tells_which_devices_a_run_waits_for(tmp_path: Path) -> None:
    setup, port, runs = write_setup(tmp_path), free_port(), tmp_path / "runs"
    listen = ("--listen", f"127.0.0.1:{port}", "--devices", 4, "--set", "stop.rounds=100000")
    process = begin("run", setup, *RUN, *listen, "--out", runs, "--live")
    url = url_of(process)
    names = device_names(4)
    awaited = ", ".join(names)
    wait_until(lambda: [run["waits"] for run in asked(f"{url}now")["runs"]] == [awaited])
    devices = [begin("join", f"127.0.0.1:{port}", "--name", name) for name in names]
    try:
        wait_until(lambda: (asked(f"{url}now")["runs"][0]["round"] or 0) >= 3)
        assert asked(f"{url}now")["total"] == 1
        process.send_signal(signal.SIGINT)
        done = finished(process)
        assert done.returncode == 130
        assert "the same command continues from there" in done.stderr
    finally:
        for each in (process, *devices):
            each.kill()
            each.communicate()


def test_down_of_nothing_is_no_error(tmp_path: Path) -> None:
    done = lab("down", "--name", lab_name("nothing"), "--state", tmp_path)
    assert done.returncode == 0
    assert "there is no lab" in done.stdout


def test_down_leaves_folders_that_are_no_labs(tmp_path: Path) -> None:
    name = lab_name("mine")
    (tmp_path / name).mkdir()
    (tmp_path / name / "diary.txt").write_text("dear diary")
    assert lab("down", "--name", name, "--state", tmp_path).returncode == 0
    assert (tmp_path / name / "diary.txt").exists()


def test_devices_that_join_by_hand_run_a_study(tmp_path: Path) -> None:
    setup, certs = write_setup(tmp_path), tmp_path / "certs"
    made = lab("certs", "--out", certs, "--devices", "a,b,c,d", "--server", "127.0.0.1")
    assert made.returncode == 0, made.stderr
    port = free_port()
    devices = [
        begin("join", f"127.0.0.1:{port}", "--name", each, "--certs", certs) for each in "abcd"
    ]
    try:
        listen = ("--listen", f"127.0.0.1:{port}", "--devices", "a,b,c,d", "--certs", certs)
        done = lab("run", setup, *RUN, *listen, "--out", tmp_path / "runs", "--goodbye")
        assert done.returncode == 0, done.stderr
        assert [finished(each).returncode for each in devices] == [0] * 4
    finally:
        for each in devices:
            each.kill()
            each.communicate()
    study = only_run(tmp_path / "runs").study
    assert study.network is not None
    assert study.network.how == "devices"


def test_a_run_learns_and_solves_again_where_it_is_told_to(tmp_path: Path) -> None:
    setup, port = write_setup(tmp_path), free_port()
    devices = [
        threading.Thread(target=join, args=(f"127.0.0.1:{port}", name)) for name in device_names(4)
    ]
    for each in devices:
        each.start()
    options = ("--listen", f"127.0.0.1:{port}", "--devices", 4, "--goodbye")
    learn = ("--set", "sampling.refresh=3", "--set", "sampling.warm_up=3")
    more = ("--schemes", "optimal-mean", "--set", "stop.rounds=7", "--out", tmp_path / "runs")
    done = lab("run", setup, *options, *learn, *more)
    for each in devices:
        each.join()
    assert done.returncode == 0, done.stderr
    rows = only_run(tmp_path / "runs").history.rows
    assert [row.phase for row in rows] == ["warm-up"] * 4 + ["train"] * 4
    expected = [row.expected_round_seconds for row in rows]
    assert np.isnan(expected[1:4]).all()
    assert expected[4] == expected[5] == expected[6] != expected[7]


@in_namespaces
def test_up_without_iproute2_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    setup = write_setup(tmp_path)
    done = lab("up", "--setup", setup, "--name", lab_name("bare"), "--state", tmp_path / "state")
    assert done.returncode == 2
    assert "apt-get install iproute2" in done.stderr
    assert not (tmp_path / "state").exists()
