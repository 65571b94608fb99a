"""`fedpace run` as its user meets it: interrupted, killed, twice at once, on a full disk."""

import json
import os
import pty
import random
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from fedpace.backends.simulator import Simulator
from fedpace.cli.options import TRAINED
from fedpace.studies import runner
from fedpace.studies.build import simulator
from fedpace.studies.study import Study
from tests.cli.calling import command
from tests.studies.tiny import (
    LONG,
    PATIENCE,
    begin,
    files,
    run_here,
    session_is_empty,
    stored,
    wait_until,
    write_setup,
)

RUNS = (
    "--schemes", "full,optimal-mean", "--seeds", "6",
    "--set", LONG[0], "--set", LONG[1], "--set", LONG[2],
)  # fmt: skip
COUNT = 12


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_setup(tmp_path_factory.mktemp("setup"))


@pytest.fixture(scope="module")
def reference(setup: Path) -> dict[str, bytes]:
    """What an undisturbed run on one process leaves."""
    done = run_here(setup, "--out", setup.parent / "reference", "--processes", 1, *RUNS)
    assert done.returncode == 0, done.stderr
    return files(setup.parent / "reference")


def test_prints_a_table_and_writes_how_it_was_made(setup: Path, tmp_path: Path) -> None:
    out = tmp_path / "a b"
    args = (setup, "--out", out, "--seeds", 2, "--set", "training.k=4", "--set", "stop.loss=1.9")
    done = run_here(*args)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == f"Next: fedpace report '{out}'"
    rows = {line.split()[0]: line.split()[1:] for line in lines if line and line.split()}
    for scheme in TRAINED:
        assert rows[scheme][0] == "2"
    count = 2 * len(TRAINED)
    assert rows["optimal-mean"][-1] == "1.00"
    said = done.stderr.splitlines()
    assert said[0] == f"0/{count} runs, 0:00:00 elapsed"
    over = rf"{count}/{count} runs, \d:\d\d:\d\d elapsed, about 0:00:00 left"
    assert re.fullmatch(over, said[-1])
    record = json.loads((out / "study.json").read_text())
    assert record["study"]["training"]["k"] == 4
    assert record["seeds"] == [0, 1]
    assert record["command"].startswith("fedpace run ")
    assert {"fedpace", "numpy", "scipy", "python"} <= record["versions"].keys()


def test_a_private_run_ends_with_its_account(setup: Path, tmp_path: Path) -> None:
    privacy = ("--set", "privacy.clip=1", "--set", "privacy.noise=8")
    done = run_here(setup, "--out", tmp_path, "--schemes", "weighted", *privacy)
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"weighted: the client asked most often in a run, \d+ times, has ε = \d", done.stdout
    )
    assert "no sampling amplifies" in done.stdout


def test_the_same_command_again_does_nothing(setup: Path, reference: dict[str, bytes]) -> None:
    done = run_here(setup, "--out", setup.parent / "reference", *RUNS)
    assert done.returncode == 0
    assert re.fullmatch(r"12/12 runs, 0:\d\d:\d\d elapsed\n", done.stderr)
    assert files(setup.parent / "reference") == reference


def test_ctrl_c_keeps_what_is_stored_and_the_same_command_goes_on(
    setup: Path, tmp_path: Path, reference: dict[str, bytes]
) -> None:
    process = begin(setup, "--out", tmp_path, "--processes", 2, *RUNS)
    wait_until(lambda: stored(tmp_path) >= 3)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, said
    wait_until(lambda: session_is_empty(process.pid))
    count = len(files(tmp_path))
    assert 3 <= count < COUNT
    remedy = "the same command continues from there"
    found = re.fullmatch(
        rf"fedpace: interrupted: (\d+) of 12 runs are stored in {tmp_path}; {remedy}",
        said.splitlines()[-1],
    )
    assert found is not None, said
    assert 3 <= int(found[1]) <= count  # a worker may store its run after the message
    assert "Traceback" not in said
    done = run_here(setup, "--out", tmp_path, *RUNS)
    assert done.stderr.startswith(f"{count}/12 runs")
    assert files(tmp_path) == reference


def test_ctrl_c_at_any_moment_prints_no_traceback(setup: Path, tmp_path: Path) -> None:
    rng = random.Random(1)
    for place in (tmp_path / "a", tmp_path / "b", tmp_path / "c"):
        process = begin(setup, "--out", place, "--processes", 2, *RUNS, "--seeds", 30)
        # From the first file on: before that it is Python that starts, not we.
        wait_until((place / "study.json").exists)
        time.sleep(rng.uniform(0, 0.6))
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130, said
        assert "Traceback" not in said


def test_killed_at_random_points_it_resumes_to_the_same_result(
    setup: Path, tmp_path: Path, reference: dict[str, bytes]
) -> None:
    rng = random.Random(0)
    for goal in (1, 4, 8):
        process = begin(setup, "--out", tmp_path, "--processes", 2, *RUNS)
        while stored(tmp_path) < goal:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.1))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        whole = {name: each for name, each in files(tmp_path).items() if name.endswith(".npz")}
        assert whole.items() <= reference.items()
    done = run_here(setup, "--out", tmp_path, *RUNS)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) == reference


def test_workers_do_not_outlive_a_parent_that_is_killed(setup: Path, tmp_path: Path) -> None:
    process = begin(setup, "--out", tmp_path, "--processes", 2, *RUNS, "--set", "stop.rounds=4000")
    wait_until(lambda: children(process.pid) >= 2)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_until(lambda: session_is_empty(process.pid))


def children(parent: int) -> int:
    path = Path(f"/proc/{parent}/task/{parent}/children")
    return len(path.read_text().split()) if path.exists() else 0


def test_two_at_once_on_one_directory_share_the_runs_and_show_the_same(
    setup: Path, tmp_path: Path, reference: dict[str, bytes]
) -> None:
    pytest.importorskip("tensorboardX", reason="needs pip install 'fedpace[tensorboard]'")
    args = ("--out", tmp_path, "--processes", 1, "--log", "tensorboard", *RUNS)
    both = [begin(setup, *args) for _ in range(2)]
    tables = set()
    for process in both:
        table, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said
        told = [line for line in said.splitlines() if line.startswith("fedpace:")]
        assert all("is at work here too" in line for line in told)
        tables.add(table)
    assert len(tables) == 1
    assert files(tmp_path) == reference
    logs = list((tmp_path / "logs" / "tensorboard").iterdir())
    assert len(logs) == COUNT
    # Whoever does a run writes a file of its own.
    assert all(len(list(log.iterdir())) == 1 for log in logs)


def test_a_run_of_a_process_that_dies_is_taken_over(
    setup: Path, tmp_path: Path, reference: dict[str, bytes]
) -> None:
    first = begin(setup, "--out", tmp_path, "--processes", 1, *RUNS, "--set", "stop.rounds=4000000")
    wait_until(lambda: any(name.endswith(".lock") for name in files(tmp_path)))
    (lock,) = (tmp_path / "runs").glob(".*.lock")
    assert f"process {first.pid}: " in lock.read_text()
    args = ("--out", tmp_path, "--processes", 1, *RUNS[:2], "--seeds", "1", *RUNS[4:])
    second = begin(setup, *args, "--set", "stop.rounds=4000000")
    assert second.stderr is not None
    wait_until(lambda: len(list((tmp_path / "runs").glob(".*.lock"))) == 2)
    os.killpg(second.pid, signal.SIGKILL)
    second.communicate()
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert len(list((tmp_path / "runs").glob(".*.lock"))) == 2  # nobody was left to remove them
    done = run_here(setup, "--out", tmp_path, *RUNS)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) == reference


def test_a_damaged_file_is_said_and_done_again(
    setup: Path, tmp_path: Path, reference: dict[str, bytes]
) -> None:
    (tmp_path / "runs").mkdir()
    for name, contents in reference.items():
        (tmp_path / "runs" / name).write_bytes(contents)
    victim = tmp_path / "runs" / min(reference)
    os.truncate(victim, 100)
    done = run_here(setup, "--out", tmp_path, *RUNS)
    assert done.returncode == 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("fedpace:")]
    assert len(lines) == 1
    assert f"{victim}: does not match its checksum; it is removed and" in lines[0]
    assert files(tmp_path) == reference


def test_runs_of_another_configuration_are_kept_apart_and_said(setup: Path, tmp_path: Path) -> None:
    args = (setup, "--out", tmp_path, "--schemes", "uniform", "--seeds", 2, "--processes", 1)
    assert run_here(*args).returncode == 0
    first = files(tmp_path)
    done = run_here(*args, "--set", "training.k=2", "--first-seed", 1)
    assert first.items() < files(tmp_path).items()
    assert len(files(tmp_path)) == 4
    assert "also holds other runs (2), which this table leaves out" in done.stderr
    again = run_here(*args, "--set", "name=another", "--set", "title=Another")
    assert len(files(tmp_path)) == 4
    assert again.stderr.startswith("2/2 runs")


def test_runs_of_other_commands_are_counted_and_not_read(setup: Path, tmp_path: Path) -> None:
    args = (setup, "--out", tmp_path, "--schemes", "uniform", "--seeds", 1, "--processes", 1)
    assert run_here(*args).returncode == 0
    (other,) = (tmp_path / "runs").iterdir()
    os.truncate(other, 10)
    done = run_here(*args, "--first-seed", 1)
    assert done.returncode == 0
    said = [line for line in done.stderr.splitlines() if line.startswith("fedpace:")]
    assert said == [f"fedpace: {tmp_path} also holds other runs (1), which this table leaves out"]


def test_the_data_are_drawn_once_before_a_study_starts(
    setup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []

    def counted(study: Study, seed: int) -> Simulator:
        drawn.append(seed)
        return simulator(study, seed)

    monkeypatch.setattr(runner, "simulator", counted)
    done = run_here(setup, "--out", tmp_path, "--schemes", "uniform", "--first-seed", 3)
    assert done.returncode == 0, done.stderr
    assert drawn == [3]


def test_failed_runs_are_named_and_give_status_1(setup: Path, tmp_path: Path) -> None:
    done = run_here(
        setup, "--out", tmp_path, "--schemes", "uniform,optimal-mean", "--seeds", 6,
        "--set", "sampling.max_weight=0.01",
    )  # fmt: skip
    assert done.returncode == 1
    assert len(files(tmp_path)) == 6
    assert "failed runs: 6; the same command tries them again" in done.stderr
    assert "optimal-mean, seed 0: max_weight must" in done.stderr
    assert "and 1 more" in done.stderr
    assert "Traceback" not in done.stderr
    assert " uniform " in done.stdout


def test_a_terminal_gets_a_progress_bar(setup: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("run", setup, "--out", tmp_path, "--schemes", "uniform", "--seeds", 3),
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    shown = b""
    while chunk := read(ours):
        shown += chunk
    os.close(ours)
    assert process.communicate()[0].endswith(b"\n")
    assert process.returncode == 0
    assert "━" in shown.decode()
    assert b"3/3" in shown


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux's way of saying that the other end is closed
        return b""


BAD = {
    "did you mean 'uniform'?": ("--schemes", "unifrom"),
    "got ''; use one of: full, uniform": ("--schemes", "uniform,"),
    "--first-seed must be at least 0, got -1": ("--first-seed", "-1"),
    "'training.local_stepz' is not a known field; did you mean 'local_steps'?": (
        "--set", "training.local_stepz=3",
    ),
    "'training.k' is 0, not at least 1; set training.k=1": ("--set", "training.k=0"),
    "--set must be section.field=value, got 'k'": ("--set", "k"),
    "schedule must be inverse:RATE": ("--set", "training.schedule=fast"),
}  # fmt: skip


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_one_line_and_status_2(setup: Path, tmp_path: Path, message: str) -> None:
    done = run_here(setup, "--out", tmp_path / "out", *BAD[message])
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_an_unknown_setup_is_one_line(tmp_path: Path) -> None:
    done = run_here("simulaton-1", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "did you mean 'simulation-1'?" in done.stderr


def test_a_place_that_cannot_be_written_is_one_line_before_any_work(
    setup: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "out", Path("/proc/fedpace")):
        done = run_here(setup, "--out", place, *RUNS)
        assert done.returncode == 2
        assert done.stderr.startswith(f"fedpace: {place}")
        assert done.stderr.count("\n") == 1


def test_a_full_disk_is_one_line_and_what_is_stored_is_whole(
    setup: Path, small_disk: Path, reference: dict[str, bytes]
) -> None:
    done = run_here(setup, "--out", small_disk, *RUNS)
    assert done.returncode == 2
    assert "No space left on device; make room" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert 0 < len(files(small_disk)) < COUNT
    assert files(small_disk).items() <= reference.items()
