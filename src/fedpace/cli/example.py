"""The command `fedpace example`: a clients file to start from."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fedpace.checks import positive_count
from fedpace.cli import options
from fedpace.clients_file import write_example
from fedpace.errors import InputError
from fedpace.files import writable

# A file of a few hundred megabytes.
MOST_CLIENTS = 10_000_000

CLIENTS = options.checked(
    "Number of clients.",
    lambda name, value: positive_count(name, value, f"give 1 to {MOST_CLIENTS:,}", MOST_CLIENTS),
)
SEED = options.checked("Random seed; the same seed writes the same file.", options.natural)


def example_command(
    file: Annotated[Path, typer.Argument(help="File to write.")],
    clients: Annotated[int, CLIENTS] = 100,
    seed: Annotated[int, SEED] = 0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write an example clients file, to try the other commands on."""
    if writable(file).exists() and not force:
        raise InputError(f"{file}: already exists; choose another name or add --force")
    write_example(file, clients, np.random.default_rng(seed))
    print(f"{file}: {clients:,} clients. Next: fedpace solve {file} -k 10")
