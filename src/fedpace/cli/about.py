"""The commands `fedpace doctor` and `fedpace schema`."""

from __future__ import annotations

import json
import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

import fedpace
from fedpace.cli import options
from fedpace.errors import InputError
from fedpace.files import write_text

EXTRA = re.compile(r"^([\w.-]+).*extra == ['\"]([\w-]+)['\"]$")
FILE = typer.Argument(help="File to write; standard output without it.")


def doctor_command() -> None:
    """Show versions, installed extras, datasets and cores: put this into a bug report."""
    from rich.markup import escape

    from fedpace.report.tables import new_table, print_tables, printable

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    print(f"fedpace {fedpace.__version__}, in {Path(fedpace.__file__).parent}")
    print(f"Python {platform.python_version()}, {platform.platform()}")
    print(f"{len(os.sched_getaffinity(0))} cores for this process, {memory:.1f} GiB of memory")
    table = new_table("Extras", "extra")
    table.add_column("packages")
    extras = _extras()
    for extra, packages in extras.items():
        own = [name for name in packages if extra == "sim" or name not in extras["sim"]]
        found = [f"{name} {_version(name) or 'missing'}" for name in own]
        missing = any(_version(name) is None for name in own)
        remedy = [f"pip install 'fedpace[{extra}]'"] * missing
        table.add_row(extra, escape(printable(", ".join([*found, *remedy]))))
    print_tables(table)
    if _version("pooch"):
        from fedpace.data.images import POOLS, pool_files

        for name in POOLS:
            try:
                print(f"dataset {name}: {pool_files(name)[0].images.path.parent}")
            except InputError as error:
                print(f"dataset {name}: {printable(str(error))}")


def schema_command(file: Annotated[Path | None, FILE] = None) -> None:
    """Write the JSON schema of a study's TOML, for completion and checks in editors."""
    options.need("sim", "pydantic")
    from fedpace.studies.study import json_schema

    text = json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"
    if file is None:
        print(text, end="")
        return
    write_text(file, text)
    print(f"{file}: written. Put this line first in a study: #:schema ./{file.name}")


def _extras() -> dict[str, list[str]]:
    """Return the packages of each extra, without fedpace itself."""
    found: dict[str, list[str]] = {}
    for requirement in metadata.requires("fedpace") or ():
        if (match := EXTRA.match(requirement)) and match[1] != "fedpace":
            found.setdefault(match[2], []).append(match[1])
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
