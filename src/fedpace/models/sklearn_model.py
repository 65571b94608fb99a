"""Linear models of scikit-learn as a `BaseModel`: their coefficients are what is trained."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import AnyFloats, FloatArray, Labels
from fedpace.errors import InputError, needs
from fedpace.models.model import BaseModel
from fedpace.models.networks import Logistic

with needs("scikit-learn models need scikit-learn", "sklearn"):
    from sklearn.base import BaseEstimator, is_classifier


def sklearn_model(estimator: BaseEstimator, features: int, classes: int | None) -> BaseModel:
    """Return an estimator as a model; `classes` is None where y holds no classes.

    One with `partial_fit` and coefficients, such as SGDClassifier, takes its own steps: a call per
    batch, with the round's learning rate as `eta0`. LogisticRegression, LinearRegression and Ridge
    train their coefficients by the gradient of their loss; their penalty is `weight_decay`.
    """
    name = type(estimator).__name__
    if not is_classifier(estimator):
        classes = None  # integers may be numbers to predict
    elif classes is None:
        raise InputError(
            f"y must be classes, integers from 0, for {name}, got other labels; use y.astype(int), "
            "or a regressor"
        )
    if hasattr(estimator, "partial_fit"):
        return PartialFit(estimator, features, classes)
    if name == "LogisticRegression" and classes is not None:
        return _LogisticRegression(features, classes)
    if name in ("LinearRegression", "Ridge"):
        return _LinearRegression(features)
    raise InputError(
        f"model must have partial_fit, or be LogisticRegression, LinearRegression or Ridge, got "
        f"{name}; use SGDClassifier or SGDRegressor with its loss"
    )


class _LogisticRegression(Logistic):
    """Softmax regression; its arrays are scikit-learn's."""

    def arrays(self, parameters: FloatArray) -> dict[str, NDArray[Any]]:
        """Return coef_ and intercept_; of two classes, those of the second."""
        rows = parameters.reshape(self.classes, self.features + 1)
        rows = rows[1:] - rows[:1] if self.classes == 2 else rows
        return {"coef_": rows[:, :-1], "intercept_": rows[:, -1]}


class _LinearRegression(BaseModel):
    """Squared error of x·w + b; the parameters are (w, b)."""

    size: int

    def __init__(self, features: int) -> None:
        self.size = features + 1

    def initial(self, rng: np.random.Generator) -> FloatArray:  # noqa: ARG002 - as every model
        return np.zeros(self.size)

    def prepare(self, x: AnyFloats) -> AnyFloats:
        return np.column_stack([x, np.ones(len(x))]).astype(np.float64)

    def gradients(self, parameters: AnyFloats, x: AnyFloats, y: Labels, out: AnyFloats) -> None:
        errors = np.einsum("mbf,mf->mb", x, parameters) - y
        out[:] = 2 * np.einsum("mb,mbf->mf", errors, x) / max(y.shape[1], 1)

    def losses(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> AnyFloats:
        squares: AnyFloats = (x @ parameters - y) ** 2
        return squares

    def correct(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> NDArray[Any]:
        return np.abs(x @ parameters - y)

    def arrays(self, parameters: FloatArray) -> dict[str, NDArray[Any]]:
        return {"coef_": parameters[:-1], "intercept_": parameters[-1]}


class PartialFit(BaseModel):
    """An estimator that trains by `partial_fit`, batch by batch."""

    size: int

    def __init__(self, estimator: BaseEstimator, features: int, classes: int | None) -> None:
        self._estimator: Any = copy.deepcopy(estimator)
        self._classes = None if classes is None else np.arange(classes)
        known = self._estimator.get_params()
        fixed = {"random_state": 0, "learning_rate": "constant", "eta0": 1e-6}
        self._estimator.set_params(**{name: fixed[name] for name in fixed if name in known})
        self._rated = "eta0" in known
        y = np.zeros(2) if self._classes is None else self._classes
        self._fit(np.zeros((len(y), features)), y)
        try:
            shapes = self._estimator.coef_.shape, self._estimator.intercept_.shape
        except AttributeError:
            name = type(estimator).__name__
            raise InputError(
                f"model must have coef_ and intercept_, got {name}; choose a linear model"
            ) from None
        self._coefficients, self._intercepts = shapes
        self.size = int(np.prod(shapes[0]) + np.prod(shapes[1]))

    def initial(self, rng: np.random.Generator) -> FloatArray:  # noqa: ARG002 - as every model
        """Return zeros."""
        return np.zeros(self.size)

    def prepare(self, x: AnyFloats) -> AnyFloats:
        """Return the rows in double precision."""
        return np.ascontiguousarray(x, dtype=np.float64)

    def gradients(self, parameters: AnyFloats, x: AnyFloats, y: Labels, out: AnyFloats) -> None:
        """Write what a step of rate 1e-6 moves by, over the rate; training uses `step`."""
        after = parameters.copy()
        self.step(after, x, y, 1e-6)
        out[:] = (parameters - after) / 1e-6

    def step(self, parameters: AnyFloats, x: AnyFloats, y: Labels, rate: float | AnyFloats) -> None:
        """Let `partial_fit` change the parameters of each of m clients by its batch."""
        rates = np.broadcast_to(np.ravel(rate), len(parameters))
        for i in range(len(parameters)):
            if self._rated:
                self._estimator.set_params(eta0=float(rates[i]))
            self._load(parameters[i])
            self._fit(x[i], y[i])
            estimator = self._estimator
            parameters[i] = np.concatenate([estimator.coef_.ravel(), estimator.intercept_.ravel()])

    def losses(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> AnyFloats:
        """Return −log p of the class, its hinge loss where there is no p, or the squared error."""
        self._load(parameters)
        if self._classes is None:
            squares: AnyFloats = (self._estimator.predict(x) - y) ** 2
            return squares
        if hasattr(self._estimator, "predict_proba"):
            chances = self._estimator.predict_proba(x)[np.arange(len(y)), y]
            return np.asarray(-np.log(np.maximum(chances, np.finfo(np.float64).tiny)))
        scores = self._estimator.decision_function(x)
        if scores.ndim == 1:
            return np.asarray(np.maximum(0, 1 - np.where(y == 1, scores, -scores)))
        signs = np.where(self._classes == y[:, None], 1, -1)
        hinges: AnyFloats = np.maximum(0, 1 - signs * scores).sum(axis=1)
        return hinges

    def correct(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> NDArray[Any]:
        """Return whether the class is predicted; for numbers, how far off the prediction is."""
        self._load(parameters)
        predicted = self._estimator.predict(x)
        return np.asarray(np.abs(predicted - y) if self._classes is None else predicted == y)

    def arrays(self, parameters: FloatArray) -> dict[str, NDArray[Any]]:
        """Return coef_ and intercept_."""
        cut = int(np.prod(self._coefficients))
        coefficients = parameters[:cut].reshape(self._coefficients)
        return {"coef_": coefficients, "intercept_": parameters[cut:].reshape(self._intercepts)}

    def _load(self, parameters: AnyFloats) -> None:
        for name, value in self.arrays(np.asarray(parameters, dtype=np.float64)).items():
            setattr(self._estimator, name, np.array(value, order="C"))

    def _fit(self, x: AnyFloats, y: Labels) -> None:
        classes = {} if self._classes is None else {"classes": self._classes}
        self._estimator.partial_fit(x, y, **classes)
