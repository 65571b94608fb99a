"""Loggers by name, each with its own package; what they wrote is read back."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedpace.errors import InputError, MissingExtraError
from fedpace.studies.callbacks import FOLDER, LOGGERS, Log, Logger, loggers
from fedpace.studies.runner import run_study
from fedpace.studies.store import Job, Store
from fedpace.training.callbacks import Callback, RunInfo
from fedpace.training.history import Row
from tests.training.fakes import row

from .clusters import Cluster
from .tiny import run_here, tiny_study, write_setup

PACKAGES = {"tensorboard": "tensorboardX", "mlflow": "mlflow", "wandb": "wandb"}
SCHEMES = ["uniform", "weighted"]


def logged(name: str, out: Path) -> dict[str, list[float]]:
    """Write the runs of two schemes with a logger; return the losses that are stored."""
    pytest.importorskip(PACKAGES[name], reason=f"needs pip install 'fedpace[{name}]'")
    study = tiny_study(out)
    (logger,) = loggers([name], study, out, warn=print)
    with logger:
        run_study(study, SCHEMES, [0], out, processes=2, callbacks=[logger])
    return {run.scheme: [row.loss for row in run.history.rows[1:]] for run in Store(out).runs()}


def events(folder: Path) -> Iterator[Any]:
    """Read the records of a run's event files: a length, its sum, the record, its sum."""
    from tensorboardX.proto.event_pb2 import Event

    contents = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    while contents:
        (length,) = struct.unpack("<Q", contents[:8])
        yield Event.FromString(contents[12 : 12 + length])
        contents = contents[16 + length :]


def test_tensorboard_has_every_round_at_the_time_of_the_runs_clock(tmp_path: Path) -> None:
    losses = logged("tensorboard", tmp_path)
    for scheme in SCHEMES:
        (folder,) = (tmp_path / FOLDER / "tensorboard").glob(f"*-{scheme}-seed0")
        values = [
            (event.step, event.wall_time, value.simple_value)
            for event in events(folder)
            for value in event.summary.value
            if value.tag == "loss"
        ]
        assert [step for step, _, _ in values] == list(range(1, len(losses[scheme]) + 1))
        assert [value for *_, value in values] == pytest.approx(losses[scheme])
        rows = next(r for r in Store(tmp_path).runs() if r.scheme == scheme).history.rows[1:]
        assert [wall for _, wall, _ in values] == [row.seconds for row in rows]


def test_mlflow_has_every_round_and_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    losses = logged("mlflow", tmp_path)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path / FOLDER / "mlflow").as_uri())
    found = client.get_experiment_by_name("tiny")
    runs = client.search_runs([found.experiment_id])
    assert {run.data.params["scheme"] for run in runs} == set(SCHEMES)
    for run in runs:
        metrics = client.get_metric_history(run.info.run_id, "loss")
        assert [metric.value for metric in metrics] == losses[run.data.params["scheme"]]
        assert run.data.params["training.k"] == "3"
        assert run.info.status == "FINISHED"


def test_wandb_keeps_every_run_for_later(tmp_path: Path) -> None:
    logged("wandb", tmp_path)
    files = list((tmp_path / FOLDER / "wandb").rglob("*.wandb"))
    assert len(files) == len(SCHEMES)
    contents = b"".join(path.read_bytes() for path in files)
    for part in (b"round_seconds", b"uniform-seed0", b"weighted-seed0"):
        assert part in contents


@pytest.mark.parametrize("name", LOGGERS)
def test_a_missing_package_is_named_with_its_remedy(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("tensorboardX", "mlflow.entities", "mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'fedpace\[{name}\]'"):
        loggers([name], tiny_study(tmp_path), tmp_path, warn=print)


def test_an_unknown_logger_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="got 'tensorbord'; did you mean 'tensorboard'"):
        loggers(["tensorbord"], tiny_study(tmp_path), tmp_path, warn=print)
    done = run_here(write_setup(tmp_path), "--out", tmp_path / "runs", "--log", "tensorbord")
    assert done.returncode == 2
    assert "did you mean 'tensorboard'" in done.stderr


def test_the_command_line_logs_and_says_where(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="needs pip install 'fedpace[tensorboard]'")
    options = ("--schemes", "uniform", "--seeds", 1, "--log", "tensorboard", "--out", tmp_path)
    done = run_here(write_setup(tmp_path), *options)
    assert done.returncode == 0, done.stderr
    assert f"Logs:    {tmp_path}/logs" in done.stdout
    assert len(list((tmp_path / "logs" / "tensorboard").iterdir())) == 1


def test_a_log_is_begun_anew_with_its_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="needs pip install 'fedpace[tensorboard]'")
    (logger,) = loggers(["tensorboard"], tiny_study(tmp_path), tmp_path, warn=print)
    job = RunInfo("uniform", 0)
    with logger:
        logger.on_row(job, row(round=1))
        logger.on_end(job)
        logger.on_row(job, row(round=1))
    (folder,) = (tmp_path / FOLDER / "tensorboard").iterdir()
    steps = [event.step for event in events(folder) if event.summary.value]
    assert set(steps) == {1}


def test_a_log_of_a_run_that_goes_on_is_whole(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="needs pip install 'fedpace[tensorboard]'")
    (logger,) = loggers(["tensorboard"], tiny_study(tmp_path), tmp_path, warn=print)
    job = RunInfo("uniform", 0)
    with logger:
        logger.on_start(job, [row(round=0), row(round=1), row(round=2)])
        logger.on_row(job, row(round=3))
    (folder,) = (tmp_path / FOLDER / "tensorboard").iterdir()
    steps = [event.step for event in events(folder) if event.summary.value]
    assert sorted(set(steps)) == [1, 2, 3]


class Seen(Callback):
    """Keeps the rounds of every run."""

    def __init__(self) -> None:
        self.rounds: list[tuple[str, int, int]] = []

    def on_row(self, run: RunInfo, row: Row) -> None:
        self.rounds.append((run.scheme, run.seed, row.round))


def test_callbacks_see_every_row_on_this_machine_and_on_a_cluster(
    tmp_path: Path, two_workers: Cluster
) -> None:
    study = tiny_study(tmp_path)
    places: dict[str, Any] = {
        "here": {"processes": 1},
        "cluster": {"scheduler": two_workers.address},
    }
    for place, how in places.items():
        seen, losses = Seen(), list[float]()

        def keep(row: Row, losses: list[float] = losses) -> None:
            losses.append(row.loss)

        run_study(study, ["uniform"], [0], tmp_path / place, callbacks=[seen, keep], **how)
        (run,) = Store(tmp_path / place).runs()
        assert seen.rounds == [("uniform", 0, row.round) for row in run.history.rows[1:]], place
        assert losses == [row.loss for row in run.history.rows[1:]], place


def away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let MLflow's server be at a port where nobody listens, and let it not try for minutes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")


def test_a_server_that_does_not_answer_is_said_before_any_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="needs pip install 'fedpace[mlflow]'")
    away(monkeypatch)
    with pytest.raises(InputError, match=r"got 'mlflow': .*MLFLOW_TRACKING_URI answers") as refused:
        loggers(["mlflow"], tiny_study(tmp_path), tmp_path, warn=print)
    assert "\n" not in str(refused.value)


class Failing:
    """Logs whose server goes away after three rounds."""

    def __init__(self) -> None:
        self.written: list[int] = []

    def begin(self, _: Job) -> Log:
        return Log(self.write, self.close)

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        self.written.append(step)
        if len(self.written) >= 3:
            raise ConnectionError("Max retries exceeded\nwith url: /api " + 50 * "and so on ")

    def close(self) -> None:
        raise ConnectionError("still away")


def test_a_log_that_fails_is_said_once_and_the_study_goes_on(tmp_path: Path) -> None:
    said, failing = list[str](), Failing()
    with Logger(failing.begin, name="mlflow", warn=said.append) as logger:
        study = tiny_study(tmp_path)
        done = run_study(study, SCHEMES, [0], tmp_path, processes=1, callbacks=[logger])
    assert (done.stored, done.failures) == (2, ())
    assert len(failing.written) == 3
    (line,) = said
    assert line.startswith("--log mlflow failed: ConnectionError: Max retries exceeded with url: ")
    assert line.endswith("see that MLFLOW_TRACKING_URI answers, and log later runs again")
    assert len(line) < 320


def test_a_log_that_cannot_be_closed_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    with Logger(Failing().begin, name="wandb", warn=said.append) as logger:
        for scheme in SCHEMES:
            logger.on_row(RunInfo(scheme, 0), row(round=1))
    assert len(said) == 1
