"""scikit-learn, NumPy and JAX models train as their own libraries would."""

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    Perceptron,
    Ridge,
    SGDClassifier,
    SGDRegressor,
)
from sklearn.svm import SVC

from fedpace.backends.local import LocalSteps
from fedpace.errors import InputError
from fedpace.models.model import as_model
from fedpace.models.numpy_model import NumpyModel

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 3))
CLASSES = (X @ [1.0, -1.0, 0.5] > 0).astype(int)
NUMBERS = X @ [1.0, -2.0, 0.5] + 0.3
ROWS = RNG.integers(0, 80, size=(300, 2, 8))


def trained(model: Any, y: np.ndarray, rate: float = 0.1) -> Any:
    start = model.initial(np.random.default_rng(0))
    x = model.prepare(X)
    return start + LocalSteps(300, 8).train(model, start, x, y, ROWS, rate).updates[0]


def adapted(estimator: Any, y: np.ndarray) -> Any:
    classes = int(y.max()) + 1 if y.dtype.kind == "i" else None
    return as_model(estimator, shape=(3,), classes=classes)


@pytest.mark.parametrize(
    "estimator",
    [LogisticRegression(), SGDClassifier(loss="log_loss"), SGDClassifier(), Perceptron()],
)
@pytest.mark.parametrize("classes", [2, 3])
def test_classifiers_learn(estimator: Any, classes: int) -> None:
    y = CLASSES if classes == 2 else np.digitize(X[:, 0], [-0.5, 0.5])
    model = adapted(estimator, y)
    after = trained(model, y, rate=0.05)
    whole = model.prepare_whole(X)
    assert model.losses(after, whole, y).mean() < model.losses(0 * after, whole, y).mean()
    assert model.correct(after, whole, y).mean() > 0.75
    rows = 1 if classes == 2 else classes
    assert model.arrays(after)["coef_"].shape == (rows, 3)
    fitted = type(estimator)()
    fitted.classes_ = np.arange(classes)
    for name, value in model.arrays(after).items():
        setattr(fitted, name, value)
    assert (fitted.predict(X) == y).mean() == model.correct(after, whole, y).mean()


@pytest.mark.parametrize("estimator", [LinearRegression(), Ridge(), SGDRegressor()])
def test_regressors_learn_numbers(estimator: Any) -> None:
    model = adapted(estimator, NUMBERS)
    after = trained(model, NUMBERS, rate=0.02)
    assert model.losses(after, model.prepare_whole(X), NUMBERS).mean() < 0.05
    np.testing.assert_allclose(np.ravel(model.arrays(after)["coef_"]), [1, -2, 0.5], atol=0.2)


def test_a_step_of_partial_fit_is_scikit_learns() -> None:
    model = adapted(SGDClassifier(loss="log_loss"), CLASSES)
    parameters = np.zeros((1, model.size))
    model.step(parameters, X[None, :8], CLASSES[None, :8], 0.3)
    theirs = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.3, random_state=0)
    theirs.partial_fit(X[:8], CLASSES[:8], classes=[0, 1])
    np.testing.assert_allclose(parameters[0], [*theirs.coef_.ravel(), *theirs.intercept_])


@pytest.mark.parametrize(
    ("estimator", "y", "shape", "message"),
    [
        (SVC(), CLASSES, (3,), "must have partial_fit"),
        (LogisticRegression(), NUMBERS, (3,), "y must be classes"),
        (LogisticRegression(), CLASSES, (1, 3), "reshape"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    estimator: Any, y: np.ndarray, shape: tuple[int, ...], message: str
) -> None:
    classes = 2 if y.dtype.kind == "i" else None
    with pytest.raises(InputError, match=message):
        as_model(estimator, shape=shape, classes=classes)


def test_own_steps_take_no_optimiser() -> None:
    model = adapted(SGDClassifier(), CLASSES)
    with pytest.raises(InputError, match="takes its own steps"):
        LocalSteps(300, 8, optimiser="adam").train(
            model, np.zeros(model.size), X, CLASSES, ROWS, 0.1
        )


def error(p: Any, x: Any, y: Any) -> Any:
    return (x @ p["w"] + p["b"] - y) ** 2


def slope(p: Any, x: Any, y: Any) -> Any:
    residual = 2 * (x @ p["w"] + p["b"] - y) / len(y)
    return {"w": x.T @ residual, "b": residual.sum()}


def test_numpy_functions_with_parameters_by_name() -> None:
    model = NumpyModel({"w": np.zeros(3), "b": np.zeros(())}, slope, error)
    after = trained(model, NUMBERS)
    assert model.losses(after, X, NUMBERS).mean() < 1e-3
    assert model.arrays(after)["w"] == pytest.approx([1, -2, 0.5], abs=0.05)
    assert np.isnan(model.correct(after, X, NUMBERS)).all()


def test_numpy_functions_of_other_shapes_are_refused() -> None:
    short = NumpyModel(np.zeros(3), lambda w, *_: w[:2], lambda *_: 1.0)
    with pytest.raises(InputError, match="shapes of the start"):
        short.gradients(np.zeros((1, 3)), X[None], NUMBERS[None], np.zeros((1, 3)))
    with pytest.raises(InputError, match="one value per sample"):
        short.losses(np.zeros(3), X, NUMBERS)


def test_jax_functions_over_a_pytree() -> None:
    jax = pytest.importorskip("jax")
    from fedpace.models.jax_model import JaxModel

    def start(key: Any) -> Any:
        return {"layers": [jax.random.normal(key, (3,))], "b": jax.numpy.zeros(())}

    def loss(p: Any, x: Any, y: Any) -> Any:
        return ((x @ p["layers"][0] + p["b"] - y) ** 2).mean()

    model = JaxModel(start, loss, lambda p, x, y: abs(x @ p["layers"][0] + p["b"] - y) < 0.1)
    after = trained(model, NUMBERS)
    assert model.losses(after, X, NUMBERS).mean() < 1e-3
    assert model.correct(after, X, NUMBERS).all()
    assert model.arrays(after)["['layers'][0]"] == pytest.approx([1, -2, 0.5], abs=0.05)
    one, two = (model.initial(np.random.default_rng(seed)) for seed in (0, 1))
    assert not np.array_equal(one, two)

    def per_sample(p: Any, x: Any, y: Any) -> Any:
        return x[:, 0]

    with pytest.raises(InputError, match="loss must return one number"):
        JaxModel(start, per_sample).losses(after, X, NUMBERS)
