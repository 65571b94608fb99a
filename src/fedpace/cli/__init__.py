"""The command line: each command reads its options, calls the library and prints."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

import fedpace
from fedpace.cli.data import fetch_command, show_command, where_command
from fedpace.cli.example import example_command
from fedpace.cli.lab import down_command, status_command, up_command
from fedpace.cli.lab_devices import certs_command, join_command
from fedpace.cli.lab_run import lab_run_command
from fedpace.cli.output import INTERRUPTED, REFUSED
from fedpace.cli.plan import plan_command
from fedpace.cli.report import report_command
from fedpace.cli.run import run_command
from fedpace.cli.solve import solve_command
from fedpace.errors import InputError, MissingExtraError


def _group(text: str, epilog: str) -> typer.Typer:
    return typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        rich_markup_mode="rich",
        help=text,
        epilog=epilog,
    )


def _add(group: typer.Typer, name: str, command: Callable[..., None], example: str) -> None:
    group.command(name, epilog=f"Example:  fedpace {example}")(command)


app = _group(
    "Choose which clients to draw, and reach a federated-learning target sooner.",
    "Start with:  fedpace example clients.csv  &&  fedpace solve clients.csv -k 10",
)
_add(app, "example", example_command, "example clients.csv --clients 1000")
_add(app, "solve", solve_command, "solve clients.csv -k 10 --max-weight 1 -o q.csv")
_add(app, "plan", plan_command, "plan clients.csv -k 10 --max-weight 1")
_add(
    app, "run", run_command, "run simulation-1 --schemes uniform,optimal-mean --seeds 2 --out runs"
)
_add(app, "report", report_command, "report runs")

data_app = _group(
    "Download datasets, and show which client holds what.",
    "Example:  fedpace data show simulation-1 --out holdings.png",
)
app.add_typer(data_app, name="data")
_add(data_app, "fetch", fetch_command, "data fetch mnist")
_add(data_app, "where", where_command, "data where")
_add(data_app, "show", show_command, "data show simulation-1 --out holdings.png")

lab_app = _group(
    "Run studies on devices, and measure: a lab on this machine, or devices anywhere.",
    "Example:  fedpace lab up --times uniform:0.187:7.159 --time-scale 0.1",
)
app.add_typer(lab_app, name="lab")
_add(lab_app, "up", up_command, "lab up --times uniform:0.187:7.159 --time-scale 0.1")
_add(lab_app, "status", status_command, "lab status --name proto")
_add(lab_app, "run", lab_run_command, "lab run prototype --schemes uniform,optimal-mean --out runs")
_add(lab_app, "down", down_command, "lab down --name proto")
_add(lab_app, "certs", certs_command, "lab certs --out certs --devices 40 --server 192.168.1.10")
_add(lab_app, "join", join_command, "lab join 192.168.1.10:7100 --name device-07 --certs certs")


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
        _refuse(str(error))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        _discard_output()
        sys.exit(0)
    except OSError as error:
        _discard_output()
        place = error.filename or "standard output"
        _refuse(f"{place}: {error.strerror}; make room or choose another")
    except Exception as error:
        # Typer's usage errors: from the package click in some versions, from Typer in others.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        _refuse(message())
    sys.exit(status if isinstance(status, int) else 0)


def _discard_output() -> None:
    """Let nothing more be written, not by Python's own flush at the end either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse(message: str) -> NoReturn:
    """Print one line, of printable characters, and end with status 2."""
    line = "".join(each if each.isprintable() else " " for each in " ".join(message.split()))
    if line:  # empty where the help has said it all
        print(f"fedpace: {line}", file=sys.stderr)
    sys.exit(REFUSED)
