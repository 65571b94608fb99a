"""Own data and models from files, by the command line."""

from pathlib import Path

import numpy as np
import pytest

from fedpace.errors import InputError
from fedpace.studies.build import simulator, split_of
from fedpace.studies.store import run_key
from fedpace.studies.study import load_study
from tests.cli.calling import assert_refused, run

OWN = """
import numpy as np
from fedpace.models.numpy_model import NumpyModel

def make_clients(rng):
    return [(rng.normal(size=(12 + i, 2)), rng.normal(size=12 + i)) for i in range(5)]

def make_model():
    return NumpyModel(
        start=np.zeros(2),
        gradient=lambda w, x, y: 2 * x.T @ (x @ w - y) / len(y),
        losses=lambda w, x, y: (x @ w - y) ** 2,
    )
"""
STUDY = """
data = "own.py:make_clients"
model = "own.py:make_model"
[training]
k = 2
local_steps = 2
batch = 4
[stop]
loss = 0.001
rounds = 3
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "mine.toml").write_text(STUDY)
    return tmp_path / "mine.toml"


def test_a_file_names_data_and_model(study: Path) -> None:
    found = load_study(str(study), ["training.optimiser=momentum:0.9"])
    backend = simulator(found, 3)
    assert (found.name, backend.weights.size, backend.model.size) == ("mine", 5, 2)
    other = simulator(found, 4)
    assert not np.array_equal(backend.data.train.x, other.data.train.x)  # a draw per seed
    same = simulator(load_study(str(study), ["data.seed=1"]), 4)
    np.testing.assert_array_equal(
        same.data.train.x, simulator(load_study(str(study), ["data.seed=1"]), 3).data.train.x
    )


def test_runs_are_known_by_the_text_of_the_files_wherever_they_are(
    study: Path, tmp_path: Path
) -> None:
    before = run_key(load_study(str(study)), "uniform", 0)
    there = tmp_path / "elsewhere"
    there.mkdir()
    for name in ("own.py", "mine.toml"):
        (there / name).write_text((tmp_path / name).read_text())
    assert run_key(load_study(str(there / "mine.toml")), "uniform", 0) == before
    (there / "own.py").write_text(OWN.replace("12 + i", "13 + i"))
    assert run_key(load_study(str(there / "mine.toml")), "uniform", 0) != before


def test_the_command_line_runs_saves_and_reports(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    done = run("run", study, "--schemes", "uniform,pace", "--seeds", 1, "--save", "--out", out)
    assert "Models:" in done.stdout
    with np.load(out / "models" / "pace-seed0.npz") as saved:
        assert saved["parameters"].shape == (2,)
    assert "report.html" in run("report", out).stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (STUDY.replace("make_model", "make_modle"), "did you mean 'make_model'"),
        (STUDY.replace('model = "own.py:make_model"', ""), "y must be classes, integers from 0"),
        (STUDY.replace("own.py:make_clients", "nowhere.py:f"), "cannot be read|can be read"),
    ],
)
def test_says_what_is_wrong(study: Path, text: str, message: str, tmp_path: Path) -> None:
    study.write_text(text)
    found = load_study(str(study))
    with pytest.raises(InputError, match=message):
        simulator(found, 0)


def test_own_data_need_a_source(study: Path) -> None:
    study.write_text(STUDY.replace('data = "own.py:make_clients"', "") + "[data]\nkind = 'own'\n")
    with pytest.raises(InputError, match="own data must have a source; write data ="):
        load_study(str(study))


def test_four_arrays_keep_their_own_test_samples() -> None:
    four = (np.ones((3, 2)), np.zeros(3, int), np.ones((5, 2)), np.ones(5, int))
    split = split_of([four, (np.ones((10, 2)), np.zeros(10, int))])
    assert (split.train.sizes.tolist(), split.test.sizes.tolist()) == ([3, 9], [5, 1])


def test_setups_with_a_base_may_change_the_kind(study: Path) -> None:
    study.write_text('base = "simulation-1"\n' + STUDY)
    found = load_study(str(study))
    assert (found.data.kind, found.training.k) == ("own", 2)


def test_refused_on_one_line(study: Path) -> None:
    study.write_text(STUDY + "[data]\n")
    assert_refused(run("run", study, "--out", study.parent / "x"), "is not TOML")
