"""Links that vary, from a file made here, and what is wrong with bad ones."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedpace.errors import InputError
from fedpace.seeds import Seeds
from fedpace.studies.build import check_at_hand, simulator
from fedpace.studies.study import load_study
from fedpace.times.distributions import device_times
from fedpace.times.links import FLASH_USERS, Linked, link_seconds, read_speeds
from fedpace.times.round_times import Steady

USER = {"down_u": 125.0, "down_sigma": 25.0, "up_u": 250.0, "up_sigma": 0.0}
SPEEDS = np.array([[125.0, 25.0, 250.0, 0.0], [125.0, 0.0, 250.0, 0.0]])


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / FLASH_USERS
    path.parent.mkdir()
    path.write_text(json.dumps({"a": USER, "b": USER | {"down_u": 50.0}}), encoding="utf-8")
    monkeypatch.setenv("FEDPACE_DATA", str(tmp_path))
    return path


def test_only_the_part_of_the_link_varies() -> None:
    # 2 Mbit: 1000 kbit down at 1000 kbit/s and up at 2000: 1.5 s beside 1 s of computing.
    times = Linked(Steady(np.array([5.0, 2.5])), np.ones(2), SPEEDS, 2.0, Seeds(0))
    both = np.arange(2)
    drawn = np.array([times.at(0.0, both, round_index=r) for r in range(2000)])
    assert set(drawn[:, 1].tolist()) == {2.5}  # its speed does not vary
    links = drawn[:, 0] / 5.0 * 2.5 - 1.0
    down = 1000 / 8 / (links - 0.5)
    assert abs(down.mean() - 125.0) <= 5 * 25.0 / np.sqrt(2000)
    assert abs(down.std() - 25.0) <= 5 * 25.0 / np.sqrt(2 * 2000)
    np.testing.assert_array_equal(times.at(9.0, both[:1], round_index=7), drawn[7, :1])
    assert times.present(0.0).clients is None


def test_a_link_is_never_slower_than_a_tenth_of_its_mean() -> None:
    wild = np.array([[100.0, 1e6, 100.0, 1e6]])
    times = Linked(Steady(np.ones(1)), np.full(1, 1e-9), wild, 2.0, Seeds(0))
    drawn = [float(times.at(0.0, np.arange(1), round_index=r)[0]) for r in range(50)]
    assert max(drawn) <= 10.0 + 1e-6
    assert min(drawn) > 0


@pytest.mark.parametrize("changes", [(), ("devices.correlation=1.0",)])
def test_a_study_may_use_them_in_any_order(data: Path, changes: tuple[str, ...]) -> None:
    study = load_study("simulation-1", ["devices.times=trace:flash", *changes])
    check_at_hand(study)
    times = simulator(study, 0).times
    assert isinstance(times, Linked)
    # Each client has the computing and the link that its usual time is made of.
    links = link_seconds(times.speeds[:, ::2], times.megabits)
    np.testing.assert_allclose(times.usual, times.compute + links)
    twice = [times.at(0.0, np.arange(5), round_index=r) for r in (0, 1)]
    assert (twice[0] != twice[1]).any()


def test_without_the_file_it_is_said_where_to_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDPACE_DATA", str(tmp_path))
    with pytest.raises(InputError, match="must be in the folder FEDPACE_DATA"):
        device_times("trace:flash", np.ones(3, dtype=np.int64), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as link speeds"),
        ('{"a": {"down_u": 1}}', "cannot be read as link speeds.*down_sigma"),
        ("{}", "must hold positive speeds"),
        (json.dumps({"a": USER | {"up_u": -1}}), "must hold positive speeds"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_speeds(path)
