"""The registry: every entry loads in each of its modes, under its name or its path."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from fedpace.errors import InputError
from fedpace.registry import (
    ASYNCHRONOUS,
    ENTRIES,
    METHODS,
    MODES,
    SCHEME,
    SERVERS,
    SYNCHRONOUS,
    Entry,
    entry_of,
    method_names,
)
from fedpace.samplers.build import sampler_for
from fedpace.samplers.rivals.oort import Oort
from fedpace.sampling.schemes import SCHEMES
from fedpace.servers.build import server_for
from fedpace.training.sampler import BaseSampler
from fedpace.training.server import BaseServer


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.kind} {entry.name}")
def test_every_entry_loads_in_each_of_its_modes(entry: Entry) -> None:
    assert entry.modes
    for mode in entry.modes:
        assert callable(entry.load(mode))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("mode", MODES)
def test_every_method_makes_a_sampler_in_its_modes_and_is_refused_in_the_other(
    name: str, mode: str
) -> None:
    if mode in METHODS[name].modes:
        assert isinstance(sampler_for(name, 3, mode=mode), BaseSampler)
    else:
        with pytest.raises(InputError, match=f"{name} (needs|has no) rounds, got mode {mode}; "):
            sampler_for(name, 3, mode=mode)


@pytest.mark.parametrize("name", SERVERS)
def test_every_server_can_be_made(name: str) -> None:
    parameter = SERVERS[name].parameter
    required = parameter is not None and parameter.required
    full = f"{name}:{parameter.example}" if required and parameter else name
    assert isinstance(server_for(full), BaseServer)


def test_names_are_unique_within_methods_and_within_servers() -> None:
    assert len(METHODS) + len(SERVERS) == len(ENTRIES)


def test_an_entry_is_found_by_name_or_by_its_class() -> None:
    assert entry_of("oort") is entry_of(Oort) is METHODS["oort"]
    assert entry_of(SCHEMES["uniform"]) is METHODS["uniform"]
    assert entry_of("fedpace.samplers.rivals.oort:Oort") is None  # resolved first
    for value in ("mine", BaseSampler, len, 3, partial(Oort, k=3)):
        assert entry_of(value) is None


@pytest.mark.parametrize("scheme", ["fedpace.samplers.rivals.oort:Oort", Oort, "oort"])
def test_a_shipped_sampler_is_refused_in_asynchronous_mode_however_it_is_given(scheme: Any) -> None:
    with pytest.raises(InputError, match=r"^oort needs rounds, got mode asynchronous; choose one"):
        sampler_for(scheme, 3, mode=ASYNCHRONOUS)
    assert isinstance(sampler_for(scheme, 3), Oort)


@pytest.mark.parametrize("scheme", ["fedpace.samplers.rivals.oort:Pisces", "pisces"])
def test_an_asynchronous_sampler_is_refused_in_rounds_however_it_is_given(scheme: str) -> None:
    with pytest.raises(InputError, match=r"^pisces has no rounds, got mode synchronous; choose"):
        sampler_for(scheme, 3, mode=SYNCHRONOUS)


def test_every_scheme_of_the_package_is_registered() -> None:
    assert list(SCHEMES) == method_names(SCHEME)


def test_listing_names_imports_no_method() -> None:
    code = (
        "import sys, fedpace.registry as r; r.method_names(); "
        "assert not [m for m in sys.modules if m.startswith(('fedpace.sampl', 'numpy'))]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
