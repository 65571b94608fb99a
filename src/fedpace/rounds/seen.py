"""What a round looked like from the server."""

from typing import NamedTuple

from fedpace.checks import FloatArray
from fedpace.rounds.backend import NOTHING, Reply
from fedpace.sampling.design import Draw


class Seen(NamedTuple):
    """Who began with what, and what came back.

    `draw` holds those who answered, in the order of `reply`, with the weights that were used;
    `weights` are p_i of all clients. `residuals` are what the server weighted, one row each and
    over the learning rate: the updates, less what it expected of each where it has a memory.
    """

    parameters: FloatArray
    learning_rate: float
    draw: Draw
    reply: Reply
    weights: FloatArray
    residuals: FloatArray = NOTHING
