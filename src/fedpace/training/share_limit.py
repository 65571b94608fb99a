"""Limit how often one remote client is selected."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedpace.checks import FloatArray, IntArray, number
from fedpace.errors import InputError
from fedpace.sampling.design import Draw
from fedpace.training.backend import Reply
from fedpace.training.updates import inner_products

# Default limit on the share of rounds that a remote client takes part in: a client in one of seven
# rounds can at most triple its share by false reports.
LARGEST_SHARE = 0.4
# Or this times its fair share, in small fleets.
OVER_FAIR = 2.0
# Weight of the latest draw in the running share of draws.
LATEST = 0.1
# Rounds that shares are at least computed over, and the least probability to keep a client, which
# limits its weight to ten times as much.
FEWEST_ROUNDS, LEAST_KEPT = 20, 0.1
# Updates of larger models are compared by this many of their parameters, evenly spread.
LARGE, COMPARED = 2**20, 2**14
# Draws without a client left before one client is kept.
MOST_DRAWS = 20


def check_share(name: str, share: float) -> float:
    """Return a share of the rounds, or raise InputError."""
    value = number(name, share, f"give {LARGEST_SHARE}")
    if not 0 < value <= 1:
        raise InputError(f"{name} must lie in (0, 1], got {value:g}; give 1 for no limit")
    return value


class DrawShares(NamedTuple):
    """How often clients are drawn.

    `drawn`[i] is the share of the latest draws with client i, `asked`[i] the share of all rounds in
    which it was asked, and `draws` the draws per round: more than 1 if the limit sometimes leaves
    no client.
    """

    drawn: FloatArray
    asked: FloatArray
    draws: float = 1.0


def limit_shares(draw: Draw, often: DrawShares, *, share: float, rng: np.random.Generator) -> Draw:
    """Leave out, at random, clients that are drawn in more than a share of the rounds.

    With s = max(share, 2 Σ drawn / N), as a draw has Σ drawn clients, client i is kept with
    probability r_i = s / (drawn_i draws) · min(1, s / asked_i), from 0.1 to 1, and its weight is
    divided by r_i. As r_i is known once the client is drawn, the aggregate keeps its mean for every
    design. A round without any client left is drawn again, so all weights are divided by `draws`.
    The generator is used only if a client may be left out.

    >>> rng, draw = np.random.default_rng(2), Draw(np.array([0, 1]), np.array([0.25, 0.75]))
    >>> drawn = np.append([1.0, 0.1], np.zeros(18))
    >>> limit_shares(draw, DrawShares(drawn, drawn / 2), share=0.5, rng=rng)
    Draw(clients=array([0, 1]), weights=array([0.5 , 0.75]), tier=-1, take=None)

    The first client is always drawn: it is kept with probability one half, and counts twice.
    """
    kept_with = _keep_probabilities(draw, often, share)
    if (kept_with == 1).all():
        return draw if often.draws == 1 else draw._replace(weights=draw.weights / often.draws)
    kept = rng.random(kept_with.size) < kept_with
    weights = draw.weights[kept] / (kept_with[kept] * often.draws)
    return draw._replace(clients=draw.clients[kept], weights=weights)


def keep_rarest(draw: Draw, often: DrawShares, *, share: float) -> Draw:
    """Keep only the client of a draw that was asked least, with the weight of `limit_shares`."""
    rarest = int(np.argmin(often.asked[draw.clients]))
    one = slice(rarest, rarest + 1)
    weights = draw.weights[one] / (_keep_probabilities(draw, often, share)[one] * often.draws)
    return draw._replace(clients=draw.clients[one], weights=weights)


def _keep_probabilities(draw: Draw, often: DrawShares, share: float) -> FloatArray:
    # The mean size of draws, not that of this one, whose size depends on chance.
    most = max(share, OVER_FAIR * float(often.drawn.sum()) / often.drawn.size)
    tiny = np.finfo(float).tiny
    drawn = often.drawn[draw.clients] * often.draws
    kept_with: FloatArray = np.minimum(most / np.maximum(drawn, tiny), 1.0)
    kept_with *= np.minimum(most / np.maximum(often.asked[draw.clients], tiny), 1.0)
    return np.maximum(kept_with, LEAST_KEPT)


def update_draw_shares(shares: FloatArray, draw: Draw, n: int) -> FloatArray:
    """Return the share of the latest draws with each of `n` clients, after this draw."""
    more = np.zeros(max(n - shares.size, 0))
    found: FloatArray = np.append((1 - LATEST) * shares, more)
    found[draw.clients] += LATEST
    return found


def asked_share(asked: IntArray, rounds: int, n: int) -> FloatArray:
    """Return the share of all rounds in which each of `n` clients was asked."""
    found = np.zeros(n)
    found[: asked.size] = asked / max(rounds, FEWEST_ROUNDS)
    return found


def agreement(weights: FloatArray, reply: Reply) -> FloatArray:
    """Return the cosine between each update and the weighted sum of the others in its round.

    Of large models every n-th parameter is compared. NaN without any other update, or where a norm
    is 0.
    """
    if weights.size < 2:
        return np.full(weights.size, np.nan)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        size = reply.updates.shape[1]
        products = inner_products(reply.updates[:, :: size // COMPARED if size > LARGE else 1])
        rest = weights * (1 - np.eye(weights.size))  # of the others, one row each
        along = np.vecdot(rest, products)
        lengths = np.sqrt(np.diag(products) * np.vecdot(rest @ products, rest))
        found: FloatArray = along / lengths
    found[~np.isfinite(found)] = np.nan
    return found
