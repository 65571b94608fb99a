"""What a PyTorch module must be for clients to train it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedpace.errors import InputError

# What PyTorch calls the buffers that a layer with running statistics keeps.
RUNNING = ("running_mean", "running_var", "num_batches_tracked")


def seeded(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    """Make a module with PyTorch's random state set, and put back after."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return make()


def own_copy(module: object) -> nn.Module:
    """Return a float32 copy that is fit for training on clients, or say why there is none."""
    if not isinstance(module, nn.Module):
        raise InputError(
            f"module must be a torch.nn.Module or make one, got {module!r:.60}; "
            "give the module, or its class"
        )
    if any(is_lazy(each) for each in module.parameters()):
        raise InputError(
            "module must know its shapes, got lazy parameters; call it on a sample first, or name "
            "its input sizes"
        )
    _refuse_mixing(module)
    if not trainable(module):
        raise InputError(
            "module must have parameters to train, got none; add a layer, or set requires_grad"
        )
    copy: nn.Module = deepcopy(module).float()
    for each in copy.parameters():
        if each.ndim == 4:  # convolutions of images take half the time on a CPU
            # Not contiguous(), which leaves the strides of a single channel as they are.
            each.data = each.data.to(memory_format=torch.channels_last)
    return copy


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are not frozen, by name; shared ones once."""
    return {name: each for name, each in module.named_parameters() if each.requires_grad}


def running(module: nn.Module) -> dict[str, Tensor]:
    """Return the running statistics, by name: no gradient moves them, and they are averaged."""
    buffers = module.named_buffers()
    return {name: each for name, each in buffers if name.rpartition(".")[2] in RUNNING}


def takes_tokens(module: nn.Module) -> bool:
    """Say whether integers go in: to look up, not to compute with."""
    return any(isinstance(each, nn.Embedding | nn.EmbeddingBag) for each in module.modules())


def has_convolutions(module: nn.Module) -> bool:
    """Say whether any layer is a convolution."""
    return any(isinstance(each, nn.modules.conv._ConvNd) for each in module.modules())


@contextmanager
def constant_buffers(module: nn.Module, but: Collection[str] = ()) -> Iterator[None]:
    """Refuse a module that writes to its buffers, or replaces them, `but` for some."""
    before = {name: (each, each._version) for name, each in module.named_buffers()}
    yield
    changed = [
        name
        for name, each in module.named_buffers()
        if name not in before or each is not before[name][0] or each._version != before[name][1]
        if name not in but
    ]
    if changed:
        raise InputError(
            f"module must not change its buffers, got '{changed[0]}'; they are not averaged "
            "between clients: keep them constant"
        )


def _refuse_mixing(module: nn.Module) -> None:
    for name, each in module.named_modules():
        kind = type(each).__name__
        normalises = isinstance(each, nn.modules.batchnorm._BatchNorm)
        if normalises and getattr(each, "running_mean", None) is None:
            raise InputError(
                f"module must treat each sample by itself in evaluation, got '{name}' ({kind}) "
                "without running statistics; set track_running_stats=True, or use GroupNorm"
            )
