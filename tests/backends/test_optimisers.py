"""Local optimisers against PyTorch's, and FedProx's term."""

import numpy as np
import pytest
import torch
from torch import nn

from fedpace.backends.local import LocalSteps, optimiser_named
from fedpace.errors import InputError
from fedpace.models.torch_model import TorchModel

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(30, 4)).astype(np.float32), RNG.integers(0, 3, 30)
ROWS = RNG.integers(0, 30, size=(12, 2, 6))


def theirs(name: str, module: nn.Module) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(module.parameters(), 0.05)
    return torch.optim.SGD(module.parameters(), 0.05, momentum=float(name.partition(":")[2] or 0))


@pytest.mark.parametrize("name", ["sgd", "momentum:0.8", "adam"])
@pytest.mark.parametrize("proximal", [0.0, 0.5])
def test_steps_are_those_of_pytorch(name: str, proximal: float) -> None:
    model = TorchModel(lambda: nn.Linear(4, 3))
    parameters = model.initial(np.random.default_rng(0))
    steps = LocalSteps(12, 6, optimiser=name, proximal=proximal)
    updates = steps.train(model, parameters, X, Y, ROWS, 0.05).updates
    for client in range(2):
        module = model.module(parameters)
        sent = [each.detach().clone() for each in module.parameters()]
        optimiser = theirs(name, module)
        for rows in ROWS[:, client]:
            optimiser.zero_grad()
            outputs = module(torch.from_numpy(X[rows]))
            loss = nn.functional.cross_entropy(outputs, torch.from_numpy(Y[rows]))
            for each, before in zip(module.parameters(), sent, strict=True):
                loss = loss + proximal / 2 * ((each - before) ** 2).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        expected = model.flat(module)
        np.testing.assert_allclose(parameters + updates[client], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["momentum:1", "momentum:x", "adamw", "sgd:0.1", "", "momentum:-1"]
)
def test_unknown_optimisers_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="optimiser must be sgd, momentum:BETA, adam"):
        optimiser_named(name)
