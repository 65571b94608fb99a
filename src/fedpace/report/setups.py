"""Sort runs into setups: the runs of one configuration and one version of fedpace."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedpace.checks import FloatArray
from fedpace.sampling.schemes import SCHEMES, WITHOUT_PILOTS
from fedpace.studies.store import NAMES, Run
from fedpace.studies.study import Study

SWEPT = "sampling.c_over_s0"
# Of a field that the other setup does not have; None says that it has no value.
NOT_THERE = object()
# How runs were measured, by `network.how`, in few words: they are in the names of files.
MEASURED = {
    "namespaces": "measured in namespaces",
    "paced": "measured with paced devices",
    "devices": "measured on devices",
    "flower": "measured with Flower",
}


@dataclass(frozen=True, eq=False)
class Setup:
    """All runs of a configuration; `label` tells it from the others, `slug` names its files."""

    study: Study
    version: str
    label: str
    slug: str
    runs: tuple[Run, ...]

    @property
    def schemes(self) -> list[str]:
        """The schemes that were run, in the usual order."""
        present = {run.scheme for run in self.runs}
        return [*(name for name in SCHEMES if name in present), *sorted(present - {*SCHEMES})]

    @property
    def seeds(self) -> list[int]:
        """The seeds that were run."""
        return sorted({run.seed for run in self.runs})

    def of(self, scheme: str) -> list[Run]:
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


def setups_of(runs: Iterable[Run]) -> list[Setup]:
    """Group runs by configuration and version, the one with most runs first.

    Of two files of the same run the first counts.
    """
    groups: dict[str, dict[tuple[str, int], Run]] = {}
    for run in runs:
        groups.setdefault(_key(_settings(run)), {}).setdefault((run.scheme, run.seed), run)
    largest_first = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    mixed = _mixed(next(iter(group.values())).study for group in groups.values())
    firsts: dict[str, Run] = {}
    alike: dict[tuple[str, bool], Run] = {}
    setups: list[Setup] = []
    for _, group in largest_first:
        run = next(iter(group.values()))
        first = firsts.setdefault(run.study.name, run)
        like = alike.setdefault((run.study.name, run.study.network is None), run)
        differences = _differences(_but_for_network(first, like), _settings(run))
        kind = [how_made(run.study)] if run.study.name in mixed else []
        label = ", ".join([run.study.name, *kind, *differences])
        slug = _slug(label, {setup.slug for setup in setups})
        setups.append(Setup(run.study, run.version, label, slug, tuple(group.values())))
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


def optimising(setup: Setup) -> list[tuple[str, Run, FloatArray]]:
    """Return each scheme that weighs time or importance, with its first run and its q."""
    firsts = [(scheme, setup.of(scheme)[0]) for scheme in setup.schemes]
    return [
        (scheme, run, run.q)
        for scheme, run in firsts
        if run.q is not None and scheme not in WITHOUT_PILOTS
    ]


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
    return f"{MEASURED[study.network.how]}{slower}"


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one level, with dots between section and field.

    >>> flat({"training": {"k": 5}, "name": "x"})
    {'training.k': 5, 'name': 'x'}
    """
    result: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            result |= flat(value, f"{prefix}{name}.")
        else:
            result[prefix + name] = value
    return result


def _sweep(family: list[Setup]) -> Sweep | None:
    given = [setup for setup in family if setup.study.sampling.c_over_s0 is not None]
    base = next((setup for setup in family if setup.study.sampling.c_over_s0 is None), None)
    if len(given) < 2:
        return None
    return Sweep(base, tuple(sorted(given, key=lambda each: each.study.sampling.c_over_s0 or 0.0)))


def _settings(run: Run) -> dict[str, Any]:
    return flat(run.study.model_dump(mode="json", exclude=NAMES)) | {"version": run.version}


def _but_for_network(first: Run, like: Run) -> dict[str, Any]:
    """Return the first's settings, with the network of one that was measured, or not, as well."""
    settings = flat(first.study.model_dump(mode="json", exclude=NAMES | {"network"}))
    network = flat(like.study.model_dump(mode="json", include={"network"}))
    return settings | network | {"version": first.version}


def _key(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)


def _mixed(studies: Iterable[Study]) -> set[str]:
    """Return the names of which there are both measured and simulated runs."""
    kinds: dict[str, set[bool]] = {}
    for study in studies:
        kinds.setdefault(study.name, set()).add(study.network is None)
    return {name for name, kind in kinds.items() if len(kind) == 2}


def _differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} = {'none' if value is None else value}"
        for name, value in second.items()
        if first.get(name, NOT_THERE) != value
    ]


def _slug(label: str, taken: set[str]) -> str:
    """Return a short file name that no other setup has."""
    plain = re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.")[:60] or "setup"
    count = 1
    while (slug := plain if count == 1 else f"{plain}-{count}") in taken:
        count += 1
    return slug
