"""What a PyTorch module and its loss must be for clients to train it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy as shallow
from copy import deepcopy
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parameter import is_lazy

from fedpace.errors import InputError

# Takes outputs and classes.
Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]


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
    _refuse_shared_statistics(module)
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


def has_convolutions(module: nn.Module) -> bool:
    """Say whether any layer is a convolution."""
    return any(isinstance(each, nn.modules.conv._ConvNd) for each in module.modules())


def per_sample(loss: Loss | None) -> Loss:
    """Return the loss without its reduction; cross-entropy for None."""
    if loss is None:
        return partial(cross_entropy, reduction="none")
    if hasattr(loss, "reduction"):
        loss = shallow(loss)
        loss.reduction = "none"
    return loss


def check_scores(scores: Tensor, samples: int) -> None:
    """Refuse outputs other than one row of scores per sample."""
    shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
    if not isinstance(shape, tuple) or len(shape) != 2 or shape[0] != samples or shape[1] < 2:
        raise InputError(
            f"module must give a row of scores, one per class, for each of {samples} samples, got "
            f"{shape}; end it with a layer of as many outputs as classes"
        )


def checked_losses(loss: Loss, scores: Tensor, y: Tensor) -> Tensor:
    """Return each sample's loss, or refuse scores or losses of another shape."""
    check_scores(scores, len(y))
    losses = loss(scores, y)
    if tuple(losses.shape) != (len(y),):
        raise InputError(
            f"loss must give one value per sample, got shape {tuple(losses.shape)} for {len(y)} "
            "samples; use reduction='none'"
        )
    return losses


def check_classes(y: Tensor, classes: int) -> None:
    """Refuse classes that the module has no score for."""
    if y.numel() and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise InputError(
            f"y must be classes from 0 to {classes - 1}, one per output of the module, got "
            f"{int(y.min())} to {int(y.max())}; give the module more outputs, or count from 0"
        )


@contextmanager
def constant_buffers(module: nn.Module) -> Iterator[None]:
    """Refuse a module that writes to its buffers, or replaces them, while it works here."""
    before = {name: (each, each._version) for name, each in module.named_buffers()}
    yield
    changed = [
        name
        for name, each in module.named_buffers()
        if name not in before or each is not before[name][0] or each._version != before[name][1]
    ]
    if changed:
        raise InputError(
            f"module must not change its buffers, got '{changed[0]}'; they are not averaged "
            "between clients: keep them constant"
        )


def _refuse_shared_statistics(module: nn.Module) -> None:
    for name, each in module.named_modules():
        kind = type(each).__name__
        if isinstance(each, nn.modules.batchnorm._BatchNorm):
            raise InputError(
                f"module must treat each sample by itself, got '{name}' ({kind}); its statistics "
                "are not averaged between clients: use GroupNorm or LayerNorm"
            )
        if getattr(each, "running_mean", None) is not None:
            raise InputError(
                f"module must not keep running statistics, got '{name}' ({kind}); they are not "
                "averaged between clients: set track_running_stats=False"
            )
