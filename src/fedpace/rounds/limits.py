"""Nobody whom we cannot look into is in most of the rounds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedpace.checks import FloatArray, IntArray, number
from fedpace.errors import InputError
from fedpace.rounds.backend import Reply
from fedpace.sampling.design import Draw

# Of the rounds that a remote client is in at most, where nobody says otherwise: one of those that
# are drawn most, in one round of seven, gains no more than three times its share by a lie.
LARGEST_SHARE = 0.4
# Or this times its fair share, in fleets so small that this is little.
OVER_FAIR = 2.0
# How much the latest draw counts in how often a client is drawn.
LATEST = 0.1
# Rounds before which a client has not been asked in any share of them, and the least probability
# with which it is kept, so that it counts for ten times as much at most.
FEWEST_ROUNDS, LEAST_KEPT = 20, 0.1
# Draws of a round of which the limit leaves nobody, before one client is kept.
MOST_DRAWS = 20


def checked_share(name: str, share: float) -> float:
    """Return a share of the rounds, or say what is wrong with it."""
    value = number(name, share, f"give {LARGEST_SHARE}")
    if not 0 < value <= 1:
        raise InputError(f"{name} must lie in (0, 1], got {value:g}; give 1 for no limit")
    return value


class Often(NamedTuple):
    """How often clients are drawn.

    `drawn`[i] is the share of the latest draws that client i was in, `asked`[i] that of all rounds
    in which it was asked, and `draws` how many draws a round takes: more than 1 where the limit
    leaves nobody at times.
    """

    drawn: FloatArray
    asked: FloatArray
    draws: float = 1.0


def thinned(draw: Draw, often: Often, *, share: float, rng: np.random.Generator) -> Draw:
    """Leave out clients that are drawn in more than a share of the rounds, by chance.

    With s = max(share, 2 Σ drawn / N), as Σ drawn clients are in a draw, client i is kept with
    probability r_i = s / (drawn_i draws) · min(1, s / asked_i), from 0.1 to 1, and then weighs
    1/r_i times as much: once it is drawn, r_i is known, so that the aggregate keeps its mean,
    whatever the design. As a round is drawn again where nobody is left, all weights are divided by
    `draws`. The generator is used only where somebody may be left out.

    >>> rng, draw = np.random.default_rng(2), Draw(np.array([0, 1]), np.array([0.25, 0.75]))
    >>> drawn = np.append([1.0, 0.1], np.zeros(18))
    >>> thinned(draw, Often(drawn, drawn / 2), share=0.5, rng=rng)
    Draw(clients=array([0, 1]), weights=array([0.5 , 0.75]), tier=-1, take=None)

    The first is always drawn: it is kept with probability one half, and counts twice.
    """
    kept_with = _kept_with(draw, often, share)
    if (kept_with == 1).all():
        return draw if often.draws == 1 else draw._replace(weights=draw.weights / often.draws)
    kept = rng.random(kept_with.size) < kept_with
    weights = draw.weights[kept] / (kept_with[kept] * often.draws)
    return draw._replace(clients=draw.clients[kept], weights=weights)


def one_kept(draw: Draw, often: Often, *, share: float) -> Draw:
    """Keep the client of a draw that was asked least, as if chance had kept it."""
    rarest = int(np.argmin(often.asked[draw.clients]))
    one = slice(rarest, rarest + 1)
    weights = draw.weights[one] / (_kept_with(draw, often, share)[one] * often.draws)
    return draw._replace(clients=draw.clients[one], weights=weights)


def _kept_with(draw: Draw, often: Often, share: float) -> FloatArray:
    """Return the probability with which each client of a draw is kept."""
    # Not of this draw: one with few distinct clients makes nobody's fair share smaller.
    most = max(share, OVER_FAIR * float(often.drawn.sum()) / often.drawn.size)
    tiny = np.finfo(float).tiny
    drawn = often.drawn[draw.clients] * often.draws
    kept_with: FloatArray = np.minimum(most / np.maximum(drawn, tiny), 1.0)
    kept_with *= np.minimum(most / np.maximum(often.asked[draw.clients], tiny), 1.0)
    return np.maximum(kept_with, LEAST_KEPT)


def drawn_often(often: FloatArray, draw: Draw, n: int) -> FloatArray:
    """Return the share of the latest draws in which each of `n` clients was, with this."""
    more = np.zeros(max(n - often.size, 0))
    found: FloatArray = np.append((1 - LATEST) * often, more)
    found[draw.clients] += LATEST
    return found


def asked_share(asked: IntArray, rounds: int, n: int) -> FloatArray:
    """Return the share of all rounds in which each of `n` clients was asked."""
    found = np.zeros(n)
    found[: asked.size] = asked / max(rounds, FEWEST_ROUNDS)
    return found


def agreement(weights: FloatArray, reply: Reply) -> FloatArray:
    """Return the cosine between each update and the weighted sum of the others in its round.

    NaN where there is no other, or no length.
    """
    updates = reply.updates
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        others = weights @ updates - weights[:, None] * updates
        lengths = np.sqrt(np.vecdot(updates, updates) * np.vecdot(others, others))
        found: FloatArray = np.vecdot(updates, others) / lengths
    found[~np.isfinite(found)] = np.nan
    return found if updates.shape[0] > 1 else np.full(updates.shape[0], np.nan)
