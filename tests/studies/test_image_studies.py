"""A few rounds of the studies on images: real files where they are, look-alikes otherwise."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedpace.backends.simulator import Simulator
from fedpace.data.images import CLASSES
from fedpace.sampling.schemes import SCHEMES
from fedpace.studies import build as experiment
from fedpace.studies.build import run_one, run_with, simulator, split
from fedpace.studies.study import Study, load_study
from tests.data.idx_files import write_split
from tests.studies.tiny import run_here, stored

SMALL = [
    "data.official=false",  # look-alikes will do
    "data.clients=8",
    "data.samples=400",
    "training.k=3",
    "training.local_steps=3",
    "training.batch=4",
    "pilots.thresholds=[0.5]",
    "pilots.rounds=2",
    "stop.loss=0.01",
    "stop.rounds=3",
]
NAMES = ("simulation-2", "prototype-simulated")
FILES = {
    "simulation-2": ("mnist", "train", 0),
    "prototype-simulated": ("emnist", "emnist-lower", 36),
}


def look_alikes(folder: Path) -> None:
    """Write files of the right form, in which a class is a square in a place of its own."""
    rng = np.random.default_rng(0)
    for setup, (dataset, stem, first) in FILES.items():
        kinds = CLASSES[load_study(setup).data.kind]
        labels = np.arange(60_000 if dataset == "mnist" else 2_000) % kinds
        images = rng.integers(0, 50, (labels.size, 28, 28), dtype=np.uint8)
        rows, columns = 5 * (labels // 6) + 1, 4 * (labels % 6) + 1
        for i in range(3):
            for j in range(3):
                images[np.arange(labels.size), rows + i, columns + j] = 255
        write_split(folder / dataset, stem, images, labels + first)


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("FEDPACE_DATA")
    if given and Path(given).is_dir():
        return Path(given)
    folder = tmp_path_factory.mktemp("data")
    look_alikes(folder)
    return folder


@pytest.fixture(scope="module")
def backends(data_folder: Path) -> dict[str, Simulator]:
    """Return the simulators of both studies: reading the images takes longest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDPACE_DATA", str(data_folder))
        return {name: simulator(small(name), 0) for name in NAMES}


@pytest.fixture
def data(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPACE_DATA", str(data_folder))


def small(name: str, *more: str) -> Study:
    return load_study(name, [*SMALL, *more])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", NAMES)
def test_every_scheme_runs(backends: dict[str, Simulator], name: str, scheme: str) -> None:
    outcome = run_with(backends[name], small(name), scheme, 0)
    losses = [row.loss for row in outcome.history.rows]
    assert outcome.state.ended == "rounds"
    assert np.isfinite(losses).all()
    assert losses[-1] != losses[0]


@pytest.mark.parametrize("name", NAMES)
def test_training_makes_the_loss_fall(backends: dict[str, Simulator], name: str) -> None:
    longer = replace(backends[name], local_steps=20)
    rows = run_with(longer, small(name, "stop.rounds=6"), "full", 0).history.rows
    assert rows[-1].loss < 0.85 * rows[0].loss


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_numbers(backends: dict[str, Simulator], name: str) -> None:
    study = small(name)
    one = run_with(backends[name], study, "optimal-mean", 0)
    np.testing.assert_array_equal(
        one.state.parameters, run_one(study, "optimal-mean", 0).state.parameters
    )


@pytest.mark.usefixtures("data")
def test_a_seed_draws_its_own_model_and_times_on_the_studys_one_draw_of_data(
    backends: dict[str, Simulator],
) -> None:
    one, two = backends["simulation-2"], simulator(small("simulation-2"), 1)
    np.testing.assert_array_equal(one.data.train.y, two.data.train.y)
    assert (one.initial() != two.initial()).any()
    assert (one.times.usual != two.times.usual).all()


@pytest.mark.parametrize(
    ("name", "size"), [("simulation-2", 61706), ("prototype-simulated", 20410)]
)
def test_models_have_the_size_of_the_papers(
    backends: dict[str, Simulator], name: str, size: int
) -> None:
    assert backends[name].model.size == size


@pytest.mark.usefixtures("data")
def test_pixels_are_in_the_unit_interval_or_standard(backends: dict[str, Simulator]) -> None:
    unit = split(small("simulation-2", "data.pixels=unit"), 0).train.x
    standard = backends["simulation-2"].data.train.x
    assert (unit.min(), unit.max()) == (0, 1)
    assert standard.min() < 0 < 1 < standard.max()
    # The same images, shifted and scaled alike.
    slope, shift = np.polyfit(unit[:50].ravel(), standard[:50].ravel(), 1)
    np.testing.assert_allclose(slope * unit + shift, standard, atol=1e-4)


def test_images_of_another_folder_are_not_those_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels, drawn = np.arange(600) % 26 + 36, []
    for shade in (10, 20):
        folder = tmp_path / str(shade)
        images = np.full((labels.size, 28, 28), shade, dtype=np.uint8)
        write_split(folder / "emnist", "emnist-lower", images, labels)
        monkeypatch.setenv("FEDPACE_DATA", str(folder))
        drawn.append(split(small("prototype-simulated", "data.pixels=unit"), 0).train.x)
    np.testing.assert_allclose(drawn[1], 2 * drawn[0], rtol=1e-6)


@pytest.mark.usefixtures("data")
def test_the_command_runs_a_study_on_images(tmp_path: Path, data_folder: Path) -> None:
    changes = [part for change in SMALL for part in ("--set", change)]
    folders = ["--data", data_folder, "--out", tmp_path / "runs"]
    schemes = ["--schemes", "uniform,optimal-mean", "--seeds", 1]
    done = run_here("prototype-simulated", *schemes, *changes, *folders)
    assert done.returncode == 0
    assert stored(tmp_path / "runs") == 2


def test_the_command_says_at_once_which_files_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDPACE_DATA", "")  # set back afterwards, whatever --data makes of it
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done = run_here("simulation-2", "--data", tmp_path, "--out", tmp_path / "runs")
    assert done.returncode == 2
    assert "fedpace data fetch mnist" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_the_command_says_which_extra_lenet_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_folder: Path
) -> None:
    monkeypatch.setenv("FEDPACE_DATA", str(data_folder))
    monkeypatch.setattr(experiment, "find_spec", lambda _: None)
    done = run_here("simulation-2", "--out", tmp_path / "runs")
    assert done.returncode == 2
    assert "pip install 'fedpace[torch]'" in done.stderr
