"""How to run a setup again."""

import shlex
import tomllib
from pathlib import Path

import pytest

from fedpace.report.rerun import command, overrides, toml
from fedpace.report.setups import Setup, setups_of
from fedpace.studies.study import Study, load_study

from .made import SCHEMES, arriving, small_study

CHANGES = (
    "training.k=5",
    "sampling.max_weight=none",
    'devices.times="uniform:1:2"',
    "pilots.thresholds=[1.5, 1.25]",
    "sampling.oracle=true",
    "training.clip=1e-5",
)


def setup_of(study: Study, *schemes: str, seeds: range = range(2)) -> Setup:
    runs = (arriving(study, scheme, seed, 4.0) for scheme in schemes for seed in seeds)
    (setup,) = setups_of(runs)
    return setup


@pytest.mark.parametrize("study", [load_study("simulation-1"), load_study("simulation-1", CHANGES)])
def test_configuration_reads_back_as_the_same_study(study: Study, tmp_path: Path) -> None:
    path = tmp_path / "again.toml"
    path.write_text(toml(study), encoding="utf-8")
    assert load_study(str(path)) == study


def test_odd_names_survive(tmp_path: Path) -> None:
    study = small_study(tmp_path).model_copy(
        update={"title": 'A "quoted" \\ β\n', "paper": {"a b": 1.0}}
    )
    assert tomllib.loads(toml(study))["title"] == study.title
    assert Study.model_validate(tomllib.loads(toml(study))) == study


def test_overrides_make_the_study_from_the_setup_of_its_name() -> None:
    study = load_study("simulation-1", CHANGES)
    assert len(overrides(study)) == len(CHANGES)
    assert load_study("simulation-1", overrides(study)) == study
    assert overrides(load_study("simulation-1")) == []


def test_command_names_schemes_seeds_and_changes() -> None:
    study = load_study("simulation-1", ["training.k=5", 'devices.times="uniform:1:2"'])
    text = command(setup_of(study, "full", "uniform", seeds=range(3, 5)), file="x", out="my runs")
    words = shlex.split(text)
    assert words[:3] == ["fedpace", "run", "simulation-1"]
    options = list(zip(words[3::2], words[4::2], strict=True))
    assert ("--schemes", "full,uniform") in options
    assert ("--seeds", "2") in options
    assert ("--first-seed", "3") in options
    assert ("--out", "my runs") in options
    changes = [value for name, value in options if name == "--set"]
    assert load_study("simulation-1", changes) == study


def test_a_study_of_ones_own_is_run_from_the_file_beside_the_report(tmp_path: Path) -> None:
    setup = setup_of(small_study(tmp_path), *SCHEMES)
    words = shlex.split(command(setup, file="out/small.toml", out="out"))
    assert words == ["fedpace", "run", "out/small.toml", "--schemes", "all", "--seeds", "2",
                     "--out", "out"]  # fmt: skip
