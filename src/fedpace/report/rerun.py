"""How to run a setup again: the command, and the configuration as a TOML file."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from fedpace.report.setups import Setup, flat
from fedpace.sampling.schemes import SCHEMES
from fedpace.studies.store import NAMES
from fedpace.studies.study import Study, load_study, setups

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def command(setup: Setup, *, file: str, out: str) -> str:
    """Return the command that makes these runs, from the setup's name or else from `file`."""
    first, last = setup.seeds[0], setup.seeds[-1]
    schemes = "all" if setup.schemes == list(SCHEMES) else ",".join(setup.schemes)
    words = ["fedpace", "run", setup.study.name, "--schemes", schemes]
    words += ["--seeds", str(last - first + 1)]
    if first:
        words += ["--first-seed", str(first)]
    if setup.study.name in setups():
        for override in overrides(setup.study):
            words += ["--set", override]
    else:
        words[2] = file
    return shlex.join([*words, "--out", out])


def overrides(study: Study) -> list[str]:
    """Return what has to be set to get this study from the setup of its name.

    >>> overrides(load_study("simulation-1", ["training.k=5", "sampling.max_weight=none"]))
    ['training.k=5', 'sampling.max_weight=none']
    """
    mine, theirs = (
        flat(each.model_dump(mode="json", exclude=NAMES))
        for each in (study, load_study(study.name))
    )
    return [
        f"{name}={'none' if value is None else json.dumps(value)}"
        for name, value in mine.items()
        if theirs[name] != value
    ]


def toml(study: Study) -> str:
    """Return a study as TOML that reads back as the same study."""
    values = study.model_dump(mode="json")
    sections = {name: value for name, value in values.items() if isinstance(value, dict)}
    lines = _assignments({name: value for name, value in values.items() if name not in sections})
    for name, section in sections.items():
        if section:
            lines += ["", f"[{name}]", *_assignments(section)]
    return "\n".join(lines) + "\n"


def _assignments(values: dict[str, Any]) -> list[str]:
    # A JSON value is a TOML value; what is not set is left out.
    return [
        f"{name if BARE_KEY.fullmatch(name) else json.dumps(name)} = "
        f"{json.dumps(value, ensure_ascii=False)}"
        for name, value in values.items()
        if value is not None
    ]
