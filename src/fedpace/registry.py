"""The registry: every scheme, sampler, rival and server that comes with fedpace, by name.

To add one, write it in a module of its own and add a line here. Entries name their target as
"module:attribute", which is imported on first use, so that listing names costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from fedpace.adapt import optional

SYNCHRONOUS, ASYNCHRONOUS = MODES = ("synchronous", "asynchronous")
# Begin with rounds, and continue asynchronously if the sampler predicts that it is sooner.
AUTO = "auto"
# Kinds of entries: schemes of the paper and ours, samplers with state, methods of other papers.
SCHEME, SAMPLER, RIVAL, SERVER = "scheme", "sampler", "rival", "server"


class Parameter(NamedTuple):
    """The number that a server's name may end with, as in adam:RATE."""

    name: str
    example: str
    largest: float = math.inf
    required: bool = False
    argument: str = ""


@dataclass(frozen=True)
class Entry:
    """What a name stands for.

    Parameters
    ----------
    name, kind : str
        The name, and scheme, sampler, rival or server.
    target, asynchronous : str
        What it is in synchronous and in asynchronous training; empty where it does not work there.
    auto : str
        What it is in the mode "auto"; empty: as in synchronous training.
    options : mapping
        Arguments that the name implies.
    biased : bool
        Whether its mean differs from full participation.
    server, buffer : str, int, optional
        The server and the updates per step that belong to an asynchronous method.
    parameter : Parameter, optional
        For servers: the number after the colon.
    """

    name: str
    kind: str
    target: str = ""
    asynchronous: str = ""
    auto: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    biased: bool = False
    server: str = ""
    buffer: int | None = None
    parameter: Parameter | None = None

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that it works in."""
        targets = (self.target, self.asynchronous)
        return tuple(mode for mode, target in zip(MODES, targets, strict=True) if target)

    def load(self, mode: str = SYNCHRONOUS) -> Any:
        """Import and return the target, with the options that the name implies."""
        targets = {ASYNCHRONOUS: self.asynchronous, AUTO: self.auto or self.target}
        found = load(targets.get(mode, self.target))
        return partial(found, **self.options) if self.options else found


def load(target: str) -> Any:
    """Import "module:attribute"."""
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


_SCHEMES, _RIVALS = "fedpace.sampling.schemes", "fedpace.samplers.rivals"
_SHARES = "fedpace.samplers.solve:Shares"
_ARRIVALS, _SLOTS = "fedpace.servers.asynchronous", "fedpace.samplers.rivals.asynchronous:Slots"
_LONGEST_IDLE = "fedpace.samplers.rivals.asynchronous:LongestIdle"

ENTRIES = (
    Entry("full", SCHEME, f"{_SCHEMES}:full"),
    Entry("uniform", SCHEME, f"{_SCHEMES}:uniform", _SHARES),
    Entry("weighted", SCHEME, f"{_SCHEMES}:weighted", _SHARES),
    Entry("statistical", SCHEME, f"{_SCHEMES}:statistical", _SHARES),
    Entry("optimal-mean", SCHEME, f"{_SCHEMES}:optimal_mean", _SHARES),
    Entry("optimal-max", SCHEME, f"{_SCHEMES}:optimal_max"),
    Entry("optimal-tiers", SCHEME, f"{_SCHEMES}:optimal_tiers"),
    Entry("optimal-independent", SCHEME, f"{_SCHEMES}:optimal_independent"),
    Entry(
        "pace",
        SAMPLER,
        "fedpace.samplers.pace:Pace",
        "fedpace.samplers.asynchronous_pace:AsynchronousPace",
        "fedpace.samplers.asynchronous_pace:AutoPace",
    ),
    Entry("optimal-mean-no-pilots", SAMPLER, "fedpace.samplers.solve:optimal_mean_no_pilots"),
    Entry("oort", RIVAL, f"{_RIVALS}.oort:Oort", biased=True),
    Entry("pow-d", RIVAL, f"{_RIVALS}.candidates:PowerOfChoice", biased=True),
    Entry(
        "cpow-d",
        RIVAL,
        f"{_RIVALS}.candidates:PowerOfChoice",
        options={"rule": "batch"},
        biased=True,
    ),
    Entry(
        "rpow-d",
        RIVAL,
        f"{_RIVALS}.candidates:PowerOfChoice",
        options={"rule": "last"},
        biased=True,
    ),
    Entry("tifl", RIVAL, f"{_RIVALS}.by_speed:Tifl", biased=True),
    Entry("groups", RIVAL, f"{_RIVALS}.clustered:Groups", biased=True),
    Entry("fedcs", RIVAL, f"{_RIVALS}.by_speed:FedCS", biased=True),
    Entry("flanp", RIVAL, f"{_RIVALS}.by_speed:Flanp", biased=True),
    Entry("fedau", RIVAL, f"{_RIVALS}.candidates:FedAU", biased=True),
    Entry("ocs", RIVAL, f"{_RIVALS}.candidates:OptimalClients"),
    Entry("aocs", RIVAL, f"{_RIVALS}.candidates:OptimalClients", options={"approximate": True}),
    Entry("clustered", RIVAL, f"{_RIVALS}.clustered:clustered"),
    Entry("clustered-optimal-mean", RIVAL, f"{_RIVALS}.clustered:clustered_optimal_mean"),
    Entry("fedvarp", RIVAL, f"{_RIVALS}.candidates:FedStale", options={"beta": 1.0}),
    Entry("fedstale", RIVAL, f"{_RIVALS}.candidates:FedStale"),
    Entry(
        "fedbuff",
        RIVAL,
        asynchronous=_SHARES,
        biased=True,
        server="fedpace.servers.asynchronous:FedBuff",
    ),
    Entry(
        "fedasync",
        RIVAL,
        asynchronous=_SHARES,
        biased=True,
        server="fedpace.servers.asynchronous:FedAsync",
        buffer=1,
    ),
    Entry("pisces", RIVAL, asynchronous=f"{_RIVALS}.oort:Pisces", biased=True),
    Entry("ringleader", RIVAL, "", _SLOTS, server=f"{_ARRIVALS}:Ringleader", buffer=1),
    Entry("malenia", RIVAL, "", _SLOTS, server=f"{_ARRIVALS}:Malenia", buffer=1),
    Entry("rennala", RIVAL, "", _SLOTS, biased=True, server=f"{_ARRIVALS}:Rennala", buffer=1),
    Entry("ringmaster", RIVAL, "", _SLOTS, biased=True, server=f"{_ARRIVALS}:Ringmaster", buffer=1),
    Entry("rescaled", RIVAL, asynchronous=f"{_RIVALS}.asynchronous:Rescaled", buffer=1),
    Entry("ace", RIVAL, "", _LONGEST_IDLE, biased=True, server=f"{_ARRIVALS}:Ace", buffer=1),
    Entry("ca2fl", RIVAL, "", _SHARES, biased=True, server=f"{_ARRIVALS}:Ca2fl"),
    Entry("area", RIVAL, "", _LONGEST_IDLE, server=f"{_ARRIVALS}:Area"),
    Entry(
        "generalized-asyncsgd",
        RIVAL,
        asynchronous=f"{_RIVALS}.asynchronous:GeneralizedAsyncSgd",
        buffer=1,
    ),
    Entry("fedcompass", RIVAL, "", f"{_RIVALS}.asynchronous:FedCompass", biased=True),
    Entry("average", SERVER, "fedpace.servers.average:Average"),
    Entry("mean", SERVER, "fedpace.servers.average:Mean", biased=True),
    Entry("memory", SERVER, "fedpace.servers.memory:Memory"),
    Entry("fedvarp", SERVER, "fedpace.servers.memory:Memory", options={"beta": 1.0}),
    Entry(
        "fedstale",
        SERVER,
        "fedpace.servers.memory:Memory",
        parameter=Parameter("BETA", "0.5", 1.0, required=True, argument="beta"),
    ),
    Entry("adam", SERVER, "fedpace.servers.average:Adam", parameter=Parameter("RATE", "0.01")),
    Entry("yogi", SERVER, "fedpace.servers.average:Yogi", parameter=Parameter("RATE", "0.01")),
    Entry(
        "fedexp",
        SERVER,
        "fedpace.servers.average:FedExp",
        parameter=Parameter("EPSILON", "0.001"),
    ),
    Entry("clip", SERVER, "fedpace.servers.robust:Clipped", parameter=Parameter("FACTOR", "2")),
    Entry(
        "trimmed",
        SERVER,
        "fedpace.servers.robust:Trimmed",
        parameter=Parameter("SHARE", "0.1", 0.499),
    ),
    Entry("krum", SERVER, "fedpace.servers.robust:Krum", parameter=Parameter("COUNT", "1")),
)
# Whatever `--schemes` takes by name, in the order of tables; and servers.
METHODS = {entry.name: entry for entry in ENTRIES if entry.kind != SERVER}
SERVERS = {entry.name: entry for entry in ENTRIES if entry.kind == SERVER}


def method_names(*kinds: str, mode: str | None = None) -> list[str]:
    """Return the names of these kinds, of all by default, that work in a mode.

    >>> method_names("sampler")
    ['pace', 'optimal-mean-no-pilots']
    >>> method_names("scheme", mode="asynchronous")
    ['uniform', 'weighted', 'statistical', 'optimal-mean']
    """
    return [
        entry.name
        for entry in METHODS.values()
        if (not kinds or entry.kind in kinds) and (mode is None or mode in entry.modes)
    ]


def entry_of(value: object) -> Entry | None:
    """Return the entry of a name, or of a registered class or function however it was found."""
    if isinstance(value, str):
        return METHODS.get(value)
    place = f"{optional(value, '__module__', '')}:{optional(value, '__qualname__', '')}"
    for entry in METHODS.values():
        if place in (entry.target, entry.asynchronous) and not entry.options:
            return entry
    return None


def is_biased(name: str) -> bool:
    """Tell whether a registered method has another mean than full participation.

    >>> is_biased("oort"), is_biased("ocs"), is_biased("uniform"), is_biased("fedbuff")
    (True, False, False, True)
    """
    return name in METHODS and METHODS[name].biased


def mark_biased(name: str) -> str:
    """Return a method's name, marked if it is known to be biased.

    >>> mark_biased("oort"), mark_biased("pace")
    ('oort (biased)', 'pace')
    """
    return f"{name} (biased)" if is_biased(name) else name
