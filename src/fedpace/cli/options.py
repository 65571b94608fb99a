"""What commands take: shared options, each with its check, and the packages they need."""

import math
import sys
from collections.abc import Callable, Iterable
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer

from fedpace.checks import positive_count
from fedpace.clients_file import Clients, read_clients
from fedpace.errors import InputError, MissingExtraError, listed
from fedpace.estimation.no_barrier import PUBLISHED
from fedpace.estimation.policy import OURS, WITHOUT_BARRIER
from fedpace.files import writable
from fedpace.profile import finite_ratio
from fedpace.rivals import RIVALS
from fedpace.sampling.schemes import SCHEMES, scheme_named
from fedpace.sampling.solution import check_cap


def checked(
    text: str, check: Callable[[str, Any], Any], *names: str, default: bool | str = True
) -> Any:
    """Return an option whose value, if any, passes a check: (option's name, value) → value."""

    def callback(option: typer.CallbackParam, value: Any) -> Any:
        return None if value is None else check(option.opts[0], value)

    return typer.Option(*names, help=text, show_default=default, callback=callback)


def natural(name: str, value: int) -> int:
    """Return an integer of at least 0."""
    if value < 0:
        raise InputError(f"{name} must be at least 0, got {value}; give 0, 1, 2, …")
    return value


def positive(name: str, value: float) -> float:
    """Return a positive and finite number."""
    if not 0 < value < math.inf:
        remedy = "give a number above 0, or leave it out"
        raise InputError(f"{name} must be positive and finite, got {value:g}; {remedy}")
    return value


def csv_file(what: str) -> Any:
    """Return the option -o, which writes a table."""
    text = f"Write {what} to this CSV file."
    return checked(text, lambda _, path: writable(path), "-o", "--output")


def picture(what: str) -> Any:
    """Return an option that draws a figure."""

    def check(_: str, path: Path) -> Path:
        from fedpace.report.figures import check_picture

        check_picture(writable(path))
        return path

    return checked(f"Draw {what}: a .png, .pdf or .svg file.", check)


def _choice(names: Iterable[str], more: str = "") -> str:
    return f"all, or separated by commas: {', '.join(names)}{more}, or your own file.py:name."


# Options of several commands.

CLIENTS = typer.Argument(
    help="CSV file, one row per client: samples (or weight), time in seconds, grad_norm, and "
    "optionally client, its name."
)
RATIO = checked(
    "c = β/α of the convergence bound.", finite_ratio, "--beta-over-alpha", default="(Σ p·G)²"
)
CAP = typer.Option(
    "--max-weight",
    help="Highest weight p/(Kq) that one draw may have; 1 keeps training stable.",
    show_default="no limit",
)
JSON = typer.Option("--json", help="Print one JSON object instead of tables.")
# The setups that come with fedpace, by the names of their files: no study is loaded for it.
_SETUPS = resources.files("fedpace.studies") / "setups"
SETUP_NAMES = sorted(each.name.removesuffix(".toml") for each in _SETUPS.iterdir())
SETUP = typer.Argument(
    help=f"A setup: {', '.join(SETUP_NAMES)}, or a .toml file of your own; in `run` also field, a "
    "grid of them."
)
OVERRIDES = typer.Option(
    "--set",
    metavar="SECTION.FIELD=VALUE",
    help="Change a field of the setup: training.k=5, data.seed=3, stop.loss=none. Can be repeated.",
)
FOLDER = typer.Option(
    "--data",
    metavar="DIR",
    help="Folder with the datasets; or set FEDPACE_DATA.",
    show_default="the user's cache folder",
)
OUT = typer.Option(help="Directory for the runs. Give the same one again to continue.")
COMPARED = typer.Option("--schemes", help=_choice(SCHEMES))
TRAINED = (*SCHEMES, *OURS)
OTHERS = f"; those of other papers, together rivals: {', '.join(RIVALS)}"
CHOSEN = typer.Option("--schemes", help=_choice((*TRAINED, *PUBLISHED), OTHERS))
SEEDS = checked("Number of seeds, N: runs of each scheme.", positive_count, "--seeds")
FIRST = checked("First seed; runs use FIRST … FIRST + N − 1.", natural, "--first-seed")
STATE = typer.Option(
    "--state",
    metavar="DIR",
    help="Folder where labs are recorded.",
    show_default="the user's state folder",
)


LIVE = typer.Option(
    "--live",
    help="Serve the report's page on this machine while runs are done: it grows round by round.",
)
LOG = typer.Option(
    "--log",
    metavar="NAME",
    help="Write every round to OUT/logs/NAME: tensorboard, mlflow or wandb (offline). Can be "
    "repeated.",
)


# What the values of options mean.


def trained(asynchronous: bool) -> tuple[str, ...]:
    """Return the names that "all" stands for where models are trained, in rounds or without."""
    return WITHOUT_BARRIER if asynchronous else TRAINED


def named_schemes(
    text: str,
    look_up: Callable[..., object] = scheme_named,
    *,
    every: Iterable[str] = tuple(SCHEMES),
) -> list[str]:
    """Return the names of a list with commas; "all" stands for `every`, "rivals" for those.

    Each name is looked up, also those of the user's own: see `fedpace.lookup.found`.

    >>> named_schemes("uniform, optimal-mean")
    ['uniform', 'optimal-mean']
    """
    names: list[str] = []
    for name in map(str.strip, text.split(",")):
        names += {"all": every, "rivals": RIVALS}.get(name, [name])
    for name in names:
        look_up(name, argument="--schemes")
    return list(dict.fromkeys(names))


def checked_clients(
    file: Path,
    k: int,
    beta_over_alpha: float | None,
    max_weight: float | None,
    *outputs: Path | None,
) -> Clients:
    """Read the clients file, after all checks that do not need it."""
    if max_weight is not None:
        check_cap("--max-weight", max_weight, k)
    taken = {file.resolve()}
    for path in filter(None, outputs):
        if path.resolve() in taken:
            remedy = "choose another -o or --plot"
            raise InputError(f"{path}: this command already uses that file; {remedy}")
        taken.add(path.resolve())
    clients = read_clients(file)
    if beta_over_alpha is None:
        return clients
    profile = clients.profile.with_ratio(beta_over_alpha, "--beta-over-alpha")
    return clients._replace(profile=profile)


def need(extra: str, *packages: str) -> None:
    """Say which extra to install where a package is missing."""
    if missing := [each for each in packages if not _is_installed(each)]:
        raise MissingExtraError(
            f"this command needs {listed(missing)}; install with: pip install 'fedpace[{extra}]'"
        )


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # nor is the package that it would be in
        return False


def need_lab() -> None:
    """Say what a lab needs that is not here."""
    if not sys.platform.startswith("linux"):
        raise InputError(
            f"a lab must be on Linux, got {sys.platform}; run it there, or join devices by hand"
        )
    need("lab", "pydantic", "threadpoolctl", "cryptography", "grpc", "google.protobuf")
