"""LeNet-5."""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import max_pool2d, relu

from fedpace.models.torch_model import TorchModel, lenet5


def lenet() -> TorchModel:
    return TorchModel(lenet5, input_shape=(1, 28, 28))


def test_from_zero_nothing_but_the_last_intercept_has_a_gradient() -> None:
    model, x = lenet(), np.random.default_rng(0).normal(size=(1, 24, 1, 28, 28))
    out = np.full((1, model.size), np.nan, dtype=np.float32)
    zeros = np.zeros_like(out)
    model.gradients(zeros, x.astype(np.float32), np.zeros((1, 24), dtype=np.int64), out)
    assert np.flatnonzero(out[0]).tolist() == list(range(model.size - 10, model.size))
    # The chances are 1/10 each and the class is 0: the gradient of the intercept is their
    # difference, the same in every step that follows but for its size.
    np.testing.assert_allclose(out[0, -10:], np.full(10, 0.1) - np.eye(10)[0], rtol=1e-6)


def test_every_layer_has_a_gradient_from_where_training_starts() -> None:
    model, rng = lenet(), np.random.default_rng(0)
    parameters = model.initial(rng).astype(np.float32)[None]
    out = np.zeros_like(parameters)
    x = rng.normal(size=(1, 24, 1, 28, 28)).astype(np.float32)
    model.gradients(parameters, x, rng.integers(10, size=(1, 24)), out)
    found = model.module(out[0].astype(np.float64))
    assert all(each.abs().max() > 0 for each in found.parameters())


def test_is_the_network_with_rectifying_before_pooling() -> None:
    torch.manual_seed(0)
    module = lenet5()
    first, second = (each for each in module if isinstance(each, nn.Conv2d))
    x = torch.randn(4, 1, 28, 28)
    hidden = max_pool2d(relu(first(x)), 2)
    hidden = max_pool2d(relu(second(hidden)), 2)
    linear = [each for each in module if isinstance(each, nn.Linear)]
    scores = linear[2](relu(linear[1](relu(linear[0](hidden.flatten(1))))))
    assert torch.equal(module(x), scores)


def test_has_as_many_outputs_as_classes() -> None:
    assert lenet5(62)(torch.zeros(2, 1, 28, 28)).shape == (2, 62)
