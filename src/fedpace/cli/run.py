"""The commands on studies: `fedpace run`, `report`, `live`, `predict` and `field`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from fedpace.cli import options, output
from fedpace.errors import InputError
from fedpace.files import make_folder

if TYPE_CHECKING:
    from fedpace.studies.runner import Failure
    from fedpace.studies.store import StoredRun
    from fedpace.studies.study import Study

# Most reasons of failed runs to print.
REASONS = 5

PROCESSES = options.checked_option(
    "Number of runs at the same time.", options.positive_count, default="one per core"
)
SCHEDULER = typer.Option(help="Run on the Dask cluster with this address: tcp://10.0.0.1:8786.")
SAVE = typer.Option("--save", help="Write the trained models to OUT/models, an .npz file per run.")


def run_command(
    setup: Annotated[str, options.SETUP],
    out: Annotated[Path, options.OUT],
    schemes: Annotated[str, options.CHOSEN] = "all",
    seeds: Annotated[int, options.SEEDS] = 5,
    first_seed: Annotated[int, options.FIRST] = 0,
    overrides: Annotated[list[str] | None, options.OVERRIDES] = None,
    processes: Annotated[int | None, PROCESSES] = None,
    scheduler: Annotated[str | None, SCHEDULER] = None,
    save: Annotated[bool, SAVE] = False,
    live: Annotated[bool, options.LIVE] = False,
    robust: Annotated[bool, options.ROBUST] = False,
    log: Annotated[list[str] | None, options.LOG] = None,
    folder: Annotated[Path | None, options.FOLDER] = None,
) -> None:
    """Run every scheme of a study with every seed. Stored runs are not repeated."""
    options.need("sim", "pydantic", "threadpoolctl")
    from fedpace.samplers.build import resolve
    from fedpace.studies.build import check_at_hand
    from fedpace.studies.runner import load_studies, run_study, study_jobs, write_models
    from fedpace.studies.store import write_record

    studies = load_studies(setup, options.with_robust(overrides, robust))
    options.look_in(folder)
    if scheduler is None:
        for study in studies:
            check_at_hand(study)
    every = options.every_scheme(any(study.training.asynchronous for study in studies))
    names = options.named_schemes(schemes, resolve, every=every)
    numbers = range(first_seed, first_seed + seeds)
    jobs = [study_jobs(study, names, numbers) for study in studies]
    write_record(out, studies[0], names, numbers)
    failures: list[Failure] = []
    with output.live_page(out, live) as page:
        for at, (study, mine) in enumerate(zip(studies, jobs, strict=True), 1):
            if len(studies) > 1:
                output.say(f"study {at} of {len(studies)}: {study.name}, {_devices(study)}")
            with (
                output.interruptible(out, mine.keys.values()),
                output.study_callbacks(study, out, page, log or ()) as callbacks,
                output.study_progress() as progress,
            ):
                done = run_study(
                    study,
                    names,
                    numbers,
                    out,
                    jobs=mine,
                    save=save,
                    processes=processes,
                    scheduler=scheduler,
                    callbacks=[progress, *callbacks],
                )
            failures += done.failures
            if len(studies) == 1:
                output.print_runs(out, mine.keys.values())
            if save and (written := write_models(study, mine.keys, out)):
                print(f"Models:  {written[0].parent}, one file for each of {len(written)} runs")
    output.print_logs(out, log or ())
    _say_failures(failures)
    output.print_next(out)
    if failures:
        raise typer.Exit(output.FAILED)


def _devices(study: Study) -> str:
    devices = study.devices
    return f"availability {devices.availability}, correlation {devices.correlation:g}"


def _say_failures(failures: Sequence[Failure]) -> None:
    if not failures:
        return
    output.say(f"failed runs: {len(failures)}; the same command tries them again")
    for failure in failures[:REASONS]:
        output.say(str(failure))
    if len(failures) > REASONS:
        output.say(f"and {len(failures) - REASONS} more")


DIRECTORY = typer.Argument(help="Directory of the runs, as given to fedpace run --out.")
OUT = typer.Option(help="Directory for the report.", show_default="that of the runs")
FIGURES = typer.Option("--figures", help="Also draw every chart as PNG and PDF.")


def report_command(
    directory: Annotated[Path, DIRECTORY],
    out: Annotated[Path | None, OUT] = None,
    figures: Annotated[bool, FIGURES] = False,
) -> None:
    """Compare the schemes of a study: a table, and a page with charts for the browser."""
    options.need("sim,report", "pydantic")
    from fedpace.report.report import Report

    report = Report.of(stored_runs(directory), output.say)
    out = make_folder(out or directory, "--out")
    tables = list(report.write_tables(out))
    report.show()
    print(f"Page:    {report.write_page(out, runs_in=directory)}")
    print(f"Tables:  {', '.join(map(str, tables))}")
    for path in report.write_figures(out, output.say) if figures else ():
        print(f"Figure:  {path}")


def live_command(directory: Annotated[Path, DIRECTORY]) -> None:
    """Serve the page of stored runs until Ctrl-C; runs that are added appear by themselves."""
    options.need("sim,report", "pydantic")
    stored_runs(directory)
    with suppress(KeyboardInterrupt), output.live_page(directory, True):
        Event().wait()


def stored_runs(directory: Path) -> list[StoredRun]:
    """Return the runs in a directory; unreadable files are named on standard error."""
    from fedpace.studies.store import Store

    if not directory.is_dir():
        raise InputError(f"{directory}: is not a directory; give the one of fedpace run --out")
    runs = list(Store(directory).runs(lambda message: output.say(f"left out: {message}")))
    if not runs:
        remedy = f"make some: fedpace run simulation-1 --out {directory}"
        raise InputError(f"{directory}: holds no finished runs; {remedy}")
    return runs


SCHEMES = typer.Option("--schemes", help="Names, separated by commas, that train in rounds.")
ASYNCHRONOUSLY = typer.Option(
    "--asynchronous", help="Names, separated by commas, that train asynchronously."
)
TRIALS = options.checked_option(
    "Trials of each scheme: settings of rate, local steps and its own knobs.",
    options.positive_count,
)
TUNING = options.checked_option("Seeds of a trial, from 1000 on.", options.positive_count)
CELLS = typer.Option(help="Directory of the cells. Give the same one again to continue.")
FIRST_TUNING = 1000


def compare_command(
    setup: Annotated[str, options.SETUP],
    out: Annotated[Path, CELLS],
    schemes: Annotated[str, SCHEMES] = "pace,uniform,weighted",
    asynchronous: Annotated[str, ASYNCHRONOUSLY] = "",
    trials: Annotated[int, TRIALS] = 24,
    tuning_seeds: Annotated[int, TUNING] = 1,
    seeds: Annotated[int, options.SEEDS] = 5,
    overrides: Annotated[list[str] | None, options.OVERRIDES] = None,
    processes: Annotated[int | None, PROCESSES] = None,
    scheduler: Annotated[str | None, SCHEDULER] = None,
    folder: Annotated[Path | None, options.FOLDER] = None,
) -> None:
    """Tune every scheme with the same number of trials, then compare the winners on other seeds."""
    options.need("sim,report", "pydantic")
    from fedpace.report.tuning import ASYNCHRONOUS, check_candidates, compare_tuned
    from fedpace.studies.runner import load_studies

    options.look_in(folder)
    names = [name.strip() for name in schemes.split(",") if name.strip()]
    names += [name.strip() + ASYNCHRONOUS for name in asynchronous.split(",") if name.strip()]
    check_candidates(names)
    for study in load_studies(setup, overrides or ()):
        path = compare_tuned(
            study,
            names,
            out,
            tuning_seeds=range(FIRST_TUNING, FIRST_TUNING + tuning_seeds),
            seeds=range(seeds),
            count=trials,
            say=output.say,
            processes=processes,
            scheduler=scheduler,
        )
        print(f"Table:  {path}")


def export_command(
    directory: Annotated[Path, typer.Argument(help="Directory of fedpace field compare --out.")],
) -> None:
    """Write one CSV for each cell: a line per scheme, with paired intervals."""
    options.need("sim,report", "pydantic")
    from fedpace.report.tuning import export

    places = sorted(path.parent for path in directory.glob("*/winners.json"))
    if not places:
        raise InputError(
            f"{directory}: must hold compared cells, got none; make some: fedpace field compare "
            f"field --out {directory}"
        )
    for place in places:
        print(f"Table:  {export(place)}")


if TYPE_CHECKING:
    from fedpace.report.forecast import Forecast
    from fedpace.studies.store import StoredRun

FROM = typer.Argument(
    metavar="FROM",
    help="Directory of runs, as of fedpace run --out, or a history CSV, such as that of Flower.",
)
TARGET = typer.Option(help="Target loss.", show_default="that of the run's study")
SCHEME = typer.Option(help="The scheme whose run is used, of a directory.")
SEED = options.checked_option("The seed whose run is used, of a directory.", options.natural)
ROUNDS = options.checked_option("How many of the first rounds are used.", options.positive_count)
CLIENTS = typer.Option(help="CSV with the weight or samples of each client, for a history CSV.")
SCORE = typer.Option("--score", help="Predict every run of the directory, and compare.")


def predict_command(
    source: Annotated[Path, FROM],
    target: Annotated[float | None, TARGET] = None,
    rounds: Annotated[int, ROUNDS] = 20,
    scheme: Annotated[str, SCHEME] = "uniform",
    seed: Annotated[int, SEED] = 0,
    clients: Annotated[Path | None, CLIENTS] = None,
    score: Annotated[bool, SCORE] = False,
    as_json: Annotated[bool, options.JSON] = False,
) -> None:
    """Predict the time to a target of every scheme from the first rounds of one run."""
    options.need("sim,report", "pydantic")
    from fedpace.report import forecast
    from fedpace.report.tables import new_table, print_tables, printable
    from fedpace.training.history import read_csv

    if source.is_dir():
        runs = stored_runs(source)
        if score:
            _print_scores(runs, scheme, rounds)
            return
        run = next((r for r in runs if (r.scheme, r.seed) == (scheme, seed)), None)
        if run is None:
            made = ", ".join(sorted({f"{r.scheme} with seed {r.seed}" for r in runs}))
            got = f"{scheme} with seed {seed}; there are {made:.200}"
            raise InputError(f"--scheme and --seed must be those of a run, got {got}")
        seen = forecast.seen_of(run, rounds)
        target = _check_target(run.study.stop.loss if target is None else target)
    else:
        target = _check_target(target)
        weights = None
        if clients is not None:
            weights = options.checked_clients(clients, 1, None, None).profile.weights
        seen = forecast.first_rounds(read_csv(source), rounds, weights=weights)
    found = forecast.forecasts(seen, target, forecast.NAMES)
    if as_json:
        print(json.dumps({"target": target, "schemes": [_numbers(each) for each in found]}))
        return
    table = new_table(
        f"Predicted from {seen.losses.size} rounds: seconds to loss {target:g}",
        "scheme", "seconds", "80 % interval", "seconds a round",
    )  # fmt: skip
    for each in found:
        interval = f"{_text(each.low)} to {_text(each.high)}"
        table.add_row(printable(each.scheme), _text(each.seconds), interval,
                      f"{each.round_seconds:.3g}")  # fmt: skip
    print_tables(table)
    print(WARNING)


WARNING = (
    "The interval is that of the curve through the losses and of c = β/α. It knows nothing of "
    "staleness, memory or falling rates: see docs/choose-a-scheme.md for how often it held."
)


def _check_target(target: float | None) -> float:
    if target is None:
        raise InputError("--target must be given where the run has none, got none; give a loss")
    return target


def _numbers(found: Forecast) -> dict[str, object]:
    """Return a forecast for JSON, in which there is no ∞."""
    values = found._asdict()
    return {name: None if value == math.inf else value for name, value in values.items()}


def _text(seconds: float) -> str:
    return f"{seconds:,.0f}" if math.isfinite(seconds) else "never"


def _print_scores(runs: list[StoredRun], scheme: str, rounds: int) -> None:
    """Print how often intervals held, and how often the recommended scheme was the best."""
    import numpy as np

    from fedpace.report.forecast import scores
    from fedpace.report.notes import title_of
    from fedpace.report.setups import setups_of
    from fedpace.report.tables import new_table, print_tables, printable

    every = 0
    for setup in setups_of(runs):
        found = list(scores(setup.runs, scheme, rounds))
        if not found:
            continue
        every += len(found)
        table = new_table(
            printable(f"{title_of(setup.study)}: from {rounds} rounds of {scheme}"),
            "scheme", "runs", "interval held", "predicted / took",
        )  # fmt: skip
        for name in dict.fromkeys(each.scheme for each in found):
            mine = [each for each in found if each.scheme == name]
            held = sum(each.found.low <= each.took <= each.found.high for each in mine)
            ratio = np.median([each.found.seconds / each.took for each in mine])
            table.add_row(printable(name), str(len(mine)), f"{held} of {len(mine)}", f"{ratio:.2f}")
        print_tables(table)
        by_seed = {each.seed: (each.recommended, each.best) for each in found}
        took = {(each.seed, each.scheme): each.took for each in found}
        right = sum(one == other for one, other in by_seed.values())
        lost = [took[s, one] / took[s, other] for s, (one, other) in by_seed.items()]
        print(
            f"The scheme predicted to be soonest was the best in {right} of {len(by_seed)} seeds, "
            f"and took {np.mean(lost):.2f} times as long as the best on average."
        )
    if not every:
        got = f"none with another scheme beside {scheme} and a target loss"
        raise InputError(f"the directory must hold runs to compare with, got {got}; make some")
