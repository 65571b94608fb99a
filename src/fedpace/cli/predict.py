"""The command `fedpace predict`: the time of each scheme from the first rounds of one run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from fedpace.checks import positive_count
from fedpace.cli import options
from fedpace.cli.run import stored_runs
from fedpace.errors import InputError

if TYPE_CHECKING:
    from fedpace.report.forecast import Forecast
    from fedpace.studies.store import StoredRun

FROM = typer.Argument(
    metavar="FROM",
    help="Directory of runs, as of fedpace run --out, or a history CSV, such as that of Flower.",
)
TARGET = typer.Option(help="Target loss.", show_default="that of the run's study")
SCHEME = typer.Option(help="The scheme whose run is used, of a directory.")
SEED = options.checked("The seed whose run is used, of a directory.", options.natural)
ROUNDS = options.checked("How many of the first rounds are used.", positive_count)
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
        target = _known(run.study.stop.loss if target is None else target)
    else:
        target = _known(target)
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


def _known(target: float | None) -> float:
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
