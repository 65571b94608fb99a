"""The command line: each command reads its options, calls the library and prints."""

import io
import os
import sys
from functools import partial
from typing import Annotated, NoReturn

import typer

import fedpace
from fedpace.cli import about, lab, run, solve
from fedpace.cli.output import INTERRUPTED, REFUSED
from fedpace.errors import InputError, MissingExtraError

_new_group = partial(
    typer.Typer,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app = _new_group(
    add_completion=True,
    help="Choose which clients to draw, and reach a federated-learning target sooner.",
    epilog="Start with:  fedpace example clients.csv  &&  fedpace solve clients.csv -k 10",
)
data_app = _new_group(
    help="Download datasets, and show which client holds what.",
    epilog="Example:  fedpace data show simulation-1 --out holdings.png",
)
lab_app = _new_group(
    help="Run studies on devices, and measure: a lab on this machine, or devices anywhere.",
    epilog="Example:  fedpace lab up --times uniform:0.187:7.159 --time-scale 0.1",
)
field_app = _new_group(
    help="Tune all schemes alike, and compare them cell by cell.",
    epilog="Example:  fedpace field compare field --schemes pace,uniform,weighted --out tuned",
)
app.add_typer(data_app, name="data")
app.add_typer(field_app, name="field")
app.add_typer(lab_app, name="lab")
for _command, _example in (
    (solve.example_command, "example clients.csv --clients 1000"),
    (solve.solve_command, "solve clients.csv -k 10 --max-weight 1 -o q.csv"),
    (solve.plan_command, "plan clients.csv -k 10 --max-weight 1"),
    (run.run_command, "run simulation-1 --schemes uniform,optimal-mean --seeds 2 --out runs"),
    (run.report_command, "report runs"),
    (run.predict_command, "predict runs --rounds 20"),
    (run.live_command, "live runs"),
    (about.doctor_command, "doctor"),
    (about.schema_command, "schema study.schema.json"),
    (
        run.compare_command,
        "field compare simulation-1 --schemes pace,uniform --trials 6 --seeds 3 --out tuned",
    ),
    (run.export_command, "field export tuned"),
    (about.fetch_command, "data fetch mnist"),
    (about.where_command, "data where"),
    (about.show_command, "data show simulation-1 --out holdings.png"),
    (lab.up_command, "lab up --times uniform:0.187:7.159 --time-scale 0.1"),
    (lab.status_command, "lab status --name proto"),
    (lab.run_command, "lab run prototype --schemes uniform,optimal-mean --out runs"),
    (lab.down_command, "lab down --name proto"),
    (lab.certs_command, "lab certs --out certs --devices 40 --server 192.168.1.10"),
    (lab.join_command, "lab join 192.168.1.10:7100 --name device-07 --certs certs"),
):
    _group = {"data": data_app, "field": field_app, "lab": lab_app}.get(_example.split()[0], app)
    _name = _example.split()[0 if _group is app else 1]
    _group.command(_name, epilog=f"Example:  fedpace {_example}")(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(fedpace.__version__)
        raise typer.Exit


VERSION = typer.Option(
    "--version", help="Print the version.", callback=_print_version, is_eager=True
)


@app.callback()
def _options(version: Annotated[bool, VERSION] = False) -> None:
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
    except OSError as error:
        # Let nothing more be written, not by Python's own flush at the end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader, `head` say, has seen enough
            sys.exit(0)
        place = error.filename or "standard output"
        _refuse(f"{place}: {error.strerror}; make room or choose another")
    except Exception as error:
        # Typer's usage errors: from the package click in some versions, from Typer in others.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        _refuse(message())
    sys.exit(status or 0)


def _refuse(message: str) -> NoReturn:
    """Print one line, of printable characters, and end with status 2."""
    line = "".join(each if each.isprintable() else " " for each in " ".join(message.split()))
    if line:  # empty where the help has said it all
        print(f"fedpace: {line}", file=sys.stderr)
    sys.exit(REFUSED)
