"""Compare schemes on a user's own model and data: a study from Python."""

from __future__ import annotations

import hashlib
import sys
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from fedpace.checks import shown
from fedpace.data.shards import Split
from fedpace.errors import InputError, nearest
from fedpace.lookup import GIVEN, fingerprint, give, label
from fedpace.report.live import Live
from fedpace.report.written import Report
from fedpace.rounds.rows import Row
from fedpace.studies.loggers import loggers
from fedpace.studies.own import model_for, split_of
from fedpace.studies.processes import Job
from fedpace.studies.record import write_record
from fedpace.studies.runner import Standing, checked_jobs, run_study
from fedpace.studies.saving import write_models
from fedpace.studies.store import Store, StoredRun, run_key
from fedpace.studies.study import validated
from fedpace.studies.watching import Watchers

# Rounds after which a run ends where nobody says, and has not reached its target.
MOST_ROUNDS = 500
# Settings of a study by the names that they have here.
PLACES = {
    "k": "training.k",
    "local_steps": "training.local_steps",
    "batch": "training.batch",
    "schedule": "training.schedule",
    "optimiser": "training.optimiser",
    "proximal": "training.proximal",
    "weight_decay": "training.weight_decay",
    "clip": "training.clip",
    "server": "training.server",
    "noise": "devices.noise",
    "known": "devices.known",
    "max_weight": "sampling.max_weight",
    "warm_up": "sampling.warm_up",
    "refresh": "sampling.refresh",
    "rounds": "stop.rounds",
    "seconds": "stop.seconds",
    "sustained": "stop.sustained",
}


@dataclass(frozen=True, eq=False)
class Comparison:
    """What came of it: the runs, the numbers, where the page is, and the trained models."""

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
    progress: Callable[[Standing], object] | None = None,
    watch: Callable[[Job, Row], object] | None = None,
    log: Sequence[str] | str = (),
    live: bool = False,
    **settings: Any,
) -> Comparison:
    """Train your model on your clients by several schemes, and report the time to the target.

    Every scheme runs with every seed, on all cores; runs that are stored in `out` are not done
    again, so that the same call goes on after an interruption. It ends in the tables, figures and
    page of `fedpace report`.

    Parameters
    ----------
    model : PyTorch module, scikit-learn estimator, Model, or a function that makes one
        What clients train; see `fedpace.models.adapted.as_model`. With a function, such as a
        module's class, every seed starts from parameters of its own.
    clients : list of (x, y) or (x, y, test x, test y), or a Split
        What each client holds.
    test_share : float
        The share of a pair that is held back for testing: its last rows.
    schemes, seeds : names, and how many seeds or which
        Names as in `fedpace run --schemes`; your own are file.py:name.
    times : str or array of N seconds
        How long a round takes each client: see `fedpace.times.distributions.usual_times`.
    target : float or {"accuracy": share}
        The loss that ends a run, or the accuracy. Without it a run ends after `rounds`.
    out : path
        Where runs and report go.
    loss, metric : str or function, optional
        For PyTorch modules: see `TorchModel`.
    name : str
        What the study is called, in files and on the page.
    processes, scheduler : int, str, optional
        Runs at a time, one per core by default; or the address of a Dask scheduler.
    save, show : bool
        Write the trained models to out/models; open the page in the browser.
    progress : function of a Standing, optional
        Is told how many runs are done; by default a terminal shows it.
    watch : function of a Job and a Row, optional
        Sees every round of every run as soon as it is over: `job.scheme`, `job.seed`, `row.loss`.
    log : names
        Loggers that every round is written to, in out/logs: tensorboard, mlflow, wandb.
    live : bool
        Serve the page on this machine while runs are done, and say where.
    **settings
        k=10, local_steps=50, batch=24, schedule="inverse:0.1", optimiser="sgd", proximal=0,
        weight_decay=0, clip, server="auto", rounds=500, seconds, noise=0, known=True, max_weight,
        warm_up, refresh, sustained: the study's fields of these names.

    Examples
    --------
    ::

        result = fedpace.compare(
            model=Net, clients=[(x0, y0), (x1, y1), …], k=5, schedule="constant:0.05",
            schemes=["uniform", "optimal-mean", "pace"], seeds=5, target=0.5, out="runs",
        )
        result.seconds("pace")
    """
    names = [schemes] if isinstance(schemes, str) else list(schemes)
    numbers = _seeds(seeds)
    split = clients if isinstance(clients, Split) else split_of(clients, test_share=test_share)
    model_for(model, split.train, loss=loss, metric=metric)
    study = validated(_values(name, split, model, loss, metric, times, target, settings), name)
    folder = Path(out)
    jobs = checked_jobs(study, names, numbers)
    write_record(folder, study, names, numbers)
    show_standing = [progress or _told]
    with ExitStack() as stack:
        logs = [log] if isinstance(log, str) else log
        watchers: list[Any] = [
            stack.enter_context(e) for e in loggers(logs, study, folder, warn=_say)
        ]
        if live:
            watchers.append(served := stack.enter_context(Live(folder, _say)))
            served.of(study)
            show_standing.append(served.standing)
            _say(f"live page: {served.url}")
        watcher = Watchers(*watchers, call=[watch] if watch else [])
        done = run_study(
            study, names, numbers, folder, jobs=jobs, processes=processes, scheduler=scheduler,
            save=save, progress=lambda now: [each(now) for each in show_standing], warn=_say,
            watcher=watcher if watchers or watch else None,
        )  # fmt: skip
    for failure in done.failures:
        _say(f"failed: {failure}")
    if not done.stored:
        raise InputError(
            f"no run could be done: {done.failures[0].reason}; mend it, and call again"
        )
    runs = list(Store(folder).runs(_say, keys={run_key(study, *job) for job in jobs}))
    report = Report.of(runs)
    list(report.write_tables(folder))
    report.show()
    report.write_figures(folder)
    page = report.write_page(folder, runs_in=folder)
    print(f"Page: {page}")
    if show:
        webbrowser.open(page.resolve().as_uri())
    return Comparison(runs, report, page, write_models(study, jobs, folder) if save else ())


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
    """Return the fields of the study; objects are given a name that tells them apart."""
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
        section, _, field = PLACES[setting].partition(".")
        values[section][field] = value
    return values


def _seeds(seeds: Any) -> list[int]:
    if isinstance(seeds, Integral) and not isinstance(seeds, bool):
        seeds = range(int(seeds))
    if not isinstance(seeds, Sequence | range) or not all(isinstance(s, Integral) for s in seeds):
        raise InputError(f"seeds must be a number or a list of integers, got {shown(seeds)}; try 5")
    return [int(each) for each in seeds]


def _target(target: Any) -> dict[str, float]:
    if target is None:
        return {}
    if isinstance(target, Real) and not isinstance(target, bool):
        return {"loss": float(target)}
    if isinstance(target, Mapping) and target and set(target) <= {"loss", "accuracy"}:
        return dict(target)
    raise InputError(
        f"target must be a loss, or {{'accuracy': 0.8}}, got {shown(target)}; give a number"
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
    """Let a name stand for an object: what it is called, and a mark that changes with it."""
    called = what if what in ("data", "times") else label(value).partition("(")[0]
    name = f"{GIVEN}{called[:40]}-{mark[:16]}"
    give({name: value})
    return name


def _mark(model: Any, split: Split, loss: Any) -> str:
    """Return a hash of a model: its text, its layers where it shows them, and how it starts."""
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


def _say(message: str) -> None:
    print(f"fedpace: {message}", file=sys.stderr, flush=True)


def _told(now: Standing) -> None:
    if not sys.stderr.isatty():
        return
    left = "" if now.seconds_left is None else f", about {now.seconds_left:.0f} s left"
    print(f"\r{now.done}/{now.total} runs{left}   ", end="", file=sys.stderr, flush=True)
    if now.done == now.total:
        print(file=sys.stderr)
