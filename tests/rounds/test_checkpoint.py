"""A run that is ended anywhere goes on from its last finished round."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpace.data.synthetic import synthetic
from fedpace.errors import InputError
from fedpace.estimation.adaptive import (
    Live,
    Outcome,
    Pilots,
    WarmUp,
    run_adaptive,
    run_known,
)
from fedpace.models.logistic import Logistic
from fedpace.rounds.checkpoint import Checkpoint
from fedpace.rounds.history import LISTS, Row
from fedpace.rounds.schedules import inverse
from fedpace.rounds.simulator import Simulator
from fedpace.rounds.state import State
from fedpace.rounds.stopping import Stop
from fedpace.sampling.schemes import SCHEMES
from fedpace.seeds import Seeds
from fedpace.times.round_times import Varying

SIZES = np.array([60, 30, 10, 20, 10, 15])
TIMES = np.array([1.0, 4.0, 2.0, 0.5, 3.0, 1.5])
ABOUT = {"run": 1}


class EndedError(Exception):
    pass


class Mortal(Checkpoint):
    """A checkpoint whose process ends after so many rounds."""

    lives: int = 10**9

    def record(
        self, phase: str, state: State, row: Row, rng: np.random.Generator | None = None
    ) -> None:
        super().record(phase, state, row, rng)
        self.lives -= 1
        if self.lives == 0:
            raise EndedError


def run(kind: str, journal: Checkpoint | None) -> Outcome:
    data = synthetic(SIZES, np.random.default_rng(0), features=4, classes=3)
    backend = Simulator(data, Logistic(4, 3), Varying(TIMES, Seeds(0), noise=0.3), Seeds(0), 4, 5)
    common: dict[str, Any] = {
        "k": 3, "schedule": inverse(0.3), "stop": Stop(rounds=12), "seeds": Seeds(0),
    }  # fmt: skip
    if kind == "known":
        return run_known(backend, SCHEMES["uniform"], None, live=Live(journal), **common)
    pilots = Pilots([1.0, 0.9, 0.8], rounds=4) if kind == "pilots" else WarmUp(rounds=3)
    refresh = None if kind == "pilots" else 4
    return run_adaptive(
        backend,
        SCHEMES["optimal-mean"],
        pilots=pilots,
        live=Live(journal, refresh=refresh),
        **common,
    )


def same(one: Outcome, other: Outcome) -> None:
    np.testing.assert_array_equal(one.state.parameters, other.state.parameters)
    assert one.state.ended == other.state.ended
    for row, twin in zip(one.history.rows, other.history.rows, strict=True):
        for name in Row._fields:
            np.testing.assert_array_equal(getattr(row, name), getattr(twin, name))
        assert all(getattr(row, name).dtype == getattr(twin, name).dtype for name in LISTS)


@pytest.mark.parametrize("kind", ["known", "pilots", "warm-up"])
@pytest.mark.parametrize("lives", [1, 2, 3, 4, 7])
def test_a_run_ended_every_few_rounds_comes_to_the_same(
    kind: str, lives: int, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.npz"
    for _ in range(40):
        journal = Mortal(path, ABOUT)
        journal.lives = lives
        try:
            outcome = run(kind, journal)
            break
        except EndedError:
            continue
    same(outcome, run(kind, None))
    rounds = [row.round for row in outcome.history.rows if row.phase == "train"]
    assert rounds == list(range(rounds[0], rounds[0] + len(rounds)))


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    first = run("pilots", Checkpoint(path, ABOUT))
    journal = Mortal(path, ABOUT)
    journal.lives = 1
    same(first, run("pilots", journal))


def test_refuses_the_checkpoint_of_another_run(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    run("known", Checkpoint(path, ABOUT))
    with pytest.raises(InputError, match="another run"):
        Checkpoint(path, {"run": 2})


@pytest.mark.parametrize("contents", [b"", b"PK\x03\x04 nothing", b"\x93NUMPY"])
def test_says_that_a_file_is_no_checkpoint(contents: bytes, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    path.write_bytes(contents)
    with pytest.raises(InputError, match="cannot be read as a checkpoint"):
        Checkpoint(path, ABOUT)


def test_is_gone_when_it_is_not_needed_any_more(tmp_path: Path) -> None:
    journal = Checkpoint(tmp_path / "checkpoint.npz", ABOUT)
    run("known", journal)
    journal.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_last_checkpoint(small_disk: Path) -> None:
    path = small_disk / "checkpoint.npz"
    run("known", Checkpoint(path, ABOUT))
    before = path.read_bytes()
    journal = Checkpoint(path, ABOUT)
    row = run("known", None).history.rows[-1]
    with pytest.raises(InputError, match="No space left"):
        journal.record("train", State(np.zeros(10**6), 13, 1.0), row)
    assert path.read_bytes() == before
    assert [each.name for each in small_disk.iterdir() if each.is_file()] == ["checkpoint.npz"]
