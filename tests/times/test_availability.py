"""When clients are available, at random, by the hour, and from files; bad files are refused."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace.errors import InputError
from fedpace.sampling.design import WithReplacement
from fedpace.seeds import Seeds
from fedpace.studies.store import run_key
from fedpace.studies.study import load_study
from fedpace.times.availability import (
    ComingAndGoing,
    Markov,
    check_availability,
    read_intervals,
    with_availability,
)
from fedpace.times.round_times import BaseTimes, Steady
from fedpace.training.stopping import Stop, constant
from fedpace.training.train import train
from tests.training.fakes import LARGER, SIZES, Fixed, small_simulator

SHARES = SIZES / SIZES.sum()
SPELLS = "client,start,end\n" + "".join(
    f"{client},{start},{end}\n"
    for client, start, end in [
        (0, 0, 10), (0, 8, 20), (1, 5, 9), (2, 15, 40), (2, 0, 3), (4, 30, 34), (5, 1, 2),
    ]
)  # fmt: skip


def times(spec: str, seed: int = 0, usual: Any = LARGER) -> BaseTimes:
    return with_availability(spec, Steady(usual), Seeds(seed))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("availability") / "spells.csv"
    path.write_text(SPELLS, encoding="utf-8")
    return path


def here(found: BaseTimes, seconds: float) -> list[int]:
    clients = found.present(seconds).clients
    assert clients is not None
    return np.flatnonzero(clients).tolist()


def test_always_changes_nothing() -> None:
    steady = Steady(LARGER)
    assert with_availability("always", steady, Seeds(0)) is steady


def test_a_file_says_who_is_there_and_begins_again(file: Path) -> None:
    found = times(f"file:{file}")
    assert isinstance(found, ComingAndGoing)
    assert [here(found, s) for s in (0.0, 1.5, 6.0, 19.0, 41.5)] == [
        [0, 2], [0, 2, 5], [0, 1], [0, 2], [0, 2, 5],
    ]  # fmt: skip
    # 0 stays from 0 to 20; 2 from 15 to the end, 40, and on to 3 after it.
    np.testing.assert_allclose(found.leaves(16.0, np.array([0, 2])), [4.0, 27.0])
    np.testing.assert_array_equal(found.at(16.0, np.array([2]), round_index=0), [2.0])
    np.testing.assert_array_equal(found.usual, LARGER)


def test_where_nobody_is_there_the_first_to_come_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "gap.csv"
    path.write_text("client,start,end\n3,5,7\n1,20,30\n", encoding="utf-8")
    found = times(f"file:{path}")
    for now, who, waited in ((0.0, [3], 5.0), (8.0, [1], 12.0), (31.0, [3], 4.0)):
        presence = found.present(now)
        assert presence.clients is not None
        assert (np.flatnonzero(presence.clients).tolist(), presence.waited) == (who, waited)


def test_by_chance_the_shares_and_the_lengths_are_those_given() -> None:
    markov = Markov(20_000, 30.0, 10.0, Seeds(0))
    for seconds in (0.0, 17.0, 500.0):
        there = markov.there(seconds)
        assert abs(there.mean() - 0.75) <= 5 * np.sqrt(0.75 * 0.25 / 20_000)
        stays = markov.stays(seconds, np.flatnonzero(there))
        assert abs(stays.mean() - 30.0) <= 5 * 30.0 / np.sqrt(stays.size)  # it has no memory


def test_by_chance_it_does_not_matter_when_one_asks() -> None:
    often, once = Markov(50, 5.0, 3.0, Seeds(4)), Markov(50, 5.0, 3.0, Seeds(4))
    for seconds in np.linspace(0, 99, 300):
        often.there(float(seconds))
    np.testing.assert_array_equal(often.there(99.0), once.there(99.0))
    everyone = np.arange(50)
    np.testing.assert_array_equal(often.stays(99.0, everyone), once.stays(99.0, everyone))
    np.testing.assert_array_equal(often.there(20.0), Markov(50, 5.0, 3.0, Seeds(4)).there(20.0))


def test_by_the_hour_everyone_has_its_share_of_a_day() -> None:
    found = times("daily:0.3:100", usual=np.ones(400))
    assert isinstance(found, ComingAndGoing)
    there = np.array([found.availability.there(s) for s in np.arange(0, 100, 0.5)])
    np.testing.assert_allclose(there.mean(axis=0), 0.3, atol=0.011)
    by_hour = there.mean(axis=1)
    assert by_hour.max() > 0.6
    assert by_hour.min() < 0.05  # most sleep at the same hours


KINDS = ("markov:6:4", "markov:1:30", "daily:0.3:40", "daily:0.02:1000", "file")


@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 10**6), now=st.floats(0, 5000))
@settings(max_examples=150, deadline=None)
def test_whoever_is_there_stays_and_then_is_gone(
    file: Path, kind: str, seed: int, now: float
) -> None:
    found = times(f"file:{file}" if kind == "file" else kind, seed)
    assert isinstance(found, ComingAndGoing)
    presence = found.present(now)
    assert presence.clients is not None
    assert presence.clients.any()
    assert presence.waited >= 0
    later = now + presence.waited
    stays = found.leaves(later, np.arange(6))
    assert (stays[presence.clients] > 0).all()
    assert (stays[~presence.clients] == 0).all()
    for client in np.flatnonzero(presence.clients & np.isfinite(stays)).tolist():
        assert found.availability.there(later + 0.999 * stays[client])[client]
        assert not found.availability.there(later + 1.001 * stays[client] + 1e-7)[client] or (
            kind.startswith("markov")  # which may have come back at once
        )


@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 10**4),
    take=st.one_of(st.none(), st.integers(1, 3)),
    deadline=st.one_of(st.none(), st.just(2.0)),
)
@settings(max_examples=40, deadline=None)
def test_nobody_is_drawn_who_is_away_and_the_clock_never_runs_back(
    file: Path, kind: str, seed: int, take: int | None, deadline: float | None
) -> None:
    spec = f"file:{file}" if kind == "file" else kind
    backend = small_simulator(seed, times=times(spec, seed))
    twin = times(spec, seed)
    outcome = train(
        backend,
        Fixed(WithReplacement(SHARES, 3, SHARES)),
        schedule=constant(0.1),
        stop=Stop(rounds=12),
        seeds=Seeds(seed),
        take=take,
        deadline=deadline,
    )
    assert isinstance(twin, ComingAndGoing)
    before = 0.0
    for each in outcome.history.rows[1:]:
        began = before + each.waiting_seconds
        asked = np.append(each.clients, each.missing)
        assert twin.availability.there(began)[asked].all()
        assert (each.client_seconds <= twin.leaves(began, each.clients) + 1e-9).all()
        assert each.round_seconds <= (np.inf if deadline is None else deadline)
        assert each.clients.size <= (3 if take is None else take)
        assert each.seconds == pytest.approx(began + each.round_seconds)
        assert each.seconds >= before
        before = each.seconds


def test_expected_weights_are_the_shares_of_those_present() -> None:
    present = np.array([True, False, True, True, False, True])
    design = WithReplacement(np.full(6, 1 / 6), 3, SHARES).among(present)
    draws, sums, squares = 5000, np.zeros(6), np.zeros(6)
    rng = np.random.default_rng(0)
    for _ in range(draws):
        weights = np.zeros(6)
        draw = design.draw(rng)
        weights[draw.clients] = draw.weights
        sums, squares = sums + weights, squares + weights**2
    mean = sums / draws
    error = np.sqrt(np.maximum(squares / draws - mean**2, 0) / draws)
    expected = np.where(present, SHARES, 0) / SHARES[present].sum()
    assert (np.abs(mean - expected) <= 5 * error + 1e-12).all()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("7,0,1", "line 3: client must be one of 0 to 5, got '7'; number them from 0"),
        ("1.5,0,1", "line 3: client must be one of 0 to 5, got '1.5'"),
        ("x,0,1", "line 3: client must be a number, got 'x'; give seconds"),
        ("1,-2,1", "line 3: start must be at least 0, got '-2'; count seconds from the start"),
        ("1,nan,1", "line 3: start must be a number, got 'nan'"),
        ("1,5,5", "line 3: end must be later than start, got '5' after '5'; swap them"),
        ("1,5", "line 3: must have three values, got '1,5'; write client,start,end"),
    ],
)
def test_a_bad_line_is_named_with_its_value_and_a_remedy(
    tmp_path: Path, line: str, message: str
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(f"client,start,end\n0,0,1\n{line}\n", encoding="utf-8")
    with pytest.raises(InputError) as error:
        check_availability(f"file:{path}", 6)
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    for text, message in (
        ("who,from,to\n", "line 1: must name the columns, got 'who,from,to'"),
        ("", "line 1: must name the columns, got ''"),
        ("client,start,end\n\n", "must have a line of some client, got none"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=message):
            read_intervals(path, 6)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read as availability"):
        read_intervals(path, 6)
    with pytest.raises(InputError, match="cannot be read as availability"):
        read_intervals(tmp_path / "none.csv", 6)


@pytest.mark.parametrize(
    "spec", ["markov", "markov:1", "markov:0:5", "markov:a:b", "daily:1", "daily:0:9", "daily:x"]
)
def test_bad_numbers_are_refused(spec: str) -> None:
    name = spec.partition(":")[0]
    with pytest.raises(
        InputError, match=f"availability must be {name}:.*got '{spec}'; write always"
    ):
        check_availability(spec, 6)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InputError, match="got 'markof:1:2'; did you mean 'markov'"):
        check_availability("markof:1:2", 6)
    check_availability("always", 6)
    check_availability("daily:0.5", 6)


OWN = """
import numpy as np

class Alternate:
    "Even clients for ten seconds, then odd ones; {stays} who leaves while at work."

    def __init__(self, n, seeds):
        self.n, self.seeds = n, seeds

    def there(self, seconds):
        return np.arange(self.n) % 2 == int(seconds // 10) % 2

    def next_change(self, seconds):
        return 10 * (seconds // 10 + 1)

class Wrong(Alternate):
    def there(self, seconds):
        return np.ones(3, bool)

class Misspelt(Alternate):
    def stay(self, seconds, clients):
        return np.ones(clients.size)

here = Alternate(6, None)
"""


@pytest.mark.parametrize("name", ["Alternate", "here"])
def test_an_availability_model_may_be_a_file_of_ones_own(tmp_path: Path, name: str) -> None:
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")
    spec = f"{tmp_path / 'mine.py'}:{name}"
    check_availability(spec, SIZES.size)
    found = times(spec)
    assert here(found, 3.0) == [0, 2, 4]
    assert here(found, 13.0) == [1, 3, 5]
    assert found.leaves(3.0, np.array([0, 1])).tolist() == [np.inf, 0.0]
    backend = small_simulator(times=found)
    sampler = Fixed(WithReplacement(SHARES, 3, SHARES))
    rows = train(
        backend, sampler, schedule=constant(0.1), stop=Stop(rounds=4), seeds=Seeds(0)
    ).history.rows
    for before, row in itertools.pairwise(rows):
        assert set(row.clients.tolist()) <= set(here(found, before.seconds))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Wrong", r"one truth value per client, got shape \(3,\) for 6 clients"),
        ("Misspelt", "did you mean 'stays'"),
        ("Nothing", "availability must be defined in its module"),
        ("np", "availability"),
    ],
)
def test_a_model_of_ones_own_that_is_wrong_is_refused(
    tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        check_availability(f"{tmp_path / 'mine.py'}:{name}", SIZES.size)


def test_a_change_of_ones_own_model_is_another_run(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OWN, encoding="utf-8")
    study = load_study("simulation-1", [f"devices.availability={path}:Alternate"])
    before = run_key(study, "uniform", 0)
    assert run_key(study, "uniform", 0) == before
    path.write_text(OWN.replace("// 10", "// 20"), encoding="utf-8")
    assert run_key(study, "uniform", 0) != before
