"""How to run a setup again: the commands, and the configuration as a TOML file."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

from fedpace.registry import ASYNCHRONOUS, SAMPLER, SCHEME, method_names
from fedpace.report.setups import Setup, flat, plain_name
from fedpace.studies.store import NAMES, StoredRun
from fedpace.studies.study import Study, load_study, setups

# What is said instead of a command.
NO_COMMAND = (
    "These runs were made in a Flower federation: run its ServerApp again, with the configuration "
    "below."
)
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def command(setup: Setup, *, file: str, out: str) -> str:
    """Return the command that makes these runs, from the setup's name or else from `file`.

    Runs of another mode need a command of their own. Measured runs need devices first: the line
    before starts a lab of them. A Flower federation is not started from here: its command is empty,
    see NO_COMMAND.
    """
    modes: dict[str, list[StoredRun]] = {}
    for run in sorted(setup.runs, key=lambda run: setup.schemes.index(run.scheme)):
        modes.setdefault(run.study.training.model_dump_json(), []).append(run)
    lines = [_command(runs, file=file, out=out) for runs in modes.values()]
    return "\n".join(dict.fromkeys(line for text in lines for line in text.splitlines()))


def _command(runs: Sequence[StoredRun], *, file: str, out: str) -> str:
    study = runs[0].study
    network = study.network
    known = study.name in setups()
    source = study.name if known else file
    changes = [word for each in overrides(study) for word in ("--set", each)] if known else []
    if network is None:
        return shlex.join(["fedpace", "run", source, *_which(runs), *changes, "--out", out])
    if network.how == "flower":
        return ""
    run = ["fedpace", "lab", "run", source, *_which(runs), *changes]
    run += ["--evaluate-every", str(network.evaluate_every)]
    if network.deadline is not None:
        run += ["--deadline", repr(network.deadline)]
    if network.how == "devices":
        # Where and with which certificates is not known here.
        run += ["--listen", "HOST:PORT", "--devices", str(runs[0].profile.n)]
        return shlex.join([*run, "--certs", "DIR", "--out", out])
    up = ["fedpace", "lab", "up", "--setup", source, *changes]
    up += ["--time-scale", repr(network.time_scale)]
    up += ["--paced"] * (network.how == "paced")
    return f"{shlex.join(up)}\n{shlex.join([*run, '--out', out])}"


def _which(runs: Sequence[StoredRun]) -> list[str]:
    seeds = [run.seed for run in runs]
    first, last = min(seeds), max(seeds)
    names = list(dict.fromkeys(plain_name(run.scheme) for run in runs))
    every = (
        method_names(mode=ASYNCHRONOUS)
        if runs[0].study.training.asynchronous
        else method_names(SCHEME, SAMPLER)
    )
    schemes = "all" if names == every else ",".join(names)
    words = ["--schemes", schemes, "--seeds", str(last - first + 1)]
    return [*words, "--first-seed", str(first)] if first else words


def overrides(study: Study) -> list[str]:
    """Return what has to be set to get this study from the setup of its name.

    How it was measured is none of it: `fedpace lab` has options for that.

    >>> overrides(load_study("simulation-1", ["training.k=5", "sampling.max_weight=none"]))
    ['training.k=5', 'sampling.max_weight=none']
    """
    mine, theirs = (
        flat(each.model_dump(mode="json", exclude=NAMES | {"network"}))
        for each in (study, load_study(study.name))
    )
    # Other kinds of data have other fields: those that are no longer there are taken away.
    mine |= dict.fromkeys(theirs.keys() - mine.keys())
    return [
        f"{name}={'none' if value is None else json.dumps(value)}"
        for name, value in mine.items()
        if theirs.get(name) != value
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
