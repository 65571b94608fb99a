"""Compare schemes on a user's own model and data: a study from Python."""

from __future__ import annotations

import hashlib
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import numpy as np

from fedpace.checks import short_repr
from fedpace.data.shards import Split
from fedpace.errors import InputError, nearest
from fedpace.lookup import GIVEN, fingerprint, label, register_objects
from fedpace.report.live import Live
from fedpace.report.report import Report
from fedpace.studies.callbacks import ProgressLines
from fedpace.studies.loggers import loggers
from fedpace.studies.own import model_for, split_of
from fedpace.studies.runner import run_study, study_jobs, write_models
from fedpace.studies.store import Store, StoredRun, write_record
from fedpace.studies.study import SECTIONS, validated
from fedpace.training.callbacks import Callback
from fedpace.training.history import Row

# Rounds after which a run ends by default, if it has not reached its target.
MOST_ROUNDS = 500
# Settings and their sections; times and target have arguments of their own.
PLACES = {
    field: name
    for name in ("training", "sampling", "devices", "stop")
    for field in SECTIONS[name].model_fields
    if field not in ("times", "loss", "accuracy")
}


class Settings(TypedDict, total=False):
    """Fields of a study that `compare` takes; see `fedpace.studies.study`."""

    k: int
    take: int
    deadline: float
    local_steps: int
    batch: int
    schedule: str
    weight_decay: float
    clip: float
    optimiser: str
    proximal: float
    server: str
    mode: Literal["synchronous", "asynchronous"]
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


@dataclass(frozen=True, eq=False)
class Comparison:
    """The result of `compare`: runs, report, and the paths of the page and the trained models."""

    runs: Sequence[StoredRun]
    report: Report
    page: Path
    models: Sequence[Path] = ()

    def seconds(self, scheme: str) -> float:
        """Return a scheme's mean seconds to the target; infinite if a run never reached it."""
        rows = {row.scheme: row for row in self.report.summaries[0].rows}
        if scheme not in rows:
            known = ", ".join(rows)
            raise InputError(f"scheme must have been compared, got '{scheme}'; use one of: {known}")
        row = rows[scheme]
        return row.seconds.value if row.reached == row.runs else float("inf")


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
    test_share: float = 0.1,
    name: str = "own",
    processes: int | None = None,
    scheduler: str | None = None,
    save: bool = False,
    show: bool = False,
    callbacks: Sequence[Callback | Callable[[Row], object]] = (),
    log: Sequence[str] | str = (),
    live: bool = False,
    **settings: Unpack[Settings],
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
        Round time of each client: see `fedpace.times.distributions.usual_times`.
    target : float or {"accuracy": share}
        Loss or accuracy that ends a run. Without it a run ends after `rounds`.
    out : path
        Directory for the runs and the report.
    loss, metric : str or function, optional
        For PyTorch modules: see `TorchModel`.
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
        mode="synchronous", rounds=500; see `Settings`.

    Examples
    --------
    ::

        result = fedpace.compare(
            model=Net, clients=[(x0, y0), (x1, y1), …], k=5, schedule="constant:0.05",
            schemes=["uniform", "optimal-mean", "pace"], seeds=5, target=0.5, out="runs",
        )
        result.seconds("pace")
    """
    names = schemes.split(",") if isinstance(schemes, str) else list(schemes)
    names = [each.strip() if isinstance(each, str) else each for each in names]
    numbers = _seeds(seeds)
    split = clients if isinstance(clients, Split) else split_of(clients, test_share=test_share)
    model_for(model, split.train, loss=loss, metric=metric)
    study = validated(_values(name, split, model, loss, metric, times, target, settings), name)
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
    return Comparison(runs, report, path, write_models(study, jobs.keys, folder) if save else ())


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
            "source": _given("data", split, _hash_of(split)),
            "clients": split.train.n,
        },
        "model": {"kind": "own", "source": _given("model", model, _mark(model, split, loss))},
        "devices": {"times": times if isinstance(times, str) else _times(times, split.train.n)},
        "training": {},
        "sampling": {},
        "stop": {"rounds": MOST_ROUNDS} | _target(target),
    }
    for what, value in (("loss", loss), ("metric", metric)):
        if value is not None:
            own = value if isinstance(value, str) else _given(what, value, fingerprint(value) or "")
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
    return _given("times", seconds, _digest(seconds))


def _given(what: str, value: Any, mark: str) -> str:
    """Register an object, and return a name for it that changes with the object."""
    called = what if what in ("data", "times") else label(value).partition("(")[0]
    name = f"{GIVEN}{called[:40]}-{mark[:16]}"
    register_objects({name: value})
    return name


def _mark(model: Any, split: Split, loss: Any) -> str:
    """Return a hash of a model: its source, its layers and its initial parameters."""
    made = model_for(model, split.train, loss=loss)
    start = made.initial(np.random.default_rng(0))
    layers = repr(getattr(made, "_module", ""))
    return _digest((fingerprint(model) or "").encode(), layers.encode(), start)


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
