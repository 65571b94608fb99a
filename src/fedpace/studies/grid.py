"""Grids: several setups, each with several settings, run by one command."""

import tomllib
from collections.abc import Iterable
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedpace.errors import InputError
from fedpace.studies.study import Study, check_setup, load_study, setups

GRIDS = resources.files("fedpace.studies") / "grids"


class Grid(BaseModel):
    """Each of the `tasks` with the settings `set` and one of each list in `vary`.

    `tasks` are names of setups; `own` has settings of single tasks, by name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tasks: list[str] = Field(min_length=1)
    set: list[str] = []
    vary: list[list[str]] = []
    own: dict[str, list[str]] = {}

    @model_validator(mode="after")
    def _check_own(self) -> Self:
        if unknown := [task for task in self.own if task not in self.tasks]:
            raise ValueError(f"own must name tasks of the grid, got {unknown[0]!r}")
        return self

    def studies(self, overrides: Iterable[str] = ()) -> list[Study]:
        """Return the studies; the settings of the last list change fastest."""
        given = list(overrides)
        return [
            load_study(task, [*self.set, *self.own.get(task, ()), *chosen, *given])
            for task in self.tasks
            for chosen in product(*self.vary)
        ]


def grids() -> list[str]:
    """Return the names of the grids that come with fedpace."""
    return sorted(Path(each.name).stem for each in GRIDS.iterdir() if each.name.endswith("toml"))


def load_studies(name_or_path: str, overrides: Iterable[str] = ()) -> list[Study]:
    """Return the studies of a grid, or the one of a setup: see `load_study`.

    A grid comes with fedpace, or is a TOML file with `tasks`, names of setups, and optionally
    `set`, `vary` and `own`, settings as for --set. Duplicates are removed.

    >>> [study.name for study in load_studies("simulation-1")]
    ['simulation-1']
    >>> len(load_studies("field"))
    18
    """
    check_setup(name_or_path, [*setups(), *grids()])
    values = _grid_values(name_or_path)
    if values is None:
        return [load_study(name_or_path, overrides)]
    try:
        studies = Grid.model_validate(values).studies(overrides)
    except ValidationError as error:
        first = error.errors()[0]
        field, problem = ".".join(map(str, first["loc"])), first["msg"].lower()
        raise InputError(
            f"{name_or_path}: '{field}': {problem}; a grid has tasks, set, vary and own"
        ) from None
    return [study for at, study in enumerate(studies) if study not in studies[:at]]


def _grid_values(name_or_path: str) -> dict[str, Any] | None:
    """Return the fields of a grid, or None."""
    if name_or_path in grids():
        return tomllib.loads((GRIDS / f"{name_or_path}.toml").read_text(encoding="utf-8"))
    if not name_or_path.endswith(".toml"):
        return None
    try:
        values = tomllib.loads(Path(name_or_path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return None  # `load_study` says what is wrong
    return values if "tasks" in values else None
