"""Loggers by name: every round of every run as TensorBoard, MLflow or Weights & Biases read it."""

from __future__ import annotations

import math
import os
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from fedpace.errors import InputError, nearest, needs
from fedpace.rounds.rows import NUMBERS, Row
from fedpace.studies.processes import Job
from fedpace.studies.store import run_key
from fedpace.studies.study import Study

FOLDER = "logs"
# Of an error that is told.
MOST_LETTERS = 160
REMEDIES = {
    "tensorboard": "make room in OUT/logs",
    "mlflow": "see that MLFLOW_TRACKING_URI answers",
    "wandb": "leave WANDB_MODE at offline",
}


class Log(Protocol):
    """One run in a logger's own format."""

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Write the numbers of a round."""

    def close(self) -> None:
        """Let the run be over."""


class Logger:
    """Write the numbers of every round to a log per run; the step counts a run's rounds.

    What is not finite is left out. Use it as a context: at its end all logs are closed. A study is
    worth more than its log: after an error, which `warn` is told, nothing more is written.
    """

    def __init__(
        self, opened: Callable[[Job], Log], *, name: str = "log", warn: Callable[[str], None]
    ) -> None:
        self._opened, self._name, self._warn = opened, name, warn
        self._logs: dict[Job, Log] = {}
        self._steps: dict[Job, int] = {}
        self._failed = False

    def row(self, job: Job, row: Row) -> None:
        """Write a round."""
        with self._tried():
            self._write(job, row)

    def _write(self, job: Job, row: Row) -> None:
        if self._failed:
            return
        if job not in self._logs:
            self._logs[job], self._steps[job] = self._opened(job), 0
        self._steps[job] += 1
        numbers = {name: getattr(row, name) for name in NUMBERS}
        told = {
            name: float(value)
            for name, value in numbers.items()
            if not isinstance(value, str) and math.isfinite(value)
        }
        self._logs[job].write(told, self._steps[job])

    def resumed(self, job: Job, rows: Sequence[Row]) -> None:
        """Write the rounds of an earlier command again: the log is new, and shall be whole."""
        for row in rows:
            self.row(job, row)

    def done(self, job: Job) -> None:
        """Close the log of a run."""
        if (log := self._logs.pop(job, None)) is not None and not self._failed:
            with self._tried():
                log.close()

    @contextmanager
    def _tried(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever a package of others may raise
            self._failed = True
            self._warn(
                f"--log {self._name} failed: {_in_a_line(error)}; the study goes on without it: "
                f"{REMEDIES[self._name]}, and log later runs again"
            )

    def __enter__(self) -> Logger:
        return self

    def __exit__(self, *_: object) -> None:
        for job in list(self._logs):
            self.done(job)


def loggers(
    names: Sequence[str], study: Study, out: Path, *, warn: Callable[[str], None]
) -> list[Logger]:
    """Return the loggers of these names, for the runs of a study, with files in OUT/logs/NAME.

    `warn` is told in a line if one fails later.

    - tensorboard: event files; their relative time is the run's clock, not this machine's.
    - mlflow: a run per run in OUT/logs/mlflow, or where MLFLOW_TRACKING_URI says.
    - wandb: a run per run, offline, to be sent with `wandb sync`; WANDB_MODE=online sends at once.
    """
    made = []
    for name in dict.fromkeys(names):
        if name not in LOGGERS:
            raise InputError(f"log must be a known logger, got '{name}'; {nearest(name, LOGGERS)}")
        try:
            opened = LOGGERS[name](study, out / FOLDER / name)
        except (InputError, ImportError):
            raise
        except Exception as error:  # whatever a package of others may raise
            problem = f"log must be a logger that can begin, got '{name}': {_in_a_line(error)}"
            raise InputError(f"{problem}; {REMEDIES[name]}, or leave it out") from None
        made.append(Logger(opened, name=name, warn=warn))
    return made


def _in_a_line(error: Exception) -> str:
    """Return what went wrong, without the pages that some packages write of it."""
    return textwrap.shorten(f"{type(error).__name__}: {error}", MOST_LETTERS, placeholder=" …")


def _called(study: Study, job: Job) -> str:
    """Return a name for a run that is another's in no other study."""
    scheme = job.scheme.replace("/", "-").replace(":", "-")
    return f"{study.name}-{run_key(study, *job)[:6]}-{scheme}-seed{job.seed}"


def _settings(study: Study, job: Job) -> dict[str, Any]:
    """Return the fields of a study by their dotted names, and whose run it is."""
    flat: dict[str, Any] = {"scheme": job.scheme, "seed": job.seed}
    for section, fields in study.model_dump(mode="json", exclude_defaults=True).items():
        inner = fields if isinstance(fields, dict) else {"": fields}
        flat |= {f"{section}.{name}".rstrip("."): value for name, value in inner.items()}
    return flat


def _tensorboard(study: Study, folder: Path) -> Callable[[Job], Log]:
    with needs("--log tensorboard needs tensorboardX", "tensorboard"):
        from tensorboardX import SummaryWriter

    class Events:
        def __init__(self, job: Job) -> None:
            place = str(folder / _called(study, job))
            # What an earlier attempt wrote of the same run is not shown.
            self._writer = SummaryWriter(place, purge_step=0)

        def write(self, numbers: Mapping[str, float], step: int) -> None:
            for name, value in numbers.items():
                self._writer.add_scalar(name, value, step, walltime=numbers["seconds"])

        def close(self) -> None:
            self._writer.close()

    return Events


def _mlflow(study: Study, folder: Path) -> Callable[[Job], Log]:
    # Files without a server have to be allowed; and nobody is told of it.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    with needs("--log mlflow needs mlflow-skinny", "mlflow"):
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient
    place = os.environ.get("MLFLOW_TRACKING_URI") or folder.resolve().as_uri()
    client = MlflowClient(tracking_uri=place)
    found = client.get_experiment_by_name(study.name)
    experiment = client.create_experiment(study.name) if found is None else found.experiment_id

    class Tracked:
        def __init__(self, job: Job) -> None:
            run = client.create_run(experiment, run_name=_called(study, job))
            self._run = run.info.run_id
            for name, value in _settings(study, job).items():
                client.log_param(self._run, name, value)

        def write(self, numbers: Mapping[str, float], step: int) -> None:
            now = round(1000 * time.time())
            metrics = [Metric(name, value, now, step) for name, value in numbers.items()]
            client.log_batch(self._run, metrics=metrics)

        def close(self) -> None:
            client.set_terminated(self._run)

    return Tracked


def _wandb(study: Study, folder: Path) -> Callable[[Job], Log]:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    with needs("--log wandb needs wandb", "wandb"):
        import wandb
    folder.mkdir(parents=True, exist_ok=True)

    class Offline:
        def __init__(self, job: Job) -> None:
            self._run = wandb.init(
                project=study.name,
                name=_called(study, job),
                group=job.scheme,
                dir=folder,
                config=_settings(study, job),
                mode=os.environ.get("WANDB_MODE", "offline"),
                reinit="create_new",
                settings=wandb.Settings(silent=True, console="off"),
            )

        def write(self, numbers: Mapping[str, float], step: int) -> None:
            self._run.log(dict(numbers), step=step)

        def close(self) -> None:
            self._run.finish()

    return Offline


LOGGERS: dict[str, Callable[[Study, Path], Callable[[Job], Log]]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
}
