"""A grid is several studies under one name."""

from pathlib import Path

import pytest

from fedpace.errors import InputError
from fedpace.studies.runner import grids, load_studies
from fedpace.studies.store import Store
from fedpace.studies.study import load_study

from .tiny import run_here, write_setup

GRID = """
tasks = ["simulation-1"]
set = [
    "data.sizes=power-law", "data.clients=8", "data.samples=200", "data.smallest=8",
    "training.local_steps=2", "training.batch=4", "training.k=2", "stop.loss=none",
    "stop.sustained=false", "stop.rounds=3",
]
vary = [["devices.availability=always", "devices.availability=markov:9:3"]]
"""


def test_the_field_is_three_tasks_with_availability_and_correlation() -> None:
    studies = load_studies("field")
    cells = {(s.name, s.devices.availability, s.devices.correlation) for s in studies}
    assert len(cells) == len(studies) == 3 * 2 * 3
    assert {s.devices.times for s in studies} == {"trace:fedscale"}
    assert {s.devices.correlation for s in studies} == {-1.0, 0.0, 1.0}
    assert {s.name for s in studies} == {"simulation-1", "prototype-simulated", "small-cnn"}
    assert "field" in grids()


def test_overrides_hold_for_all_and_what_comes_out_alike_is_there_once() -> None:
    studies = load_studies("field", ["devices.correlation=0.5", "training.k=7"])
    assert len(studies) == 6
    assert {study.training.k for study in studies} == {7}


def test_a_task_has_settings_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    text = 'tasks = ["simulation-1", "small-cnn"]\nset = ["training.k=3", "stop.seconds=9"]\n'
    path.write_text(f'{text}[own]\nsmall-cnn = ["training.k=4"]\n', encoding="utf-8")
    found = {study.name: study.training.k for study in load_studies(str(path))}
    assert found == {"simulation-1": 3, "small-cnn": 4}
    assert {study.training.k for study in load_studies(str(path), ["training.k=5"])} == {5}


def test_a_setup_is_a_grid_of_one() -> None:
    assert load_studies("simulation-1", ["training.k=5"]) == [
        load_study("simulation-1", ["training.k=5"])
    ]


def test_one_command_runs_all_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(GRID, encoding="utf-8")
    args = (path, "--schemes", "uniform,oort", "--seeds", "1", "--out", tmp_path / "out")
    done = run_here(*args, "--processes", "1")
    assert done.returncode == 0, done.stderr
    assert "study 2 of 2: simulation-1, availability markov:9:3, correlation 0" in done.stderr
    runs = list(Store(tmp_path / "out").runs())
    assert len(runs) == 4
    assert run_here(*args, "--processes", "1").returncode == 0
    assert len(list(Store(tmp_path / "out").runs())) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tasks = []\n", "'tasks': .*; a grid has tasks, set, vary and own"),
        ('tasks = ["simulation-1"]\n[own]\nsmall-cnn = []\n', "must name tasks of the grid"),
        ('tasks = ["simulation-1"]\nvari = []\n', "'vari': .*; a grid has tasks"),
        ('tasks = ["simulation-3"]\n', "got 'simulation-3'; did you mean"),
    ],
)
def test_a_bad_grid_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_studies(str(path))


def test_a_file_that_is_no_grid_is_a_setup(tmp_path: Path) -> None:
    assert [study.name for study in load_studies(str(write_setup(tmp_path)))] == ["tiny"]
    with pytest.raises(InputError, match="cannot be read"):
        load_studies(str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("name", "nearest"), [("fiield", "field"), ("simulaton-1", "simulation-1")]
)
def test_an_unknown_name_is_refused_with_the_nearest_grid_or_setup(name: str, nearest: str) -> None:
    with pytest.raises(InputError, match=rf"got '{name}'; did you mean '{nearest}'\?"):
        load_studies(name)
    with pytest.raises(InputError, match=r"got 'xyz'; use one of: .*field"):
        load_studies("xyz")
