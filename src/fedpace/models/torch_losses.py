"""Losses and metrics of PyTorch models, by name or a user's own: one number per sample."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy as shallow
from typing import TypeAlias

from torch import Tensor
from torch.nn import functional

from fedpace.errors import InputError
from fedpace.lookup import found

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
# What is measured beside a loss where nobody says.
USUAL_METRICS = {"cross-entropy": "accuracy", "next-token": "accuracy", "bce": "label-accuracy"}


def loss_of(given: Loss | str | None) -> Loss:
    """Return a loss without its reduction; cross-entropy for None."""
    if given is None or isinstance(given, str):
        given = found(given or "cross-entropy", LOSSES, argument="loss", group="fedpace.losses")
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
        given = found(given, METRICS, argument="metric", group="fedpace.metrics")
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
