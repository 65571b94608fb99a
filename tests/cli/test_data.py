"""`fedpace data` as its user meets it."""

import hashlib
from pathlib import Path

import pytest
from PIL import Image

from fedpace.data import datasets
from fedpace.data.datasets import DATASETS, Dataset
from tests.cli.calling import Done, assert_refused, contents, run
from tests.data.idx_files import write_split
from tests.data.test_datasets import CONTENT, NAME, Server, server  # noqa: F401  (a fixture)
from tests.data.test_images import random_images

SETUP = """
name = "few"
title = "Three clients"

[data]
kind = "synthetic"
sizes = "power-law"
clients = 3
samples = 90
smallest = 10

[pilots]
thresholds = [2.0]
rounds = 4

[stop]
rounds = 10
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, an empty cache in it, and a made-up dataset to be had."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "_cache", lambda: tmp_path / "cache")
    monkeypatch.setenv("FEDPACE_DATA", "")  # set back afterwards, whatever --data makes of it
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("COLUMNS", raising=False)
    (tmp_path / "few.toml").write_text(SETUP)
    checksum = f"md5:{hashlib.md5(CONTENT).hexdigest()}"
    monkeypatch.setitem(DATASETS, "made", Dataset("http://127.0.0.1:9/", {NAME: checksum}))
    return tmp_path


def show(*args: object) -> Done:
    return run("data", "show", *args)


def test_show_prints_who_holds_what(folder: Path) -> None:
    done = show("few.toml")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["few,", "data", "of", "seed", "0"] in rows
    totals = next(row for row in rows if row[:4] == ["samples", "to", "train", "on"])
    assert totals[-1] == "90"
    assert contents(folder).keys() == {"few.toml"}


def test_show_draws_a_figure_of_a_size_to_read(folder: Path) -> None:
    done = show("simulation-1", "--out", "holdings.png")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "Written: holdings.png"
    assert "simulation-1, data of seed 12" in done.stdout
    with Image.open("holdings.png") as picture:
        picture.load()
        assert min(picture.size) >= 600


def test_show_takes_seeds_and_changes(folder: Path) -> None:
    one, same, other = (show("few.toml", "--seed", seed).stdout for seed in (1, 1, 2))
    assert one == same
    assert one.splitlines()[3:] != other.splitlines()[3:]
    fixed = ("--set", "data.seed=1")
    assert show("few.toml", "--seed", 2, *fixed).stdout == one
    assert "4 clients" in show("few.toml", "--set", "data.clients=4").stdout


def test_show_reads_images_from_the_given_folder(folder: Path) -> None:
    labels = [36 + i % 26 for i in range(520)]
    write_split(folder / "mine" / "emnist", "emnist-lower", random_images(520), labels)
    changes = ("--set", "data.samples=200", "--set", "data.clients=5")
    done = show("prototype-simulated", *changes, "--data", "mine")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines() if line.strip()][-26:] == list(
        "abcdefghijklmnopqrstuvwxyz"
    )


@pytest.mark.parametrize(
    ("args", "fragments"),
    [
        (["simulatoin-1"], ["setup must be a known name", "did you mean 'simulation-1'?"]),
        (["few.toml", "--seed", -1], ["--seed must be at least 0, got -1; "]),
        (["few.toml", "--out", "x.xyz"], ["x.xyz: unknown kind of picture", ".png, .pdf or .svg"]),
        (["few.toml", "--out", "no/x.png"], ["no/x.png: there is no directory no; "]),
        (["few.toml", "--data", "no"], ["--data must be a directory, got 'no'; "]),
        (["few.toml", "--set", "data.clients=0"], ["clients", "at least 1"]),
        (["simulation-2"], ["train-images-idx3-ubyte.gz", "fedpace data fetch mnist"]),
    ],
    ids=str,
)
def test_show_refuses_in_one_line(folder: Path, args: list[object], fragments: list[str]) -> None:
    assert_refused(show(*args), *fragments)
    assert contents(folder).keys() == {"few.toml"}


def test_where_says_for_every_pool_what_is_there(folder: Path) -> None:
    write_split(folder / "emnist", "emnist-lower", random_images(1), [36])
    done = run("data", "where", "--data", folder)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    digits, letters = (line for line in lines if line[:1] in (["mnist"], ["emnist-lower"]))
    assert digits[:2] == ["mnist", "train-images-idx3-ubyte.gz"]
    assert digits[-5:] == ["run:", "fedpace", "data", "fetch", "mnist"]
    place = folder / "emnist" / "emnist-lower-images-idx3-ubyte.gz"
    assert letters == ["emnist-lower", str(place)]


def test_fetch_says_where_files_are(folder: Path, server: Server) -> None:  # noqa: F811
    for _ in range(2):
        done = run("data", "fetch", "made", "--mirror", server.address)
        assert (done.returncode, done.stderr) == (0, "")
        path = folder / "cache" / "made" / NAME
        assert done.stdout == f"{path}: {len(CONTENT):,} bytes, checksum correct\n"
    assert server.asked == [None]


def test_fetch_puts_files_into_the_given_folder(folder: Path, server: Server) -> None:  # noqa: F811
    done = run("data", "fetch", "made", "--mirror", server.address, "--data", "new")
    assert (done.returncode, done.stderr) == (0, "")
    assert contents(folder / "new" / "made") == {NAME: CONTENT}


def test_fetch_refuses_in_one_line(folder: Path) -> None:
    assert_refused(run("data", "fetch", "mnits"), "got 'mnits'; did you mean 'mnist'?")
    assert_refused(run("data", "fetch", "made"), f"http://127.0.0.1:9/{NAME}: cannot be fetched: ")


def test_the_example_of_show_works(folder: Path) -> None:
    line = next(
        line for line in run("data", "show", "--help").stdout.splitlines() if "Example:" in line
    )
    assert run(*line.split()[2:]).returncode == 0
    assert (folder / "holdings.png").exists()
