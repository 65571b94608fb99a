"""`fedpace doctor`, `fedpace schema`, and completion in the shell."""

import json
import os
import subprocess
import tomllib
from importlib import resources
from pathlib import Path

import jsonschema

import fedpace
from fedpace.studies.study import setups
from tests.cli.calling import command, run


def test_the_doctor_names_versions_extras_and_what_is_missing() -> None:
    done = run("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"fedpace {fedpace.__version__}" in done.stdout
    assert "cores for this process" in done.stdout
    assert f"cloudpickle {__import__('cloudpickle').__version__}" in done.stdout
    for line in done.stdout.splitlines():
        assert (" missing" in line) == ("pip install 'fedpace[" in line)
    assert "dataset mnist: " in done.stdout


def test_every_setup_fits_the_schema_and_mistakes_do_not(tmp_path: Path) -> None:
    done = run("schema", tmp_path / "study.schema.json")
    assert "#:schema ./study.schema.json" in done.stdout
    schema = json.loads((tmp_path / "study.schema.json").read_text())
    assert json.loads(run("schema").stdout) == schema
    checker = jsonschema.Draft202012Validator(schema)
    for name in setups():
        text = (resources.files("fedpace.studies") / "setups" / f"{name}.toml").read_text()
        checker.validate(tomllib.loads(text))
    checker.validate({"data": "mine.py:clients", "model": "mine.py:model", "stop": {"rounds": 3}})
    checker.validate({"base": "simulation-1", "data": {"samples": 500}})
    for wrong in (
        {"stpo": {"rounds": 3}},
        {"training": {"k": 0}},
        {"training": {"mode": "async"}},
        {"base": "simulation-3"},
    ):
        assert not checker.is_valid(wrong), wrong


def test_a_shell_completes_commands() -> None:
    asked = {"_FEDPACE_COMPLETE": "complete_bash", "COMP_WORDS": "fedpace so", "COMP_CWORD": "1"}
    done = subprocess.run(
        [*command()], env=os.environ | asked, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["solve"]


def test_a_schema_has_every_field_with_its_default() -> None:
    schema = json.loads(run("schema").stdout)
    training = schema["$defs"]["TrainingSection"]["properties"]
    assert training["k"]["default"] == 10
    assert {"mode", "buffer", "at_once", "local_steps"} <= set(training)
