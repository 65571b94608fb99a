"""PyTorch modules that clients can train, and losses and metrics with one number per sample."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from copy import copy as shallow
from copy import deepcopy
from typing import TypeAlias

from fedpace.errors import InputError, needs
from fedpace.lookup import find

with needs("PyTorch models need torch", "torch"):
    import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import is_lazy

# Takes outputs and y, of one batch.
Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def _classes(outputs: Tensor, y: Tensor) -> Tensor:
    """Refuse what cannot be scores of classes; return them with the classes in the last place."""
    shape = _shape(outputs)
    if not isinstance(shape, tuple) or shape[:-1] != tuple(y.shape) or shape[-1] < 2:
        raise InputError(
            f"module must give a row of scores, one per class, for each of {len(y)} samples, got "
            f"{shape} for y of shape {tuple(y.shape)}; end it with a layer of as many outputs as "
            "classes, or choose another loss: mse, mae, huber, bce"
        )
    if y.is_floating_point():
        raise InputError(
            f"y must be classes, integers from 0, got {y.dtype}; use y.astype(int), or choose a "
            "loss for numbers: mse, mae, huber, bce"
        )
    return outputs


def _shape(values: object) -> tuple[int, ...] | str:
    return tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__


def _cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    scores = _classes(outputs, y)
    if y.ndim == 1:
        return functional.cross_entropy(scores, y, reduction="none")
    return functional.cross_entropy(scores.movedim(-1, 1), y, reduction="none")


def _alike(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs and y of the same shape and type: (B, 1) would else spread over (B,)."""
    if _shape(outputs) == (*y.shape, 1):
        outputs = outputs.squeeze(-1)
    if _shape(outputs) != tuple(y.shape):
        raise InputError(
            f"module must give outputs in the shape of y, {tuple(y.shape)}, got "
            f"{_shape(outputs)}; change its last layer, or choose another loss"
        )
    return outputs, y.to(outputs.dtype)


def _of_numbers(function: Callable[..., Tensor]) -> Loss:
    return lambda outputs, y: function(*_alike(outputs, y), reduction="none")


LOSSES: dict[str, Loss] = {
    "cross-entropy": _cross_entropy,
    "next-token": _cross_entropy,
    "bce": _of_numbers(functional.binary_cross_entropy_with_logits),
    "mse": _of_numbers(functional.mse_loss),
    "mae": _of_numbers(functional.l1_loss),
    "huber": _of_numbers(functional.huber_loss),
}


def _right(outputs: Tensor, y: Tensor) -> Tensor:
    return _classes(outputs, y).argmax(dim=-1) == y


def _labels_right(outputs: Tensor, y: Tensor) -> Tensor:
    scores, y = _alike(outputs, y)
    return (scores > 0) == (y > 0.5)


METRICS: dict[str, Loss] = {
    "accuracy": _right,
    "label-accuracy": _labels_right,
    "mse": LOSSES["mse"],
    "mae": LOSSES["mae"],
}
# Default metric of each loss.
USUAL_METRICS = {"cross-entropy": "accuracy", "next-token": "accuracy", "bce": "label-accuracy"}


def loss_of(given: Loss | str | None) -> Loss:
    """Return a loss without its reduction; cross-entropy for None."""
    if given is None or isinstance(given, str):
        given = find(given or "cross-entropy", LOSSES, argument="loss", group="fedpace.losses")
    if hasattr(given, "reduction"):
        given = shallow(given)
        given.reduction = "none"
    if not callable(given):
        raise InputError(f"loss must be a name or a function, got {given!r:.60}; try mse")
    return given


def metric_of(given: Loss | str | None, loss: object) -> Loss | None:
    """Return what is measured on the samples held out; that which suits the loss for None."""
    if given is None:
        name = "cross-entropy" if loss is None else loss
        if not isinstance(name, str) or name not in LOSSES:
            return None
        given = USUAL_METRICS.get(name, "mae")
    if isinstance(given, str):
        given = find(given, METRICS, argument="metric", group="fedpace.metrics")
    if not callable(given):
        raise InputError(f"metric must be a name or a function, got {given!r:.60}; try accuracy")
    return given


def check_classes(outputs: Tensor, y: Tensor) -> None:
    """Refuse classes that the module has no score for."""
    shape = _shape(outputs)
    if y.is_floating_point() or not y.numel() or shape[:-1] != tuple(y.shape):
        return
    classes = int(shape[-1])
    if classes > 1 and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise InputError(
            f"y must be classes from 0 to {classes - 1}, one per output of the module, got "
            f"{int(y.min())} to {int(y.max())}; give the module more outputs, or count from 0"
        )


def one_per_sample(what: str, values: Tensor, samples: int) -> Tensor:
    """Return one number per sample: the mean over whatever else a sample has."""
    shape = _shape(values)
    if not isinstance(shape, tuple) or shape[:1] != (samples,):
        raise InputError(
            f"{what} must give one value per sample, got shape {shape} for {samples} samples; use "
            "reduction='none'"
        )
    return values if values.ndim == 1 else values.flatten(1).float().mean(dim=1)


# What PyTorch calls the buffers that a layer with running statistics keeps.
RUNNING = ("running_mean", "running_var", "num_batches_tracked")


def make_seeded(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    """Make a module with PyTorch's random state set to a seed, and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return make()


def own_copy(module: object) -> nn.Module:
    """Return a float32 copy for training on clients; raise InputError if that is impossible."""
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


def running_statistics(module: nn.Module) -> dict[str, Tensor]:
    """Return the running statistics, by name: no gradient moves them, and they are averaged."""
    buffers = module.named_buffers()
    return {name: each for name, each in buffers if name.rpartition(".")[2] in RUNNING}


def takes_tokens(module: nn.Module) -> bool:
    """Return whether inputs are integers that index an embedding."""
    return any(isinstance(each, nn.Embedding | nn.EmbeddingBag) for each in module.modules())


def has_convolutions(module: nn.Module) -> bool:
    """Return whether any layer is a convolution."""
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
