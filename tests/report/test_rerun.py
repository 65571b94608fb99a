"""How to run a setup again."""

import shlex
import tomllib
from pathlib import Path

import click
import pytest
import typer

from fedpace.cli import lab_app
from fedpace.cli.options import TRAINED
from fedpace.report.page import page
from fedpace.report.setups import NO_COMMAND, Setup, command, overrides, setups_of, toml
from fedpace.report.summary import summarise
from fedpace.studies.study import Study, load_study

from .made import arriving, small_study
from .measured_runs import measured_study

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
    setup = setup_of(small_study(tmp_path), *TRAINED)
    words = shlex.split(command(setup, file="out/small.toml", out="out"))
    assert words == ["fedpace", "run", "out/small.toml", "--schemes", "all", "--seeds", "2",
                     "--out", "out"]  # fmt: skip


@pytest.mark.parametrize("terms", [(), ("network.deadline=2.5", "network.evaluate_every=5")])
def test_the_network_is_written_where_there_is_one(terms: tuple[str, ...], tmp_path: Path) -> None:
    study = measured_study(*terms)
    path = tmp_path / "again.toml"
    path.write_text(toml(study), encoding="utf-8")
    assert load_study(str(path)) == study
    assert "network" not in toml(load_study("prototype"))


def test_a_measured_study_is_run_in_a_lab() -> None:
    study = measured_study("training.k=5", "network.deadline=2.5", "network.evaluate_every=5")
    up, run = command(setup_of(study, "uniform"), file="x", out="runs").splitlines()
    assert up == "fedpace lab up --setup prototype --set training.k=5 --time-scale 0.2"
    assert run == (
        "fedpace lab run prototype --schemes uniform --seeds 2 --set training.k=5 "
        "--evaluate-every 5 --deadline 2.5 --out runs"
    )


def test_a_lab_without_namespaces_is_paced() -> None:
    up, _ = command(
        setup_of(measured_study("network.how=paced"), "uniform"), file="x", out="runs"
    ).splitlines()
    assert up.endswith("--paced")


def test_real_devices_are_listened_for() -> None:
    study = measured_study("network.how=devices")
    words = shlex.split(command(setup_of(study, "uniform"), file="x", out="runs"))
    assert words[:4] == ["fedpace", "lab", "run", "prototype"]
    options = list(zip(words[4::2], words[5::2], strict=True))
    assert ("--listen", "HOST:PORT") in options
    assert ("--devices", "2") in options


def test_a_federation_has_no_command_but_a_sentence() -> None:
    setup = setup_of(measured_study("network.how=flower"), "uniform")
    assert command(setup, file="x", out="runs") == ""
    text = page([summarise(setup)], [], runs_in=Path("runs"), files_in=Path("runs"))
    assert f"<summary>Run it again</summary><p>{NO_COMMAND}</p>" in text


def test_the_options_of_measured_runs_are_those_of_the_lab() -> None:
    app = typer.main.get_command(lab_app)
    assert isinstance(app, click.Group)
    known = {
        name: {option for parameter in each.params for option in parameter.opts}
        for name, each in app.commands.items()
    }
    for how in ("namespaces", "paced", "devices"):
        study = measured_study(f"network.how={how}", "training.k=5", "network.deadline=2.5")
        setup = setup_of(study, "uniform", seeds=range(1, 3))
        for line in command(setup, file="x", out="runs").splitlines():
            _, _, verb, *words = shlex.split(line)
            assert {word for word in words if word.startswith("--")} <= known[verb]


def test_other_data_than_those_of_the_setup_are_set_and_the_old_fields_taken_away() -> None:
    values = load_study("prototype").model_dump()
    study = Study.model_validate(values | {"data": {"kind": "own", "clients": 7}})
    assert load_study("prototype", overrides(study)) == study
