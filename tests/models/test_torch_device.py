"""Training where a device has the arrays, tried on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from fedpace import compare
from fedpace.backends.local import LocalSteps
from fedpace.errors import InputError
from fedpace.models.model import as_model
from fedpace.models.networks import Logistic
from fedpace.models.torch_device import place_named
from fedpace.models.torch_model import TorchModel, lenet5
from fedpace.studies.build import model_of
from fedpace.studies.study import change, load_study

ROUNDING = 2e-6


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))


def samples() -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 6)).astype(np.float32)
    return x, rng.integers(3, size=40), rng.integers(40, size=(5, 2, 4))


@pytest.mark.parametrize("make", [perceptron, normalised])
@pytest.mark.parametrize("stacked", [None, False])
@pytest.mark.parametrize("several", [False, True])
def test_steps_on_a_device_are_those_of_numpy(
    make: Callable[[], nn.Module], stacked: bool | None, several: bool
) -> None:
    x, y, rows = samples()
    plain, there = (
        TorchModel(make, stacked=stacked),
        TorchModel(make, stacked=stacked, device="cpu"),
    )
    start = plain.initial(np.random.default_rng(1))
    trained = True if plain.trained is None else plain.trained
    models = np.stack([start, start + 0.01 * np.asarray(trained)]) if several else start
    rate = np.array([0.1, 0.05]) if several else 0.1
    steps = LocalSteps(count=5, batch=4)
    one = steps.train(plain, models, x, y, rows, rate)
    other = steps.train(there, models, x, y, rows, rate)
    np.testing.assert_allclose(other.updates, one.updates, atol=ROUNDING)
    np.testing.assert_allclose(other.grad_norms, one.grad_norms, rtol=1e-5)
    assert np.abs(one.updates).max() > 100 * ROUNDING


def test_data_go_to_the_device_once_and_a_round_moves_three_arrays() -> None:
    x, y, rows = samples()
    model = TorchModel(perceptron, device="cpu")
    place = model.place
    assert place is not None
    start = model.initial(np.random.default_rng(1))
    for count in (5, 50):  # whatever E is
        before = place.sent, place.fetched
        chosen = np.resize(rows, (count, 2, 4))
        LocalSteps(count=count, batch=4).train(model, start, x, y, chosen, 0.1)
        first = 2 if count == 5 else 0  # x and y
        assert (place.sent - before[0], place.fetched - before[1]) == (2 + first, 1)
    before = place.sent, place.fetched
    losses = model.losses(start, x, y)
    assert (place.sent - before[0], place.fetched - before[1]) == (1, 1)
    np.testing.assert_allclose(losses, TorchModel(perceptron).losses(start, x, y), atol=ROUNDING)


def test_data_leave_the_device_with_their_array() -> None:
    place = place_named("cpu")
    assert place is not None
    array = np.ones(3)
    kept = place.keep(array)
    assert place.keep(array).data_ptr() == kept.data_ptr()
    other = np.zeros(3)
    place.keep(other)
    del array
    assert place.sent == 2
    assert len(place._kept) == 1


def test_other_optimisers_move_gradients_and_give_the_same() -> None:
    x, y, rows = samples()
    plain, there = TorchModel(perceptron), TorchModel(perceptron, device="cpu")
    start = plain.initial(np.random.default_rng(1))
    steps = LocalSteps(count=5, batch=4, optimiser="momentum:0.9", clip=1.0, weight_decay=0.01)
    one, other = (steps.train(each, start, x, y, rows, 0.1) for each in (plain, there))
    np.testing.assert_allclose(other.updates, one.updates, atol=ROUNDING)
    assert there.place is not None
    assert there.place.fetched == 6  # five steps, and one to see whether they can be vectorised


def test_dropout_does_not_depend_on_who_else_is_drawn() -> None:
    x, y, rows = samples()
    model = TorchModel(dropping, device="cpu")
    start = model.initial(np.random.default_rng(1))
    steps = LocalSteps(count=5, batch=4)
    both = steps.train(model, start, x, y, rows, 0.1)
    alone = steps.train(model, start, x, y, rows[:, 1:], 0.1)
    np.testing.assert_array_equal(both.updates[1:], alone.updates)
    assert model.stacked is False


def test_devices_that_are_not_there_are_refused() -> None:
    with pytest.raises(
        InputError, match="device must be cpu, cuda, cuda:1, mps or auto, got 'tpx'"
    ):
        TorchModel(perceptron, device="tpx")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="device must be there, got 'cuda:7'"):
            TorchModel(perceptron, device="cuda:7")
    assert TorchModel(perceptron, device="auto").place is not None
    with pytest.raises(InputError, match="device must be left out, got 'auto' for a Logistic"):
        as_model(Logistic(6, 3), shape=(6,), classes=3, device="auto")


def test_studies_set_the_device() -> None:
    with pytest.raises(InputError, match="leave the device out"):
        change(load_study("simulation-1"), ["model.device=cpu"])
    made = model_of(change(load_study("simulation-2"), ["model.device=cpu"]))
    assert isinstance(made, TorchModel)
    assert made.place is not None
    assert made.size == TorchModel(lenet5).size


def test_compare_trains_on_a_device(tmp_path: Path) -> None:
    x, y, _ = samples()
    clients = [(x[i : i + 10], y[i : i + 10]) for i in range(0, 40, 10)]
    result = compare(
        model=perceptron, clients=clients, schemes="uniform", seeds=1, k=2, local_steps=3,
        batch=4, schedule="constant:0.1", rounds=3, out=tmp_path, processes=1, device="cpu",
    )  # fmt: skip
    losses = result.to_pandas("rounds")["loss"].to_numpy()
    assert losses[-1] < losses[0]
    (record,) = tmp_path.glob("runs/*.npz")
    with np.load(record) as run:
        assert '"device": "cpu"' in str(run["about"])
