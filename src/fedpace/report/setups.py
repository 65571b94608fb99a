"""Setups: the runs of one configuration and version, and the commands that repeat them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from fedpace.checks import FloatArray
from fedpace.registry import ASYNCHRONOUS, AUTO, METHODS, SAMPLER, SCHEME, method_names
from fedpace.sampling.schemes import SCHEMES, needs_counts_only
from fedpace.studies.store import NAMES, StoredRun
from fedpace.studies.study import Study, load_study, setups

# Registered methods, in the order of tables and figures.
USUAL = tuple(METHODS)
# Runs that differ in these settings are compared; the names of their schemes show the mode.
MODE = {"training.mode", "training.at_once", "training.buffer"}
MARK, AUTOMATIC = " (asynchronous", " (auto)"
SWEPT = "sampling.c_over_s0"
# How runs were measured, by `network.how`: in few words, for names of files, and on what.
MEASURED = {
    "namespaces": ("in namespaces", "devices in network namespaces"),
    "paced": ("with paced devices", "devices on one machine that keep to their rates"),
    "devices": ("on devices", "real devices"),
    "flower": ("with Flower", "clients of a Flower federation"),
}


@dataclass(frozen=True, eq=False)
class Setup:
    """All runs of a configuration; `label` distinguishes it, `slug` names its files."""

    study: Study
    version: str
    label: str
    slug: str
    runs: tuple[StoredRun, ...]

    @property
    def schemes(self) -> list[str]:
        """The schemes that were run, in the usual order."""
        return sorted({run.scheme for run in self.runs}, key=_place)

    @property
    def seeds(self) -> list[int]:
        """The seeds that were run."""
        return sorted({run.seed for run in self.runs})

    def of(self, scheme: str) -> list[StoredRun]:
        """Return the runs of a scheme, by seed."""
        mine = (run for run in self.runs if run.scheme == scheme)
        return sorted(mine, key=lambda run: run.seed)


@dataclass(frozen=True, eq=False)
class Sweep:
    """Setups that differ in a given c/S_0 only, by c; `base` is the one that estimates c."""

    base: Setup | None
    members: tuple[Setup, ...]

    @property
    def values(self) -> list[float]:
        """The values of c/S_0."""
        return [setup.study.sampling.c_over_s0 or 0.0 for setup in self.members]


def setups_of(runs: Iterable[StoredRun]) -> list[Setup]:
    """Group runs by configuration and version, the one with most runs first.

    Of two files of the same run the first counts.
    """
    groups: dict[str, dict[tuple[str, int], StoredRun]] = {}
    for run in map(_named_by_mode, runs):
        groups.setdefault(_key(_settings(run)), {}).setdefault((run.scheme, run.seed), run)
    largest_first = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    ordered = [tuple(group.values()) for _, group in largest_first]
    kinds = {(group[0].study.name, group[0].study.network is None) for group in ordered}
    firsts: dict[str, StoredRun] = {}
    alike: dict[tuple[str, bool], StoredRun] = {}
    setups: list[Setup] = []
    for group in ordered:
        run, name, simulated = group[0], group[0].study.name, group[0].study.network is None
        first, like = firsts.setdefault(name, run), alike.setdefault((name, simulated), run)
        made = [how_made(run.study)] if (name, not simulated) in kinds else []
        differences = _differences(_but_for_network(first, like), _settings(run))
        label = ", ".join([name, *made, *differences])
        slug = _slug(label, {setup.slug for setup in setups})
        study = min((each.study for each in group), key=lambda each: each.training.asynchronous)
        setups.append(Setup(study, run.version, label, slug, group))
    return setups


def without_sweeps(setups: list[Setup]) -> tuple[list[Setup], list[Sweep]]:
    """Take out the setups that only scan c: two or more values of c/S_0, all else equal."""
    families: dict[str, list[Setup]] = {}
    for setup in setups:
        settings = _settings(setup.runs[0]) | {SWEPT: None}
        families.setdefault(_key(settings), []).append(setup)
    sweeps = [sweep for family in families.values() if (sweep := _sweep(family))]
    swept = {id(member) for sweep in sweeps for member in sweep.members}
    return [setup for setup in setups if id(setup) not in swept], sweeps


def solved_schemes(setup: Setup) -> list[tuple[str, StoredRun, FloatArray]]:
    """Return each scheme that may weigh time or importance, with its first run and its q."""
    do_not = {name for name, scheme in SCHEMES.items() if needs_counts_only(scheme)}
    chosen = (scheme for scheme in setup.schemes if plain_name(scheme) not in do_not)
    firsts = [setup.of(scheme)[0] for scheme in chosen]
    return [(run.scheme, run, run.q) for run in firsts if run.q is not None]


def plain_name(scheme: str) -> str:
    """Return a scheme's name without its mode.

    >>> plain_name("weighted (asynchronous, B = 2)")
    'weighted'
    """
    return scheme.partition(MARK)[0].removesuffix(AUTOMATIC)


def how_made(study: Study) -> str:
    """Return in a few words whether a study's runs are simulated, or where they were measured.

    >>> from fedpace.studies.study import load_study
    >>> how_made(load_study("prototype", ["network.how=namespaces", "network.time_scale=0.2"]))
    'measured in namespaces, time scale 0.2'
    """
    if study.network is None:
        return "simulated"
    scale = study.network.time_scale
    slower = "" if scale == 1 else f", time scale {scale:g}"
    return f"measured {MEASURED[study.network.how][0]}{slower}"


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one level, with dots between section and field.

    >>> flat({"training": {"k": 5}, "name": "x"})
    {'training.k': 5, 'name': 'x'}
    """
    result: dict[str, Any] = {}
    for name, value in values.items():
        nested = isinstance(value, dict)
        result |= flat(value, f"{prefix}{name}.") if nested else {prefix + name: value}
    return result


def _sweep(family: list[Setup]) -> Sweep | None:
    base = next((setup for setup in family if setup.study.sampling.c_over_s0 is None), None)
    given = tuple(setup for setup in family if setup.study.sampling.c_over_s0 is not None)
    by_c = sorted(given, key=lambda setup: setup.study.sampling.c_over_s0 or 0.0)
    return Sweep(base, tuple(by_c)) if len(given) > 1 else None


def _named_by_mode(run: StoredRun) -> StoredRun:
    """Return a run whose scheme's name shows the mode and its settings."""
    training = run.study.training
    if training.mode == AUTO and run.scheme in METHODS and METHODS[run.scheme].auto:
        return replace(run, scheme=f"{run.scheme}{AUTOMATIC}")
    if not training.asynchronous or MARK in run.scheme:
        return run
    given = [f"C = {training.slots}"] * (training.slots != training.k)
    own = run.scheme in METHODS and METHODS[run.scheme].buffer is not None
    given += [f"B = {training.buffer}"] * (training.buffer is not None and not own)
    return replace(run, scheme=f"{run.scheme}{', '.join([MARK, *given])})")


def _place(scheme: str) -> tuple[bool, int, str]:
    """Return a scheme's place: synchronous first, then in the usual order, own ones last."""
    name = plain_name(scheme)
    order = USUAL.index(name) if name in USUAL else len(USUAL)
    return name != scheme, order, scheme


def _settings(run: StoredRun) -> dict[str, Any]:
    every = flat(run.study.model_dump(mode="json", exclude=NAMES)) | {"version": run.version}
    return {name: value for name, value in every.items() if name not in MODE}


def _but_for_network(first: StoredRun, like: StoredRun) -> dict[str, Any]:
    """Return the first's settings, with the network of one that was measured, or not, as well."""
    settings = flat(first.study.model_dump(mode="json", exclude=NAMES | {"network"}))
    network = flat(like.study.model_dump(mode="json", include={"network"}))
    every = settings | network | {"version": first.version}
    return {name: value for name, value in every.items() if name not in MODE}


def _key(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)


def _differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} = {'none' if value is None else value}"
        for name, value in second.items()
        if name not in first or first[name] != value
    ]


def _slug(label: str, taken: set[str]) -> str:
    """Return a short file name that no other setup has."""
    plain = re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.")[:60] or "setup"
    slugs = (plain if number == 1 else f"{plain}-{number}" for number in count(1))
    return next(slug for slug in slugs if slug not in taken)


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
