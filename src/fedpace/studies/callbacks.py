"""Callbacks of a study: several as one, progress, and logs for TensorBoard, MLflow or W&B."""

from __future__ import annotations

import math
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fedpace.adapt import defines
from fedpace.errors import InputError, nearest, needs
from fedpace.studies.store import Job, run_key
from fedpace.studies.study import Study
from fedpace.training.callbacks import (
    Callback,
    Progress,
    RunInfo,
    as_callback,
    duration,
    time_left,
)
from fedpace.training.history import NUMBERS, Row

# Without a terminal a line is printed for every tenth of the runs, and after this many seconds.
PARTS, EVERY = 10, 30.0


class Callbacks(Callback):
    """Call several callbacks in turn; functions are called with every row."""

    def __init__(self, callbacks: Iterable[Callback | Callable[[Row], object]]) -> None:
        self._each = [as_callback(each) for each in callbacks]

    @property
    def sees_rows(self) -> bool:
        """Whether one of them overrides `on_row`; else rows need not leave their process."""
        return any(defines(each, Callback, "on_row") for each in self._each)

    def on_start(self, run: RunInfo, rows: Sequence[Row]) -> None:
        """Pass on the start of a run."""
        for each in self._each:
            each.on_start(run, rows)

    def on_row(self, run: RunInfo, row: Row) -> None:
        """Pass on a round."""
        for each in self._each:
            each.on_row(run, row)

    def on_end(self, run: RunInfo) -> None:
        """Pass on the end of a run."""
        for each in self._each:
            each.on_end(run)

    def on_progress(self, progress: Progress) -> None:
        """Pass on the number of runs done."""
        for each in self._each:
            each.on_progress(progress)

    def on_warning(self, message: str) -> None:
        """Pass on a warning."""
        for each in self._each:
            each.on_warning(message)


class ProgressLines(Callback):
    """Print progress and warnings to standard error, a line now and then."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._begin, self._printed = clock, clock(), -math.inf
        self._parts: set[int] = set()

    def on_progress(self, progress: Progress) -> None:
        """Print a line for every tenth of the runs, and after half a minute without one."""
        now, part = self._clock(), progress.done * PARTS // progress.total
        if part not in self._parts or now - self._printed >= EVERY:
            self._parts.add(part)
            self._printed = now
            elapsed = f"{duration(now - self._begin)} elapsed"
            line = [f"{progress.done}/{progress.total} runs", elapsed, time_left(progress)]
            print(", ".join(filter(None, line)), file=sys.stderr, flush=True)

    def on_warning(self, message: str) -> None:
        """Print a warning."""
        print(f"fedpace: {' '.join(message.split())}", file=sys.stderr, flush=True)


FOLDER = "logs"
# Longest text of an error.
MOST_LETTERS = 160
REMEDIES = {
    "tensorboard": "make room in OUT/logs",
    "mlflow": "see that MLFLOW_TRACKING_URI answers",
    "wandb": "leave WANDB_MODE at offline",
}


class Log(NamedTuple):
    """The log of one run: functions that write the numbers of a step, and end it."""

    write: Callable[[Mapping[str, float], int], object]
    close: Callable[[], object]


class Logger(Callback):
    """Write the finite numbers of every round to a log per run; the step counts its rounds.

    Use it as a context manager, which closes all logs. After an error, which is passed to `warn`,
    nothing more is written and the study continues.
    """

    def __init__(
        self, begin: Callable[[Job], Log], *, name: str = "log", warn: Callable[[str], None]
    ) -> None:
        self._begin, self._name, self._warn = begin, name, warn
        self._logs: dict[Job, Log] = {}
        self._steps: dict[Job, int] = {}
        self._failed = False

    def on_start(self, run: RunInfo, rows: Sequence[Row]) -> None:
        """Write the rounds of an earlier command again, so that the log is complete."""
        for row in rows[1:]:  # the first is that of the initial model
            self.on_row(run, row)

    def on_row(self, run: RunInfo, row: Row) -> None:
        """Write a round."""
        if self._failed:
            return
        job = Job(run.scheme, run.seed)
        values = {name: getattr(row, name) for name in NUMBERS}
        kept = {n: x for n, x in values.items() if not isinstance(x, str) and math.isfinite(x)}
        with self._guard():
            if job not in self._logs:
                self._logs[job], self._steps[job] = self._begin(job), 0
            self._steps[job] += 1
            numbers = {name: float(value) for name, value in kept.items()}
            self._logs[job].write(numbers, self._steps[job])

    def on_end(self, run: RunInfo) -> None:
        """Close the log of a run."""
        self._close(Job(run.scheme, run.seed))

    def _close(self, job: Job) -> None:
        if (log := self._logs.pop(job, None)) is not None and not self._failed:
            with self._guard():
                log.close()

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of other packages
            self._failed = True
            self._warn(
                f"--log {self._name} failed: {_one_line(error)}; the study continues without it: "
                f"{REMEDIES[self._name]}, and log later runs again"
            )

    def __enter__(self) -> Logger:
        return self

    def __exit__(self, *_: object) -> None:
        for job in list(self._logs):
            self._close(job)


def loggers(
    names: Sequence[str], study: Study, out: Path, *, warn: Callable[[str], None]
) -> list[Logger]:
    """Return the loggers of these names, with files in OUT/logs/NAME; later errors go to `warn`.

    - tensorboard: event files; their relative time is the run's clock, not this machine's.
    - mlflow: in OUT/logs/mlflow, or at MLFLOW_TRACKING_URI.
    - wandb: offline, to be sent with `wandb sync`; WANDB_MODE=online sends at once.
    """
    found = []
    for name in dict.fromkeys(names):
        if name not in LOGGERS:
            raise InputError(f"log must be a known logger, got '{name}'; {nearest(name, LOGGERS)}")
        try:
            begin = LOGGERS[name](study, out / FOLDER / name)
        except (InputError, ImportError):
            raise
        except Exception as error:  # of other packages
            problem = f"log must be a logger that can begin, got '{name}': {_one_line(error)}"
            raise InputError(f"{problem}; {REMEDIES[name]}, or leave it out") from None
        found.append(Logger(begin, name=name, warn=warn))
    return found


def _one_line(error: Exception) -> str:
    return textwrap.shorten(f"{type(error).__name__}: {error}", MOST_LETTERS, placeholder=" …")


def _name(study: Study, job: Job) -> str:
    """Return a name for a run that no run of another study has."""
    return f"{study.name}-{run_key(study, *job)[:6]}-{job.file_name}"


def _settings(study: Study, job: Job) -> dict[str, Any]:
    """Return scheme, seed, and the fields of the study by their dotted names."""
    flat: dict[str, Any] = {"scheme": job.scheme, "seed": job.seed}
    for section, fields in study.model_dump(mode="json", exclude_defaults=True).items():
        inner = fields if isinstance(fields, dict) else {"": fields}
        flat |= {f"{section}.{name}".rstrip("."): value for name, value in inner.items()}
    return flat


def _tensorboard(study: Study, folder: Path) -> Callable[[Job], Log]:
    with needs("--log tensorboard needs tensorboardX", "tensorboard"):
        from tensorboardX import SummaryWriter

    def begin(job: Job) -> Log:
        # Hides what an earlier attempt at the same run wrote.
        writer = SummaryWriter(str(folder / _name(study, job)), purge_step=0)

        def write(numbers: Mapping[str, float], step: int) -> None:
            for name, value in numbers.items():
                writer.add_scalar(name, value, step, walltime=numbers["seconds"])

        return Log(write, writer.close)

    return begin


def _mlflow(study: Study, folder: Path) -> Callable[[Job], Log]:
    # Allow files without a server, and send no usage statistics.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    with needs("--log mlflow needs mlflow-skinny", "mlflow"):
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient
    place = os.environ.get("MLFLOW_TRACKING_URI") or folder.resolve().as_uri()
    client = MlflowClient(tracking_uri=place)
    found = client.get_experiment_by_name(study.name)
    experiment = client.create_experiment(study.name) if found is None else found.experiment_id

    def begin(job: Job) -> Log:
        run = client.create_run(experiment, run_name=_name(study, job)).info.run_id
        for name, value in _settings(study, job).items():
            client.log_param(run, name, value)

        def write(numbers: Mapping[str, float], step: int) -> None:
            now = round(1000 * time.time())
            metrics = [Metric(name, value, now, step) for name, value in numbers.items()]
            client.log_batch(run, metrics=metrics)

        return Log(write, lambda: client.set_terminated(run))

    return begin


def _wandb(study: Study, folder: Path) -> Callable[[Job], Log]:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    with needs("--log wandb needs wandb", "wandb"):
        import wandb
    folder.mkdir(parents=True, exist_ok=True)

    def begin(job: Job) -> Log:
        run = wandb.init(
            project=study.name,
            name=_name(study, job),
            group=job.scheme,
            dir=folder,
            config=_settings(study, job),
            mode=os.environ.get("WANDB_MODE", "offline"),
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        return Log(lambda numbers, step: run.log(dict(numbers), step=step), run.finish)

    return begin


LOGGERS: dict[str, Callable[[Study, Path], Callable[[Job], Log]]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
}
