"""Time to the target, twice: at its first touch, and sustained."""

import csv
import io
import math
from pathlib import Path

import pytest

from fedpace.report.notes import SUSTAINED_NOTE, UNSUSTAINED_NOTE, missed_targets, notes
from fedpace.report.page import page
from fedpace.report.setups import setups_of
from fedpace.report.study_charts import target_note
from fedpace.report.study_tables import csv_text, html_table, latex, main_columns, markdown
from fedpace.report.summary import Summary, curve, summarise
from fedpace.report.tables import print_tables, runs_table
from fedpace.report.time_to_target import sustains, times_of

from .made import arriving, small_study, sustaining
from .test_study_tables import markdown_rows

TIME = "time until sustained, s"
RATIO = "time vs optimal-mean, sustained"


@pytest.fixture
def twice(tmp_path: Path) -> Summary:
    """Two seeds: optimal-mean sustains after 4 and 6 s, uniform after 10 and 14 s."""
    study = small_study(tmp_path, "stop.sustained=true")
    ends = {"optimal-mean": (4.0, 6.0), "uniform": (10.0, 14.0)}
    runs = [
        sustaining(study, scheme, seed, 2.0 + seed, end)
        for scheme, both in ends.items()
        for seed, end in enumerate(both)
    ]
    return summarise(setups_of(runs)[0])


def test_the_time_to_the_first_touch_stays_and_the_sustained_one_stands_beside_it(
    twice: Summary,
) -> None:
    uniform, proposed = twice.rows
    assert (uniform.reached, uniform.seconds.value) == (2, 2.5)
    assert (uniform.sustained_seconds.value, proposed.sustained_seconds.value) == (12.0, 5.0)
    assert uniform.to_proposed.value == 1.0
    assert uniform.sustained_to_proposed.value == pytest.approx(2.4)
    low, high = uniform.sustained_to_proposed.low, uniform.sustained_to_proposed.high
    assert low < 2.4 < high


def test_a_run_that_touched_the_target_and_never_sustained_it_is_said(tmp_path: Path) -> None:
    study = small_study(tmp_path, "stop.sustained=true")
    runs = [sustaining(study, "uniform", 0, 2.0, 4.0), sustaining(study, "uniform", 1, 2.0)]
    summary = summarise(setups_of(runs)[0])
    (row,) = summary.rows
    assert (row.reached, row.seconds.bound) == (2, "")
    assert (row.sustained_seconds.value, row.sustained_seconds.bound) == (4.0, "≥")
    (said,) = missed_targets(summary)
    assert said.startswith(
        "uniform: 1 of 2 not sustained; its sustained time is that of the others"
    )


def test_who_never_touched_the_target_is_named_once(tmp_path: Path) -> None:
    study = small_study(tmp_path, "stop.sustained=true", "stop.loss=0.1")
    summary = summarise(setups_of([sustaining(study, "uniform", 0, 2.0)])[0])
    assert missed_targets(summary) == ["uniform: 1 of 1 not reached."]


@pytest.mark.parametrize(
    "changes", [(), ("stop.loss=none", "stop.accuracy=0.5", "stop.sustained=true")]
)
def test_runs_that_ended_at_the_first_touch_have_no_sustained_time(
    tmp_path: Path, changes: tuple[str, ...]
) -> None:
    study = small_study(tmp_path, *changes)
    assert not sustains(study)
    runs = [sustaining(study, name, 0, 2.0, 4.0) for name in ("uniform", "optimal-mean")]
    assert times_of(runs).sustained == {}
    summary = summarise(setups_of(runs)[0])
    for shown in markdown_rows(markdown([summary])):
        assert not {TIME, RATIO} & shown.keys()  # columns that would hold nothing
    for record in csv.DictReader(io.StringIO(csv_text([summary]))):
        assert record["sustained_seconds"] == record["sustained_to_proposed"] == ""
    assert SUSTAINED_NOTE not in notes(summary)
    assert (UNSUSTAINED_NOTE in notes(summary)) is (study.stop.loss is not None)


def test_every_form_of_the_table_has_the_sustained_time(
    twice: Summary, capsys: pytest.CaptureFixture[str]
) -> None:
    uniform, _ = markdown_rows(markdown([twice]))
    assert uniform[TIME].startswith("12.0 [")
    assert uniform[RATIO].startswith("2.40× [")
    assert "<td>12.0 <small>[" in html_table(twice)
    record = next(csv.DictReader(io.StringIO(csv_text([twice]))))
    assert (float(record["sustained_seconds"]), record["sustained_seconds_bound"]) == (12.0, "")
    assert float(record["sustained_seconds_low"]) < 12.0 < float(record["sustained_seconds_high"])
    assert r"2.40$\times$" in latex([twice])
    assert "12.0" in latex([twice])
    print_tables(runs_table(twice))
    line = next(line for line in capsys.readouterr().out.splitlines() if "uniform" in line)
    assert line.split() == ["uniform", "2", "of", "2", "2.5", "12.0", "1.00"]


def test_narrow_tables_have_what_fits_them(twice: Summary) -> None:
    terminal, printed = (
        [column.title for column in main_columns(twice, place)] for place in ("terminal", "print")
    )
    assert TIME in terminal
    assert RATIO not in terminal
    assert {TIME, RATIO} <= set(printed)
    assert len(printed) <= 7


def test_what_sustained_means_is_said_below_the_table_on_the_page_and_in_latex(
    twice: Summary, tmp_path: Path
) -> None:
    assert "mean of the last 10 evaluated losses" in SUSTAINED_NOTE
    for text in (
        markdown([twice]),
        latex([twice]),
        page([twice], [], runs_in=tmp_path, files_in=tmp_path),
    ):
        assert SUSTAINED_NOTE in text


def test_notes_and_captions_know_that_runs_go_on_behind_the_first_touch(
    twice: Summary, tmp_path: Path
) -> None:
    assert "Runs end when the target loss is sustained, some of them" in " ".join(notes(twice))
    assert "runs go on until it is sustained." in target_note(twice.setup.study)
    touching = small_study(tmp_path)
    summary = summarise(setups_of([arriving(touching, "optimal-mean", 0, 4.0)])[0])
    assert "Runs end at the target loss, some of them" in " ".join(notes(summary))
    assert target_note(touching) == " Dots: mean first arrival at the target."
    assert target_note(small_study(tmp_path, "stop.loss=none")) == ""


def test_curves_go_on_to_the_end_of_the_runs(twice: Summary) -> None:
    line = curve(twice.setup.of("uniform"), "loss", "seconds")
    assert line.x[-1] == 15.0
    assert line.mean[-1] == 1.6
    assert math.isclose(twice.accuracy.value, 0.5)  # of the first touch, as in the paper
