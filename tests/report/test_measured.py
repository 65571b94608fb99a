"""Measured runs in a report: told apart from simulated ones, and said how they were made."""

import math
import os
from pathlib import Path

import numpy as np
import pytest

from fedpace.report.notes import (
    NO_ACCURACY,
    count_replies,
    how_measured,
    measured_line,
    measured_notes,
    notes,
)
from fedpace.report.page import page
from fedpace.report.report import Report
from fedpace.report.setups import Setup, setups_of
from fedpace.report.study_charts import curve_figure
from fedpace.report.study_tables import latex, markdown
from fedpace.report.summary import curve, has, own_rounds, summarise
from fedpace.report.time_to_target import arrival
from fedpace.studies.store import StoredRun
from fedpace.studies.study import load_study
from fedpace.training.history import History

from .made import START, arriving, made_run, small_study
from .measured_runs import BYTES, measured_run, measured_setup, measured_study

PLOTS = 'class="plot"'


def labels_of(*runs: StoredRun) -> dict[str, str]:
    """Return the label of each run's setup, by slug."""
    return {setup.slug: setup.label for setup in setups_of(runs)}


def test_measured_and_simulated_runs_of_a_setup_are_two_setups() -> None:
    study = load_study("prototype")
    simulated = [arriving(study, "uniform", seed, 4.0) for seed in range(2)]
    assert labels_of(*simulated, measured_run(measured_study(), "uniform")) == {
        "prototype-simulated": "prototype, simulated",
        "prototype-measured-in-namespaces-time-scale-0.2": (
            "prototype, measured in namespaces, time scale 0.2"
        ),
    }


def test_the_order_of_measured_and_simulated_does_not_change_their_labels() -> None:
    study, runs = load_study("prototype"), []
    for seed in range(2):
        runs.append(measured_run(measured_study(), "uniform", seed))
    labels = labels_of(arriving(study, "uniform", 0, 4.0), *runs)
    assert list(labels.values()) == [
        "prototype, measured in namespaces, time scale 0.2",
        "prototype, simulated",
    ]


def test_measured_setups_are_told_apart_by_what_differs_among_them() -> None:
    simulated = load_study("prototype", ["training.k=5"])
    runs = [measured_run(measured_study(), "uniform", seed) for seed in range(3)]
    runs += [measured_run(measured_study("network.deadline=3.0"), "uniform", 0)] * 2
    labels = labels_of(*runs, arriving(simulated, "uniform", 0, 4.0)).values()
    plain = "prototype, measured in namespaces, time scale 0.2"
    assert set(labels) == {plain, f"{plain}, network.deadline = 3.0",
                           "prototype, simulated, training.k = 5"}  # fmt: skip


def test_measured_setups_alone_need_no_word_about_it() -> None:
    assert list(labels_of(measured_run(measured_study(), "uniform")).values()) == ["prototype"]


def test_setups_of_other_kinds_of_data_are_told_apart(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    own = {**study.model_dump(), "data": {"kind": "own", "clients": 2}}
    runs = [arriving(study, "full", seed, 1.0) for seed in range(2)]
    runs.append(arriving(type(study).model_validate(own), "full", 0, 1.0))
    assert list(labels_of(*runs).values()) == [
        "small", "small, data.kind = own, data.source = none, data.clients = 2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("how", "scale", "expected"),
    [
        ("namespaces", 0.2, "Measured, devices in network namespaces; time scale 0.2: one second "
         "here stands for 5 s."),
        ("devices", 1.0, "Measured, real devices."),
        ("flower", 1.0, "Measured, clients of a Flower federation."),
        ("paced", 0.3, "Measured, devices on one machine that keep to their rates; time scale 0.3: "
         "one second here stands for 3.33 s."),
    ],
)  # fmt: skip
def test_how_it_was_measured_is_one_sentence(how: str, scale: float, expected: str) -> None:
    study = measured_study(f"network.how={how}", f"network.time_scale={scale}")
    assert how_measured(study) == expected


def test_replies_are_counted() -> None:
    run = measured_run(measured_study(), "uniform", chance=0.8)
    counts = count_replies([run, run])
    rows = run.history.rows[1:]
    answered = sum(row.clients.size for row in rows)
    assert counts.missing == 2 * sum(row.missing.size for row in rows) > 0
    assert counts.asked == 2 * answered + counts.missing
    assert counts.refused == 2 * sum(row.refused.size for row in rows) > 0
    assert counts.megabytes_down == pytest.approx(answered * BYTES / 1e6 / len(rows))
    assert counts.megabytes_up == pytest.approx(2 * counts.megabytes_down)


def test_bytes_that_were_not_measured_are_not_told() -> None:
    run = measured_run(measured_study(), "uniform", chance=1.0)
    nothing = np.empty(0, dtype=np.int64)
    rows = [row._replace(bytes_down=nothing, bytes_up=nothing) for row in run.history.rows]
    run = StoredRun(run.study, "uniform", 0, "1", "", History(rows), run.q, run.profile, None)
    (line,) = measured_line(setups_of([run])[0])
    assert "MB" not in line
    assert "0 missing" in line
    assert "(0" not in line


def test_notes_are_in_markdown_on_the_page_and_in_latex() -> None:
    setup = measured_setup(seeds=1)
    summary = summarise(setup)
    text = markdown([summary])
    shown = page([summary], [], runs_in=Path("runs"), files_in=Path("runs"))
    how, replies, by_scheme = measured_notes(setup)
    assert how.startswith("Measured, devices in network namespaces; time scale 0.2")
    assert how.endswith("The paper's seconds are as published.")
    assert replies.startswith("Replies: ")
    assert by_scheme.count("asked") == len(setup.schemes)
    assert f"- {how}\n- {replies}\n" in text
    assert f"<li>{replies}</li>" in shown
    assert "one second here stands for 5 s." in latex([summary])


def test_simulated_runs_have_no_such_notes(tmp_path: Path) -> None:
    (setup,) = setups_of([arriving(small_study(tmp_path), "full", 0, 1.0)])
    assert measured_notes(setup) == measured_line(setup) == []
    assert "easured" not in latex([summarise(setup)])


def test_a_lucky_report_of_clients_is_no_arrival() -> None:
    study = measured_study("network.evaluate_every=10", "stop.loss=1.3")
    run = measured_run(study, "uniform")
    assert min(row.loss for row in run.history.rows if row.round < 40) < 1.3
    reached = arrival(run)
    assert reached is not None
    assert (reached.round, math.isnan(reached.accuracy)) == (50, False)


def test_curves_go_through_the_evaluated_rounds() -> None:
    run = measured_run(measured_study("network.evaluate_every=10"), "uniform")
    evaluated = [row for row in run.history.rows[1:] if not math.isnan(row.accuracy)]
    assert len(evaluated) == 6
    for y in ("loss", "accuracy"):
        line = curve([run, run], y, "seconds")
        assert np.isfinite([line.mean, line.low, line.high]).all()
        values = {getattr(row, y) for row in evaluated} | {run.history.rows[0].loss}
        assert set(line.mean.tolist()) <= values


def test_a_run_without_accuracy_does_not_spoil_the_mean_of_the_others() -> None:
    known = measured_run(measured_study(), "uniform", 0)
    lacking = [row._replace(accuracy=math.nan) for row in known.history.rows]
    other = StoredRun(
        known.study, "uniform", 1, "1", "", History(lacking), None, known.profile, None
    )
    assert not has([other], "accuracy")
    both, one = curve([known, other], "accuracy", "seconds"), curve([known], "accuracy", "seconds")
    np.testing.assert_array_equal(both.mean, one.mean)


def test_target_accuracy_is_of_the_runs_that_were_evaluated_there(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    runs = [arriving(study, "optimal-mean", 0, 4.0)]
    runs.append(made_run(study, "optimal-mean", 1, [START, ("train", 1, 4.0, 1.7, math.nan)]))
    accuracy = summarise(setups_of(runs)[0]).accuracy
    assert (accuracy.value, accuracy.seeds, accuracy.bound) == (0.5, 1, "")


def test_a_pilot_without_a_loss_is_not_the_better_one(tmp_path: Path) -> None:
    run = made_run(small_study(tmp_path), "optimal-mean", 0, [
        ("pilot-uniform", 0, 0.0, 2.0, 1.0), ("pilot-uniform", 1, 1.0, math.nan, 0.1),
        ("pilot-weighted", 1, 2.0, 1.8, 0.1), ("train", 2, 9.0, 1.0, 0.5),
    ])  # fmt: skip
    assert [row.phase for row in own_rounds(run)[1:]] == ["pilot-weighted", "train"]


def without_accuracy() -> Setup:
    return measured_setup("network.evaluate_every=0", schemes=("uniform", "optimal-mean"), seeds=2)


def test_a_setup_without_accuracy_has_no_figure_of_it_and_says_so(tmp_path: Path) -> None:
    summary = summarise(without_accuracy())
    assert NO_ACCURACY in notes(summary)
    names = {path.name for path in Report([summary], []).write_figures(tmp_path)}
    assert names == set(os.listdir(tmp_path / "figures"))
    assert "prototype-loss-seconds.png" in names
    assert not any("accuracy" in name for name in names)
    shown = page([summary], [], runs_in=tmp_path, files_in=tmp_path)
    assert "Test accuracy against" not in shown
    # Two curves, how busy clients are, one chart of probabilities, two timelines.
    assert shown.count(PLOTS) == 6


def test_without_evaluations_the_curve_is_of_the_estimates() -> None:
    summary = summarise(without_accuracy())
    (setup,) = setups_of(summary.setup.of("uniform")[:1])
    line = curve(setup.runs, "loss", "round")
    np.testing.assert_array_equal(line.mean, [row.loss for row in setup.runs[0].history.rows])
    assert any(note.startswith("Losses are estimated") for note in notes(summary))


def test_curve_figures_say_how_it_was_measured() -> None:
    summary = summarise(measured_setup("network.evaluate_every=5", schemes=("uniform",)))
    note = curve_figure(summary, "accuracy-seconds", "accuracy", "seconds").note
    assert note.endswith("one second here stands for 5 s.")
