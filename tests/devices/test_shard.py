from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedpace.devices.shard import OwnShard, job_of
from fedpace.errors import InputError
from fedpace.seeds import Seeds
from fedpace.studies.build import client_count, model, model_of, split
from fedpace.studies.study import load_study
from tests.devices.lab.labs import write_setup

NAMES = ["a", "b", "c", "d"]


@pytest.mark.parametrize("dealt_out", [False, True])
def test_a_device_holds_its_own_samples_and_no_others(tmp_path: Path, dealt_out: bool) -> None:
    study = load_study(str(write_setup(tmp_path)))
    whole = split(study, 3)
    for client, name in enumerate(NAMES):
        trainer = OwnShard(name, tmp_path if dealt_out else None)(job_of(study, 3, NAMES))
        for held, all_of_them in zip(trainer.data, whole, strict=True):
            np.testing.assert_array_equal(held.x, all_of_them.client(client).x)
            np.testing.assert_array_equal(held.y, all_of_them.client(client).y)
            assert held.x.base is None or held.x.base.size == held.x.size
        assert (trainer.client, trainer.samples) == (client, whole.train.sizes[client])


def test_samples_are_kept_between_jobs_on_the_same_data(tmp_path: Path) -> None:
    study = load_study(str(write_setup(tmp_path)))
    prepare = OwnShard("b")
    first, second = (prepare(job_of(study, seed, NAMES)) for seed in (0, 1))
    assert first.data is second.data
    assert first.seeds != second.seeds


def test_data_drawn_by_the_runs_seed_are_drawn_anew(tmp_path: Path) -> None:
    study = load_study(str(write_setup(tmp_path)), ["data.seed=none"])
    prepare = OwnShard("b", tmp_path)
    first, second = (prepare(job_of(study, seed, NAMES)) for seed in (0, 1))
    assert not np.array_equal(first.data.train.y, second.data.train.y)


def test_another_version_of_fedpace_is_refused(tmp_path: Path) -> None:
    job = job_of(load_study(str(write_setup(tmp_path))), 0, NAMES)
    with pytest.raises(InputError, match="install the same version on both"):
        OwnShard("a")(job | {"version": "0.0.1"})


@pytest.mark.parametrize(
    "change",
    [{"study": {}}, {"clients": {}}, {"seed": "x"}, {"seed": float("inf")}, {"study": None}],
)
def test_a_job_that_is_none_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    job = job_of(load_study(str(write_setup(tmp_path))), 0, NAMES)
    with pytest.raises(InputError, match="job must be a study's"):
        OwnShard("a")(job | change)


@pytest.mark.parametrize("setup", ["simulation-1", "four"])
def test_the_server_knows_model_and_clients_without_data(tmp_path: Path, setup: str) -> None:
    study = load_study(str(write_setup(tmp_path)) if setup == "four" else setup)
    data = split(study, 0)
    assert client_count(study) == data.train.n
    assert model_of(study) == model(study, data)


def test_the_server_knows_the_prototypes_model_without_images() -> None:
    study = load_study("prototype")
    assert (client_count(study), model_of(study).size) == (40, 26 * 785)


def test_a_device_adds_the_noise_that_a_study_names() -> None:
    study = load_study("simulation-1", ["privacy.clip=0.5", "privacy.noise=2"])
    plain = load_study("simulation-1")
    trainers = [OwnShard("a")(job_of(each, 0, ["a"])) for each in (study, plain)]
    start = trainers[0].model.initial(Seeds(0).stream("init"))
    released, exact = (each.train(start, round_index=0, learning_rate=0.1)[0] for each in trainers)
    kept = exact * min(1.0, 0.5 / float(np.linalg.norm(exact)))
    noise = released - kept
    assert abs(noise.std() - 1.0) < 5 / np.sqrt(2 * noise.size)


SOURCES = {
    "module": {"data": {"kind": "own", "source": "os:abort"}},
    "file": {"data": {"kind": "own", "source": "HERE/mine.py:clients"}},
    "model": {"model": {"kind": "own", "source": "HERE/mine.py:model"}},
    "loss": {"model": {"kind": "own", "source": "HERE/allowed.py:model", "loss": "os:abort"}},
    "given": {"data": {"kind": "own", "source": "given:data"}},
    "entry_point": {"data": {"kind": "own", "source": "plugin"}},
}


@pytest.mark.parametrize("change", SOURCES.values(), ids=SOURCES)
def test_a_device_runs_no_code_that_the_server_names(tmp_path: Path, change: object) -> None:
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    changes = json.loads(json.dumps(change).replace("HERE", str(tmp_path)))
    job = job_of(load_study(str(write_setup(tmp_path))), 0, NAMES)
    job["study"] |= changes
    allow = [str(tmp_path / "allowed.py"), "os.path"]
    with pytest.raises(InputError, match=r"must not be Python code .* join with: --allow"):
        OwnShard("a", allow=allow)(job)
    assert not (tmp_path / "ran").exists()


def test_a_device_uses_a_file_that_it_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import numpy as np\ndef clients():\n    return [(np.ones((9, 500)), np.arange(9) % 3)]"
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    job = job_of(load_study(str(write_setup(tmp_path))), 0, NAMES)
    job["study"]["data"] = {"kind": "own", "source": "mine.py:clients"}
    trainer = OwnShard("a", allow=[str(tmp_path / "mine.py")])(job)
    assert trainer.samples == 8
