"""The command line of the lab: what it says when something is wrong."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpace.backends.local import LocalTrainer
from fedpace.cli.lab import LARGEST, _Rounds, print_calibration
from fedpace.devices.device import serve
from fedpace.devices.lab.lab import Calibrated, RoundMedians
from fedpace.devices.measure import RunProgress
from fedpace.devices.server import DeviceServer
from fedpace.devices.shard import OwnShard
from fedpace.studies.store import Job
from fedpace.training.share_limit import LARGEST_SHARE
from fedpace.training.stopping import Stop
from tests.devices.fleet import free_port, until
from tests.devices.lab.labs import begin, finished, lab, lab_name, write_setup
from tests.devices.lab.test_register import LAB
from tests.training.fakes import row


def refused(*args: object) -> str:
    """Return the line with which a command is refused; without root `up` says so before."""
    done = lab(*args)
    assert done.returncode == 2, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if "without root" not in line]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--set", "devices.link=shared:20:optimal"),
            "devices.link must be fair in a lab, .*, got shared:20:optimal, .*; write shared:20",
        ),
        (("--devices", 5), "--devices must be one per client of .*, 4, got 5; .*data.clients=5"),
        (("--time-scale", 0), "--time-scale must be positive and finite, got 0; give a number"),
        (("--time-scale", "nan"), "--time-scale must be positive and finite, got nan"),
        (("--times", "unifrom:1:2"), "did you mean 'uniform'"),
        (("--times", "uniform:2:1"), "uniform:low:high"),
        (("--name", "A b"), "--name must be up to 32 small letters"),
        (("--cores", "99999"), "--cores must be some of"),
        (("--cpu-share", 7), "--cpu-share must be from 0.1 to 1"),
        (("--seed", -1), "--seed must be at least 0"),
    ],
)
def test_up_refuses_what_cannot_be(
    tmp_path: Path, options: tuple[object, ...], message: str
) -> None:
    state = tmp_path / "state"
    line = refused(
        "up", "--setup", write_setup(tmp_path), "--state", state, "--name", lab_name("no"), *options
    )
    assert re.search(message, line)
    assert not state.exists()


def test_up_refuses_data_that_only_the_clients_have(tmp_path: Path) -> None:
    setup = write_setup(tmp_path)
    text = re.sub(r"\[data\][^\[]*", '[data]\nkind = "own"\nclients = 4\n', setup.read_text())
    setup.write_text(text)
    state = tmp_path / "state"
    line = refused("up", "--setup", setup, "--state", state, "--name", lab_name("own"))
    assert "its data are held by its clients; set data.source" in line
    assert not state.exists()


def test_a_lab_that_is_not_up_is_told(tmp_path: Path) -> None:
    name = lab_name("none")
    options = ("--name", name, "--state", tmp_path)
    assert f"fedpace lab up --name {name}" in refused("status", *options)
    line = refused("run", write_setup(tmp_path), *options, "--out", tmp_path / "runs")
    assert f"fedpace lab up --name {name}" in line
    assert not (tmp_path / "runs").exists()


def test_status_without_labs_says_so(tmp_path: Path) -> None:
    done = lab("status", "--state", tmp_path)
    assert done.returncode == 0
    assert "No lab is up" in done.stdout


def test_a_damaged_lab_can_be_taken_down(tmp_path: Path) -> None:
    name = lab_name("damaged")
    (tmp_path / name).mkdir()
    (tmp_path / name / "lab.json").write_text("{")
    options = ("--name", name, "--state", tmp_path)
    assert f"fedpace lab down --name {name}" in refused("status", *options)
    assert lab("down", *options).returncode == 0
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--listen", "127.0.0.1:0"), "--listen needs --devices"),
        (("--listen", "127.0.0.1", "--devices", 4), "address must be HOST:PORT"),
        (("--listen", "127.0.0.1:0", "--devices", 3), "got 4 clients for 3 devices"),
        (("--listen", "0.0.0.0:0", "--devices", 4), "host must be a loopback address without TLS"),
        (("--listen", "127.0.0.1:0", "--devices", 4, "--certs", "x"), "fedpace lab certs"),
        (("--listen", "127.0.0.1:0", "--devices", 4, "--least", 5), "--least must"),
        (("--listen", "127.0.0.1:0", "--devices", 4, "--deadline", 0), "--deadline must be"),
        (("--listen", "127.0.0.1:0", "--devices", 4, "--evaluate-every", -1), "evaluate_every"),
        (("--listen", "127.0.0.1:0", "--devices", 4, "--schemes", "best"), "--schemes must be"),
    ],
)
def test_run_refuses_what_cannot_be(
    tmp_path: Path, options: tuple[object, ...], message: str
) -> None:
    line = refused("run", write_setup(tmp_path), "--out", tmp_path / "runs", *options)
    assert message in line


def test_run_without_devices_waits_and_then_stops_with_its_state_saved(tmp_path: Path) -> None:
    listen = ("--listen", "127.0.0.1:0", "--devices", 4, "--patience", 0.5)
    done = lab("run", write_setup(tmp_path), "--out", tmp_path / "runs", *listen)
    assert done.returncode == 1
    assert "waiting for devices" in done.stderr
    assert "at least 2 of 4 devices must be ready, got 0" in done.stderr


def test_counts_of_unknown_devices_are_urged_where_a_run_with_tls_starts(tmp_path: Path) -> None:
    certs, file = tmp_path / "certs", tmp_path / "samples.csv"
    lab("certs", "--out", certs, "--devices", 4, "--server", "127.0.0.1")
    file.write_text("name,samples\n" + "".join(f"device-0{i},9\n" for i in range(4)))
    listen = ("--listen", "127.0.0.1:0", "--devices", 4, "--certs", certs, "--patience", 0.2)
    start = ("run", write_setup(tmp_path), "--out", tmp_path / "runs", *listen)
    urged = "sample counts are the devices' own word: give --samples-file"
    assert urged in lab(*start).stderr
    assert urged not in lab(*start, "--samples-file", file).stderr


def test_devices_stay_when_a_run_with_goodbye_is_interrupted(tmp_path: Path) -> None:
    port, asked = free_port(), threading.Event()

    def prepare(job: dict[str, Any]) -> LocalTrainer:
        asked.set()
        return OwnShard("device-00")(job)

    device = threading.Thread(target=serve, args=("127.0.0.1", port, "device-00", prepare))
    device.start()
    listen = ("--listen", f"127.0.0.1:{port}", "--devices", 4, "--goodbye")
    run = begin("run", write_setup(tmp_path), "--out", tmp_path / "runs", *listen)
    assert asked.wait(600)
    run.send_signal(signal.SIGINT)
    assert finished(run).returncode == 130
    # It waits for the next server, and goes when that one is done.
    with DeviceServer(["device-00"], port=port) as server:
        until(lambda: server.connected == [0])
    device.join()


def test_a_lab_of_which_no_device_answers_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = np.full(LAB.devices, np.nan)
    found = Calibrated(np.ones(LAB.devices), RoundMedians(nothing, nothing))
    print_calibration(replace(LAB, measured=nothing.tolist()), found)
    said = capsys.readouterr()
    assert "Asked against measured: no device answered." in said.out
    assert "these devices did not answer: device-00, device-01" in said.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("nowhere", "--name", "a"), "address must be HOST:PORT"),
        (("192.0.2.1:7100", "--name", "a"), "host must be a loopback address without TLS"),
        (("127.0.0.1:1", "--name", "a", "--pace", 0), "--pace must be positive"),
        (("127.0.0.1:1", "--name", "a", "--patience", 0.1), "start the server first"),
    ],
)
def test_join_refuses_what_cannot_be(options: tuple[object, ...], message: str) -> None:
    assert message in refused("join", *options)


def test_certificates_are_made_for_a_number_of_devices_and_added_to(tmp_path: Path) -> None:
    out = tmp_path / "certs"
    first = lab("certs", "--out", out, "--devices", 2, "--server", "10.0.0.1,localhost")
    assert "3 certificates made, 0 already existed" in first.stdout
    assert {path.name for path in out.iterdir()} == {
        f"{name}{end}"
        for name in ("ca", "server", "device-00", "device-01")
        for end in (".pem", "-key.pem")
    }
    again = lab("certs", "--out", out, "--devices", 3, "--server", "10.0.0.1")
    assert "1 certificates made, 3 already existed" in again.stdout
    moved = lab("certs", "--out", out, "--devices", 3, "--server", "10.0.0.2")
    assert "1 certificates made, 3 already existed" in moved.stdout
    assert "server: made again, because it did not hold for 10.0.0.2; copy it" in moved.stdout


def test_certificates_need_a_server(tmp_path: Path) -> None:
    line = refused("certs", "--out", tmp_path / "certs", "--devices", 2, "--server", " , ")
    assert "--server must be a name or an address" in line


def test_progress_tells_the_mean_that_will_end_the_run() -> None:
    at = row(round=12, seconds=3.0, loss=0.5, sustained_loss=0.75)
    now = RunProgress(Job("uniform", 0), 0, 2, at)
    stop = Stop(loss=0.1, sustained=True)
    assert "loss 0.5000 (mean of the last ten 0.7500)" in _Rounds(stop).line(now)
    assert "mean" not in _Rounds(Stop(seconds=1e9)).line(now)
    assert "nan" not in _Rounds(stop).line(now._replace(row=row()))


@pytest.mark.parametrize("missing", ["google.protobuf", "google", "grpc"])
def test_names_the_extra_to_install_where_a_package_is_missing(missing: str) -> None:
    without = f"import sys; sys.modules['{missing}'] = None; from fedpace.__main__ import main; "
    command = [sys.executable, "-c", f"{without}main()", "lab", "join", "127.0.0.1:1"]
    done = subprocess.run(
        [*command, "--name", "a", "--certs", "none"], capture_output=True, text=True
    )
    assert done.returncode == 2
    needed = "google.protobuf" if missing == "google" else missing
    said = f"this command needs {needed}; install with: pip install 'fedpace[lab]'"
    assert done.stderr.splitlines() == [f"fedpace: {said}"]


def test_help_has_the_default_share() -> None:
    assert LARGEST.show_default == str(LARGEST_SHARE)
