"""The time-to-target table in all its forms."""

import csv
import io
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fedpace.report.setups import setups_of, without_sweeps
from fedpace.report.study_tables import (
    csv_text,
    html_table,
    latex,
    markdown,
    sweep_table,
    terminal_table,
)
from fedpace.report.summary import Summary, summarise
from fedpace.report.tables import print_tables

from .made import arriving, missing, small_study


@pytest.fixture
def with_a_miss(tmp_path: Path) -> Summary:
    study = small_study(tmp_path, 'title="50 % of A_B & C"')
    runs = [arriving(study, "uniform", 0, 4.0), missing(study, "uniform", 1)]
    runs += [missing(study, "full", seed) for seed in (0, 1)]
    return summarise(setups_of(runs)[0])


def markdown_rows(text: str) -> list[dict[str, str]]:
    times = text.partition("Costs until the target")[0]
    lines = [line for line in times.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def test_csv_holds_every_number_in_full(summary: Summary) -> None:
    records = list(csv.DictReader(io.StringIO(csv_text([summary]))))
    assert [record["scheme"] for record in records] == [row.scheme for row in summary.rows]
    for record, row in zip(records, summary.rows, strict=True):
        assert (int(record["runs"]), int(record["reached"])) == (row.runs, row.reached)
        for name in ("seconds", "rounds", "pilot_seconds", "net_seconds", "to_proposed"):
            interval = getattr(row, name)
            assert float(record[name]) == interval.value
            assert float(record[f"{name}_low"]) == interval.low
            assert float(record[f"{name}_high"]) == interval.high


def test_csv_leaves_empty_what_is_not_known(with_a_miss: Summary) -> None:
    full, uniform = csv.DictReader(io.StringIO(csv_text([with_a_miss])))
    assert (full["seconds"], full["reached"], full["runs"]) == ("", "0", "2")
    assert (uniform["seconds"], uniform["seconds_bound"], uniform["paper_seconds"]) == (
        "4.0", "≥", "30.0",
    )  # fmt: skip


def test_markdown_shows_the_numbers_of_the_csv(summary: Summary) -> None:
    records = csv.DictReader(io.StringIO(csv_text([summary])))
    for record, shown in zip(records, markdown_rows(markdown([summary])), strict=True):
        assert shown["scheme"] == record["scheme"]
        value, low, high = (
            float(record[name]) for name in ("seconds", "seconds_low", "seconds_high")
        )
        assert shown["time to loss 1.75, s"] == f"{value:.1f} [{low:.1f}, {high:.1f}]"
        assert shown["time vs optimal-mean"].startswith(f"{float(record['to_proposed']):.2f}×")


def test_runs_that_never_got_there_are_counted_and_said(with_a_miss: Summary) -> None:
    text = markdown([with_a_miss])
    full, uniform = markdown_rows(text)
    assert (uniform["reached"], uniform["time to loss 1.75, s"]) == ("1 of 2", "≥ 4.0")
    assert (full["reached"], full["time to loss 1.75, s"]) == ("0 of 2", "–")
    assert "uniform: 1 of 2 not reached; its time is that of the others, a lower bound" in text
    assert "full: 2 of 2 not reached." in text


def test_what_does_not_exist_has_no_column(tmp_path: Path) -> None:
    study = small_study(tmp_path).model_copy(update={"paper": {}})
    (row,) = markdown_rows(markdown([summarise(setups_of([arriving(study, "full", 0, 1.0)])[0])]))
    assert not any("paper" in title or "accuracy" in title for title in row)


def test_page_has_the_cells_of_markdown(summary: Summary) -> None:
    body = html_table(summary).partition("<tbody>")[2]
    cells = [re.sub("<[^>]*>", "", cell) for cell in re.findall("<td>(.*?)</td>", body)]
    rows = markdown_rows(markdown([summary]))
    assert cells == [cell for row in rows for cell in row.values()]


def test_terminal_table_is_never_cut(
    summary: Summary, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_tables(terminal_table(summary))
    out = capsys.readouterr().out
    assert "…" not in out
    for row in summary.rows:
        line = next(line for line in out.splitlines() if line.split()[:1] == [row.scheme])
        assert f"{row.seconds.value:.1f}" in line
        assert f"{row.to_proposed.value:.2f}×" in line


def test_every_line_of_the_latex_table_has_all_columns(with_a_miss: Summary) -> None:
    text = latex([with_a_miss])
    columns = re.findall(r"\{@\{\}(lr+)@\{\}\}", text)
    body = text.partition(r"\toprule")[2].partition(r"\bottomrule")[0].replace(r"\&", "")
    counts = {line.count("&") for line in body.splitlines() if "&" in line}
    assert counts == {len(columns[0]) - 1}
    assert r"50 \% of A\_B \& C" in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_latex_compiles_and_fits_the_page(
    summary: Summary, with_a_miss: Summary, tmp_path: Path
) -> None:
    text = latex([summary, with_a_miss])
    document = (
        rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{text}\end{{document}}"
    )
    (tmp_path / "table.tex").write_text(document, encoding="utf-8")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "Overfull" not in done.stdout


def test_sweep_table_has_a_line_per_c_and_one_for_the_estimate(tmp_path: Path) -> None:
    base = small_study(tmp_path)
    given_c = {c: small_study(tmp_path, f"sampling.c_over_s0={c}") for c in (0.0, 3.0)}
    runs = [arriving(study, "optimal-max", 0, 10 + c) for c, study in given_c.items()]
    _, (sweep,) = without_sweeps(setups_of([*runs, arriving(base, "optimal-max", 0, 7.0)]))
    titles, rows = sweep_table(sweep)
    assert titles == ["c / S₀", "optimal-max, s"]
    assert rows == [["0", "10.0"], ["3", "13.0"], ["estimated", "7.0"]]
    assert "| 3 | 13.0 |" in markdown([], [sweep])


@pytest.mark.parametrize(("loss", "said"), [("0.01", True), ("none", False)])
def test_another_target_in_the_paper_is_said(tmp_path: Path, loss: str, said: bool) -> None:
    study = small_study(tmp_path, f"paper_loss={loss}")
    summary = summarise(setups_of([arriving(study, "uniform", 0, 4.0)])[0])
    note = "The paper's figures are for the target loss 0.01."
    assert (note in markdown([summary])) is said
