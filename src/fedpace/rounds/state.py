"""Where training stands."""

from typing import NamedTuple

from fedpace.checks import FloatArray, IntArray
from fedpace.rounds.backend import NOBODY


class State(NamedTuple):
    """The model, the rounds and seconds behind it, why training ended, and who answers.

    `asked` and `answered` count the rounds in which each client was drawn, and in which a reply
    of it was accepted; a client beyond their end counts 0.
    """

    parameters: FloatArray
    round: int
    seconds: float
    ended: str = ""
    asked: IntArray = NOBODY
    answered: IntArray = NOBODY
