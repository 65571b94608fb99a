"""Modules to adapt, and what plain PyTorch makes of them, in float64."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedpace.checks import FloatArray
from fedpace.models.torch_model import lenet5

FEATURES, CLASSES = 8, 3


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES))


class Tied(nn.Module):
    """Two layers that share a weight, and a parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES)
        self.second = nn.Linear(FEATURES, FEATURES, bias=False)
        self.second.weight = self.first.weight
        self.unused = nn.Parameter(torch.ones(2))
        self.last = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))
        return scores


def frozen() -> nn.Module:
    module = mlp()
    next(iter(module.children())).requires_grad_(False)
    return module


def conv1d() -> nn.Module:
    return nn.Sequential(nn.Conv1d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, CLASSES))


def conv3d() -> nn.Module:
    return nn.Sequential(nn.Conv3d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(2, CLASSES))


class Words(nn.Module):
    """Inputs are the numbers of words."""

    def __init__(self, recurrent: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.layer = nn.LSTM(4, 4, batch_first=True) if recurrent else None
        self.last = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        words = self.embedding(x.abs().mul(3).clamp(0, 9).long())
        words = words if self.layer is None else self.layer(words)[0]
        scores: Tensor = self.last(words.mean(dim=1))
        return scores


class Branches(nn.Module):
    """What is computed depends on the numbers, which cannot be vectorised."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(x if x.mean() > 0 else -x)
        return scores


class Kind(NamedTuple):
    make: Callable[[], nn.Module]
    stacked: bool  # by default
    input_shape: tuple[int, ...] | None = None


KINDS = {
    "linear": Kind(lambda: nn.Linear(FEATURES, CLASSES), True),
    "mlp": Kind(mlp, True),
    "tied": Kind(Tied, True),
    "frozen": Kind(frozen, True),
    "embedding": Kind(Words, True),
    "recurrent": Kind(lambda: Words(recurrent=True), False),
    "branches": Kind(Branches, False),
    "conv1d": Kind(conv1d, False, (1, FEATURES)),
    "conv3d": Kind(conv3d, False, (1, 2, 2, 2)),
    "lenet5": Kind(lenet5, False, (1, 28, 28)),
}
CANNOT_STACK = ("recurrent", "branches")


def trained(module: nn.Module) -> list[nn.Parameter]:
    return [each for each in module.parameters() if each.requires_grad]


def loaded(module: nn.Module, vector: FloatArray) -> nn.Module:
    """Return a float64 copy of the module with these parameters."""
    module = deepcopy(module).double()
    nn.utils.vector_to_parameters(torch.from_numpy(vector.astype(np.float64)), trained(module))
    return module


def plain_gradient(
    module: nn.Module, vector: FloatArray, x: NDArray[np.float32], y: NDArray[np.int64]
) -> FloatArray:
    """Return the gradient of the mean cross-entropy as anyone would compute it."""
    module = loaded(module, vector).train()
    loss = cross_entropy(module(torch.from_numpy(x).double()), torch.from_numpy(y))
    torch.autograd.backward(loss)
    return flat_gradient(module)


def flat_gradient(module: nn.Module) -> FloatArray:
    parts = [
        (torch.zeros_like(each) if each.grad is None else each.grad).reshape(-1)
        for each in trained(module)
    ]
    flat: FloatArray = torch.cat(parts).numpy()
    return flat
