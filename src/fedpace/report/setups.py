"""Sort runs into setups: the runs of one configuration and one version of fedpace."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from fedpace.checks import FloatArray
from fedpace.registry import AUTO, METHODS
from fedpace.sampling.schemes import SCHEMES, needs_counts_only
from fedpace.studies.store import NAMES, StoredRun
from fedpace.studies.study import Study

# Registered methods, in the order of tables and figures.
USUAL = tuple(METHODS)
# Runs that differ in these settings are compared; the names of their schemes show the mode.
MODE = {"training.mode", "training.at_once", "training.buffer"}
ASYNCHRONOUS, AUTOMATIC = " (asynchronous", " (auto)"
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


def optimising(setup: Setup) -> list[tuple[str, StoredRun, FloatArray]]:
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
    return scheme.partition(ASYNCHRONOUS)[0].removesuffix(AUTOMATIC)


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
    if not training.asynchronous or ASYNCHRONOUS in run.scheme:
        return run
    given = [f"C = {training.slots}"] * (training.slots != training.k)
    own = run.scheme in METHODS and METHODS[run.scheme].buffer is not None
    given += [f"B = {training.buffer}"] * (training.buffer is not None and not own)
    return replace(run, scheme=f"{run.scheme}{', '.join([ASYNCHRONOUS, *given])})")


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
