"""Options that several commands share, with their checks.

NumPy is imported where it is used, so that `--help` does without it.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedpace.errors import InputError, MissingExtraError, join_names
from fedpace.files import writable
from fedpace.registry import (
    ASYNCHRONOUS,
    METHODS,
    RIVAL,
    SAMPLER,
    SCHEME,
    SYNCHRONOUS,
    method_names,
)

if TYPE_CHECKING:
    from fedpace.clients_file import Clients


def checked_option(
    text: str, check: Callable[[str, Any], Any], *names: str, default: bool | str = True
) -> Any:
    """Return an option whose value, if any, is checked: (name of the option, value) → value."""

    def callback(option: typer.CallbackParam, value: Any) -> Any:
        return None if value is None else check(option.opts[0], value)

    return typer.Option(*names, help=text, show_default=default, callback=callback)


def positive_count(name: str, value: int, *remedy_and_most: Any) -> int:
    """Return an integer of at least 1: see `fedpace.checks.positive_count`."""
    from fedpace.checks import positive_count

    return positive_count(name, value, *remedy_and_most)


def _ratio(name: str, value: float) -> float:
    from fedpace.profile import finite_ratio

    return finite_ratio(name, value)


def look_in(folder: Path | None) -> None:
    """Search a folder first for datasets, in this process and in those it starts."""
    if folder is None:
        return
    from fedpace.data.datasets import VARIABLE

    if not folder.is_dir():
        raise InputError(f"--data must be a directory, got '{folder}'; give the one with the files")
    os.environ[VARIABLE] = str(folder)


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
    """Return the option -o, a CSV file to write."""
    text = f"Write {what} to this CSV file."
    return checked_option(text, lambda _, path: writable(path), "-o", "--output")


def picture(what: str) -> Any:
    """Return an option for a figure."""

    def check(_: str, path: Path) -> Path:
        writable(path)  # before the import, which takes a second
        from fedpace.report.charts import check_picture

        check_picture(path)
        return path

    return checked_option(f"Draw {what}: a .png, .pdf or .svg file.", check)


def _choice(names: Iterable[str], more: str = "") -> str:
    return f"all, or separated by commas: {', '.join(names)}{more}, or your own file.py:name."


# Options of several commands.

CLIENTS = typer.Argument(
    help="CSV file, one row per client: samples (or weight), time in seconds, grad_norm, and "
    "optionally client, its name."
)
RATIO = checked_option(
    "c = β/α of the convergence bound.", _ratio, "--beta-over-alpha", default="(Σ p·G)²"
)
CAP = typer.Option(
    "--max-weight",
    help="Highest weight p/(Kq) that one draw may have; 1 keeps training stable.",
    show_default="no limit",
)
JSON = typer.Option("--json", help="Print one JSON object instead of tables.")
# From the names of files, without loading a study.
_SETUPS = resources.files("fedpace.studies") / "setups"
SETUP_NAMES = sorted(each.name.removesuffix(".toml") for each in _SETUPS.iterdir())
SETUP = typer.Argument(
    help=f"Setup: {', '.join(SETUP_NAMES)}, or your own .toml file; for `run` also field, a grid "
    "of setups."
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
SCHEMES = tuple(method_names(SCHEME))
COMPARED = typer.Option("--schemes", help=_choice(SCHEMES))
TRAINED = tuple(method_names(SCHEME, SAMPLER))
RIVALS = method_names(RIVAL, mode=SYNCHRONOUS)
OTHERS = f"; rivals, or some of them: {', '.join(method_names(RIVAL))}"
CHOSEN = typer.Option("--schemes", help=_choice(TRAINED, OTHERS))
SEEDS = checked_option("Number of seeds, N: runs of each scheme.", positive_count, "--seeds")
FIRST = checked_option("First seed; runs use FIRST … FIRST + N − 1.", natural, "--first-seed")
STATE = typer.Option(
    "--state",
    metavar="DIR",
    help="Folder where labs are recorded.",
    show_default="the user's state folder",
)


ROBUST = typer.Option(
    "--robust",
    help="Limit updates that are unusually long: the same as --set training.server=clip:2. For "
    "clients that may send wrong updates.",
)
LIVE = typer.Option(
    "--live", help="Serve the report on this machine during the runs; it is updated round by round."
)
LOG = typer.Option(
    "--log",
    metavar="NAME",
    help="Write every round to OUT/logs/NAME: tensorboard, mlflow or wandb (offline). Can be "
    "repeated.",
)


def with_robust(overrides: list[str] | None, robust: bool) -> list[str]:
    """Return the overrides with that of `--robust`."""
    return [*(overrides or ()), *["training.server=clip:2"] * robust]


def every_scheme(asynchronous: bool) -> tuple[str, ...]:
    """Return the schemes that "all" stands for in a mode of training."""
    return tuple(method_names(mode=ASYNCHRONOUS)) if asynchronous else TRAINED


def check_scheme(name: str, *, argument: str) -> None:
    """Refuse a name that is not a scheme; methods that learn during training need a run."""
    if name in METHODS and name not in SCHEMES:
        raise InputError(
            f"{argument} must be a scheme that needs no training, got '{name}', which learns "
            f"during training; use optimal-max here, or: fedpace run simulation-1 "
            f"--schemes {name} --out runs"
        )
    from fedpace.sampling.schemes import scheme_named

    scheme_named(name, argument=argument)


def named_schemes(
    text: str,
    look_up: Callable[..., object] = check_scheme,
    *,
    every: Iterable[str] = SCHEMES,
) -> list[str]:
    """Return the names of a list with commas, where "all" stands for `every`.

    Each name is looked up: see `fedpace.lookup.found`.

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
    """Read the clients file, after the checks that do not need it."""
    from fedpace.clients_file import read_clients
    from fedpace.sampling.solvers.solution import check_cap

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
    """Refuse a command whose packages are missing."""
    if missing := [each for each in packages if not _is_installed(each)]:
        remedy = f"install with: pip install 'fedpace[{extra}]'"
        raise MissingExtraError(f"this command needs {join_names(missing)}; {remedy}")


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of the parent package
        return False


def need_lab() -> None:
    """Refuse lab commands on other systems than Linux, or without their packages."""
    if not sys.platform.startswith("linux"):
        raise InputError(
            f"a lab must be on Linux, got {sys.platform}; run it there, or join devices by hand"
        )
    need("lab", "pydantic", "threadpoolctl", "cryptography", "grpc", "google.protobuf")
