"""Samplers from other papers, to compare with: each is a sampler like ours, or a scheme."""

from functools import partial
from typing import Any

from fedpace.rivals.fastest import FedCS, Flanp
from fedpace.rivals.groups import Groups
from fedpace.rivals.oort import Oort
from fedpace.rivals.optimal_clients import OptimalClients
from fedpace.rivals.pisces import Pisces
from fedpace.rivals.power_of_choice import PowerOfChoice
from fedpace.rivals.tifl import Tifl
from fedpace.rivals.uniform import FedAU, FedStale
from fedpace.sampling.clustered import clustered, clustered_optimal_mean

# By name; the order is that of tables.
RIVALS: dict[str, Any] = {
    "oort": Oort,
    "pow-d": PowerOfChoice,
    "cpow-d": partial(PowerOfChoice, rule="batch"),
    "rpow-d": partial(PowerOfChoice, rule="last"),
    "tifl": Tifl,
    "groups": Groups,
    "fedcs": FedCS,
    "flanp": Flanp,
    "fedau": FedAU,
    "ocs": OptimalClients,
    "aocs": partial(OptimalClients, approximate=True),
    "clustered": clustered,
    "clustered-optimal-mean": clustered_optimal_mean,
    "fedvarp": partial(FedStale, beta=1.0),
    "fedstale": FedStale,
}
# Without a barrier: those that draw among whoever is free, and a sampler.
WITHOUT_BARRIER: dict[str, Any] = {"fedbuff": None, "fedasync": None, "pisces": Pisces}


def is_biased(name: str) -> bool:
    """Tell whether a scheme of that name has another mean than full participation.

    >>> is_biased("oort"), is_biased("ocs"), is_biased("uniform"), is_biased("fedbuff")
    (True, False, False, True)
    """
    if name in WITHOUT_BARRIER:
        return True
    rival = RIVALS.get(name)
    return bool(getattr(rival.func if isinstance(rival, partial) else rival, "biased", False))


def marked(scheme: str) -> str:
    """Return a scheme's name, with a mark if it is known to be biased.

    >>> marked("oort"), marked("pace")
    ('oort (biased)', 'pace')
    """
    return f"{scheme} (biased)" if is_biased(scheme) else scheme
