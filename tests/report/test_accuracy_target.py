"""A study that stops at an accuracy, without a target loss."""

from pathlib import Path

import numpy as np

from fedpace.report.setups import setups_of
from fedpace.report.study_charts import curve_figure, study_figures
from fedpace.report.summary import summarise
from fedpace.studies.build import run_one
from fedpace.studies.store import Store
from tests.studies.tiny import tiny_study

from .looking import assert_valid


def test_a_loss_curve_without_a_target_loss_has_no_arrivals(tmp_path: Path) -> None:
    study = tiny_study(tmp_path, "stop.loss=none", "stop.accuracy=0.2")
    Store(tmp_path).save(study, "uniform", 0, run_one(study, "uniform", 0))
    summary = summarise(setups_of(Store(tmp_path).runs())[0])
    assert np.isfinite(summary.rows[0].seconds.value)
    figure = curve_figure(summary, "loss-seconds", "loss", "seconds")
    assert figure.data["curves"]
    assert not figure.data["arrivals"]
    assert_valid(figure)
    (first,) = next(study_figures(summary))
    assert first.name == "accuracy-seconds"  # the chart of what the target is comes first
