"""The command line: reads arguments, calls the library, prints."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import fedpace
from fedpace.checks import positive_count
from fedpace.cli_data import data_app
from fedpace.cli_lab import lab_app
from fedpace.cli_report import report_command
from fedpace.cli_run import run_command
from fedpace.clients_file import Clients, read_clients, write_example, write_probabilities
from fedpace.errors import InputError, MissingExtraError
from fedpace.files import writable, write_text
from fedpace.profile import Profile
from fedpace.sampling.design import Design, WithReplacement
from fedpace.sampling.max_time import solve_max_time
from fedpace.sampling.plan import (
    Prediction,
    plan,
    predict,
    uniform_cost,
    usual_ks,
)
from fedpace.sampling.schemes import SCHEMES, scheme_named
from fedpace.sampling.solution import Solution

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Choose which clients to draw, and reach a federated-learning target sooner.",
    epilog="Start with:  fedpace example clients.csv  &&  fedpace solve clients.csv -k 10",
)

app.command(
    "run",
    epilog="Example:  fedpace run simulation-1 --schemes uniform,optimal-mean --seeds 2 --out runs",
)(run_command)
app.command("report", epilog="Example:  fedpace report runs")(report_command)
app.add_typer(data_app, name="data")
app.add_typer(lab_app, name="lab")

CLIENTS = typer.Argument(
    help="CSV with columns samples (or weight), time in seconds, grad_norm; optionally client.",
    show_default=False,
)
RATIO = typer.Option(
    "--beta-over-alpha",
    help="c = β/α of the convergence bound.",
    show_default="(Σ p·G)²",
)
CAP = typer.Option(
    "--max-weight",
    help="Cap on the weight p/(Kq) of one draw; 1 keeps training stable.",
    show_default="no cap",
)
JSON = typer.Option("--json", help="Print one JSON object instead of tables.")
# A weight above this lets one draw move the model by more than the client's whole update.
RISKY_WEIGHT = 1.0
# A file of a few hundred megabytes.
MOST_EXAMPLE_CLIENTS = 10_000_000


def _print_version(wanted: bool) -> None:
    if wanted:
        print(fedpace.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


@app.command("example", epilog="Example:  fedpace example clients.csv --clients 1000")
def example_command(
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    clients: Annotated[int, typer.Option(help="How many clients.")] = 100,
    seed: Annotated[int, typer.Option(help="Same seed, same file.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a realistic clients file to try the other commands on."""
    positive_count("--clients", clients, "give a number of clients", MOST_EXAMPLE_CLIENTS)
    if seed < 0:
        raise InputError(f"--seed must be at least 0, got {seed}; give 0, 1, 2, …")
    if writable(file).exists() and not force:
        raise InputError(f"{file}: is there already; choose another name or add --force")
    write_example(file, clients, np.random.default_rng(seed))
    print(f"{file}: {clients:,} clients. Next: fedpace solve {file} -k 10")


@app.command("solve", epilog="Example:  fedpace solve clients.csv -k 10 --max-weight 1 -o q.csv")
def solve_command(
    file: Annotated[Path, CLIENTS],
    k: Annotated[int, typer.Option("-k", help="Clients drawn per round, K.")] = 10,
    scheme: Annotated[str, typer.Option(help=f"One of: {', '.join(SCHEMES)}.")] = "optimal-max",
    beta_over_alpha: Annotated[float | None, RATIO] = None,
    max_weight: Annotated[float | None, CAP] = None,
    certify: Annotated[
        bool, typer.Option("--certify", help="Bound optimal-max's distance to the global optimum.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the probabilities to this CSV.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw probabilities against time: .png, .pdf or .svg.")
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Find the probabilities that reach the target soonest, and compare all schemes."""
    scheme_named(scheme)
    if scheme == "full" and (output or plot):
        raise InputError("scheme 'full' draws everyone: it has no probabilities; choose another")
    if certify and scheme != "optimal-max":
        raise InputError("--certify is for the scheme 'optimal-max'; choose it or leave it out")
    clients = _checked_clients(file, k, beta_over_alpha, max_weight, output, plot)
    rows = list(_with_progress(clients, k, [k], max_weight, quiet=as_json))
    design = next(row.design for row in rows if row.scheme == scheme)
    if certify:
        design, rows = _certified(clients, rows, k, max_weight)
    if isinstance(design, WithReplacement):
        if output:
            write_probabilities(output, clients.names, design.q, clients.profile.weights, k)
        if plot:
            _plot_probabilities(clients, design, scheme, plot)
    if as_json:
        _print_json(_solve_record(clients, rows, design, scheme, k))
    else:
        _print_solve(clients, rows, design, scheme, k)
        _print_written(output, plot)


@app.command("plan", epilog="Example:  fedpace plan clients.csv -k 10 --max-weight 1")
def plan_command(
    file: Annotated[Path, CLIENTS],
    k: Annotated[int, typer.Option("-k", help="The K in use now, at which c is known.")] = 10,
    ks: Annotated[
        str | None,
        typer.Option("--ks", help="Values of K to compare.", show_default="1,2,5,10,… up to N"),
    ] = None,
    beta_over_alpha: Annotated[float | None, RATIO] = None,
    max_weight: Annotated[float | None, CAP] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the table to this CSV.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw predicted time against K: .png, .pdf or .svg.")
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Compare all schemes over the number of clients per round, and find the best."""
    wanted = None if ks is None else _parsed_ks(ks)
    clients = _checked_clients(file, k, beta_over_alpha, max_weight, output, plot)
    wanted = wanted or usual_ks(clients.profile.n, k)
    rows = list(_with_progress(clients, k, wanted, max_weight, quiet=as_json))
    best = min(rows, key=lambda row: row.relative_time)
    if output:
        write_text(output, _plan_csv(rows))
    if plot:
        from fedpace.report.figures import plan_figure, save

        save(plan_figure(rows, k=k), plot)
    if as_json:
        _print_json({"k": k, "best": _row_record(best), "rows": [_row_record(r) for r in rows]})
        return
    from fedpace.report.tables import plan_tables, print_tables

    print_tables(*plan_tables(rows, k=k))
    with_k = "" if best.scheme == "full" else f" with K = {best.k:,}"
    print(
        f"Best (*): {best.scheme}{with_k}, "
        f"{best.relative_time:.3g} of the time of uniform with K = {k:,}."
    )
    _print_written(output, plot)


def main() -> None:
    """Run the command line; bad input is one line on standard error and status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Greek letters
    try:
        status = app(prog_name="fedpace", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except (InputError, MissingExtraError) as error:
        _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(
            f"{error.filename or 'standard output'}: {error.strerror}; make room or choose another"
        )
    except Exception as error:
        # Typer's usage errors: from the package click in some versions, from Typer in others.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        _fail(message())
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str) -> NoReturn:
    """Print one line, of printable characters, and end with status 2."""
    line = "".join(each if each.isprintable() else " " for each in " ".join(message.split()))
    if line:  # empty where the help has said it all
        print(f"fedpace: {line}", file=sys.stderr)
    sys.exit(2)


def _with_progress(
    clients: Clients, k: int, ks: list[int], max_weight: float | None, *, quiet: bool
) -> Iterator[Prediction]:
    """Predict every scheme for every K, with the time left on standard error."""
    rows = plan(clients.profile, k, ks=ks, max_weight=max_weight)
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    ) as progress:
        task = progress.add_task("schemes × K", total=len(ks) * len(SCHEMES))
        for row in rows:
            progress.advance(task)
            yield row


def _certified(
    clients: Clients, rows: list[Prediction], k: int, max_weight: float | None
) -> tuple[Design, list[Prediction]]:
    """Solve optimal-max with the certificate, and put it in the place of the uncertified."""
    certified = partial(solve_max_time, certified=True)
    profile = clients.profile
    arrays = (profile.weights, profile.times, profile.grad_norms)
    solution = certified(*arrays, profile.beta_over_alpha, k, max_weight)
    design = WithReplacement(solution.q, k, profile.weights, solution=solution)
    row = predict(profile, "optimal-max", design, k, reference=uniform_cost(profile, k))
    return design, [row if each.scheme == row.scheme else each for each in rows]


def _checked_clients(
    file: Path,
    k: int,
    beta_over_alpha: float | None,
    max_weight: float | None,
    output: Path | None,
    plot: Path | None,
) -> Clients:
    """Check the options before the file is read, and read it."""
    positive_count("-k", k)
    if beta_over_alpha is not None and not 0 <= beta_over_alpha < math.inf:
        raise InputError(
            f"--beta-over-alpha must be finite and at least 0, got {beta_over_alpha:g}; "
            "leave it out for the default (Σ p·G)²"
        )
    if max_weight is not None and not max_weight >= (1 - 1e-12) / k:
        raise InputError(
            f"--max-weight must be at least 1/K = {1 / k:g}, got {max_weight:g}; "
            "the weights of K draws sum to 1 on average"
        )
    _check_outputs(file, output, plot)
    clients = read_clients(file)
    if beta_over_alpha is None:
        return clients
    profile = clients.profile
    try:
        ratio = Profile(profile.weights, profile.times, profile.grad_norms, beta_over_alpha)
    except InputError as error:
        raise InputError(str(error).replace("beta_over_alpha", "--beta-over-alpha")) from None
    return clients._replace(profile=ratio)


def _check_outputs(file: Path, output: Path | None, plot: Path | None) -> None:
    """Refuse what cannot be written, and what would overwrite the input or each other."""
    taken = [file.resolve()]
    for option, path in (("-o", output), ("--plot", plot)):
        if path is None:
            continue
        if writable(path).resolve() in taken:
            raise InputError(
                f"{option} {path}: this command uses that file already; choose another"
            )
        taken.append(path.resolve())
    if plot is not None:
        from fedpace.report.figures import check_picture

        check_picture(plot)


def _parsed_ks(text: str) -> list[int]:
    try:
        remedy = "write 5,10,20"
        return sorted({positive_count("--ks", int(part), remedy) for part in text.split(",")})
    except InputError:
        raise
    except ValueError:
        raise InputError(f"--ks must be integers, got '{text}'; write 5,10,20") from None


def _print_solve(
    clients: Clients, rows: list[Prediction], design: Design, scheme: str, k: int
) -> None:
    from fedpace.report.tables import clients_table, print_tables, schemes_table

    print_tables(schemes_table(rows, k=k))
    if not isinstance(design, WithReplacement):
        return
    print_tables(clients_table(clients, design, scheme=scheme, show=5))
    if design.solution is not None:
        print(_how_sure(design.solution))
    if design.largest_weight > RISKY_WEIGHT * (1 + 1e-9):  # a cap of 1 is met up to rounding
        print(
            f"Note: the largest weight is {design.largest_weight:.3g}; above 1 a single draw can "
            "throw training off. --max-weight 1 prevents it."
        )


def _how_sure(solution: Solution) -> str:
    return (
        f"{solution.status} after {solution.iterations} iterations, residual "
        f"{solution.residual:.1e}, at most {100 * solution.gap:,.1f} % above the global optimum"
    )


def _plot_probabilities(clients: Clients, design: WithReplacement, scheme: str, path: Path) -> None:
    from fedpace.report.figures import probabilities_figure, save

    save(probabilities_figure(clients.profile, design.q, scheme=scheme, k=design.k), path)


def _print_written(*paths: Path | None) -> None:
    for path in filter(None, paths):
        print(f"Written: {path}")


def _row_record(row: Prediction) -> dict[str, Any]:
    record = row._asdict()
    del record["design"]
    return record


def _solve_record(
    clients: Clients, rows: list[Prediction], design: Design, scheme: str, k: int
) -> dict[str, Any]:
    record: dict[str, Any] = {
        "k": k,
        "scheme": scheme,
        "beta_over_alpha": clients.profile.beta_over_alpha,
        "schemes": [_row_record(row) for row in rows],
    }
    if isinstance(design, WithReplacement):
        if design.solution is not None:
            fields = ("objective", "status", "iterations", "residual", "gap")
            record["solution"] = {name: getattr(design.solution, name) for name in fields}
        record["clients"] = list(clients.names)
        record["q"] = design.q.tolist()
    return record


def _print_json(record: dict[str, Any]) -> None:
    print(json.dumps(record))


def _plan_csv(rows: Iterable[Prediction]) -> str:
    records = [_row_record(row) for row in rows]
    lines = [",".join(records[0]), *(",".join(map(str, each.values())) for each in records)]
    return "\n".join(lines) + "\n"
