"""Whatever a user calls a model, as a `Model`."""

from __future__ import annotations

import sys
from typing import Any

from fedpace.errors import InputError
from fedpace.models.model import Model

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
) -> Model:
    """Return what clients train: `given`, what it makes, or an adapter for either.

    Parameters
    ----------
    given : PyTorch module, scikit-learn estimator, Model, or a function that makes one
        A function of no arguments, such as a class, is called.
    shape, classes : tuple of int, int or None
        Of one sample, and how many classes y has, None for other labels: a scikit-learn model
        takes its size from these.
    loss, metric : str or function, optional
        For PyTorch modules only: see `TorchModel`.
    """
    made = given
    if not _is_model(given) and not _is_module(given) and not _is_estimator(given):
        made = _made(given)
    if _is_module(made):
        from fedpace.models.torch_model import TorchModel

        module = made if made is given else given
        # One thread: runs share the cores between them, and the numbers do not depend on how many.
        return TorchModel(module, loss=loss, metric=metric, threads=1)
    if loss is not None or metric is not None:
        what = "loss" if loss is not None else "metric"
        got = f"{loss if loss is not None else metric!r:.60} for a {type(made).__name__}"
        raise InputError(f"{what} must be left out, got {got}; only PyTorch modules take one")
    if _is_estimator(made):
        from fedpace.models.sklearn_model import sklearn_model

        if len(shape) != 1:
            got = f"samples of shape {shape}; use x.reshape(len(x), -1)"
            raise InputError(f"x must be (samples, features) for scikit-learn, got {got}")
        return sklearn_model(made, shape[0], classes)
    if _is_model(made):
        return made  # type: ignore[no-any-return]
    raise InputError(f"model must be {WANTED}, got {made!r:.80}; see docs/own-models.md")


def _made(given: Any) -> Any:
    if not callable(given):
        raise InputError(f"model must be {WANTED}, got {given!r:.80}; see docs/own-models.md")
    if "torch" not in sys.modules:
        return given()
    from fedpace.models.modules import seeded

    return seeded(0, given)


def _is_model(given: Any) -> bool:
    wanted = ("initial", "gradients", "losses", "correct")
    return not isinstance(given, type) and all(hasattr(given, name) for name in wanted)


def _is_module(given: Any) -> bool:
    torch = sys.modules.get("torch")  # whoever has a module has imported it
    return torch is not None and isinstance(given, torch.nn.Module)


def _is_estimator(given: Any) -> bool:
    return not isinstance(given, type) and hasattr(given, "get_params") and hasattr(given, "fit")
