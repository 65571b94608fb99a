"""Runs on disk: whole or absent, and damage of any kind is seen."""

import hashlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedpace
from fedpace.errors import InputError, InUseError
from fedpace.samplers.pilots import RATIO
from fedpace.sampling.design import WithReplacement
from fedpace.studies.build import run_one
from fedpace.studies.store import (
    DamagedRunError,
    DamagedRunWarning,
    Store,
    pack_run,
    run_key,
)
from fedpace.studies.study import Study
from fedpace.training.training import Outcome
from tests.training.fakes import assert_same_rows

from .tiny import files, tiny_study

SCHEME, SEED = "optimal-mean", 3


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return tiny_study(tmp_path_factory.mktemp("setup"))


@pytest.fixture(scope="module")
def outcome(study: Study) -> Outcome:
    return run_one(study, SCHEME, SEED)


@pytest.fixture
def saved(tmp_path: Path, study: Study, outcome: Outcome) -> Path:
    return Store(tmp_path).save(study, SCHEME, SEED, outcome)


def test_a_run_is_read_back_as_it_was(saved: Path, study: Study, outcome: Outcome) -> None:
    run = Store(saved.parents[1]).load(saved)
    assert (run.study, run.scheme, run.seed) == (study, SCHEME, SEED)
    assert (run.version, run.ended) == (fedpace.__version__, outcome.state.ended)
    assert run.ratio is not None
    assert repr(run.ratio._asdict()) == repr(outcome.notes[RATIO])  # NaN is not equal to itself
    assert isinstance(outcome.design, WithReplacement)
    np.testing.assert_array_equal(run.q, outcome.design.q)
    for name in ("weights", "times", "grad_norms"):
        np.testing.assert_allclose(getattr(run.profile, name), getattr(outcome.profile, name))
    assert run.profile.beta_over_alpha == outcome.profile.beta_over_alpha
    assert_same_rows(run.history.rows, outcome.history.rows)


@pytest.mark.parametrize(("value", "readable"), [(None, True), ("0.5:5:60", False)])
def test_a_run_of_a_version_that_had_devices_slower_is_read(
    saved: Path, value: str | None, readable: bool
) -> None:
    with np.load(saved, allow_pickle=False) as file:
        arrays = dict(file)
    about = json.loads(str(arrays["about"]))
    about["study"]["devices"]["slower"] = value
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays | {"about": np.array(json.dumps(about))})
    store = Store(saved.parents[1])
    older = store.save_packed(saved.stem.rpartition("-")[0], buffer.getvalue())
    if readable:
        assert store.load(older).study == store.load(saved).study
    else:
        with pytest.raises(DamagedRunError, match=r"made with devices\.slower"):
            store.load(older)


def test_full_participation_has_no_probabilities(tmp_path: Path, study: Study) -> None:
    store = Store(tmp_path)
    run = store.load(store.save(study, "full", 0, run_one(study, "full", 0)))
    assert run.q is None
    assert run.ratio is None


def test_the_same_run_is_the_same_file(saved: Path, study: Study, outcome: Outcome) -> None:
    before = files(saved.parents[1])
    assert Store(saved.parents[1]).save(study, SCHEME, SEED, run_one(study, SCHEME, SEED)) == saved
    assert files(saved.parents[1]) == before
    assert len(before) == 1


def test_the_key_names_what_changes_numbers(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = (
        "training.k=4", "data.seed=1", "stop.loss=1.1", "sampling.c_over_s0=1.0",
        "sampling.warm_up=3", "sampling.refresh=4", "devices.known=false", "devices.spell=3",
        "training.server=adam:0.01", "pilots=none", "network.how=paced",
    )  # fmt: skip
    keys = {run_key(tiny_study(tmp_path, change), SCHEME, SEED) for change in changes}
    keys |= {run_key(study, SCHEME, SEED), run_key(study, SCHEME, 4), run_key(study, "full", SEED)}
    monkeypatch.setattr(fedpace, "__version__", "0.0.0")
    keys.add(run_key(study, SCHEME, SEED))
    assert len(keys) == len(changes) + 4


@pytest.mark.parametrize("change", ["name=other", "title=other", "paper.full=1.0"])
def test_the_key_does_not_depend_on_names(study: Study, tmp_path: Path, change: str) -> None:
    assert run_key(tiny_study(tmp_path, change), SCHEME, SEED) == run_key(study, SCHEME, SEED)


def test_the_key_changes_with_the_schemes_own_knobs_alone(study: Study, tmp_path: Path) -> None:
    knobs = tiny_study(tmp_path, "sampling.knobs.pow-d.d=9")
    others = tiny_study(tmp_path, "sampling.knobs.pow-d.d=8")
    assert run_key(study, "uniform", 0) == run_key(knobs, "uniform", 0)
    assert len({run_key(each, "pow-d", 0) for each in (study, knobs, others)}) == 3


def test_the_key_does_not_depend_on_whether_a_usual_setting_is_written_out(
    study: Study, tmp_path: Path
) -> None:
    same = tiny_study(tmp_path, "training.server=auto", "devices.known=true", "data.alpha=1.0")
    assert run_key(same, SCHEME, SEED) == run_key(study, SCHEME, SEED)


OWN = "from fedpace import SCHEMES\n\ndef mine(profile, k, *, max_weight=None):\n"


@pytest.mark.parametrize("where", ["scheme", "server"])
def test_the_key_changes_with_a_file_of_a_users_own(
    study: Study, tmp_path: Path, where: str
) -> None:
    path = tmp_path / "own.py"

    def key() -> str:
        if where == "scheme":
            return run_key(study, f"{path}:mine", SEED)
        return run_key(tiny_study(tmp_path, f"training.server={path}:mine"), SCHEME, SEED)

    path.write_text(OWN + "    return SCHEMES['uniform'](profile, k)\n", encoding="utf-8")
    first = key()
    assert key() == first
    path.write_text(OWN + "    return SCHEMES['weighted'](profile, k)\n", encoding="utf-8")
    assert key() != first


def test_a_run_of_a_users_own_file_is_read_back_after_the_file_is_gone(
    study: Study, tmp_path: Path
) -> None:
    path = tmp_path / "own.py"
    path.write_text(OWN + "    return SCHEMES['weighted'](profile, k)\n", encoding="utf-8")
    name = f"{path}:mine"
    saved = Store(tmp_path).save(study, name, 0, run_one(study, name, 0))
    path.unlink()
    assert Store(tmp_path).load(saved).scheme == name


def named(folder: Path, key: str, contents: bytes) -> None:
    """Write a file whose checksum is right, whatever is in it."""
    (folder / f"{key}-{hashlib.sha256(contents).hexdigest()[:16]}.npz").write_bytes(contents)


def flip(path: Path) -> None:
    contents = bytearray(path.read_bytes())
    contents[len(contents) // 2] ^= 1
    path.write_bytes(contents)


def replace_by_text(path: Path) -> None:
    path.unlink()
    named(path.parent, path.name[:20], b"hello")


def replace_by_archive(path: Path) -> None:
    np.savez(path, about=np.arange(3))
    contents = path.read_bytes()
    path.unlink()
    named(path.parent, path.name[:20], contents)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped bit": flip,
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "empty": lambda path: os.truncate(path, 0),
    "renamed to another run": lambda path: path.rename(
        path.with_name("0" * 20 + path.name[20:]),
    ),
    "text": replace_by_text,
    "an archive of something else": replace_by_archive,
    "a folder": replace_by_folder,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_is_detected(saved: Path, damage: Callable[[Path], object]) -> None:
    damage(saved)
    store = Store(saved.parents[1])
    (path,) = saved.parent.iterdir()
    with pytest.raises(DamagedRunError, match=str(path)):
        store.load(path)


def test_every_flipped_byte_is_detected(saved: Path) -> None:
    store, contents = Store(saved.parents[1]), saved.read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(len(contents), size=100).tolist():
        saved.write_bytes(
            contents[:place] + bytes([contents[place] ^ 0x10]) + contents[place + 1 :]
        )
        with pytest.raises(DamagedRunError):
            store.load(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda about, _: about["identity"].__setitem__(2, {"scheme": "uniform"}),
        lambda about, _: about["identity"].__setitem__(3, "0"),
        lambda about, _: about["study"].__setitem__("title", "\ud800"),
        lambda _, arrays: arrays.__setitem__("clients", arrays["clients"] + 2**40),
        lambda _, arrays: arrays.__setitem__("loss", arrays["loss"].astype(str)),
    ],
)
def test_a_crafted_run_with_the_right_checksum_is_one_line(
    saved: Path, change: Callable[[Any, Any], object]
) -> None:
    with np.load(saved) as file:
        arrays = dict(file)
    about = json.loads(str(arrays["about"]))
    change(about, arrays)
    key = hashlib.sha256(json.dumps(about["identity"], sort_keys=True).encode()).hexdigest()[:20]
    buffer = io.BytesIO()
    np.savez(buffer, **(arrays | {"about": np.array(json.dumps(about))}))
    named(saved.parent, key, buffer.getvalue())
    crafted = next(path for path in saved.parent.glob(f"{key}-*.npz") if path != saved)
    with pytest.raises(DamagedRunError, match="cannot be read as a run"):
        Store(saved.parent.parent).load(crafted)


def test_a_file_that_is_gone_counts_as_damaged(tmp_path: Path) -> None:
    with pytest.raises(DamagedRunError, match="No such file"):
        Store(tmp_path).load(tmp_path / "runs" / "a-b.npz")


def test_reading_all_runs_leaves_out_damaged_ones_and_says_so(
    saved: Path, study: Study, outcome: Outcome
) -> None:
    store = Store(saved.parents[1])
    flip(store.save(study, SCHEME, SEED + 1, outcome))
    with pytest.warns(DamagedRunWarning, match="does not match its checksum"):
        assert [run.seed for run in store.runs()] == [SEED]
    said: list[str] = []
    assert [run.seed for run in store.runs(said.append)] == [SEED]
    assert len(said) == 1


def test_a_run_that_is_stored_twice_is_read_once(saved: Path) -> None:
    store = Store(saved.parents[1])
    with np.load(saved) as archive:
        arrays = dict(archive)
    other = saved.parent / "other.npz"
    np.savez(other, allow_pickle=False, **arrays)  # the same, not compressed
    named(saved.parent, saved.name[:20], other.read_bytes())
    other.unlink()
    assert len(files(store.directory)) == 2
    assert len(list(store.runs())) == 1


def test_an_empty_directory_has_no_runs(tmp_path: Path) -> None:
    assert list(Store(tmp_path / "absent").runs()) == []
    assert Store(tmp_path / "absent").find("0" * 20) is None
    Store(tmp_path / "absent").tidy()


def test_leftovers_of_dead_processes_are_removed_and_others_kept(saved: Path) -> None:
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    names = [f".a-{dead}.part", f".b-{os.getpid()}.part", f".c-{os.getpid()}.part", ".d.part"]
    for name in names:
        (saved.parent / name).write_bytes(b"half")
    long_ago = time.time() - 7200
    os.utime(saved.parent / names[2], (long_ago, long_ago))
    Store(saved.parents[1]).tidy()
    assert set(files(saved.parents[1])) == {saved.name, names[1], names[3]}


def test_a_place_that_cannot_be_written_is_one_error(
    tmp_path: Path, study: Study, outcome: Outcome
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made a directory: Not a directory"):
        Store(tmp_path / "file").save(study, SCHEME, SEED, outcome)


def test_a_damaged_file_that_cannot_be_removed_is_one_error(saved: Path) -> None:
    saved.unlink()
    saved.mkdir()
    with pytest.raises(InputError, match="cannot be removed"):
        Store(saved.parents[1]).remove(saved)


def test_a_full_disk_leaves_whole_runs_only(
    small_disk: Path, study: Study, outcome: Outcome
) -> None:
    store = Store(small_disk)
    size = len(pack_run(study, SCHEME, SEED, outcome))

    def fill() -> None:
        for seed in range(64 * 1024 // size + 2):
            store.save(study, SCHEME, seed, outcome)

    with pytest.raises(InputError, match="No space left on device"):
        fill()
    assert all(name.endswith(".npz") for name in files(small_disk))
    assert len(list(store.runs())) == len(files(small_disk)) > 0


def test_a_claimed_run_is_nobody_elses_and_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.claim("k"):
        with pytest.raises(InUseError, match=f"the run k must not be in use, .*{os.getpid()}"):
            store.claim("k").__enter__()
        store.tidy()
        assert set(files(tmp_path)) == {".k.lock"}
    assert files(tmp_path) == {}


def test_locks_of_processes_that_died_are_tidied(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".k.lock").touch()
    Store(tmp_path).tidy()
    assert files(tmp_path) == {}
