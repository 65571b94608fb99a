"""The suite accepts servers that keep the rules, and says which one another breaks."""

from typing import Any

import numpy as np
import pytest

from fedpace import Adam, Average, Draw, Memory, Reply, Yogi
from fedpace.checks import FloatArray
from fedpace.conformance import check_server
from fedpace.servers.robust import Clipped, Krum, Trimmed


@pytest.mark.parametrize("server", [Average, Memory, Adam, Yogi, Clipped, Trimmed, Krum])
def test_every_server_passes(server: type[Any]) -> None:
    check_server(server)


class InPlace(Average):
    """Changes the old model."""

    def apply(self, state: None, parameters: FloatArray, draw: Draw, reply: Reply) -> Any:
        parameters += draw.weights @ reply.updates
        return parameters, state


class Scalar(Average):
    """Returns no vector."""

    def apply(self, state: None, parameters: FloatArray, draw: Draw, reply: Reply) -> Any:
        return np.array(float((draw.weights @ reply.updates).sum())), state


class Forgetful:
    """Keeps its momentum in itself, where no checkpoint finds it."""

    def __init__(self) -> None:
        self.momentum: Any = 0.0

    def init(self, parameters: FloatArray) -> None:
        return None

    def apply(self, state: None, parameters: FloatArray, draw: Draw, reply: Reply) -> Any:
        self.momentum = 0.5 * self.momentum + draw.weights @ reply.updates
        return parameters + self.momentum, state


class Object(Average):
    """Has a state that no file can hold."""

    def init(self, parameters: FloatArray) -> Any:
        return {"model": self}


@pytest.mark.parametrize(
    ("server", "sentence"),
    [
        (InPlace, "the old model must not change"),
        (Scalar, "the new model must be 5 finite numbers"),
        (Forgetful, "keep everything that the model depends on in the state"),
        (Object, "the state must be storable"),
    ],
)
def test_a_broken_rule_is_named(server: type[Any], sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_server(server)
