"""A study that stops at an accuracy, without a target loss."""

import json
from pathlib import Path

import numpy as np

from fedpace.report.plots import plot_of
from fedpace.report.setups import setups_of
from fedpace.report.study_drawings import curve_drawing
from fedpace.report.summary import summarise
from fedpace.studies.experiment import run_one
from fedpace.studies.store import Store
from tests.studies.tiny import tiny_study


def test_a_loss_curve_without_a_target_loss_has_no_arrivals(tmp_path: Path) -> None:
    study = tiny_study(tmp_path, "stop.loss=none", "stop.accuracy=0.2")
    Store(tmp_path).save(study, "uniform", 0, run_one(study, "uniform", 0))
    summary = summarise(setups_of(Store(tmp_path).runs())[0])
    assert np.isfinite(summary.rows[0].seconds.value)
    plot = plot_of(curve_drawing(summary, "loss-seconds", "loss", "seconds"))
    assert {trace["mode"] for trace in plot["data"]} == {"lines"}
    assert json.dumps(plot, allow_nan=False)
