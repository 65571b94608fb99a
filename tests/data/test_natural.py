"""CIFAR-10 and Shakespeare, made up and as they are."""

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from fedpace.data.natural import (
    Cifar10,
    cifar10_split,
    load_cifar10,
    load_speeches,
    speech_split,
)
from fedpace.errors import InputError
from fedpace.studies.build import check_at_hand, run_one, split
from fedpace.studies.study import Study, load_study

PLAY = """\
FIRST:
abcab
cab

SECOND:
bb

FIRST:
cc

A stage direction.
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDPACE_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def look_alikes(train: int = 200, test: int = 100) -> Cifar10:
    """Return images whose first pixel is their number, and whose colour is their class."""
    parts = []
    for count in (train, test):
        labels = (np.arange(count) % 10).astype(np.uint8)
        images = np.zeros((count, 32, 32, 3), dtype=np.uint8)
        images[..., 1] = 20 * labels[:, None, None]
        images[:, 0, 0, 0] = np.arange(count)
        parts += [images, labels]
    return Cifar10(*parts)


def records(images: np.ndarray, labels: np.ndarray) -> bytes:
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.column_stack([labels, planes]).astype(np.uint8).tobytes()


def batches(data: Cifar10) -> dict[str, bytes]:
    """Return the official files, by name."""
    parts = np.split(np.arange(len(data.train_labels)), 5)
    train = {
        f"data_batch_{i}.bin": records(data.train_images[rows], data.train_labels[rows])
        for i, rows in enumerate(parts, start=1)
    }
    return train | {"test_batch.bin": records(data.test_images, data.test_labels)}


def test_reads_the_official_archive_its_folder_and_the_ready_file_alike(folder: Path) -> None:
    data = look_alikes()
    place = folder / "cifar10"
    place.mkdir()
    np.savez(place / "cifar10-25000.npz", **data._asdict())
    found = [load_cifar10()]
    unpacked = place / "cifar-10-batches-bin"
    unpacked.mkdir()
    for name, contents in batches(data).items():
        (unpacked / name).write_bytes(contents)
    found.append(load_cifar10())
    with tarfile.open(place / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for name, contents in batches(data).items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(contents)
            archive.addfile(member, io.BytesIO(contents))
    found.append(load_cifar10())
    for each in found:
        for one, other in zip(each, data, strict=True):
            np.testing.assert_array_equal(one, other)


def test_says_what_is_missing_and_how_to_get_it(folder: Path) -> None:
    for setup, name in (("cifar-10", "cifar10"), ("shakespeare", "shakespeare")):
        with pytest.raises(InputError, match=f"run: fedpace data fetch {name}"):
            check_at_hand(load_study(setup))
    (folder / "cifar-10-binary.tar.gz").write_bytes(b"no archive")
    with pytest.raises(InputError, match="cannot be read as CIFAR-10: not a gzip"):
        load_cifar10()
    (folder / "cifar-10-binary.tar.gz").unlink()
    wrong = look_alikes()._asdict() | {"test_labels": np.full(100, 77, dtype=np.uint8)}
    np.savez(folder / "cifar10-25000.npz", **wrong)
    with pytest.raises(InputError, match="must hold labels from 0 to 9"):
        load_cifar10()


def test_divides_images_so_that_tests_are_like_training() -> None:
    data = look_alikes(2000, 1000)
    found = cifar10_split(data, 8, np.random.default_rng(0), concentration=0.3)
    assert found.train.sizes.tolist() == [250] * 8
    assert found.test.sizes.sum() == 1000
    # Every image once.
    assert sorted(found.train.y.tolist()) == sorted(data.train_labels.tolist())
    assert sorted(found.test.y.tolist()) == sorted(data.test_labels.tolist())
    for i in range(8):
        train = np.bincount(found.train.client(i).y, minlength=10)
        test = np.bincount(found.test.client(i).y, minlength=10)
        np.testing.assert_allclose(test, train / 2, atol=1)
    # Each colour has mean 0 and variance 1, but for blue, which is 0 everywhere.
    green = found.train.x.reshape(-1, 3)[:, 1]
    assert abs(green.mean()) < 1e-3
    assert green.std() == pytest.approx(1, abs=1e-3)


def test_a_speaker_is_a_client_and_a_sample_is_what_comes_next(folder: Path) -> None:
    (folder / "input.txt").write_text(PLAY)
    speeches = load_speeches(1)
    assert speeches.speakers == {"FIRST": "abcab\ncab\ncc\n", "SECOND": "bb\n"}
    assert speeches.characters == "".join(sorted(set(PLAY)))
    assert list(load_speeches(4).speakers) == ["FIRST"]
    found = speech_split(load_speeches(4), length=3, most=None, test_share=0.3)
    words = ["".join(speeches.characters[i] for i in row) for row in found.train.x]
    after = ["".join(speeches.characters[i] for i in row) for row in found.train.y]
    assert (words, after) == (["abc", "ab\n", "cab"], ["bca", "b\nc", "ab\n"])
    assert found.test.sizes.tolist() == [1]
    short = speech_split(load_speeches(4), length=3, most=7, test_share=0.3)
    assert (short.train.sizes.tolist(), short.test.sizes.tolist()) == ([1], [1])
    with pytest.raises(InputError, match="must have speakers with 99 characters, got 2 speakers"):
        load_speeches(99)
    with pytest.raises(InputError, match="must have two sequences of 40, got 13 characters"):
        speech_split(load_speeches(4), length=40, most=None, test_share=0.3)


FEW = ["training.k=3", "training.local_steps=4", "stop.loss=none", "stop.rounds=4"]


def trained(study: Study) -> None:
    rows = run_one(study, "uniform", 0).history.rows
    assert rows[-1].loss < rows[0].loss
    assert 0 <= rows[-1].accuracy <= 1


def test_the_studies_train_on_made_up_files(folder: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(folder / "cifar10-25000.npz", **look_alikes()._asdict())
    trained(load_study("cifar-10", [*FEW, "data.clients=5", "model.channels=2"]))
    play = "".join(f"SPEAKER {i}:\n{''.join(rng.choice(list('abc '), 300))}\n\n" for i in range(4))
    (folder / "input.txt").write_text(play)
    settings = [*FEW, "data.fewest=200", "data.length=10", "model.units=4"]
    study = load_study("shakespeare", settings)
    assert split(study, 0).train.n == 4
    trained(study)
    trained(load_study("shakespeare", [*settings, "training.mode=asynchronous"]))


def test_models_take_the_data_that_they_are_made_for() -> None:
    for setup, setting, problem in (
        ("shakespeare", "model.kind=small-cnn", "small-cnn takes images; set data.kind to mnist"),
        ("shakespeare", "model.kind=logistic", "logistic takes no characters; set model.kind to"),
        ("cifar-10", "model.kind=gru", "gru takes characters; set data.kind to shakespeare"),
        ("cifar-10", "model.kind=lenet5", "lenet5 takes images; set data.kind to mnist or emnist"),
    ):
        with pytest.raises(InputError, match=problem):
            load_study(setup, [setting])


REAL = Path(os.environ.get("FEDPACE_DATA", "/nowhere"))


@pytest.mark.skipif(not (REAL / "shakespeare/input.txt").is_file(), reason="needs Shakespeare")
def test_shakespeare_has_141_speakers() -> None:
    study = load_study("shakespeare")
    found = split(study, 0)
    assert found.train.n == 141
    assert found.train.x.shape[1] == 40


@pytest.mark.skipif(not (REAL / "cifar10").is_dir(), reason="needs CIFAR-10")
def test_cifar_10_has_ten_classes_of_equal_size() -> None:
    data = load_cifar10()
    assert len(set(np.bincount(data.train_labels))) == 1
    assert data.train_images.shape[1:] == (32, 32, 3)
