"""Compare schemes on a user's own model and data: a study from Python."""

from __future__ import annotations

import hashlib
import html
import math
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import StringIO
from numbers import Integral, Real
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import numpy as np

from fedpace.checks import short_repr
from fedpace.data.shards import Split
from fedpace.errors import InputError, nearest, needs
from fedpace.lookup import GIVEN, fingerprint, label, register_objects
from fedpace.models.model import BaseModel
from fedpace.report.charts import save as save_figure
from fedpace.report.live import Live
from fedpace.report.notes import headline
from fedpace.report.report import Report
from fedpace.report.setups import plain_name
from fedpace.report.study_charts import study_figures
from fedpace.report.study_tables import csv_text, main_table, rank_rows
from fedpace.report.summary import SchemeSummary, Summary
from fedpace.studies.build import model_for, split_of
from fedpace.studies.callbacks import ProgressLines, loggers
from fedpace.studies.runner import run_study, study_jobs, write_models
from fedpace.studies.store import Store, StoredRun, write_record
from fedpace.studies.study import SECTIONS, validate
from fedpace.training.callbacks import Callback
from fedpace.training.history import History, Row

if TYPE_CHECKING:
    from pandas import DataFrame

# Rounds after which a run ends by default, if it has not reached its target.
MOST_ROUNDS = 500
# Settings and their sections; times and target have arguments of their own.
PLACES = {
    field: name
    for name in ("training", "sampling", "devices", "stop")
    for field in SECTIONS[name].model_fields
    if field not in ("times", "loss", "accuracy")
}


class StudyFields(TypedDict, total=False):
    """Fields of a study that `compare` takes; see `fedpace.studies.study`."""

    k: int | Literal["auto"]
    k_max: int
    take: int
    deadline: float
    local_steps: int | Literal["auto"]
    batch: int
    schedule: str
    weight_decay: float
    clip: float
    optimiser: str
    proximal: float
    server: str
    mode: Literal["synchronous", "asynchronous", "auto"]
    at_once: int
    buffer: int
    max_weight: float
    c_over_s0: float
    warm_up: int
    refresh: int
    oracle: bool
    knobs: dict[str, dict[str, Any]]
    samples: float
    megabits: float
    compute: float
    reference_steps: int
    link: str
    known: bool
    correlation: float
    availability: str
    noise: float
    drift: float
    period: float
    busy: float
    busy_factor: float
    spell: float
    sustained: bool
    rounds: int
    seconds: float


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The result of `compare`. A notebook shows its headline, table and chart.

    Attributes
    ----------
    runs : sequence of StoredRun
        Each with its `scheme`, `seed` and `history`.
    report : Report
        All numbers, with intervals.
    page, models : paths
        The page for the browser, and the files of the trained models with `save=True`.
    """

    runs: Sequence[StoredRun]
    report: Report
    page: Path
    models: Sequence[Path] = ()
    _model: BaseModel | None = None

    @classmethod
    def open(cls, directory: str | Path) -> Comparison:
        """Return the comparison of stored runs, such as those of `fedpace run --out`.

        Of several studies in one directory, it is that with most runs.
        """
        folder = Path(directory)
        runs = list(Store(folder).runs(ProgressLines().on_warning))
        if not runs:
            remedy = f"make some: fedpace run simulation-1 --out {folder}"
            raise InputError(f"{folder}: holds no finished runs; {remedy}")
        report = Report.of(runs)
        return cls(runs, report, report.write_page(folder, runs_in=folder))

    def __repr__(self) -> str:
        return f"<Comparison: {headline(self._summary) or 'no run reached the target'}>"

    def _repr_html_(self) -> str:
        """Return headline, table and chart for a notebook; the chart is an SVG."""
        said = html.escape(headline(self._summary) or "No run reached the target.")
        with TemporaryDirectory() as folder:
            picture = self.plot(Path(folder) / "chart.svg").read_text(encoding="utf-8")
        return f"<p>{said}</p>{main_table(self._summary)}{picture}"

    def seconds(self, scheme: str) -> float:
        """Return a scheme's mean seconds to the target; infinite if a run never reached it."""
        row = self._row(scheme)
        return row.seconds.value if row.reached == row.runs else math.inf

    def best(self) -> str:
        """Return the scheme that reached the target first, in the mean of its runs."""
        return rank_rows(self._summary)[0].scheme

    def plot(self, path: str | Path = "comparison.svg") -> Path:
        """Draw the loss against the time as SVG, PNG or PDF, and return the file's path."""
        (figure, *_), *_ = study_figures(self._summary)
        save_figure(Path(path), figure)
        return Path(path)

    def to_pandas(self, what: Literal["table", "runs", "rounds"] = "table") -> DataFrame:
        """Return a pandas DataFrame.

        The table has one line per scheme with times and intervals, runs one per run, and rounds one
        per round or asynchronous step of each run.
        """
        with needs("to_pandas needs pandas", "pandas"):
            import pandas as pd
        if what == "table":
            return pd.read_csv(StringIO(csv_text([self._summary])))
        if what == "runs":
            return pd.DataFrame([_last_row(run) for run in self._summary.setup.runs])
        if what != "rounds":
            got = f"{what!r}; {nearest(str(what), ('table', 'runs', 'rounds'))}"
            raise InputError(f"what must be table, runs or rounds, got {got}")
        named = ((run.scheme, run.seed, run.history) for run in self._summary.setup.runs)
        frames = [
            pd.DataFrame(history.columns()).assign(scheme=scheme, seed=seed)
            for scheme, seed, history in named
        ]
        return pd.concat(frames, ignore_index=True)

    def model(self, scheme: str | None = None) -> Any:
        """Return the trained model of the run with the lowest last loss; needs `save=True`.

        By default of the best scheme: a PyTorch module, or a dict of arrays for other models.
        """
        name = self.best() if scheme is None else self._row(scheme).scheme
        runs = [run for run in self._summary.setup.of(name) if run.parameters is not None]
        if self._model is None or not runs:
            raise InputError("compare must keep the trained models, got none; give save=True")
        run = min(runs, key=lambda each: _last_loss(each.history))
        assert run.parameters is not None
        return self._model.with_parameters(run.parameters)

    @property
    def _summary(self) -> Summary:
        return self.report.summaries[0]

    def _row(self, scheme: str) -> SchemeSummary:
        """Return the line of a scheme, with or without its mode in brackets."""
        rows = {row.scheme: row for row in self._summary.rows}
        rows |= {plain_name(name): row for name, row in rows.items()}
        if scheme not in rows:
            known = ", ".join(row.scheme for row in self._summary.rows)
            raise InputError(f"scheme must have been compared, got '{scheme}'; use one of: {known}")
        return rows[scheme]


def _last_row(run: StoredRun) -> dict[str, Any]:
    """Return a run's last row: how it ended, after how long, and with which loss."""
    last = run.history.rows[-1]
    return {
        "scheme": run.scheme, "seed": run.seed, "ended": run.ended, "rounds": last.round,
        "seconds": last.seconds, "loss": last.loss, "accuracy": last.accuracy,
    }  # fmt: skip


def _last_loss(history: History) -> float:
    known = [row.loss for row in history.rows if math.isfinite(row.loss)]
    return known[-1] if known else math.inf


def compare(
    *,
    model: Any,
    clients: Any,
    schemes: Sequence[str] | str = ("uniform", "optimal-mean", "pace"),
    seeds: int | Sequence[int] = 5,
    times: Any = "exponential:1",
    target: float | Mapping[str, float] | None = None,
    out: str | Path = "runs",
    loss: Any = None,
    metric: Any = None,
    device: str | None = None,
    test_share: float = 0.1,
    name: str = "own",
    processes: int | None = None,
    scheduler: str | None = None,
    save: bool = False,
    show: bool = False,
    callbacks: Sequence[Callback | Callable[[Row], object]] = (),
    log: Sequence[str] | str = (),
    live: bool = False,
    **settings: Unpack[StudyFields],
) -> Comparison:
    """Train your model on your clients with several schemes, and report the time to the target.

    Every scheme runs with every seed, on all cores. Runs that are stored in `out` are not
    repeated, so the same call continues after an interruption. The tables, figures and page are
    those of `fedpace report`.

    Parameters
    ----------
    model : PyTorch module, scikit-learn estimator, Model, or a function that makes one
        What clients train; see `fedpace.models.model.as_model`. With a function, such as a
        module's class, every seed starts from its own parameters.
    clients : list of (x, y) or (x, y, test x, test y), or a Split
        The data of each client.
    schemes : names, in a list or separated by commas
        As in `fedpace run --schemes`; your own are file.py:name.
    seeds : int or sequence of int
        Number of seeds, or the seeds.
    times : str or array of N seconds
        Round time of each client: see `fedpace.times.distributions.device_times`.
    target : float or {"accuracy": share}
        Loss or accuracy that ends a run. Without it a run ends after `rounds`.
    out : path
        Directory for the runs and the report.
    loss, metric : str or function, optional
        For PyTorch modules: see `TorchModel`.
    device : str, optional
        Where a PyTorch module trains: cuda, mps, cpu, or auto for the best there is.
    test_share : float
        Share of a pair that is held back for testing: its last rows.
    name : str
        Name of the study, in files and on the page.
    processes, scheduler : int, str, optional
        Runs at a time, one per core by default; or the address of a Dask scheduler.
    save, show : bool
        Write the trained models to out/models; open the page in the browser.
    callbacks : sequence of Callback, or functions of a row
        Called for every round and every finished run.
    log : names
        Loggers of every round, in out/logs: tensorboard, mlflow, wandb.
    live : bool
        Serve the page on this machine during the runs, and print its address.
    **settings
        Fields of a study, such as k=10, local_steps=50, batch=24, schedule="inverse:0.1",
        mode="asynchronous", rounds=500; see `StudyFields`.

    Examples
    --------
    ::

        result = fedpace.compare(
            model=Net, clients=[(x0, y0), (x1, y1), …], k=5, schedule="constant:0.05",
            schemes=["uniform", "optimal-mean", "pace"], seeds=5, target=0.5, out="runs",
        )
        result  # in a notebook: headline, table and chart
        result.best(), result.seconds("pace"), result.to_pandas(), result.model()
    """
    names = schemes.split(",") if isinstance(schemes, str) else list(schemes)
    names = [each.strip() if isinstance(each, str) else each for each in names]
    numbers = _seeds(seeds)
    split = clients if isinstance(clients, Split) else split_of(clients, test_share=test_share)
    made = model_for(model, split.train, loss=loss, metric=metric, device=device)
    values = _values(name, split, model, loss, metric, times, target, settings)
    if device is not None:
        values["model"]["device"] = device
    study = validate(values, name)
    folder, printed = Path(out), ProgressLines()
    warn = printed.on_warning
    jobs = study_jobs(study, names, numbers)
    write_record(folder, study, names, numbers)
    with ExitStack() as stack:
        logs = [log] if isinstance(log, str) else log
        calls: list[Callback | Callable[[Row], object]] = [printed, *callbacks]
        calls += [stack.enter_context(e) for e in loggers(logs, study, folder, warn=warn)]
        if live:
            calls.append(page := stack.enter_context(Live(folder, warn)))
            page.of(study)
            warn(f"live page: {page.url}")
        done = run_study(
            study, names, numbers, folder, jobs=jobs, processes=processes, scheduler=scheduler,
            save=save, callbacks=calls,
        )  # fmt: skip
    for failure in done.failures:
        warn(f"failed: {failure}")
    if not done.stored:
        raise InputError(f"no run succeeded: {done.failures[0].reason}; correct it and call again")
    runs = list(Store(folder).runs(warn, keys=set(jobs.keys.values())))
    report = Report.of(runs, warn)
    list(report.write_tables(folder))
    report.show()
    path = report.write_page(folder, runs_in=folder)
    print(f"Page: {path}")
    if show:
        webbrowser.open(path.resolve().as_uri())
    models = write_models(study, jobs.keys, folder) if save else ()
    return Comparison(runs, report, path, models, made)


def _values(
    name: str,
    split: Split,
    model: Any,
    loss: Any,
    metric: Any,
    times: Any,
    target: Any,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the fields of the study; each object gets a unique name."""
    values: dict[str, Any] = {
        "name": name,
        "data": {
            "kind": "own",
            "source": _register("data", split, _hash_of(split)),
            "clients": split.train.n,
        },
        "model": {"kind": "own", "source": _register("model", model, _mark(model, split, loss))},
        "devices": {"times": times if isinstance(times, str) else _times(times, split.train.n)},
        "training": {},
        "sampling": {},
        "stop": {"rounds": MOST_ROUNDS} | _target(target),
    }
    for what, value in (("loss", loss), ("metric", metric)):
        if value is not None:
            own = (
                value
                if isinstance(value, str)
                else _register(what, value, fingerprint(value) or "")
            )
            values["model"][what] = own
    for setting, value in settings.items():
        if setting not in PLACES:
            hint = nearest(setting, PLACES)
            raise InputError(f"compare takes no argument '{setting}'; {hint}")
        values[PLACES[setting]][setting] = value
    return values


def _seeds(seeds: Any) -> list[int]:
    if isinstance(seeds, Integral) and not isinstance(seeds, bool):
        seeds = range(int(seeds))
    if not isinstance(seeds, Sequence | range) or not all(isinstance(s, Integral) for s in seeds):
        raise InputError(
            f"seeds must be a number or a list of integers, got {short_repr(seeds)}; try 5"
        )
    return [int(each) for each in seeds]


def _target(target: Any) -> dict[str, float]:
    if target is None:
        return {}
    if isinstance(target, Real) and not isinstance(target, bool):
        return {"loss": float(target)}
    if isinstance(target, Mapping) and target and set(target) <= {"loss", "accuracy"}:
        return dict(target)
    raise InputError(
        f"target must be a loss, or {{'accuracy': 0.8}}, got {short_repr(target)}; give a number"
    )


def _times(times: Any, clients: int) -> str:
    seconds = np.asarray(times, dtype=np.float64)
    if seconds.shape != (clients,):
        raise InputError(
            f"times must be a distribution or one number per client, got shape {seconds.shape} for "
            f"{clients} clients; try exponential:1"
        )
    return _register("times", seconds, _digest(seconds))


def _register(what: str, value: Any, mark: str) -> str:
    """Register an object, and return a name for it that changes with the object."""
    called = what if what in ("data", "times") else label(value).partition("(")[0]
    name = f"{GIVEN}{called[:40]}-{mark[:16]}"
    register_objects({name: value})
    return name


def _mark(model: Any, split: Split, loss: Any) -> str:
    """Return a hash of a model: its source, its layers and its initial parameters."""
    made = model_for(model, split.train, loss=loss)
    start = made.initial(np.random.default_rng(0))
    return _digest((fingerprint(model) or "").encode(), str(made.architecture).encode(), start)


def _hash_of(split: Split) -> str:
    return _digest(*(array for part in split for array in (part.x, part.y, part.offsets)))


def _digest(*parts: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype}{part.shape}".encode())
            part = np.ascontiguousarray(part).data
        digest.update(part)
    return digest.hexdigest()
