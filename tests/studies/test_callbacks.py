"""Callbacks of a study: lines of progress, and several callbacks as one."""

import pytest

from fedpace.studies.callbacks import EVERY, Callbacks, ProgressLines
from fedpace.training.callbacks import Callback, Progress, RunInfo
from fedpace.training.history import Row
from tests.training.fakes import row

RUN = RunInfo("uniform", 0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_line_is_printed_for_every_tenth_of_the_runs(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ProgressLines(Clock())
    for done in range(101):
        lines.on_progress(Progress(done, 100, None if done == 0 else 60.0))
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 11
    assert printed[0] == "0/100 runs, 0:00:00 elapsed"
    assert printed[5] == "50/100 runs, 0:00:00 elapsed, about 0:01:00 left"


def test_a_line_is_printed_after_half_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    lines = ProgressLines(clock)
    for done in range(5):
        lines.on_progress(Progress(done, 1000))
        clock.now += EVERY / 2
    assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == [
        "0/1000", "2/1000", "4/1000",
    ]  # fmt: skip


def test_a_warning_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    ProgressLines().on_warning("a file\n is damaged")
    assert capsys.readouterr().err == "fedpace: a file is damaged\n"


def test_several_callbacks_are_called_in_turn_and_functions_with_rows() -> None:
    calls: list[object] = []

    class Own(Callback):
        def on_row(self, run: RunInfo, row: Row) -> None:
            calls.append(run)

        def on_warning(self, message: str) -> None:
            calls.append(message)

    each = Callbacks([Own(), lambda row: calls.append(row.round)])
    each.on_start(RUN, ())
    each.on_row(RUN, row(round=3))
    each.on_end(RUN)
    each.on_progress(Progress(1, 2))
    each.on_warning("beware")
    assert calls == [RUN, 3, "beware"]


def test_rows_leave_their_process_only_if_they_are_wanted() -> None:
    def calls(row: Row) -> None:
        pass

    assert not Callbacks([ProgressLines(), Callback()]).sees_rows
    assert Callbacks([ProgressLines(), calls]).sees_rows
