"""Any PyTorch module as a `BaseModel`: one flat float32 vector in, gradients out."""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import AnyFloats, FloatArray, Labels, positive_count
from fedpace.errors import InputError, needs
from fedpace.models.model import BaseModel

with needs("PyTorch models need torch", "torch"):
    import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedpace.models import torch_modules
from fedpace.models.torch_device import AT_ONCE, place_named


class TorchModel(BaseModel):
    """Train a `torch.nn.Module` on fedpace; the parameters are one flat vector.

    Gradients are those of a batch's mean loss, in training mode; losses and accuracy are taken in
    evaluation mode. Random layers such as dropout draw from a stream that depends on the client's
    parameters and batch only: the same seed gives the same numbers, whichever clients are drawn.

    Parameters
    ----------
    module : nn.Module, or a function of no arguments that makes one
        It is copied. With a function, such as the module's class, every seed starts from
        parameters of its own, drawn by the module's initialisation; with a module, every run
        starts from the parameters it has. Frozen parameters (`requires_grad` false) and buffers
        are constants, those of the module given or of the first one made, and not in the vector.
        The running statistics of batch normalisation are in it, behind the parameters, and
        `trained` marks them: they are averaged as in Flower. Refused: a module that changes
        other buffers.
    input_shape : tuple of int, optional
        Shape of one sample, such as (1, 28, 28); by default a flat row of x.
    loss : str or callable, optional
        cross-entropy, the default; next-token, the same for each place of a sequence; bce, for
        several labels per sample; mse, mae or huber, for numbers. Or (outputs, y) → one loss per
        sample, or a `torch.nn` loss with a `reduction`, which is set to "none".
    metric : str or callable, optional
        What is measured on the samples held out: accuracy, label-accuracy, mse, mae, or
        (outputs, y) → one number per sample. By default what suits a loss that has a name.
    stacked : bool, optional
        Whether all clients of a round go through the module in one vectorised call (torch.func).
        By default they do, unless the module has convolutions, which take longer stacked on a
        CPU, draws random numbers, which would depend on who else is drawn, or cannot be
        vectorised, which the first batch shows.
    threads : int ≥ 1, optional
        PyTorch's threads while it works here; its own setting by default. The last digits may
        depend on it.
    device : str, optional
        cuda, cuda:1, mps, cpu, or auto for the best there is. Data stay there; in a round the
        model goes there once and the updates come back once, with plain SGD. Other optimisers,
        clipping, weight decay and FedProx move arrays in every step. By default PyTorch shares
        NumPy's arrays on the CPU, without a move.

    Examples
    --------
    >>> model = TorchModel(lambda: nn.Linear(2, 3))
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
        loss: torch_modules.Loss | str | None = None,
        metric: torch_modules.Loss | str | None = None,
        stacked: bool | None = None,
        threads: int | None = None,
        device: str | None = None,
    ) -> None:
        self.place = place_named(device)
        self._make = None if isinstance(module, nn.Module) or not callable(module) else module
        made = module if self._make is None else torch_modules.make_seeded(0, self._make)
        self._module = torch_modules.own_copy(made)
        self.architecture = repr(self._module)
        if self.place is not None:
            self._module.to(self.place.device)
        self._parameters = torch_modules.trainable(self._module)
        self._running = torch_modules.running_statistics(self._module)
        self._own: dict[str, Tensor] = {**self._parameters, **self._running}
        self._start = self.flat(self._module)
        if self._running:
            count = sum(each.numel() for each in self._parameters.values())
            self.trained = np.arange(self._start.size) < count
        self._input_shape = input_shape
        self._tokens = torch_modules.takes_tokens(self._module)
        self._loss = torch_modules.loss_of(loss)
        self._metric = torch_modules.metric_of(metric, loss)
        slow = self.place is None or self.place.device.type == "cpu"
        loops = stacked is None and slow and torch_modules.has_convolutions(self._module)
        # Running statistics are written while a batch passes, which cannot be vectorised.
        self.stacked = False if loops or self._running else stacked
        self._threads = None if threads is None else positive_count("threads", threads)

    @property
    def size(self) -> int:
        """The number of parameters that train."""
        return self._start.size

    def initial(self, rng: np.random.Generator) -> FloatArray:
        """Return the module's parameters, or those of one newly made from `rng`."""
        if self._make is None:
            return self._start.copy()
        return self.flat(torch_modules.make_seeded(int(rng.integers(2**63)), self._make))

    def flat(self, module: nn.Module) -> FloatArray:
        """Return a module's parameters as one vector."""
        with torch.no_grad():
            own = torch_modules.trainable(module) | torch_modules.running_statistics(module)
            return torch.cat([each.reshape(-1).cpu().double() for each in own.values()]).numpy()

    def module(self, parameters: FloatArray) -> nn.Module:
        """Return a copy of the module that holds these parameters, ready to evaluate or save."""
        self._load(parameters)
        copy: nn.Module = deepcopy(self._module)
        return copy.cpu().eval()

    def with_parameters(self, parameters: FloatArray) -> nn.Module:
        """Return the module."""
        return self.module(parameters)

    def prepare(self, x: AnyFloats) -> AnyFloats:
        """Return rows in float32, in the shape of the module's input; tokens stay integers."""
        kind = np.int64 if self._tokens and x.dtype.kind in "iu" else np.float32
        rows: AnyFloats = np.require(x, kind, ["C", "W"])  # PyTorch shares writable arrays only
        if self._input_shape is None:
            return rows
        features = math.prod(x.shape[1:])
        if math.prod(self._input_shape) != features:
            raise InputError(
                f"input_shape must hold the {features} features of a sample, got "
                f"{self._input_shape}; choose sizes whose product is {features}"
            )
        return rows.reshape(-1, *self._input_shape)

    prepare_whole = prepare

    def gradients(self, parameters: AnyFloats, x: AnyFloats, y: Labels, out: AnyFloats) -> None:
        """Write the gradient of each of m clients' mean loss."""
        self._module.train()
        with self._own_threads():
            if self.stacked is None:
                self._seed_from(parameters, x, y)
                self.stacked = self._can_stack(lambda: self._all_gradients(parameters, x, y, out))
            if self.stacked:
                self._all_gradients(parameters, x, y, out)
            else:
                for i in range(len(y)):
                    self._gradient(parameters[i], x[i], y[i], out[i])

    def losses(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> AnyFloats:
        """Return each sample's loss, in evaluation mode."""
        return self._evaluate(parameters, x, y, self._losses)

    def correct(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> NDArray[Any]:
        """Return the metric of each sample, in evaluation mode; NaN where there is none."""
        if (metric := self._metric) is None:
            return np.full(len(y), np.nan)

        def measure(outputs: Tensor, y: Tensor) -> Tensor:
            return torch_modules.one_per_sample("metric", metric(outputs, y), len(y))

        return self._evaluate(parameters, x, y, measure)

    def arrays(self, parameters: FloatArray) -> dict[str, NDArray[Any]]:
        """Return the module's `state_dict` with these parameters, as arrays."""
        state = self.module(parameters).state_dict()
        return {name: each.numpy() for name, each in state.items()}

    def _losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return torch_modules.one_per_sample("loss", self._loss(outputs, y), len(y))

    def _gradient(self, parameters: AnyFloats, x: AnyFloats, y: Labels, out: AnyFloats) -> None:
        self._seed_from(parameters, x, y)
        self._load(parameters)
        loss = self._losses(self._module(self._tensor(x)), self._tensor(y)).mean()
        found = torch.autograd.grad(loss, [*self._parameters.values()], materialize_grads=True)
        after = [each.detach().float() for each in self._running.values()]
        parts = [each.reshape(-1) for each in [*found, *after]]
        if self.place is None:
            torch.cat(parts, out=torch.from_numpy(out))
        else:
            out[:] = self.place.fetch(torch.cat(parts))

    def _all_gradients(
        self, parameters: AnyFloats, x: AnyFloats, y: Labels, out: AnyFloats
    ) -> None:
        self._seed_from(parameters, x, y)
        found = self._stacked(*map(self._tensor, (parameters, x, y)))
        if self.place is None:
            torch.from_numpy(out).copy_(found)
        else:
            out[:] = self.place.fetch(found)

    def _stacked(self, vectors: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradients of all clients, in one vectorised call."""

        def mean_loss(vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
            outputs = functional_call(self._module, self._views(vector), (x,))
            return self._losses(outputs, y).mean()

        found: Tensor = vmap(grad(mean_loss), randomness="different")(vectors, x, y)
        return found

    def _alone(self, vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of one client, and its running statistics after the batch."""
        own = self._views(vector)
        leaves = {name: own[name].detach().requires_grad_() for name in self._parameters}
        running = {name: own[name].detach().clone() for name in self._running}
        with torch.enable_grad():
            outputs = functional_call(self._module, leaves | running, (x,))
            loss = self._losses(outputs, y).mean()
        found = torch.autograd.grad(loss, [*leaves.values()], materialize_grads=True)
        return torch.cat([each.reshape(-1) for each in (*found, *running.values())])

    def run_steps(
        self,
        sent: AnyFloats,
        x: AnyFloats,
        y: Labels,
        rows: NDArray[np.int64],
        rate: float | AnyFloats,
    ) -> tuple[AnyFloats, FloatArray] | None:
        """Return updates and Σ ‖g‖² of the steps on the device; None without one.

        The models, the rows and, if there are several, the rates go there; one array comes back.
        """
        place, clients = self.place, rows.shape[1]
        if place is None:
            return None
        self._module.train()
        count = sum(each.numel() for each in self._parameters.values())
        all_x, all_y = place.keep(x), place.keep(y)
        with self._own_threads(), torch.no_grad():
            start = place.send(sent)
            start = start if start.ndim == 2 else start.expand(clients, -1)
            chosen = place.send(rows)
            rates: Any = rate if isinstance(rate, float) else place.send(np.asarray(rate))
            local, squares = start.clone(), torch.zeros(clients, device=place.device)
            digest = zlib.crc32(sent[..., -256:].tobytes())
            for step, each in zip(rows, chosen, strict=True):
                gradient = self._on_device(local, all_x[each], all_y[each], step, digest)
                running = gradient[:, count:].clone()
                gradient[:, count:] = 0
                squares += gradient.square().sum(dim=1)
                local -= rates * gradient
                local[:, count:] = running
            found = place.fetch(torch.cat([local - start, squares[:, None]], dim=1))
        return found[:, :-1], found[:, -1].astype(np.float64)

    def _on_device(
        self, local: Tensor, x: Tensor, y: Tensor, rows: NDArray[np.int64], digest: int
    ) -> Tensor:
        """Return the gradients of a step; random layers are seeded by the rows of each client."""
        torch.manual_seed(zlib.crc32(rows.tobytes(), digest))
        if self.stacked is None:
            self.stacked = self._can_stack(lambda: self._stacked(local, x, y))
        if self.stacked:
            return self._stacked(local, x, y)
        found = []
        for place in range(len(local)):
            torch.manual_seed(zlib.crc32(rows[place].tobytes(), digest))
            found.append(self._alone(local[place], x[place], y[place]))
        return torch.stack(found)

    def _can_stack(self, attempt: Callable[[], object]) -> bool:
        """Say whether the module can be vectorised, fast, and without drawing random numbers."""
        before = self._random_state()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # PyTorch warns of operations that it would loop
                attempt()
        except (RuntimeError, Warning):
            return False
        return torch.equal(before, self._random_state())

    def _random_state(self) -> Tensor:
        """Return PyTorch's random state, with that of the device."""
        devices = [] if self.place is None else self.place.random_devices
        states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(each) for each in devices)]
        return torch.cat(states)

    def _evaluate(
        self, parameters: FloatArray, x: AnyFloats, y: Labels, measure: torch_modules.Loss
    ) -> NDArray[Any]:
        self._module.eval()
        self._load(parameters)
        place, found = self.place, []
        there = [_tensor(each) if place is None else place.keep(each) for each in (x, y)]
        at_once = AT_ONCE if place is None else place.at_once
        with self._own_threads(), torch.inference_mode():
            parts = [torch.split(each, at_once) for each in there]
            here = torch.split(_tensor(y), at_once)  # looked at without a move
            for inputs, labels, known in zip(*parts, here, strict=True):
                outputs = self._module(inputs)
                torch_modules.check_classes(outputs, known)
                found.append(measure(outputs, labels))
        return torch.cat(found).numpy() if place is None else place.fetch(torch.cat(found))

    def _load(self, parameters: AnyFloats) -> None:
        """Write a flat vector into our own copy of the module."""
        vector = self._tensor(np.asarray(parameters, dtype=np.float32))
        with torch.no_grad():
            for name, value in self._views(vector).items():
                self._own[name].copy_(value)

    def _views(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the parts of a flat vector by name, in the parameters' shapes."""
        own = self._own
        parts = torch.split(vector, [each.numel() for each in own.values()])
        return {name: part.view(own[name].shape) for name, part in zip(own, parts, strict=True)}

    def _seed_from(self, parameters: AnyFloats, x: AnyFloats, y: Labels) -> None:
        """Seed random layers from parameters and batch; a part of them distinguishes steps."""
        digest = zlib.crc32(x[:1].tobytes(), zlib.crc32(y.tobytes()))
        digest = zlib.crc32(parameters[..., -256:].tobytes(), digest)
        seed = torch.default_generator.manual_seed if self.place is None else torch.manual_seed
        seed(digest)

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        """Share an array with PyTorch, or send it to the device."""
        return _tensor(array) if self.place is None else self.place.send(array)

    @contextmanager
    def _own_threads(self) -> Iterator[None]:
        """Use our number of threads, and leave PyTorch's threads and random state as they were."""
        before = torch.get_num_threads()
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        try:
            constant = torch_modules.constant_buffers(self._module, but=self._running)
            devices = [] if self.place is None else self.place.random_devices
            with torch.random.fork_rng(devices=devices), constant:
                yield
        finally:
            torch.set_num_threads(before)


def _tensor(array: NDArray[Any]) -> Tensor:
    """Share an array with PyTorch, which takes neither read-only ones nor negative strides."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def lenet5(classes: int = 10) -> nn.Sequential:
    """Return LeNet-5 as it is used today: rectified linear units and maximum pooling.

    Two convolutions of 5 × 5 (6 and 16 channels) and three linear layers (120, 84, `classes`),
    initialised as PyTorch does. Pooling comes before rectifying, which gives the same function on
    a quarter of the values. Differs from [Luo22], which states w_0 = 0: there every layer but
    the last has a zero gradient, so that only the last intercept could ever train.

    >>> sum(each.numel() for each in lenet5().parameters())
    61706
    """
    return nn.Sequential(
        nn.Conv2d(1, 6, kernel_size=5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(6, 16, kernel_size=5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )
