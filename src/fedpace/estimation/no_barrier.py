"""Schemes where no round is waited for: the share of completions that each client has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpace.profile import Profile
from fedpace.rounds.stale import FedAsync, FedBuff
from fedpace.sampling.shares import bounded_shares, solve_shares
from fedpace.sampling.turns import AmongFree, Dispatch, InTurn

# Those that learn nothing but times, those that learn, and what others have published.
BY_COUNTS, LEARNING, PUBLISHED = (
    ("uniform", "weighted"),
    ("statistical", "optimal-mean"),
    ("fedbuff", "fedasync", "pisces"),
)
# What makes the model of the replies, where that is part of a scheme.
SERVERS: dict[str, Any] = {"fedbuff": FedBuff, "fedasync": FedAsync}
# FedAsync steps with every update.
BUFFERS = {"fedasync": 1}


@dataclass(frozen=True)
class Shares:
    """A scheme by name: Profile → shares of completions, for `at_once` clients at work.

    A device does one task at a time, so that no share is larger than its time allows. uniform and
    weighted give equal shares, and p_i; statistical p_i G_i; optimal-mean solves P3, which is exact
    here: see `solve_shares`. fedbuff and fedasync draw by chance among those who are free,
    in proportion to p_i and all alike, as published.
    """

    name: str
    at_once: int
    times_known: bool = True

    @property
    def needs_counts_only(self) -> bool:
        """Whether nothing need be learned."""
        return self.name in PUBLISHED or (self.name in BY_COUNTS and self.times_known)

    def __call__(self, profile: Profile, k: int, *, max_weight: float | None = None) -> Dispatch:
        """Return the design for steps of K = `k` updates; `max_weight` caps p_i / (K f_i)."""
        p, ones = profile.weights, np.ones(profile.n)
        if self.name == "fedbuff":
            return AmongFree(p, p, self.at_once)
        if self.name == "fedasync":
            return AmongFree(ones / profile.n, p, self.at_once)
        if self.name == "optimal-mean":
            cap = None if max_weight is None else max(k * max_weight, 1.0)
            fleet = (p, profile.times, profile.grad_norms, profile.beta_over_alpha)
            found = solve_shares(*fleet, self.at_once, cap)
            return InTurn(found.q, p, self.at_once, times=profile.times, solution=found)
        wanted = {"uniform": ones, "weighted": p, "statistical": profile.importance}[self.name]
        shares = bounded_shares(wanted, profile.times, self.at_once)
        return InTurn(shares, p, self.at_once, times=profile.times)
