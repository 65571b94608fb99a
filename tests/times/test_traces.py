"""Round times of real devices."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.times import links
from fedpace.times.links import (
    MEGABITS,
    SAMPLES,
    WHOLE,
    read_trace,
    trace_devices,
    trace_seconds,
    whole_file,
)

REAL = Path(os.environ.get("FEDPACE_DATA", "."), WHOLE)
HEADER = "client_id,compute_ms_per_sample,bandwidth_kbps\n"
work = st.floats(1e-3, 1e6)


def drawn(
    n: int, seed: int = 0, *, samples: float = SAMPLES, megabits: float = MEGABITS
) -> FloatArray:
    rng = np.random.default_rng(seed)
    return np.add(*trace_seconds("fedscale", n, rng, samples=samples, megabits=megabits))


def written(folder: Path, rows: str, header: str = HEADER) -> Path:
    path = folder / WHOLE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(header + rows)
    return path


def test_three_thousand_possible_devices_come_along_in_a_small_file() -> None:
    devices = trace_devices("fedscale")
    assert devices.shape == (3000, 2)
    compute, bandwidth = devices.T
    assert (compute.min(), compute.max()) == (15, 199)
    assert 1000 < bandwidth.min() < bandwidth.max() < 210_000
    path = Path(links.__file__).with_name("fedscale.csv")
    assert path.stat().st_size < 60_000
    assert "Apache License 2.0" in path.read_text()


@pytest.mark.skipif(not REAL.is_file(), reason="FEDPACE_DATA leads to no trace with all devices")
def test_the_devices_that_come_along_are_the_draw_that_their_file_says() -> None:
    every = read_trace(REAL)
    rows = np.sort(np.random.default_rng(0).choice(51_496, 3000, replace=False))
    np.testing.assert_array_equal(trace_devices("fedscale"), every[rows].round())


def test_a_round_is_inference_three_times_and_the_traffic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, "7,20,4000\n")
    monkeypatch.setenv("FEDPACE_DATA", str(tmp_path))
    rng = np.random.default_rng(0)
    # 3 · 100 · 20 ms are 6 s, and 8000 kbit at 4000 kbit/s 2 s.
    assert sum(trace_seconds("fedscale:all", 1, rng, samples=100, megabits=8)) == 8


@given(st.integers(1, 50), work, work, st.floats(0.1, 10))
def test_times_grow_in_proportion_to_the_work(
    n: int, samples: float, megabits: float, factor: float
) -> None:
    more = drawn(n, samples=factor * samples, megabits=factor * megabits)
    np.testing.assert_allclose(more, factor * drawn(n, samples=samples, megabits=megabits))


@given(st.integers(1, 3000), st.integers(0, 2**32))
def test_no_device_is_drawn_twice_while_there_are_others(n: int, seed: int) -> None:
    every = drawn(3000)
    values, there = np.unique(every, return_counts=True)
    times, used = np.unique(drawn(n, seed), return_counts=True)
    assert (used <= there[np.searchsorted(values, times)]).all()


def test_more_clients_than_devices_share_devices() -> None:
    assert np.isin(drawn(5000), drawn(3000)).all()


def test_the_same_generator_gives_the_same_devices_and_another_gives_others() -> None:
    np.testing.assert_array_equal(drawn(100), drawn(100))
    assert (drawn(100) != drawn(100, seed=1)).any()


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_refuses_work_that_is_none(value: float) -> None:
    with pytest.raises(InputError, match=rf"samples must be positive, got {value}; give"):
        drawn(3, samples=value)
    with pytest.raises(InputError, match=rf"megabits must be positive, got {value}; give"):
        drawn(3, megabits=value)


def test_the_devices_that_come_along_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        trace_devices("fedscale")[0] = 1


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("fedscal", r"did you mean 'fedscale'\?"), ("", "use one of: fedscale, fedscale:all")],
)
def test_an_unknown_trace_is_refused_with_the_nearest(name: str, remedy: str) -> None:
    with pytest.raises(InputError, match=rf"must name a known trace, got 'trace:{name}'; {remedy}"):
        trace_devices(name)


def test_the_shipped_devices_are_used_even_where_all_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = drawn(100)
    written(tmp_path, "7,20,4000\n")
    monkeypatch.setenv("FEDPACE_DATA", str(tmp_path))
    np.testing.assert_array_equal(drawn(100), before)
    assert trace_devices("fedscale:all").tolist() == [[20, 4000]]


@pytest.mark.parametrize("given", [True, False])
def test_says_where_to_put_the_whole_trace(
    given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDPACE_DATA", str(tmp_path) if given else "")
    got = f"no file {tmp_path / WHOLE}" if given else "FEDPACE_DATA not set"
    with pytest.raises(InputError, match=rf"{WHOLE} must be .*, got {got}; .*use trace:fedscale"):
        whole_file()


@pytest.mark.parametrize(
    "row", ["1,0,9", "1,-3,9", "1,3,0", "1,3,-9", "1,nan,9", "1,3,inf", "1,20000,9", "1,3,1e9"]
)
def test_drops_impossible_devices_and_says_how_many(row: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"0,20,4000\n{row}\n2,30,5000\n")
    with pytest.warns(UserWarning, match="dropped 1 of 3 devices with impossible values"):
        assert read_trace(path).tolist() == [[20, 4000], [30, 5000]]


@pytest.mark.parametrize(
    ("header", "rows"),
    [("", ""), (HEADER, ""), (HEADER, "1,two,3\n"), (HEADER, "1,2\n"), ("a,b\n", "1,2\n")],
)
def test_a_file_that_is_no_trace_is_refused(header: str, rows: str, tmp_path: Path) -> None:
    path = written(tmp_path, rows, header)
    with pytest.raises(InputError, match=r"cannot be read as a trace: .*; give a CSV file") as one:
        read_trace(path)
    assert str(path) in str(one.value)


def test_a_trace_without_any_possible_device_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="must hold devices with positive values, got none; download"
    ):
        read_trace(written(tmp_path, "1,0,0\n"))


def test_importing_reads_no_trace() -> None:
    code = "import fedpace.times.distributions as d, fedpace.times.links as t; "
    code += "print(t._shipped_devices.cache_info().misses)"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    assert run.stdout.strip() == "0"
