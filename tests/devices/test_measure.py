import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpace.devices.device import serve
from fedpace.devices.measure import (
    RunProgress,
    WaitSettings,
    checkpoint_of,
    jobs_of,
    run_on_devices,
    usual_seconds,
)
from fedpace.devices.server import DeviceServer
from fedpace.devices.shard import OwnShard
from fedpace.studies.store import Job
from fedpace.studies.study import Study, load_study
from fedpace.training.callbacks import Callback, RunInfo
from fedpace.training.history import Row
from tests.devices.lab.labs import only_run, write_setup

NAMES = [f"device-{number:02d}" for number in range(4)]


class EnoughError(Exception):
    """Ends a run in the middle."""


@contextmanager
def fleet(count: int) -> Iterator[DeviceServer]:
    """Let so many of four devices join, each a thread."""
    server = DeviceServer(NAMES)
    devices = [
        threading.Thread(target=serve, args=(*server.address, name, OwnShard(name)))
        for name in NAMES[:count]
    ]
    for each in devices:
        each.start()
    try:
        yield server
    finally:
        server.close()
        for each in devices:
            each.join()


def stopped(study: Study, job: Job, out: Path, rounds: Sequence[int], server: DeviceServer) -> Path:
    """Run until one of these rounds is finished, or the run is."""

    def stop(now: RunProgress) -> None:
        if now.row is not None and now.row.round in rounds:
            raise EnoughError

    waiting = WaitSettings(4, 60.0)
    run_on_devices(study, [job], out, server, waiting=waiting, progress=stop, say=print)
    return out


def row(clients: list[int], seconds: list[float]) -> Row:
    ones = np.ones(len(clients))
    return Row(
        "train", 1, 1.0, 1.0, 0.5, 1.0, 1.0, np.array(clients), ones, np.array(seconds), ones
    )


def test_usual_seconds_give_every_run_the_same_say() -> None:
    crowded = [row([0, 1], [9.0, 9.0])] * 100
    others = [[row([0, 1], [1.0, 2.0]), row([0], [1.2])], [row([0, 1], [1.1, 2.0])]]
    np.testing.assert_allclose(usual_seconds([crowded, *others], 2), [1.1, 2.0])


def test_one_disturbed_round_does_not_count() -> None:
    rows = [row([0], [seconds]) for seconds in (1.0, 1.0, 50.0)]
    assert usual_seconds([rows], 1) == [1.0]


def test_a_client_that_never_answered_is_as_the_others_are() -> None:
    rows = [row([0, 1], [1.0, 3.0])]
    assert usual_seconds([rows], 3).tolist() == [1.0, 3.0, 2.0]


class Seen(Callback):
    """Keeps the rounds, and those of the earlier command apart."""

    def __init__(self) -> None:
        self.before: list[int] = []
        self.rounds: list[int] = []

    def on_start(self, run: RunInfo, rows: Sequence[Row]) -> None:
        self.before += [row.round for row in rows]

    def on_row(self, run: RunInfo, row: Row) -> None:
        self.rounds.append(row.round)


def test_who_looks_on_is_told_the_rounds_that_a_run_goes_on_from(tmp_path: Path) -> None:
    study, out = load_study(str(write_setup(tmp_path)), []), tmp_path / "runs"
    (job,) = jobs_of(study, ["uniform"], [0])
    with pytest.raises(EnoughError), fleet(4) as server:
        stopped(study, job, out, [2], server)
    seen = Seen()
    settings: dict[str, Any] = {"waiting": WaitSettings(4, 60.0), "say": print, "progress": print}
    with fleet(4) as server:
        run_on_devices(study, [job], out, server, callbacks=[seen], **settings)
    assert seen.before == [0, 1, 2]
    assert seen.rounds == [3, 4, 5, 6]


def test_a_restart_keeps_the_weights_and_a_stored_run_leaves_no_checkpoint(tmp_path: Path) -> None:
    study, out = load_study(str(write_setup(tmp_path)), []), tmp_path / "runs"
    (job,) = jobs_of(study, ["uniform"], [0])

    def noted() -> dict[str, Any]:
        return checkpoint_of(study, job, out).notes["samples"]  # type: ignore[no-any-return]

    with pytest.raises(EnoughError), fleet(4) as server:
        stopped(study, job, out, [2], server)
    before, after = noted(), []
    assert list(before) == NAMES
    assert len(set(before.values())) > 1

    def note(now: RunProgress) -> None:
        if now.row is not None:
            after.append(noted())

    settings: dict[str, Any] = {"waiting": WaitSettings(3, 1.5), "say": print}
    with fleet(3) as server:
        run_on_devices(study, [job], out, server, progress=note, **settings)
    assert after == [before] * 4
    assert [row.round for row in only_run(out).history.rows] == list(range(7))
    assert not checkpoint_of(study, job, out).path.exists()
    # A server that is killed just after it has stored a run leaves the checkpoint.
    checkpoint_of(study, job, out).path.write_bytes(b"left")
    with fleet(0) as server:
        run_on_devices(study, [job], out, server, progress=print, **settings)
    assert not list((out / "checkpoints").iterdir())


def test_a_run_that_learns_is_the_same_however_often_it_was_ended(tmp_path: Path) -> None:
    # The sampler carries what it learned, the server its moments; q follows from norms alone.
    learning = ["sampling.warm_up=2", "sampling.refresh=2", "training.server=adam:0.01"]
    study = load_study(str(write_setup(tmp_path)), learning)
    (job,) = jobs_of(study, ["statistical"], [0])
    with fleet(4) as server:
        whole = only_run(stopped(study, job, tmp_path / "whole", [], server))
    for ended in (1, 3, 4):  # in the warm-up, with the first design, with the second
        with pytest.raises(EnoughError), fleet(4) as server:
            stopped(study, job, tmp_path / "pieces", [ended], server)
    with fleet(4) as server:
        pieces = only_run(stopped(study, job, tmp_path / "pieces", [], server))
    assert [row.phase for row in whole.history.rows] == ["warm-up"] * 3 + ["train"] * 4
    for name in ("phase", "round", "clients", "weights", "loss", "accuracy", "grad_norms"):
        assert pieces.history.columns()[name] == whole.history.columns()[name], name
    assert whole.q is not None
    np.testing.assert_array_equal(pieces.q, whole.q)
