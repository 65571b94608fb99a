"""What a run has taught of its clients, and the profile that follows from it."""

from __future__ import annotations

from typing import TypedDict

from fedpace.estimation.gradients import NormsSeen, estimated_grad_norms, no_norms, see_norms
from fedpace.estimation.times import TimesSeen, estimated_times, no_times, see_times
from fedpace.profile import Profile
from fedpace.rounds.rows import Row
from fedpace.rounds.sampler import Known


class Learned(TypedDict):
    """What replies have taught: gradient norms and times."""

    norms: NormsSeen
    times: TimesSeen


def nothing_learned(n: int) -> Learned:
    """Return the state before the first reply."""
    return Learned(norms=no_norms(n), times=no_times(n))


def learn(learned: Learned, row: Row) -> None:
    """Add a round."""
    see_norms(learned["norms"], row)
    see_times(learned["times"], row)


def snapshot(learned: Learned) -> Learned:
    """Return a copy that later rounds do not change."""
    return Learned(
        norms=NormsSeen(
            total=learned["norms"]["total"].copy(), count=learned["norms"]["count"].copy()
        ),
        times=TimesSeen(
            mean=learned["times"]["mean"].copy(), count=learned["times"]["count"].copy()
        ),
    )


def profile_of(
    learned: Learned,
    known: Known,
    *,
    c_over_s0: float | None = None,
    beta_over_alpha: float | None = None,
) -> Profile:
    """Return what is known of all clients, with c in units of S_0, or as given, or S_0."""
    times = estimated_times(learned["times"], known.n) if known.times is None else known.times
    norms = estimated_grad_norms(learned["norms"], known.n)
    profile = Profile(known.weights, times, norms, beta_over_alpha)
    if c_over_s0 is None:
        return profile
    ratio = c_over_s0 * float(profile.importance.sum()) ** 2
    return Profile(profile.weights, profile.times, profile.grad_norms, ratio)
