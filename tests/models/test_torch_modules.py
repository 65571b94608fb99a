"""Losses and metrics by name, for classes, labels, numbers and tokens; running statistics."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedpace.backends.local import LocalSteps
from fedpace.errors import InputError
from fedpace.models.torch_model import TorchModel

X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)


def start(model: TorchModel) -> np.ndarray:
    return model.initial(np.random.default_rng(0))


@pytest.mark.parametrize(
    ("loss", "torch_loss"),
    [("mse", nn.MSELoss()), ("mae", nn.L1Loss()), ("huber", nn.HuberLoss())],
)
def test_numbers_are_learned_as_they_are(loss: str, torch_loss: nn.Module) -> None:
    y = np.array([0.9, 0.1, -3.5, 2.25, 0.0, 1.5])  # 0.9 is not class 0
    model = TorchModel(lambda: nn.Linear(3, 1), loss=loss)
    parameters = start(model)
    module = model.module(parameters)
    expected = torch_loss(module(torch.from_numpy(X)).squeeze(-1), torch.from_numpy(y).float())
    assert model.losses(parameters, X, y).mean() == pytest.approx(expected.item(), rel=1e-5)
    distance = np.abs(module(torch.from_numpy(X)).detach().numpy()[:, 0] - y)
    np.testing.assert_allclose(model.correct(parameters, X, y), distance, rtol=1e-5)


def test_floats_are_refused_as_classes() -> None:
    model = TorchModel(lambda: nn.Linear(3, 2))
    with pytest.raises(InputError, match=r"y must be classes.*astype\(int\)"):
        model.losses(start(model), X, np.full(6, 0.9))


def test_outputs_never_spread_over_the_labels() -> None:
    model = TorchModel(lambda: nn.Linear(3, 2), loss="mse")
    with pytest.raises(InputError, match="outputs in the shape of y"):
        model.losses(start(model), X, np.zeros(6))


def test_several_labels_per_sample() -> None:
    y = np.array([[0, 1, 1, 0]] * 6)
    model = TorchModel(lambda: nn.Linear(3, 4), loss="bce")
    assert model.losses(0 * start(model), X, y) == pytest.approx(np.log(2))
    right = model.correct(1e-3 + 0 * start(model), np.abs(X), y)  # every label said to be there
    assert right.mean() == 0.5


@pytest.mark.parametrize("stacked", [True, False])
def test_next_tokens_train(stacked: bool) -> None:
    tokens: Any = np.tile(np.arange(9) % 4, (8, 1))
    x, y = tokens[:, :-1], tokens[:, 1:]

    def make() -> nn.Module:
        return nn.Sequential(nn.Embedding(4, 8), nn.Linear(8, 4))

    model = TorchModel(make, loss="next-token", stacked=stacked)
    prepared, parameters = model.prepare(x), start(model)
    assert prepared.dtype == np.int64
    rows = np.random.default_rng(0).integers(0, 8, size=(60, 2, 4))
    updates = LocalSteps(60, 4).train(model, parameters, prepared, y, rows, 0.5).updates
    after = parameters + updates[0]
    assert model.losses(after, prepared, y).mean() < 0.2 * model.losses(parameters, x, y).mean()
    assert model.correct(after, prepared, y).mean() == 1


def test_own_loss_and_metric() -> None:
    model = TorchModel(
        lambda: nn.Linear(3, 1),
        loss=lambda outputs, y: (outputs[:, 0] - y).abs() ** 3,
        metric=lambda outputs, y: (outputs[:, 0] - y).abs() < 0.5,
    )
    y = np.linspace(-1, 1, 6)
    assert model.losses(0 * start(model), X, y) == pytest.approx(np.abs(y) ** 3)
    assert model.correct(0 * start(model), X, y).tolist() == (np.abs(y) < 0.5).tolist()


def test_an_own_loss_without_a_metric_measures_nothing() -> None:
    model = TorchModel(lambda: nn.Linear(3, 1), loss=lambda outputs, y: (outputs[:, 0] - y) ** 2)
    assert np.isnan(model.correct(start(model), X, np.zeros(6))).all()


def test_an_unknown_loss_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"loss must be a known name.*did you mean 'huber'"):
        TorchModel(lambda: nn.Linear(3, 1), loss="hubber")


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def test_local_steps_with_batch_norm_are_those_of_pytorch() -> None:
    model = TorchModel(normalised)
    rng = np.random.default_rng(1)
    x = rng.normal(2, 3, size=(40, 3)).astype(np.float32)
    y = rng.integers(0, 2, 40)
    rows = rng.integers(0, 40, size=(5, 1, 8))
    parameters = start(model)
    module = model.module(parameters).train()
    steps = LocalSteps(5, 8, optimiser="momentum:0.9", weight_decay=0.01)
    updates = steps.train(model, parameters, model.prepare(x), y, rows, 0.1).updates
    optimiser = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9, weight_decay=0.01)
    for each in rows[:, 0]:
        optimiser.zero_grad()
        outputs = module(torch.from_numpy(x[each]))
        loss = nn.functional.cross_entropy(outputs, torch.from_numpy(y[each]))
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    np.testing.assert_allclose(parameters + updates[0], model.flat(module), rtol=1e-4, atol=1e-5)
    names = model.arrays(parameters + updates[0])
    assert names["1.num_batches_tracked"] == 5
    np.testing.assert_allclose(
        names["1.running_mean"], module.state_dict()["1.running_mean"], rtol=1e-4
    )
    assert model.trained is not None
    assert (~model.trained).sum() == 9


def test_running_statistics_have_no_gradient_norm() -> None:
    model = TorchModel(normalised)
    y = np.array([0, 1, 0, 1, 0, 1])
    gradient = np.empty((1, model.size), np.float32)
    model.gradients(start(model).astype(np.float32)[None], X[None], y[None], gradient)
    trained = LocalSteps(1, 6).train(model, start(model), X, y, np.arange(6).reshape(1, 1, 6), 0.1)
    assert trained.grad_norms[0] == pytest.approx(np.linalg.norm(gradient[0, model.trained]))
