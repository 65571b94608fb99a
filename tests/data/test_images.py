"""Pools of images are read whole and upright, and dealt out exactly."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from pooch.hashes import hash_matches

from fedpace.data import datasets
from fedpace.data.datasets import DATASETS, find_file
from fedpace.data.images import CLASSES, NAMES, POOLS, Pool, image_split, load_pool
from fedpace.data.partition import power_law_sizes
from fedpace.data.shards import Split
from fedpace.errors import InputError

from .idx_files import idx_bytes, write_split

# Of the small letters a to z in the ready subset, and of the digits in MNIST's training split.
LETTERS = (
    3456, 1845, 497, 3571, 8563, 853, 1246, 3150, 495, 367, 534, 2892, 520,
    3977, 520, 428, 1102, 4895, 493, 6232, 536, 535, 521, 527, 442, 511,
)  # fmt: skip
DIGITS = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
# Clients, training samples and most classes per client of the paper's studies.
STUDIES = {"emnist-lower": (40, 33_036, 10), "mnist": (100, 15_129, 6)}
REAL = os.environ.get("FEDPACE_DATA")
needs_files = pytest.mark.skipif(not REAL, reason="FEDPACE_DATA names no folder with the files")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def look_alike(name: str) -> Pool:
    """A pool with as many of each class; an image is its number, so that it can be traced."""
    counts = LETTERS if name == "emnist-lower" else DIGITS
    y = rng().permutation(np.repeat(np.arange(len(counts)), counts))
    return Pool(np.arange(y.size, dtype=np.float32)[:, None], y, NAMES[name])


@pytest.fixture(scope="module")
def pools() -> dict[str, Pool]:
    return {name: look_alike(name) for name in POOLS}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of datasets, and no cache."""
    monkeypatch.setattr(datasets, "_cache", lambda: tmp_path / "cache")
    monkeypatch.setenv("FEDPACE_DATA", str(tmp_path))
    return tmp_path


def deal(pool: Pool, name: str, seed: int) -> Split:
    clients, samples, most = STUDIES[name]
    stream = rng(seed)
    sizes = power_law_sizes(clients, samples, stream, smallest=10)
    return image_split(pool, sizes, stream, fewest=1, most=most)


def kinds(split: Split) -> list[int]:
    """How many classes each client holds, to train or to test on."""
    return [
        len({*split.train.client(i).y.tolist(), *split.test.client(i).y.tolist()})
        for i in range(split.train.n)
    ]


def random_images(count: int, seed: int = 0) -> NDArray[np.uint8]:
    return rng(seed).integers(0, 256, (count, 28, 28), dtype=np.uint8)


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("seed", range(20))
def test_studies_deal_out_exactly_what_the_paper_does(
    pools: dict[str, Pool], name: str, seed: int
) -> None:
    clients, samples, most = STUDIES[name]
    pool = pools[name]
    train, test = split = deal(pool, name, seed)
    assert (train.n, test.n, len(train.y)) == (clients, clients, samples)
    assert test.sizes.tolist() == [max(1, round(size / 9)) for size in train.sizes.tolist()]
    assert 1 <= min(kinds(split)) <= max(kinds(split)) <= most
    numbers = np.concatenate([train.x[:, 0], test.x[:, 0]]).astype(int)
    assert len(set(numbers.tolist())) == numbers.size
    np.testing.assert_array_equal(pool.y[numbers], np.concatenate([train.y, test.y]))


@pytest.mark.parametrize("name", POOLS)
def test_the_same_seed_deals_out_the_same(pools: dict[str, Pool], name: str) -> None:
    one, other, another = (deal(pools[name], name, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.train.x, other.train.x)
    np.testing.assert_array_equal(one.test.x, other.test.x)
    assert not np.array_equal(one.train.x, another.train.x)


@pytest.mark.parametrize("name", POOLS)
def test_small_and_large_clients_have_as_many_classes(pools: dict[str, Pool], name: str) -> None:
    most = STUDIES[name][2]
    small, large = [], []
    for seed in range(20):
        split = deal(pools[name], name, seed)
        order = np.argsort(split.train.sizes)
        # The very largest need more classes where each has few samples; the smallest have no room.
        middle = np.array(kinds(split))[order][order.size // 4 : -order.size // 8]
        small += middle[: middle.size // 2].tolist()
        large += middle[middle.size // 2 :].tolist()
    assert set(small) == set(large) == set(range(1, most + 1))
    error = np.sqrt(np.var(small) / len(small) + np.var(large) / len(large))
    assert abs(np.mean(small) - np.mean(large)) < 5 * error


@pytest.mark.parametrize(
    ("sizes", "share", "message"),
    [
        ([5, 0], 0.1, r"sizes must be positive integers, got \[5, 0\]; give one size per client"),
        ([1.5], 0.1, r"sizes must be positive integers, got \[1\.5\]; "),
        (5, 0.1, r"sizes must be positive integers, got 5; "),
        ([5], 1.0, r"test_share must lie between 0 and 1, got 1\.0; 0\.1 is usual"),
        ([5], 0.0, r"test_share must lie between 0 and 1, got 0\.0; "),
        ([54_000, 1], 0.1, r"at most the 60,000 images of the pool, got 60,002; give fewer"),
    ],
)
def test_a_split_is_refused_and_it_says_why(
    pools: dict[str, Pool], sizes: object, share: float, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        image_split(pools["mnist"], sizes, rng(), fewest=1, most=2, test_share=share)  # type: ignore[arg-type]


def test_letters_are_scaled_set_upright_and_numbered_from_a(folder: Path) -> None:
    images = random_images(4)
    write_split(folder / "emnist", "emnist-lower", images, [36, 61, 40, 36])
    pool = load_pool("emnist-lower")
    assert pool.y.tolist() == [0, 25, 4, 0]
    assert [pool.names[y] for y in pool.y] == ["a", "z", "e", "a"]
    assert pool.x.dtype == np.float32
    assert pool.y.dtype == np.int64
    upright = pool.x.reshape(-1, 28, 28)
    np.testing.assert_array_equal(upright, images.swapaxes(1, 2).astype(np.float32) / 255)


def test_byclass_splits_are_pooled_and_only_small_letters_kept(folder: Path) -> None:
    images = random_images(7)
    write_split(folder, "emnist-byclass-test", images[4:], [61, 0, 36])
    assert load_pool("emnist-lower").y.tolist() == [25, 0]
    write_split(folder, "emnist-byclass-train", images[:4], [9, 35, 36, 37])
    pool = load_pool("emnist-lower")
    assert pool.y.tolist() == [0, 1, 25, 0]
    upright = images[[2, 3, 4, 6]].swapaxes(1, 2).reshape(4, -1)
    np.testing.assert_array_equal(pool.x, upright.astype(np.float32) / 255)


def test_the_archive_gives_what_its_files_would(folder: Path) -> None:
    inside = folder / "unpacked"
    for seed, stem in enumerate(("emnist-byclass-train", "emnist-byclass-test")):
        write_split(inside, stem, random_images(5, seed), [1, 40, 12, 61, 36])
    (folder / "emnist").mkdir()
    with zipfile.ZipFile(folder / "emnist" / "gzip.zip", "w") as archive:
        for path in inside.iterdir():
            archive.write(path, f"gzip/{path.name}")
    from_archive = load_pool("emnist-lower")
    (folder / "emnist" / "gzip.zip").unlink()
    for path in inside.iterdir():
        path.rename(folder / path.name)
    from_files = load_pool("emnist-lower")
    assert from_archive.y.tolist() == from_files.y.tolist() == [4, 25, 0, 4, 25, 0]
    np.testing.assert_array_equal(from_archive.x, from_files.x)


def test_the_ready_subset_comes_first_and_files_before_the_archive(folder: Path) -> None:
    (folder / "gzip.zip").write_bytes(b"not looked at")
    write_split(folder, "emnist-byclass-test", random_images(2), [36, 37])
    assert load_pool("emnist-lower").y.tolist() == [0, 1]
    write_split(folder, "emnist-lower", random_images(1), [38])
    assert load_pool("emnist-lower").y.tolist() == [2]


def test_unpacked_files_are_read_too(folder: Path) -> None:
    (folder / "emnist-lower-images-idx3-ubyte").write_bytes(idx_bytes(random_images(1)))
    (folder / "emnist-lower-labels-idx1-ubyte").write_bytes(idx_bytes([38]))
    assert load_pool("emnist-lower").y.tolist() == [2]


def test_digits_are_the_training_split(folder: Path) -> None:
    labels = np.arange(60_000) % 10
    images = np.zeros((60_000, 28, 28), dtype=np.uint8)
    images[1, 0, 27] = 255
    write_split(folder / "mnist", "train", images, labels)
    with pytest.raises(InputError, match=r"must hold the labels of MNIST.*data\.official=false"):
        load_pool("mnist")
    pool = load_pool("mnist", official=False)
    assert pool.x.shape == (60_000, 784)
    assert pool.x.dtype == np.float32
    assert np.argwhere(pool.x == 1).tolist() == [[1, 27]]  # digits are not transposed
    np.testing.assert_array_equal(pool.y, labels)


REFUSED = {
    "the test split": (
        "mnist", "train", np.zeros((10_000, 28, 28)), np.zeros(10_000),
        r"train-labels.*: must hold the 60,000 labels of the training split, got 10,000; "
        r"put train-images-idx3-ubyte\.gz and train-labels-idx1-ubyte\.gz of MNIST there",
    ),
    "images of the test split": (
        "mnist", "train", np.zeros((10_000, 28, 28)), np.zeros(60_000),
        r"train-images.*: must hold 60,000 entries, got 10,000; give images and labels of",
    ),
    "letters for digits": (
        "mnist", "train", np.zeros((1, 28, 28)), [10], r"must hold labels from 0 to 9, got 10 to",
    ),
    "digits in the subset": (
        "emnist-lower", "emnist-lower", np.zeros((2, 28, 28)), [36, 35],
        r"must hold labels from 36 to 61, got 35 to 36; give the official files",
    ),
    "labels beyond z": (
        "emnist-lower", "emnist-byclass-test", np.zeros((2, 28, 28)), [36, 62],
        r"must hold labels from 0 to 61, got 36 to 62; give",
    ),
    "fewer images than labels": (
        "emnist-lower", "emnist-lower", np.zeros((2, 28, 28)), [36, 37, 38],
        r"must hold 3 entries, got 2; give images and labels of the same split",
    ),
    "small images": (
        "emnist-lower", "emnist-lower", np.zeros((2, 28, 27)), [36, 37],
        r"must hold images of 28 × 28, got shape \(2, 28, 27\); give",
    ),
    "labels for images": (
        "emnist-lower", "emnist-lower", np.zeros(2), [36, 37],
        r"must hold images of 28 × 28, got shape \(2,\); give",
    ),
    "images for labels": (
        "emnist-lower", "emnist-lower", np.zeros((2, 28, 28)), np.zeros((2, 28, 28)),
        r"must hold one label per image, got 3 dimensions; give a file named labels-idx1",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("pool", "stem", "images", "labels", "message"), REFUSED.values(),
                         ids=REFUSED.keys())  # fmt: skip
def test_wrong_files_are_refused_and_it_says_why(
    folder: Path,
    pool: str,
    stem: str,
    images: NDArray[np.float64],
    labels: NDArray[np.float64],
    message: str,
) -> None:
    write_split(folder, stem, images, labels)
    with pytest.raises(InputError, match=message):
        load_pool(pool, official=False)  # what is wrong with Fashion-MNIST, too


def test_images_without_labels_are_said_to_be_alone(folder: Path) -> None:
    write_split(folder, "emnist-lower", random_images(1), [36])
    (folder / "emnist-lower-labels-idx1-ubyte.gz").unlink()
    message = r"images.*: must be accompanied by emnist-lower-labels-idx1-ubyte\.gz, got it alone; "
    with pytest.raises(InputError, match=message):
        load_pool("emnist-lower")


@pytest.mark.parametrize(
    ("name", "files", "dataset"),
    [
        ("mnist", "train-images-idx3-ubyte.gz and train-labels-idx1-ubyte.gz", "mnist"),
        ("emnist-lower", r"emnist-byclass-train-images-.* \(or gzip\.zip\)", "emnist"),
    ],
)
def test_missing_files_are_named_with_the_command_that_fetches_them(
    folder: Path, name: str, files: str, dataset: str
) -> None:
    message = rf"^{files} must be in .*cache/{dataset}, got .*run: fedpace data fetch {dataset}$"
    with pytest.raises(InputError, match=message):
        load_pool(name)


def test_another_archive_and_another_pool_are_refused(folder: Path) -> None:
    with zipfile.ZipFile(folder / "gzip.zip", "w") as archive:
        archive.writestr("gzip/readme.txt", "nothing")
    with pytest.raises(InputError, match=r"must hold gzip/emnist-byclass-train-.* got other files"):
        load_pool("emnist-lower")
    with pytest.raises(InputError, match=r"pool must be a known name, got 'emnist'; did you mean"):
        load_pool("emnist")


def test_every_pool_has_a_name_for_every_class() -> None:
    assert CLASSES == {"mnist": 10, "emnist-lower": 26}
    assert (NAMES["mnist"][9], NAMES["emnist-lower"][25]) == ("9", "z")


@pytest.fixture(scope="module")
def real() -> dict[str, Pool]:
    return {name: load_pool(name) for name in POOLS}


@needs_files
def test_real_files_have_the_published_checksums() -> None:
    for file, checksum in DATASETS["mnist"].checksums.items():
        path = find_file("mnist", file)
        assert path is not None
        assert hash_matches(path, checksum)


@needs_files
@pytest.mark.parametrize("name", POOLS)
def test_real_pools_are_dealt_out_exactly(real: dict[str, Pool], name: str) -> None:
    pool, (clients, samples, most) = real[name], STUDIES[name]
    assert pool.x.shape == (pool.y.size, 784)
    assert pool.x.dtype == np.float32
    assert (pool.x.min(), pool.x.max()) == (0, 1)
    traced = pool._replace(x=np.arange(pool.y.size, dtype=np.float32)[:, None])
    for seed in range(5):
        train, test = split = deal(traced, name, seed)
        assert (train.n, len(train.y)) == (clients, samples)
        assert max(kinds(split)) <= most
        numbers = np.concatenate([train.x[:, 0], test.x[:, 0]]).astype(int)
        assert len(set(numbers.tolist())) == numbers.size
        np.testing.assert_array_equal(pool.y[numbers], np.concatenate([train.y, test.y]))


@needs_files
def test_real_letters_read_upright(real: dict[str, Pool]) -> None:
    pool = real["emnist-lower"]
    mean = {
        name: pool.x[pool.y == y].mean(axis=0).reshape(28, 28) for y, name in enumerate(pool.names)
    }
    # b and h have a stem at the upper left and nothing at the upper right; transposed, the other
    # way round. (d and p hardly change when transposed.)
    for name in ("b", "h"):
        assert mean[name][:12, :14].sum() > 1.3 * mean[name][:12, 14:].sum()
    rows, columns = (np.ptp(np.flatnonzero(mean["l"].max(axis=axis) > 0.5)) for axis in (1, 0))
    assert rows > 1.5 * columns
