"""Callbacks: which calls a run makes, in which order, in both modes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fedpace.errors import InputError
from fedpace.samplers.build import sampler_for
from fedpace.seeds import Seeds
from fedpace.training.callbacks import Callback, RunInfo, as_callback
from fedpace.training.history import Row
from fedpace.training.stopping import Stop, constant
from fedpace.training.train import train
from fedpace.training.training import Outcome

from .fakes import EndedError, MemoryCheckpoint, assert_same_outcome, small_simulator

MODES: dict[str, dict[str, Any]] = {
    "synchronous": {},
    "asynchronous": {"mode": "asynchronous", "at_once": 2, "buffer": 1},
}


class Recorded(Callback):
    """Notes every call."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.runs: list[RunInfo] = []

    def resume(self) -> None:
        self.calls.append("resume")

    def on_start(self, run: RunInfo, rows: Sequence[Row]) -> None:
        self.runs.append(run)
        self.calls.append(("start", [row.round for row in rows]))

    def on_row(self, run: RunInfo, row: Row) -> None:
        assert run.state is not None
        assert run.state.round == row.round
        self.runs.append(run)
        self.calls.append(row.round)

    def on_end(self, run: RunInfo) -> None:
        self.runs.append(run)
        self.calls.append("end")

    def flush(self) -> None:
        self.calls.append("flush")


def run(mode: str, *callbacks: Any, rounds: int = 2, name: str = "") -> Outcome:
    return train(
        small_simulator(),
        sampler_for("weighted", 2, mode=mode),
        schedule=constant(0.1),
        stop=Stop(rounds=rounds),
        seeds=Seeds(3),
        callbacks=callbacks,
        name=name,
        **MODES[mode],
    )


def test_a_synchronous_run_waits_for_its_callbacks_after_every_round() -> None:
    recorded = Recorded()
    run("synchronous", recorded)
    start = ["resume", ("start", [0]), "flush"]
    assert recorded.calls == [*start, 1, "flush", 2, "flush", "end", "flush"]


def test_an_asynchronous_run_waits_only_at_its_end() -> None:
    recorded = Recorded()
    run("asynchronous", recorded)
    assert recorded.calls == ["resume", ("start", [0]), 1, 2, "end", "flush"]


@pytest.mark.parametrize("mode", MODES)
def test_callbacks_learn_which_run_it_is(mode: str) -> None:
    recorded = Recorded()
    run(mode, recorded, name="mine")
    assert {(each.scheme, each.seed) for each in recorded.runs} == {("mine", 3)}


@pytest.mark.parametrize("mode", MODES)
def test_a_resumed_run_starts_with_its_rows_and_ends_the_same(mode: str) -> None:
    checkpoint, recorded = MemoryCheckpoint(lives=3), Recorded()
    with pytest.raises(EndedError):
        run(mode, checkpoint, rounds=4)
    outcome = run(mode, checkpoint, recorded, rounds=4)
    assert ("start", [0, 1, 2]) in recorded.calls
    assert [each for each in recorded.calls if isinstance(each, int)] == [3, 4]
    if mode == "synchronous":  # asynchronous tasks under way are drawn again
        assert_same_outcome(outcome, run(mode, rounds=4))


@pytest.mark.parametrize("mode", MODES)
def test_what_was_received_is_flushed_when_a_run_fails(mode: str) -> None:
    recorded = Recorded()
    with pytest.raises(EndedError):
        run(mode, recorded, MemoryCheckpoint(lives=2))
    assert recorded.calls[-1] == "flush"
    assert "end" not in recorded.calls


@pytest.mark.parametrize("mode", MODES)
def test_a_plain_function_receives_every_row(mode: str) -> None:
    rows: list[Row] = []
    run(mode, rows.append)
    assert [row.round for row in rows] == [1, 2]


def test_an_object_with_some_of_the_methods_is_a_callback() -> None:
    class Ends:
        ended = 0

        def on_end(self, run: RunInfo) -> None:
            self.ended += 1

    ends = Ends()
    run("synchronous", ends)
    assert ends.ended == 1


def test_a_misspelt_method_is_named() -> None:
    class Typo:
        def on_rows(self, run: RunInfo, row: Row) -> None: ...

    with pytest.raises(InputError, match="got 'on_rows' of Typo; did you mean 'on_row'"):
        as_callback(Typo())
