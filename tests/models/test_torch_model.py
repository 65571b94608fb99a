"""The adapter against plain PyTorch, and what it refuses."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedpace.backends.simulator import Simulator
from fedpace.checks import FloatArray
from fedpace.data.partition import synthetic
from fedpace.data.shards import Shards, Split
from fedpace.errors import InputError
from fedpace.models.model import BaseModel
from fedpace.models.networks import Logistic
from fedpace.models.torch_device import AT_ONCE
from fedpace.models.torch_model import TorchModel
from fedpace.sampling.design import WithReplacement
from fedpace.seeds import Seeds
from fedpace.times.round_times import Steady
from fedpace.training.stopping import Stop, inverse
from fedpace.training.train import train
from tests.models.torch_modules import (
    CANNOT_STACK,
    CLASSES,
    FEATURES,
    KINDS,
    Kind,
    Tied,
    flat_gradient,
    loaded,
    mlp,
    plain_gradient,
    trained,
)
from tests.training.fakes import Fixed, task

# Float32 against float64: a hundred roundings of 6e-8, in units of the largest entry.
CLOSE = 6e-6

either_way = pytest.mark.parametrize("stacked", [False, True])


def adapted(kind: Kind) -> TorchModel:
    return TorchModel(kind.make(), input_shape=kind.input_shape)


def samples(
    kind: Kind, m: int = 3, batch: int = 5, seed: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the inputs and classes of m batches."""
    rng = np.random.default_rng(seed)
    shape = kind.input_shape or (FEATURES,)
    x = rng.normal(size=(m, batch, *shape)).astype(np.float32)
    return x, rng.integers(CLASSES, size=(m, batch))


def spread(model: TorchModel, m: int, seed: int = 1) -> NDArray[np.float32]:
    """Return m different vectors near the initial parameters."""
    rng = np.random.default_rng(seed)
    start = model.initial(rng)
    return (start + 0.1 * rng.normal(size=(m, model.size))).astype(np.float32)


def gradients(
    model: TorchModel,
    parameters: NDArray[np.float32],
    x: NDArray[np.float32],
    y: NDArray[np.int64],
) -> NDArray[np.float32]:
    out = np.full_like(parameters, np.nan)
    model.gradients(parameters, x, y, out)
    return out


def assert_close(got: NDArray[np.float32] | FloatArray, exact: FloatArray) -> None:
    np.testing.assert_allclose(got, exact, rtol=0, atol=CLOSE * np.abs(exact).max())


# Gradients and updates


@pytest.mark.parametrize("name", KINDS)
def test_gradients_are_those_of_plain_autograd(name: str) -> None:
    kind = KINDS[name]
    model = adapted(kind)
    module = model.module(model.initial(np.random.default_rng(0)))
    x, y = samples(kind)
    parameters = spread(model, 3)
    got = gradients(model, parameters, x, y)
    assert model.stacked == kind.stacked
    for i in range(3):
        exact = plain_gradient(module, parameters[i].astype(np.float64), x[i], y[i])
        assert_close(got[i], exact)


@pytest.mark.parametrize("name", [name for name in KINDS if name not in CANNOT_STACK])
def test_stacked_and_looped_gradients_agree(name: str) -> None:
    kind = KINDS[name]
    torch.manual_seed(0)  # two modules with the same frozen parameters
    module = kind.make()
    models = [
        TorchModel(module, input_shape=kind.input_shape, stacked=stacked)
        for stacked in (False, True)
    ]
    x, y = samples(kind)
    parameters = spread(models[0], 3)
    looped, stacked = (gradients(model, parameters, x, y) for model in models)
    assert_close(stacked, looped.astype(np.float64))


@settings(max_examples=20)
@given(
    widths=st.lists(st.integers(1, 6), min_size=0, max_size=3),
    classes=st.integers(2, 5),
    clients=st.integers(1, 4),
    batch=st.integers(1, 6),
    stacked=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_gradients_of_any_network_match_plain_autograd(
    widths: list[int], classes: int, clients: int, batch: int, stacked: bool, seed: int
) -> None:
    layers: list[nn.Module] = []
    sizes = [FEATURES, *widths, classes]
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.Softplus()]
    module = nn.Sequential(*layers[:-1])
    model = TorchModel(module, stacked=stacked)
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(clients, batch, FEATURES)).astype(np.float32)
    y = rng.integers(classes, size=(clients, batch))
    parameters = rng.normal(size=(clients, model.size)).astype(np.float32)
    got = gradients(model, parameters, x, y)
    for i in range(clients):
        assert_close(got[i], plain_gradient(module, parameters[i].astype(np.float64), x[i], y[i]))


def data(features: int, classes: int) -> Split:
    rng = np.random.default_rng(0)

    def shards(sizes: list[int]) -> Shards:
        xs = [rng.normal(size=(size, features)) for size in sizes]
        return Shards.from_clients(xs, [rng.integers(classes, size=size) for size in sizes])

    return Split(shards([4, 9, 30]), shards([2, 3, 5]))


def simulator(model: BaseModel, features: int = FEATURES, classes: int = CLASSES) -> Simulator:
    times = Steady(np.array([1.0, 2.0, 3.0]))
    return Simulator(data(features, classes), model, times, Seeds(5), local_steps=5, batch=4)


@pytest.mark.parametrize("name", KINDS)
def test_local_training_is_that_of_torch_optim_sgd(name: str) -> None:
    kind = KINDS[name]
    shape = kind.input_shape or (FEATURES,)
    model = adapted(kind)
    backend = simulator(model, features=int(np.prod(shape)))
    rate, sent = 0.05, backend.initial()
    reply = backend.train_task(task([0, 2], sent, round_index=3, rate=rate))
    for i, client in enumerate([0, 2]):
        own = backend.data.train.client(client)
        local = loaded(model.module(sent), sent).train()
        optimiser = torch.optim.SGD(local.parameters(), lr=rate)
        squares = []
        for rows in backend.seeds.stream("batch", 3, client).integers(own.y.size, size=(5, 4)):
            optimiser.zero_grad()
            x = torch.from_numpy(own.x[rows].reshape(4, *shape))
            torch.autograd.backward(cross_entropy(local(x), torch.from_numpy(own.y[rows])))
            squares.append(np.square(flat_gradient(local)).sum())
            optimiser.step()
        after = nn.utils.parameters_to_vector(trained(local)).detach().numpy()
        assert_close(sent + reply.updates[i], after)
        assert reply.grad_norms[i] == pytest.approx(np.sqrt(np.mean(squares)), rel=1e-5)


@either_way
def test_frozen_parameters_stay_as_they_are_even_under_weight_decay(stacked: bool) -> None:
    module = KINDS["frozen"].make()
    model = TorchModel(module, stacked=stacked)
    assert model.size == 5 * CLASSES + CLASSES  # the last layer alone
    backend = replace(simulator(model), weight_decay=0.5)
    reply = backend.train_task(task([1], backend.initial()))
    after = model.module(backend.initial() + reply.updates[0]).state_dict()
    for name, before in module.state_dict().items():
        assert torch.equal(after[name], before) == name.startswith("0.")


@either_way
def test_a_linear_module_trains_as_logistic_regression_does(stacked: bool) -> None:
    def zeros() -> nn.Module:
        layer = nn.Linear(4, CLASSES)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer

    sizes = np.array([3, 9, 5, 14, 1])
    split = synthetic(sizes, np.random.default_rng(0), features=4, classes=CLASSES)
    ends, rows = [], []
    for model in (Logistic(4, CLASSES), TorchModel(zeros, stacked=stacked)):
        backend = Simulator(split, model, Steady(np.ones(5)), Seeds(5), local_steps=5, batch=4)
        outcome = train(
            backend,
            Fixed(WithReplacement(np.full(5, 0.2), 4, backend.weights)),
            schedule=inverse(0.5),
            stop=Stop(rounds=6),
            seeds=Seeds(3),
        )
        ends.append(outcome.state.parameters)
        rows.append(outcome.history.rows)
    # A row of ours is a class's weights and its intercept; PyTorch keeps intercepts apart.
    ours = ends[0].reshape(CLASSES, 5)
    assert_close(ends[1], np.concatenate([ours[:, :4].ravel(), ours[:, 4]]))
    for one, other in zip(*rows, strict=True):
        assert other.loss == pytest.approx(one.loss, rel=1e-5)
        assert other.accuracy == one.accuracy
        np.testing.assert_allclose(other.grad_norms, one.grad_norms, rtol=1e-5)


@either_way
def test_no_clients_have_no_gradients(stacked: bool) -> None:
    x, y = samples(KINDS["mlp"], m=0)
    model = TorchModel(mlp, stacked=stacked)
    assert gradients(model, spread(model, 0), x, y).shape == (0, model.size)


# Evaluation


@pytest.mark.parametrize("count", [0, 1, AT_ONCE, AT_ONCE + 1])
def test_losses_and_accuracy_are_those_of_the_module_in_evaluation_mode(count: int) -> None:
    module = nn.Sequential(mlp(), nn.Dropout(0.5))
    model = TorchModel(module)
    x, y = samples(KINDS["mlp"], m=1, batch=count)
    parameters = model.initial(np.random.default_rng(0))
    exact = loaded(module, parameters).eval()(torch.from_numpy(x[0]).double()).detach()
    losses = cross_entropy(exact, torch.from_numpy(y[0]), reduction="none").numpy()
    whole = model.prepare_whole(x[0])
    np.testing.assert_allclose(model.losses(parameters, whole, y[0]), losses, rtol=1e-5)
    right = exact.argmax(dim=1).numpy() == y[0]
    np.testing.assert_array_equal(model.correct(parameters, whole, y[0]), right)


def test_a_loss_with_a_reduction_is_taken_per_sample_and_left_alone() -> None:
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    x, y = samples(KINDS["mlp"])
    model = TorchModel(mlp, loss=loss)
    parameters = spread(model, 3)
    own = TorchModel(mlp, loss=partial(cross_entropy, reduction="none", label_smoothing=0.1))
    np.testing.assert_array_equal(
        gradients(model, parameters, x, y), gradients(own, parameters, x, y)
    )
    assert loss.reduction == "mean"
    default = TorchModel(mlp)
    assert not np.allclose(gradients(default, parameters, x, y), gradients(own, parameters, x, y))


@either_way
def test_a_loss_that_averages_is_refused(stacked: bool) -> None:
    model = TorchModel(mlp, loss=cross_entropy, stacked=stacked)
    x, y = samples(KINDS["mlp"])
    with pytest.raises(InputError, match=r"one value per sample, got shape \(\).*reduction='none'"):
        gradients(model, spread(model, 3), x, y)
    with pytest.raises(InputError, match="one value per sample"):
        model.losses(model.initial(np.random.default_rng(0)), x[0], y[0])


@pytest.mark.parametrize(
    ("last", "shape"),
    [
        (nn.Linear(CLASSES, 1), "5, 1"),
        (nn.Flatten(0), "15"),
        (nn.Unflatten(1, (1, CLASSES)), "5, 1, 3"),
        (nn.LSTM(CLASSES, CLASSES), "tuple"),
    ],
)
@pytest.mark.parametrize("stacked", [False, None])
def test_outputs_other_than_a_score_per_class_are_refused(
    last: nn.Module, shape: str, stacked: bool | None
) -> None:
    model = TorchModel(nn.Sequential(mlp(), last), stacked=stacked)
    x, y = samples(KINDS["mlp"])
    with pytest.raises(InputError, match=f"one per class, for each of 5 samples, got .?{shape}"):
        gradients(model, spread(model, 3), x, y)
    with pytest.raises(InputError, match="one per class"):
        model.correct(model.initial(np.random.default_rng(0)), x[0], y[0])


@pytest.mark.parametrize("y", [[0, 3], [-1, 0]])
def test_classes_without_an_output_are_refused(y: list[int]) -> None:
    model = TorchModel(mlp)
    x, _ = samples(KINDS["mlp"], batch=2)
    with pytest.raises(InputError, match="y must be classes from 0 to 2"):
        model.losses(model.initial(np.random.default_rng(0)), x[0], np.array(y))


@pytest.mark.parametrize("name", ["mlp", "conv1d", "lenet5"])
def test_inputs_that_are_not_numbers_give_gradients_that_are_not_numbers(name: str) -> None:
    kind = KINDS[name]
    model = adapted(kind)
    x, y = samples(kind)
    x[1] = np.nan
    parameters = spread(model, 3)
    got = gradients(model, parameters, x, y)
    assert np.isfinite(got[[0, 2]]).all()
    assert np.isnan(got[1]).any()
    assert np.isnan(model.losses(parameters[0].astype(np.float64), x[1], y[1])).all()


# Inputs


@pytest.mark.parametrize(
    "change",
    [
        np.asfortranarray,
        lambda x: np.repeat(x, 2, axis=0)[::2],
        lambda x: x[::-1][::-1],
        lambda x: x.astype(np.float64),
        lambda x: np.frombuffer(x.tobytes(), dtype=np.float32).reshape(x.shape),  # read-only
    ],
)
def test_inputs_may_lie_in_memory_in_any_way(
    change: Callable[[NDArray[np.float32]], NDArray[np.float32]],
) -> None:
    kind = KINDS["conv1d"]
    model = adapted(kind)
    x, y = samples(kind, m=1, batch=6)
    rows = x[0].reshape(6, FEATURES)
    np.testing.assert_array_equal(model.prepare(change(rows)), x[0])
    parameters = spread(model, 1)
    before = gradients(model, parameters, x, y)
    strange = np.asfortranarray(np.concatenate([x, x], axis=1))[:, :6]
    y.flags.writeable = False
    np.testing.assert_array_equal(gradients(model, parameters, strange, y), before)


def test_an_input_shape_that_does_not_fit_is_refused() -> None:
    model = TorchModel(KINDS["conv1d"].make, input_shape=(1, 4))
    with pytest.raises(InputError, match=r"must hold the 8 features of a sample, got \(1, 4\)"):
        model.prepare(np.ones((3, FEATURES)))  # would be six samples


# Modules, and what is refused


def test_a_module_is_never_changed() -> None:
    module = mlp().double().eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    backend = simulator(TorchModel(module))
    reply = backend.train_task(task([1], backend.initial()))
    backend.evaluate(backend.initial() + reply.updates[0])
    assert not module.training
    for name, value in module.state_dict().items():
        assert value.dtype == torch.float64
        assert torch.equal(value, before[name])


def test_every_run_starts_from_the_parameters_of_a_module_whatever_ran_before() -> None:
    module = mlp()
    model = TorchModel(module)
    first = model.initial(np.random.default_rng(0))
    np.testing.assert_array_equal(first, model.flat(module))
    x, y = samples(KINDS["mlp"])
    model.losses(first + 1, x[0], y[0])
    gradients(model, spread(model, 3), x, y)
    np.testing.assert_array_equal(model.initial(np.random.default_rng(1)), first)


def test_a_function_that_makes_modules_gives_every_seed_a_start_of_its_own() -> None:
    model = TorchModel(mlp)
    state = torch.get_rng_state()
    one, again, other = (model.initial(np.random.default_rng(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert not np.isclose(one, other).any()
    assert torch.equal(state, torch.get_rng_state())


def test_a_module_comes_back_with_its_parameters() -> None:
    model = TorchModel(Tied)
    parameters = spread(model, 1)[0].astype(np.float64)
    module = model.module(parameters)
    np.testing.assert_array_equal(model.flat(module), parameters)
    assert not module.training
    x, y = samples(KINDS["tied"])
    losses = cross_entropy(module(torch.from_numpy(x[0])), torch.from_numpy(y[0]), reduction="none")
    np.testing.assert_allclose(
        model.losses(parameters, x[0], y[0]), losses.detach().numpy(), rtol=1e-6
    )
    model.losses(0 * parameters, x[0], y[0])
    np.testing.assert_array_equal(model.flat(module), parameters)  # a copy


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Flatten(), "parameters to train, got none"),
        (nn.Linear(2, 2).requires_grad_(False), "parameters to train, got none"),
        (nn.LazyLinear(2), "lazy parameters; call it on a sample first"),
        (3, "torch.nn.Module or make one, got 3"),
        (dict, "torch.nn.Module or make one, got {}"),
        # In evaluation a sample's loss would depend on its neighbours.
        (nn.BatchNorm1d(2, track_running_stats=False), r"treat each sample by itself"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_modules_that_clients_cannot_train_are_refused(module: nn.Module, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TorchModel(module)


@pytest.mark.parametrize("threads", [0, -1, 1.5, True])
def test_threads_must_be_a_positive_number(threads: int) -> None:
    with pytest.raises(InputError, match="threads must be"):
        TorchModel(mlp, threads=threads)


@pytest.mark.parametrize("norm", [nn.GroupNorm(2, FEATURES), nn.LayerNorm(FEATURES)])
@either_way
def test_normalisation_within_a_sample_is_fine(norm: nn.Module, stacked: bool) -> None:
    module = nn.Sequential(norm, nn.Linear(FEATURES, CLASSES))
    model = TorchModel(module, stacked=stacked)
    x, y = samples(KINDS["mlp"])
    parameters = spread(model, 3)
    got = gradients(model, parameters, x, y)
    assert_close(got[1], plain_gradient(module, parameters[1].astype(np.float64), x[1], y[1]))


class WithBuffer(nn.Module):
    """Shifts its inputs by a buffer, which it leaves alone, writes to, or replaces."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.change = change
        self.shift: Tensor
        self.register_buffer("shift", torch.full((FEATURES,), 0.5, dtype=torch.float64))
        self.last = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        if self.change == "write":
            self.shift.add_(1)
        if self.change == "replace":
            self.shift = self.shift + x.mean(dim=0)
        scores: Tensor = self.last(x + self.shift)
        return scores


@either_way
def test_constant_buffers_are_part_of_the_module(stacked: bool) -> None:
    module = WithBuffer("nothing")
    model = TorchModel(module, stacked=stacked)
    x, y = samples(KINDS["mlp"])
    parameters = spread(model, 3)
    got = gradients(model, parameters, x, y)
    assert_close(got[2], plain_gradient(module, parameters[2].astype(np.float64), x[2], y[2]))
    model.losses(parameters[0].astype(np.float64), x[0], y[0])


@pytest.mark.parametrize("change", ["write", "replace"])
@pytest.mark.parametrize("stacked", [False, None])
def test_buffers_that_change_are_refused(change: str, stacked: bool | None) -> None:
    x, y = samples(KINDS["mlp"])
    model = TorchModel(WithBuffer(change), stacked=stacked)
    with pytest.raises(InputError, match="must not change its buffers, got 'shift'"):
        gradients(model, spread(model, 3), x, y)
    model = TorchModel(WithBuffer(change), stacked=stacked)
    with pytest.raises(InputError, match="must not change its buffers, got 'shift'"):
        model.losses(model.initial(np.random.default_rng(0)), x[0], y[0])


# Random layers


def dropout(rate: float = 0.5) -> nn.Module:
    return nn.Sequential(nn.Dropout(rate), nn.Linear(FEATURES, CLASSES))


class FunctionalDropout(nn.Module):
    """Draws random numbers without a layer that says so."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(nn.functional.dropout(x, 0.5, self.training))
        return scores


@pytest.mark.parametrize("make", [dropout, FunctionalDropout])
def test_dropout_depends_on_neither_what_ran_before_nor_who_else_is_drawn(
    make: Callable[[], nn.Module],
) -> None:
    x, y = samples(KINDS["mlp"])
    parameters = spread(TorchModel(make), 3)
    alone = [gradients(TorchModel(make), parameters[[i]], x[[i]], y[[i]])[0] for i in range(3)]
    model = TorchModel(make)
    torch.manual_seed(123)
    gradients(model, parameters[:2] + 1, x[1:], y[1:])
    torch.rand(5)
    np.testing.assert_array_equal(gradients(model, parameters, x, y), alone)
    assert model.stacked is False  # found out by the first batch


@either_way
def test_pytorchs_own_random_state_is_left_alone(stacked: bool) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    x, y = samples(KINDS["mlp"])
    model = TorchModel(dropout, stacked=stacked)
    first = gradients(model, spread(model, 3), x, y)
    model.losses(model.initial(np.random.default_rng(0)), x[0], y[0])
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(8)
    np.testing.assert_array_equal(gradients(model, spread(model, 3), x, y), first)


@either_way
def test_dropout_drops_the_share_it_should_and_others_in_each_step(stacked: bool) -> None:
    rate, steps = 0.3, 200
    model = TorchModel(lambda: dropout(rate), stacked=stacked)
    x, y = np.ones((2, 1, FEATURES), dtype=np.float32), np.zeros((2, 1), dtype=np.int64)
    parameters = spread(model, 2)
    dropped = []
    for _ in range(steps):
        found = gradients(model, parameters, x, y)
        dropped.append(found[:, :FEATURES] == 0)
        parameters -= np.float32(0.01) * found
    entries = 2 * FEATURES * steps
    error = np.sqrt(rate * (1 - rate) / entries)
    assert np.mean(dropped) == pytest.approx(rate, abs=5 * error)
    # Two independent masks agree in an entry with chance r² + (1 − r)².
    same, chance = np.mean(dropped[0::2] == np.array(dropped[1::2])), rate**2 + (1 - rate) ** 2
    assert same == pytest.approx(chance, abs=5 * np.sqrt(chance * (1 - chance) / (entries / 2)))


# Threads and processes


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


seen: list[int] = []


class Watching(nn.Module):
    """Notes the number of threads; fails on inputs that are not numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        seen.append(torch.get_num_threads())
        if torch.isnan(x).any():
            raise ArithmeticError
        scores: Tensor = self.last(x)
        return scores


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("threads", "used"), [(1, 1), (None, 2)])
def test_threads_are_set_while_working_and_put_back(threads: int | None, used: int) -> None:
    seen.clear()
    model = TorchModel(Watching, stacked=False, threads=threads)
    x, y = samples(KINDS["mlp"])
    gradients(model, spread(model, 3), x, y)
    model.losses(model.initial(np.random.default_rng(0)), x[0], y[0])
    assert set(seen) == {used}
    assert torch.get_num_threads() == 2
    with pytest.raises(ArithmeticError):
        gradients(model, spread(model, 3), np.full_like(x, np.nan), y)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("name", ["torch_model", "torch_modules"])
def test_without_pytorch_the_extra_is_named(name: str) -> None:
    script = f"""
import sys
sys.modules["torch"] = None
from fedpace.errors import MissingExtraError
try:
    import fedpace.models.{name}
except MissingExtraError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "pip install 'fedpace[torch]'" in done.stdout, done.stderr


def test_another_process_computes_the_same_numbers() -> None:
    script = """
import numpy as np, torch
from torch import nn
from fedpace.models.torch_model import TorchModel
torch.manual_seed({})
model = TorchModel(lambda: nn.Sequential(nn.Linear(8, 5), nn.Dropout(), nn.Linear(5, 3)), threads=1)
rng = np.random.default_rng(0)
parameters = np.tile(model.initial(rng).astype(np.float32), (2, 1))
x, y = rng.normal(size=(2, 4, 8)).astype(np.float32), rng.integers(3, size=(2, 4))
out = np.empty_like(parameters)
model.gradients(parameters, x, y, out)
print(out.tobytes().hex())
"""
    here = io.StringIO()
    with contextlib.redirect_stdout(here), torch.random.fork_rng():
        exec(script.format(1), {})
    command = [sys.executable, "-c", script.format(2)]
    there = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert len(there) > 100
    assert here.getvalue() == there
