"""The interface of models: defaults, and objects that do not subclass it."""

import numpy as np
import pytest
from numpy.typing import NDArray

from fedpace import InputError, Seeds, Simulator, Steady
from fedpace.checks import AnyFloats, FloatArray, IntArray
from fedpace.data.partition import synthetic
from fedpace.models.model import BaseModel, adapt_model


class Mean:
    """Estimates the mean of x: the methods of a model, and no base class."""

    size = 2

    def initial(self, rng: np.random.Generator) -> FloatArray:
        return np.zeros(2)

    def gradients(self, parameters: AnyFloats, x: AnyFloats, y: IntArray, out: AnyFloats) -> None:
        out[:] = parameters - x.mean(axis=1)

    def losses(self, parameters: FloatArray, x: AnyFloats, y: IntArray) -> AnyFloats:
        return np.asarray(((parameters - x) ** 2).sum(axis=1) / 2)

    def correct(self, parameters: FloatArray, x: AnyFloats, y: IntArray) -> NDArray[np.bool_]:
        return np.ones(len(y), np.bool_)


def test_an_object_with_the_methods_is_trained() -> None:
    model = adapt_model(Mean())
    assert (model.dtype, model.trained, model.takes_own_steps) == (np.float64, None, False)
    assert model.prepare(np.ones(2, np.float32)).dtype == np.float64
    assert model.prepare_whole(np.ones(2, np.int64)).dtype == np.int64
    assert model.arrays(np.ones(2))["parameters"].tolist() == [1, 1]
    data = synthetic(np.array([20, 30]), np.random.default_rng(0), features=2, classes=2)
    times = Steady(np.ones(2))
    simulator = Simulator(data, Mean(), times, Seeds(0))  # type: ignore[arg-type]
    assert isinstance(simulator.model, BaseModel)
    assert simulator.initial().tolist() == [0, 0]


def test_a_model_with_steps_of_its_own_is_recognised() -> None:
    stepping = type("Stepping", (Mean,), {"step": lambda *_: None})()
    assert adapt_model(stepping).takes_own_steps
    assert not BaseModel().takes_own_steps


def test_what_a_model_must_define_is_named() -> None:
    with pytest.raises(InputError, match="model must define size, initial, gradients, losses, co"):
        adapt_model(object())
    misspelt = type("Mine", (Mean,), {"array": lambda *_: {}})()
    with pytest.raises(InputError, match="'array' of Mine; did you mean 'arrays'"):
        adapt_model(misspelt)
    bare, one, x = BaseModel(), np.ones(1), np.ones((1, 1))
    y = np.zeros(1, np.int64)
    for missing in (
        lambda: bare.size,
        lambda: bare.initial(np.random.default_rng(0)),
        lambda: bare.gradients(x, x, y, x),
        lambda: bare.step(x, x, y, 0.1),
        lambda: bare.losses(one, x, y),
        lambda: bare.correct(one, x, y),
    ):
        with pytest.raises(NotImplementedError, match="BaseModel does not define"):
            missing()
