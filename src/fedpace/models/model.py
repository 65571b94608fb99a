"""The interface of models, and adapters for PyTorch, scikit-learn and other objects."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace.adapt import adapt, default_property, defines, original
from fedpace.checks import AnyFloats, FloatArray, Labels
from fedpace.errors import InputError


class BaseModel:
    """Base class of models: loss and gradient, of several clients at once.

    Parameters are one flat vector of length P. Define `size`, `initial`, `gradients`, `losses` and
    `correct`; all else has a default.

    Attributes
    ----------
    dtype : type
        The precision that clients train in; the server adds up in float64.
    trained : mask of length P or None
        False for entries that no gradient moves, such as the running means of batch
        normalisation; `gradients` writes their new values. None: all are trained.
    architecture : str
        Text that differs for models with other layers; it distinguishes stored runs.
    """

    dtype: type[np.floating[Any]] = np.float64
    trained: NDArray[np.bool_] | None = None
    architecture: str = ""

    @default_property
    def size(self) -> int:
        """The number of parameters, P."""
        raise NotImplementedError(_undefined(self, "size"))

    def initial(self, rng: np.random.Generator) -> FloatArray:
        """Return the parameters that training starts from, of shape (P,)."""
        raise NotImplementedError(_undefined(self, "initial"))

    def prepare(self, x: AnyFloats) -> AnyFloats:
        """Return all inputs, a row each, in the form that `gradients` takes; called once."""
        return x.astype(self.dtype, copy=False) if x.dtype.kind == "f" else x

    def prepare_whole(self, x: AnyFloats) -> AnyFloats:
        """Return all inputs in the form that `losses` and `correct` take; called once."""
        return self.prepare(x)

    def gradients(self, parameters: AnyFloats, x: AnyFloats, y: Labels, out: AnyFloats) -> None:
        """Write the mean gradient of m batches, each at its own parameters, to `out`.

        `parameters` and `out` are (m, P) in the model's precision, `x` is (m, batch, …) and `y`
        (m, batch, …).
        """
        raise NotImplementedError(_undefined(self, "gradients"))

    def step(self, parameters: AnyFloats, x: AnyFloats, y: Labels, rate: float | AnyFloats) -> None:
        """Change `parameters` in place by one step; if defined, used instead of `gradients`."""
        raise NotImplementedError(_undefined(self, "step"))

    def run_steps(
        self,
        sent: AnyFloats,  # noqa: ARG002
        x: AnyFloats,  # noqa: ARG002
        y: Labels,  # noqa: ARG002
        rows: NDArray[np.int64],  # noqa: ARG002
        rate: float | AnyFloats,  # noqa: ARG002
    ) -> tuple[AnyFloats, FloatArray] | None:
        """Take all plain SGD steps of m clients where the model's arrays are, such as on a GPU.

        Return w_i − w, (m, P), and each client's sum of squared gradient norms. By default None:
        then `gradients` is called for every step. `sent` is (P,) or (m, P), `rows` (E, m, batch).
        """
        return None

    @property
    def takes_own_steps(self) -> bool:
        """Whether `step` is defined."""
        return defines(original(self), BaseModel, "step")

    def losses(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> AnyFloats:
        """Return each sample's loss at `parameters`."""
        raise NotImplementedError(_undefined(self, "losses"))

    def correct(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> NDArray[Any]:
        """Return whether each sample is classified correctly at `parameters`.

        Or another measure: a number per sample, whose mean is reported as accuracy.
        """
        raise NotImplementedError(_undefined(self, "correct"))

    def arrays(self, parameters: FloatArray) -> dict[str, NDArray[Any]]:
        """Return the parameters as named arrays, to be saved."""
        return {"parameters": parameters}

    def with_parameters(self, parameters: FloatArray) -> Any:
        """Return the trained model for its user; by default its named arrays."""
        return self.arrays(parameters)


def _undefined(model: object, name: str) -> str:
    return f"{type(model).__name__} does not define {name}; see fedpace.models.model.BaseModel"


REQUIRED = ("size", "initial", "gradients", "losses", "correct")


def adapt_model(value: object) -> BaseModel:
    """Return a model, or any object with its methods, as a `BaseModel`."""
    return adapt(value, BaseModel, argument="model", required=REQUIRED)


WANTED = (
    "a PyTorch module or its class, a linear model of scikit-learn, or an object with initial, "
    "gradients, losses and correct, such as NumpyModel or JaxModel"
)


def as_model(
    given: Any,
    *,
    shape: tuple[int, ...],
    classes: int | None,
    loss: Any = None,
    metric: Any = None,
    device: str | None = None,
) -> BaseModel:
    """Return a model for `given`, or for what it makes if it is a function.

    Parameters
    ----------
    given : PyTorch module, scikit-learn estimator, Model, or a function that makes one
        A function of no arguments, such as a class, is called.
    shape, classes : tuple of int, int or None
        Of one sample, and how many classes y has, None for other labels: a scikit-learn model
        takes its size from these.
    loss, metric, device : str or function, optional
        For PyTorch modules only: see `TorchModel`.
    """
    made = given
    if not _is_model(given) and not _is_module(given) and not _is_estimator(given):
        made = _call(given)
    if _is_module(made):
        from fedpace.models.torch_model import TorchModel

        module = made if made is given else given
        # One thread: runs share the cores, and numbers must not depend on the number of threads.
        return TorchModel(module, loss=loss, metric=metric, threads=1, device=device)
    named = {"loss": loss, "metric": metric, "device": device}
    for what, value in named.items():
        if value is None:
            continue
        got = f"{value!r:.60} for a {type(made).__name__}"
        raise InputError(f"{what} must be left out, got {got}; only PyTorch modules take one")
    if _is_estimator(made):
        from fedpace.models.sklearn_model import sklearn_model

        if len(shape) != 1:
            got = f"samples of shape {shape}; use x.reshape(len(x), -1)"
            raise InputError(f"x must be (samples, features) for scikit-learn, got {got}")
        return sklearn_model(made, shape[0], classes)
    if _is_model(made):
        return adapt_model(made)
    raise InputError(f"model must be {WANTED}, got {made!r:.80}; see docs/own-models.md")


def _call(given: Any) -> Any:
    if not callable(given):
        raise InputError(f"model must be {WANTED}, got {given!r:.80}; see docs/own-models.md")
    if "torch" not in sys.modules:
        return given()
    from fedpace.models.torch_modules import make_seeded

    return make_seeded(0, given)


def _is_model(given: Any) -> bool:
    wanted = ("initial", "gradients", "losses", "correct")
    return not isinstance(given, type) and all(hasattr(given, name) for name in wanted)


def _is_module(given: Any) -> bool:
    torch = sys.modules.get("torch")  # imported, if there is a module
    return torch is not None and isinstance(given, torch.nn.Module)


def _is_estimator(given: Any) -> bool:
    return not isinstance(given, type) and hasattr(given, "get_params") and hasattr(given, "fit")
