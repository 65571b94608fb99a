"""What all commands have in common: help, exit statuses, pipes, Ctrl-C, terminals."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import click
import numpy as np
import pytest
import typer

import fedpace
from fedpace.cli import app
from fedpace.report.tables import BREAKS
from tests.cli.calling import (
    GOOD,
    HEADER,
    assert_refused,
    command,
    contents,
    run,
)


def test_no_arguments_show_the_help_and_nothing_else() -> None:
    outcome = run()
    assert "Usage: fedpace" in outcome.stdout + outcome.stderr
    assert "fedpace: \n" not in outcome.stderr
    assert outcome.stderr == "" or outcome.stdout == ""


def test_version_is_the_librarys() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, fedpace.__version__ + "\n", "")


@pytest.mark.parametrize("verb", [[], ["example"], ["solve"], ["plan"]])
def test_the_example_in_the_help_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    helped = run(*verb, "--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    line = next(line for line in helped.stdout.splitlines() if re.search(r":  +fedpace ", line))
    examples = [part.strip() for part in line.split(":", 1)[1].split("&&")]
    if not any(example.startswith("fedpace example") for example in examples):
        assert run("example", "clients.csv").returncode == 0
    for example in examples:
        name, *args = shlex.split(example)
        assert name == "fedpace"
        outcome = run(*args)
        assert (outcome.returncode, outcome.stderr) == (0, "")
        for written in re.findall(r"-o (\S+)", example):
            assert (tmp_path / written).exists()


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command below a group, with the words that call it."""
    for name, each in group.commands.items():
        if isinstance(each, click.Group):
            yield from commands(each, *path, name)
        yield (*path, name), each


COMMANDS = dict(commands(cast(click.Group, typer.main.get_command(app))))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_help_shows_an_example_that_is_understood(
    monkeypatch: pytest.MonkeyPatch, path: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    helped = run(*path, "--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    (line,) = (line for line in helped.stdout.splitlines() if "Example:" in line)
    name, *words = shlex.split(line.partition("Example:")[2])
    assert name == "fedpace"
    assert tuple(words[: len(path)]) == path
    found = max((each for each in COMMANDS if each == tuple(words[: len(each)])), key=len)
    COMMANDS[found].make_context(name, words[len(found) :])


def test_starting_loads_nothing_heavy() -> None:
    script = "import sys, fedpace.cli; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    heavy = {"altair", "asyncio", "cryptography", "numpy", "platformdirs", "pydantic", "scipy"}
    heavy |= {"torch", "vl_convert"}
    assert "fedpace.cli.run" in loaded
    assert not heavy & loaded


@contextlib.contextmanager
def started(args: list[str], cwd: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        args, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def many_rows(n: int) -> str:
    rng = np.random.default_rng(1)
    columns = zip(rng.lognormal(size=n).tolist(), rng.lognormal(size=n).tolist(), strict=True)
    return "samples,time,grad_norm\n" + "".join(f"5,{t:.5g},{g:.5g}\n" for t, g in columns)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("delay", [0.0, 0.7])
def test_control_c_ends_quietly(tmp_path: Path, delay: float) -> None:
    # The pipe opens when the command reads its file: all imports are done.
    os.mkfifo(tmp_path / "clients.csv")
    (tmp_path / "q.csv").write_text("old")
    with started(command("solve", "clients.csv", "-o", "q.csv"), tmp_path) as process:
        with (tmp_path / "clients.csv").open("w") as stream:
            stream.write(many_rows(300_000))
        time.sleep(delay)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert out == ""
    assert err.strip() == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clients.csv", "q.csv"]
    assert (tmp_path / "q.csv").read_text() == "old"


@pytest.mark.parametrize(("options", "wanted"), [(["--json"], 10), (["--json"], 0), ([], 0)])
def test_a_reader_that_has_seen_enough_is_no_error(
    tmp_path: Path, options: list[str], wanted: int
) -> None:
    (tmp_path / "clients.csv").write_text(many_rows(5_000))  # JSON beyond a pipe's buffer
    with started(command("solve", "clients.csv", *options), tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert len(process.stdout.read(wanted)) == wanted
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=600) in (0, 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("options", [["--json"], []])
def test_a_full_disk_behind_standard_output_is_one_line(folder: Path, options: list[str]) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            command("solve", "clients.csv", *options),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert ended.returncode != 0
    assert "No space left" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="needs a shell that closes streams")
def test_a_closed_standard_output_gives_no_traceback(folder: Path) -> None:
    line = shlex.join(command("solve", "clients.csv", "-o", "q.csv")) + " >&-"
    ended = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True)
    assert "Traceback" not in ended.stderr
    assert (folder / "q.csv").exists()


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_killed_while_writing_leaves_the_old_output_or_all_of_the_new(tmp_path: Path) -> None:
    n = 100_000
    (tmp_path / "clients.csv").write_text("samples,time,grad_norm\n" + "5,1,1\n" * n)
    output = tmp_path / "q.csv"
    output.write_text("old")
    before = output.stat()
    with started(command("solve", "clients.csv", "-o", "q.csv"), tmp_path) as process:
        while process.poll() is None:
            if len(os.listdir(tmp_path)) > 2 or output.stat() != before:
                process.kill()
                break
            time.sleep(0.0002)
        _, err = process.communicate(timeout=600)
    assert err == ""
    text = output.read_text()
    assert text == "old" or (text.count("\n") == n + 1 and text.endswith("\n"))


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_progress_goes_to_the_terminal_and_leaves_standard_output_alone(fleet: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command("plan", "clients.csv"),
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"},
    ) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # how Linux says that the other end is closed
            while chunk := os.read(ours, 1 << 16):
                shown += chunk
        assert process.stdout is not None
        printed = process.stdout.read().decode()
    os.close(ours)
    assert process.returncode == 0
    assert "schemes × K" in shown.decode()
    assert printed == run("plan", "clients.csv").stdout
    assert "\x1b" not in printed


@pytest.fixture
def without_altair(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("fedpace.report")]:
        monkeypatch.delitem(sys.modules, name)  # imported anew, and back afterwards
    monkeypatch.setitem(sys.modules, "altair", None)


@pytest.mark.usefixtures("without_altair")
@pytest.mark.parametrize("verb", ["solve", "plan"])
def test_without_altair_the_extra_is_named_and_nothing_is_written(folder: Path, verb: str) -> None:
    before = contents(folder)
    done = run(verb, "clients.csv", "--plot", "q.png", "-o", "q.csv")
    assert_refused(done, "Altair", "pip install 'fedpace[report]'")
    assert contents(folder) == before


@pytest.mark.usefixtures("without_altair")
def test_without_altair_all_but_figures_works(folder: Path) -> None:
    done = run("solve", "clients.csv", "-o", "q.csv")
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "q.csv").exists()


def numbers_in(text: str) -> list[str]:
    return re.findall(r"(?<![\w.-])\d[\d,]*\.?\d*(?:e[+-]\d+)?(?![\w.-])", text)


@pytest.mark.parametrize("verb", ["solve", "plan"])
def test_a_narrow_terminal_cuts_no_number(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    wide = run(verb, "clients.csv")
    monkeypatch.setenv("COLUMNS", "40")
    narrow = run(verb, "clients.csv")
    assert (narrow.returncode, narrow.stderr) == (0, "")
    assert "…" not in narrow.stdout
    assert len(numbers_in(wide.stdout)) > 60
    assert sorted(numbers_in(narrow.stdout)) == sorted(numbers_in(wide.stdout))
    for scheme in fedpace.SCHEMES:  # the titles of `plan` go on in the next line after a hyphen
        title = BREAKS.get(scheme, scheme.replace("-", "-\n")).splitlines()
        parts = [rf"(?<![\w-]){re.escape(part)}(?!\w)" for part in title]
        assert all(re.search(rf"{part}|{scheme}", narrow.stdout) for part in parts), scheme


@pytest.mark.parametrize("verb", ["solve", "plan"])
def test_large_numbers_are_not_cut_where_there_is_no_terminal(folder: Path, verb: str) -> None:
    rows = (f"a-client-with-a-long-name-{i},{10**i},{1.2345e7 + i},{3.3e9}\n" for i in range(6))
    (folder / "large.csv").write_text(HEADER + "".join(rows))
    outcome = run(verb, "large.csv", "-k", 123_456)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert "…" not in outcome.stdout


@pytest.mark.parametrize(
    ("verb", "encoding"), [("solve", "ascii"), ("plan", "ascii"), ("solve", "cp1252")]
)
def test_a_terminal_that_lacks_a_letter_gives_no_traceback(
    folder: Path, verb: str, encoding: str
) -> None:
    (folder / "clients.csv").write_text(GOOD.replace("ada", "手机"), encoding="utf-8")
    done = run(verb, "clients.csv", encoding=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert "optimal-" in done.stdout
    assert "手" not in done.stdout


@pytest.mark.parametrize("args", [["solve", "clients.csv"], ["--help"], ["solve", "--help"]])
def test_output_that_is_not_a_terminal_has_no_escape_codes(fleet: Path, args: list[str]) -> None:
    outcome = run(*args)
    assert outcome.returncode == 0
    assert len(outcome.stdout) > 500
    assert "\x1b" not in outcome.stdout
