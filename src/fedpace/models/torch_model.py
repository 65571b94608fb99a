"""Any PyTorch module as a `Model`: one flat float32 vector in, gradients out."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace.errors import InputError, MissingExtraError
from fedpace.models.model import AnyFloats
from fedpace.profile import FloatArray

try:
    import torch
except ModuleNotFoundError:
    raise MissingExtraError(
        "PyTorch models need torch; install it with: pip install 'fedpace[torch]'"
    ) from None
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

# Samples per pass when all are evaluated: activations stay in the cache.
AT_ONCE = 512


class TorchModel:
    """Train a `torch.nn.Module` on fedpace; the parameters are one flat vector.

    Every gradient is that of the mean loss of a batch with the module in training mode; losses
    and accuracy are taken in evaluation mode. Random layers such as dropout draw from a stream
    that depends on the parameters and the batch alone, so that the same seed gives the same
    numbers whatever ran before.

    Parameters
    ----------
    module : nn.Module, or a function of no arguments that makes one
        With a function, such as the module's class, every seed starts from parameters of its own,
        drawn by PyTorch's or the module's own initialisation; with a module, every run starts
        from the parameters it has. Buffers are constants: a module that changes them, such as
        batch normalisation with running statistics, is refused, for they are not averaged.
    input_shape : tuple of int, optional
        Shape of one sample, such as (1, 28, 28); rows of x are reshaped to it. By default a
        sample is a flat row.
    loss : callable, optional
        (outputs, y) → one loss per sample, or a `torch.nn` loss with a `reduction`, which is set
        to "none". Cross-entropy by default.
    stacked : bool, optional
        Whether the clients of a round go through the module in one vectorised call (torch.func)
        or one after the other. By default modules with convolutions are looped, for stacked
        convolutions take more than twice as long on a CPU, and others stacked.
    threads : int ≥ 1, optional
        PyTorch's threads while it works here; its own setting by default. Numbers may differ in
        the last digits between settings.

    Examples
    --------
    >>> model = TorchModel(partial(nn.Linear, 2, 3))
    >>> model.size
    9
    >>> start = model.initial(np.random.default_rng(0))
    >>> model.losses(0 * start, np.ones((1, 2), np.float32), np.array([0])).round(6)  # log 3
    array([1.098612], dtype=float32)
    """

    dtype = np.float32

    def __init__(
        self,
        module: nn.Module | Callable[[], nn.Module],
        *,
        input_shape: tuple[int, ...] | None = None,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        stacked: bool | None = None,
        threads: int | None = None,
    ) -> None:
        self._make = None if isinstance(module, nn.Module) else module
        made = module if isinstance(module, nn.Module) else _seeded(0, module)
        if not isinstance(made, nn.Module):
            raise InputError(
                f"module must be a torch.nn.Module or make one, got {made!r:.60}; "
                "give the module, or its class"
            )
        # Convolutions take half the time on a CPU with channels last.
        self._module = deepcopy(made).float().to(memory_format=torch.channels_last)
        self._names = [name for name, _ in self._module.named_parameters()]
        self._own = list(self._module.parameters())
        self._buffers = dict(self._module.named_buffers())
        _refuse_running_statistics(self._module)
        if not self._own:
            raise InputError("module must have parameters, got none; there is nothing to train")
        self._input_shape = input_shape
        self._loss = _per_sample(loss)
        self.stacked = not _has_convolutions(self._module) if stacked is None else stacked
        self._threads = threads

    @cached_property
    def size(self) -> int:
        """The number of parameters."""
        return sum(each.numel() for each in self._own)

    def initial(self, rng: np.random.Generator) -> FloatArray:
        """Return the module's parameters, or those of one newly made from `rng`."""
        if self._make is None:
            return self.flat(self._module)
        return self.flat(_seeded(int(rng.integers(2**63)), self._make))

    def flat(self, module: nn.Module) -> FloatArray:
        """Return a module's parameters as one vector."""
        with torch.no_grad():
            vector = torch.cat([each.reshape(-1) for each in module.parameters()])
        return vector.double().numpy()

    def module(self, parameters: FloatArray) -> nn.Module:
        """Return a copy of the module that holds these parameters: to save it, or to use it."""
        self._load(parameters)
        return deepcopy(self._module)

    def prepared(self, x: AnyFloats) -> AnyFloats:
        """Return rows in float32, in the shape of the module's input."""
        rows = np.ascontiguousarray(x, dtype=np.float32)
        return rows if self._input_shape is None else rows.reshape(-1, *self._input_shape)

    def prepared_whole(self, x: AnyFloats) -> AnyFloats:
        """Return the same rows."""
        return self.prepared(x)

    def gradients(
        self, parameters: AnyFloats, x: AnyFloats, y: NDArray[np.int64], out: AnyFloats
    ) -> None:
        """Write the gradient of each of m clients' mean loss."""
        self._module.train()
        versions = [each._version for each in self._buffers.values()]
        with self._working():
            if self.stacked:
                self._gradients_stacked(parameters, x, y, out)
            else:
                for i in range(len(y)):
                    self._gradient(parameters[i], x[i], y[i], out[i])
        if versions != [each._version for each in self._buffers.values()]:
            raise InputError(
                f"module must not change its buffers while training, got {[*self._buffers]}; "
                "they are not averaged between clients: keep them constant"
            )

    def losses(self, parameters: FloatArray, x: AnyFloats, y: NDArray[np.int64]) -> AnyFloats:
        """Return each sample's loss, in evaluation mode."""
        return self._evaluated(
            parameters, x, y, lambda outputs, labels: self._checked_loss(outputs, labels)
        )

    def correct(
        self, parameters: FloatArray, x: AnyFloats, y: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return whether the largest output is that of the class, in evaluation mode."""
        return self._evaluated(
            parameters, x, y, lambda outputs, labels: outputs.argmax(dim=-1) == labels
        )

    def _gradient(
        self, parameters: AnyFloats, x: AnyFloats, y: NDArray[np.int64], out: AnyFloats
    ) -> None:
        _seed_from(parameters, x, y)
        self._load(parameters)
        loss = self._checked_loss(self._module(torch.from_numpy(x)), torch.from_numpy(y)).mean()
        found = torch.autograd.grad(loss, self._own, materialize_grads=True)
        torch.cat([each.reshape(-1) for each in found], out=torch.from_numpy(out))

    def _gradients_stacked(
        self, parameters: AnyFloats, x: AnyFloats, y: NDArray[np.int64], out: AnyFloats
    ) -> None:
        _seed_from(parameters, x, y)

        def mean_loss(vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
            own = dict(zip(self._names, self._views(vector), strict=True))
            outputs = functional_call(self._module, own, (x,))
            return self._checked_loss(outputs, y).mean()

        found = vmap(grad(mean_loss), randomness="different")(
            torch.from_numpy(parameters), torch.from_numpy(x), torch.from_numpy(y)
        )
        torch.from_numpy(out).copy_(found)

    def _evaluated(
        self,
        parameters: FloatArray,
        x: AnyFloats,
        y: NDArray[np.int64],
        measure: Callable[[Tensor, Tensor], Tensor],
    ) -> NDArray[Any]:
        self._module.eval()
        self._load(parameters)
        with self._working(), torch.inference_mode():
            found = [
                measure(self._module(inputs), labels)
                for inputs, labels in zip(
                    torch.from_numpy(x).split(AT_ONCE),
                    torch.from_numpy(y).split(AT_ONCE),
                    strict=True,
                )
            ]
        return torch.cat(found).numpy()

    def _checked_loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        losses = self._loss(outputs, y)
        if losses.shape != y.shape:
            raise InputError(
                f"loss must give one value per sample, got shape {tuple(losses.shape)} for "
                f"{tuple(y.shape)} samples; use reduction='none'"
            )
        return losses

    def _load(self, parameters: AnyFloats) -> None:
        """Write a flat vector into our own copy of the module."""
        with torch.no_grad():
            for own, value in zip(self._own, self._views(_tensor(parameters)), strict=True):
                own.copy_(value)

    def _views(self, vector: Tensor) -> list[Tensor]:
        """Return the parts of a flat vector, in the parameters' shapes."""
        parts = vector.split([each.numel() for each in self._own])
        return [part.view(each.shape) for part, each in zip(parts, self._own, strict=True)]

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Use our number of threads, and leave PyTorch's threads and random state as they were."""
        before = torch.get_num_threads()
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        try:
            with torch.random.fork_rng(devices=[]):
                yield
        finally:
            torch.set_num_threads(before)


def _seeded(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    """Make a module with PyTorch's random state set, and put back after."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return make()


def _tensor(parameters: AnyFloats) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(parameters, dtype=np.float32))


def _seed_from(parameters: AnyFloats, x: AnyFloats, y: NDArray[np.int64]) -> None:
    """Seed random layers from what is trained on what; a part of it tells steps apart."""
    digest = zlib.crc32(parameters[..., -256:].tobytes(), zlib.crc32(x[:1], zlib.crc32(y)))
    torch.default_generator.manual_seed(digest)


def _per_sample(loss: Callable[[Tensor, Tensor], Tensor] | None) -> Callable[..., Tensor]:
    if loss is None:
        return partial(cross_entropy, reduction="none")
    if hasattr(loss, "reduction"):
        loss = copy(loss)
        loss.reduction = "none"
    return loss


def _refuse_running_statistics(module: nn.Module) -> None:
    for name, each in module.named_modules():
        if getattr(each, "running_mean", None) is not None:
            raise InputError(
                f"module must not keep running statistics, got '{name}' "
                f"({type(each).__name__}); they are not averaged between clients: use GroupNorm, "
                "or track_running_stats=False"
            )


def _has_convolutions(module: nn.Module) -> bool:
    return any(isinstance(each, nn.modules.conv._ConvNd) for each in module.modules())
