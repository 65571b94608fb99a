"""Optimisers and local training: SGD steps of clients, and one client with its own samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpace.backends.privacy import Privacy
from fedpace.checks import AnyFloats, FloatArray, Labels
from fedpace.data.shards import Split
from fedpace.errors import InputError, nearest
from fedpace.models.model import BaseModel
from fedpace.seeds import Seeds

# Returns the step of each client from its gradient, (m, P); it has state.
Descent: TypeAlias = Callable[[AnyFloats], AnyFloats]

SGD = "sgd"
NAMES = (SGD, "momentum:BETA", "adam")


def optimiser_named(name: str) -> Descent | None:
    """Return a new optimiser; None for plain SGD, whose step is the gradient.

    >>> step = optimiser_named("momentum:0.5")
    >>> [float(step(np.ones((1, 1)))[0, 0]) for _ in range(3)]
    [1.0, 1.5, 1.75]
    """
    kind, colon, value = name.partition(":")
    if name == SGD:
        return None
    if name == "adam":
        return _Adam()
    try:
        beta = float(value) if colon else 0.9
    except ValueError:
        beta = np.nan
    if kind == "momentum" and 0 <= beta < 1:
        return _Momentum(beta)
    known = "write momentum:0.9" if kind == "momentum" else nearest(kind, NAMES)
    raise InputError(f"optimiser must be {', '.join(NAMES)}, got '{name}'; {known}")


class _Momentum:
    """v ← β v + g; the step is v, as in PyTorch."""

    def __init__(self, beta: float) -> None:
        self._beta = beta
        self._velocity: AnyFloats | None = None

    def __call__(self, gradient: AnyFloats) -> AnyFloats:
        before = self._velocity
        self._velocity = gradient.copy() if before is None else self._beta * before + gradient
        return self._velocity


class _Adam:
    """m / (√v + ε), both corrected for their start at zero [Kingma15]."""

    def __init__(self, first: float = 0.9, second: float = 0.999, least: float = 1e-8) -> None:
        self._first, self._second, self._least = first, second, least
        self._mean: AnyFloats | None = None
        self._square: AnyFloats | None = None
        self._steps = 0

    def __call__(self, gradient: AnyFloats) -> AnyFloats:
        self._steps += 1
        if self._mean is None or self._square is None:
            self._mean, self._square = np.zeros_like(gradient), np.zeros_like(gradient)
        self._mean += (1 - self._first) * (gradient - self._mean)
        self._square += (1 - self._second) * (gradient**2 - self._square)
        mean = self._mean / (1 - self._first**self._steps)
        deviation = np.sqrt(self._square / (1 - self._second**self._steps))
        step: AnyFloats = mean / (deviation + self._least)
        return step


# Takes parameters, x, y and a buffer for the gradients; returns their squared norms.
_Step: TypeAlias = Callable[[AnyFloats, AnyFloats, Labels, AnyFloats], AnyFloats]


class LocalUpdates(NamedTuple):
    """The result of local training, one entry per client: w_i − w, and G_i as measured."""

    updates: FloatArray
    grad_norms: FloatArray


@dataclass(frozen=True)
class LocalSteps:
    """How clients train: E steps of SGD or another optimiser, the same for all.

    Parameters
    ----------
    count, batch : int ≥ 1
        E, and the samples per step, drawn with replacement.
    weight_decay, clip : float ≥ 0, float > 0 or None
        Each step adds λ w to the gradient; one longer than `clip` is first scaled down to it.
    optimiser : str
        sgd, momentum:BETA or adam; its state is reset in every round.
    proximal : float ≥ 0
        μ of FedProx: each step adds μ (w − w_sent) to the gradient [Li20].
    """

    count: int = 50
    batch: int = 24
    weight_decay: float = 0.0
    clip: float | None = None
    optimiser: str = SGD
    proximal: float = 0.0

    def rows(
        self, seeds: Seeds, round_index: int, client: int, first: int, end: int
    ) -> NDArray[np.int64]:
        """Return the rows from `first` to `end` that a client uses in each step, (E, batch)."""
        rng = seeds.stream("batch", round_index, client)
        return rng.integers(first, end, size=(self.count, self.batch))

    def train(
        self,
        model: BaseModel,
        parameters: FloatArray,
        x: AnyFloats,
        y: Labels,
        rows: NDArray[np.int64],
        rate: float | FloatArray,
    ) -> LocalUpdates:
        """Run E steps of m clients at once on the rows (E, m, batch) of prepared x and of y.

        All begin with the same parameters at the same rate, or each with its own: `parameters` is
        (P,) or (m, P), and `rate` one number or m.
        """
        sent = parameters.astype(model.dtype)
        local = np.tile(sent, (rows.shape[1], 1)) if sent.ndim == 1 else sent.copy()
        if not isinstance(rate, float):
            rate = np.asarray(rate, dtype=model.dtype)[..., None]
        if self == LocalSteps(self.count, self.batch):
            found = model.run_steps(sent, x, y, rows, rate)
            if found is not None:
                updates, sums = found
                return LocalUpdates(updates.astype(np.float64), np.sqrt(sums / self.count))
        gradient = np.empty_like(local)
        squares = np.zeros(rows.shape[1])
        step = self._step_function(model, sent, rate)
        for each in rows:
            squares += step(local, x.take(each, axis=0), y.take(each, axis=0), gradient)
        return LocalUpdates((local - sent).astype(np.float64), np.sqrt(squares / self.count))

    def _step_function(self, model: BaseModel, sent: AnyFloats, rate: float | AnyFloats) -> _Step:
        """Return a function that moves all clients by one step, and returns ‖g‖² of each."""
        if not model.takes_own_steps:
            descent = optimiser_named(self.optimiser)
            return partial(self._step, model=model, sent=sent, descent=descent, rate=rate)
        if self != LocalSteps(self.count, self.batch):
            raise InputError(
                "optimiser, proximal, weight_decay and clip must be left out for a model that "
                f"takes its own steps, got {self}; set them in the model"
            )
        return partial(_own_step, model=model, rate=rate)

    def _step(
        self,
        local: AnyFloats,
        x: AnyFloats,
        y: Labels,
        gradient: AnyFloats,
        *,
        model: BaseModel,
        sent: AnyFloats,
        descent: Descent | None,
        rate: float | AnyFloats,
    ) -> AnyFloats:
        model.gradients(local, x, y, gradient)
        trained = model.trained
        if trained is None:
            return self._descend(local, gradient, sent, descent, rate)
        new = gradient[:, ~trained]
        gradient[:, ~trained] = 0
        norms = self._descend(local, gradient, sent, descent, rate)
        local[:, ~trained] = new
        return norms

    def _descend(
        self,
        local: AnyFloats,
        gradient: AnyFloats,
        sent: AnyFloats,
        descent: Descent | None,
        rate: float | AnyFloats,
    ) -> AnyFloats:
        norms: AnyFloats = np.vecdot(gradient, gradient)
        if self.clip is not None:
            least = np.finfo(norms.dtype).tiny  # a zero gradient stays zero
            gradient *= np.minimum(1, self.clip / np.sqrt(np.maximum(norms, least)))[:, None]
        if self.weight_decay:
            gradient += self.weight_decay * local
        if self.proximal:
            gradient += self.proximal * (local - sent)
        if descent is not None:
            gradient[:] = descent(gradient)
        gradient *= rate
        local -= gradient
        return norms


def _own_step(
    local: AnyFloats,
    x: AnyFloats,
    y: Labels,
    gradient: AnyFloats,
    *,
    model: BaseModel,
    rate: float | AnyFloats,
) -> AnyFloats:
    """Let the model take its own step; its move over the rate counts as the gradient."""
    gradient[:] = local
    model.step(local, x, y, rate)
    gradient -= local
    gradient /= rate
    norms: AnyFloats = np.vecdot(gradient, gradient)
    return norms


class DataHolder:
    """Evaluate a model on the samples of a subclass."""

    data: Split
    model: BaseModel

    def loss(self, parameters: FloatArray) -> float:
        """Return the mean loss over the training samples."""
        losses = self.model.losses(parameters, self._whole_train_x, self.data.train.y)
        return float(losses.mean(dtype=np.float64))

    def correct(self, parameters: FloatArray) -> NDArray[Any]:
        """Return whether each held-out sample is classified correctly, or another measure."""
        return self.model.correct(parameters, self._whole_test_x, self.data.test.y)

    @cached_property
    def _train_x(self) -> AnyFloats:
        return self.model.prepare(self.data.train.x)

    @cached_property
    def _whole_train_x(self) -> AnyFloats:
        return self.model.prepare_whole(self.data.train.x)

    @cached_property
    def _whole_test_x(self) -> AnyFloats:
        return self.model.prepare_whole(self.data.test.x)


class LocalEvaluation(NamedTuple):
    """A client's part of an evaluation: its mean loss, and its correct held-out samples."""

    loss: float
    correct: int
    held_out: int


@dataclass(frozen=True, eq=False)
class LocalTrainer(DataHolder):
    """One client with its own samples; with the same seeds it computes what the simulator does.

    Parameters
    ----------
    data, model : Split, Model
        The samples of this client, and the model to train.
    seeds, client : Seeds, int
        The seeds of the run, and the client's number; its batches depend on both.
    steps : LocalSteps
        How it trains.
    privacy : Privacy, optional
        Clips its update and adds noise, which comes from the operating system, not from the seeds,
        as the server knows these.
    """

    data: Split
    model: BaseModel
    seeds: Seeds
    client: int
    steps: LocalSteps
    privacy: Privacy | None = field(default=None, kw_only=True)

    @property
    def samples(self) -> int:
        """n_i."""
        return len(self.data.train.y)

    def train(
        self,
        parameters: FloatArray,
        *,
        round_index: int,
        learning_rate: float,
        local_steps: int | None = None,
    ) -> tuple[FloatArray, float]:
        """Return the update and the gradient norm of one round of that many steps."""
        how = self.steps if local_steps is None else replace(self.steps, count=local_steps)
        rows = how.rows(self.seeds, round_index, self.client, 0, self.samples)
        trained = how.train(
            self.model, parameters, self._train_x, self.data.train.y, rows[:, None], learning_rate
        )
        update, norm = trained.updates[0], float(trained.grad_norms[0])
        if self.privacy is None:
            return update, norm
        update = self.privacy.release(update, np.random.default_rng())
        return update, self.privacy.released_norm(update, steps=how.count, rate=learning_rate)

    def evaluate(self, parameters: FloatArray) -> LocalEvaluation:
        """Return F_i(w), and the number of held-out samples classified correctly."""
        held_out = len(self.data.test.y)
        correct = int(self.correct(parameters).sum()) if held_out else 0
        return LocalEvaluation(self.loss(parameters), correct, held_out)
