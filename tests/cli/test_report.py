"""`fedpace report`, from a directory of runs to a page."""

import csv
import re
import sys
from pathlib import Path
from shutil import copytree

import pytest

from fedpace.cli.run import stored_runs
from fedpace.report.notes import CAPTION
from fedpace.studies.study import load_study
from tests.cli.calling import assert_refused, run
from tests.report.made import small_study, store_real_runs
from tests.report.measured_runs import measured_study, store_measured_runs

ENDINGS = {".html", ".md", ".csv", ".tex", ".toml"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    store_real_runs(folder, seeds=2)
    return folder


def report(*args: object) -> tuple[str, str]:
    """Return what the command prints on either stream."""
    done = run("report", *args)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def reported(runs: Path) -> tuple[Path, str, str]:
    out = runs.parent / "reported" / "folder"
    return out, *report(runs, "--out", out)


def test_prints_the_path_of_everything_it_wrote(reported: tuple[Path, str, str]) -> None:
    out, printed, said = reported
    assert said == ""
    paths = [Path(path) for path in re.findall(rf"{re.escape(str(out))}[^\s,]*", printed)]
    written = {path for path in out.rglob("*") if path.is_file()}
    assert written - set(paths) == {out / "small.toml"}
    assert set(paths) <= written
    assert {path.suffix for path in written} == ENDINGS


def test_figures_are_drawn_where_they_are_wanted(runs: Path, tmp_path: Path) -> None:
    printed, _ = report(runs, "--out", tmp_path, "--figures")
    paths = {Path(path) for path in re.findall(r"Figure: +(\S+)", printed)}
    assert paths == set((tmp_path / "figures").iterdir())
    assert {path.suffix for path in paths} == {".png", ".pdf"}
    assert tmp_path / "figures" / "small-loss-seconds.png" in paths


def test_prints_the_table_of_the_csv(reported: tuple[Path, str, str]) -> None:
    out, printed, _ = reported
    lines = {line.split()[0]: line for line in printed.splitlines() if " of " in line}
    with (out / "time-to-target.csv").open(encoding="utf-8") as file:
        for record in csv.DictReader(file):
            assert f"{record['reached']} of 2" in lines[record["scheme"]]
            assert f"{float(record['seconds']):.1f}" in lines[record["scheme"]]


def test_the_written_configuration_makes_the_same_study(
    reported: tuple[Path, str, str], tmp_path: Path
) -> None:
    assert load_study(str(reported[0] / "small.toml")) == small_study(tmp_path)


def test_writes_beside_the_runs_by_default(runs: Path, tmp_path: Path) -> None:
    copytree(runs / "runs", tmp_path / "runs")
    before = sorted((tmp_path / "runs").iterdir())
    report(tmp_path)
    assert (tmp_path / "report.html").is_file()
    assert sorted((tmp_path / "runs").iterdir()) == before


def test_measured_runs_are_said_to_be_so_in_one_line_and_drawn(tmp_path: Path) -> None:
    store_measured_runs(tmp_path, schemes=("uniform", "optimal-mean"))
    printed, said = report(tmp_path, "--figures")
    assert said == ""
    lines = printed.splitlines()
    line = lines[lines.index(CAPTION) + 1]
    assert line.startswith("Measured, devices in network namespaces; time scale 0.2: one second")
    assert re.search(r"Replies: [\d,]+ asked for, \d+ missing .* MB down and .* MB up", line)
    figures = {path.name for path in (tmp_path / "figures").iterdir()}
    for scheme in ("uniform", "optimal-mean"):
        assert {f"prototype-timeline-{scheme}.{end}" for end in ("png", "pdf")} <= figures
    assert load_study(str(tmp_path / "prototype.toml")) == measured_study()


def test_damaged_files_are_named_and_left_out(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copytree(runs / "runs", tmp_path / "runs")
    victim = min((tmp_path / "runs").glob("*.npz"))
    victim.write_bytes(victim.read_bytes()[:-1])
    assert len(stored_runs(tmp_path)) == len(list((tmp_path / "runs").iterdir())) - 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(f"fedpace: left out: {victim}")


def test_a_directory_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    done = run("report", tmp_path / "nowhere")
    assert_refused(done, "nowhere: is not a directory; give the one of")


def test_a_directory_without_runs_is_said_with_the_command_that_makes_some(tmp_path: Path) -> None:
    assert_refused(run("report", tmp_path), "holds no finished runs; make some: fedpace run")
    assert list(tmp_path.iterdir()) == []


def test_an_out_that_cannot_be_made_is_said(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run("report", runs, "--out", tmp_path / "file" / "below")
    assert_refused(done, "cannot be made a directory")


def test_without_altair_the_table_is_printed_and_the_extra_named(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("fedpace.report")]:
        monkeypatch.delitem(sys.modules, name)  # imported anew, and back afterwards
    monkeypatch.setitem(sys.modules, "altair", None)
    done = run("report", runs, "--out", tmp_path)
    assert done.returncode == 2
    assert "optimal-mean" in done.stdout
    assert "pip install 'fedpace[report]'" in done.stderr
    assert (tmp_path / "time-to-target.md").is_file()
