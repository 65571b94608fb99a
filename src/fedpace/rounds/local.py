"""Local SGD: what a drawn client does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray
from fedpace.data.shards import Split
from fedpace.models.model import AnyFloats, Model
from fedpace.seeds import Seeds


class Trained(NamedTuple):
    """What came of local training, one entry per client: w_i − w, and G_i as measured."""

    updates: FloatArray
    grad_norms: FloatArray


@dataclass(frozen=True)
class LocalSteps:
    """How clients train: E steps of SGD, the same for all.

    Parameters
    ----------
    count, batch : int ≥ 1
        E, and the samples per step, drawn with replacement.
    weight_decay, clip : float ≥ 0, float > 0 or None
        Each step adds λ w to the gradient; one longer than `clip` is first scaled down to it.
    """

    count: int = 50
    batch: int = 24
    weight_decay: float = 0.0
    clip: float | None = None

    def rows(
        self, seeds: Seeds, round_index: int, client: int, first: int, end: int
    ) -> NDArray[np.int64]:
        """Return the rows from `first` to `end` that a client uses in each step, (E, batch)."""
        rng = seeds.stream("batch", round_index, client)
        return rng.integers(first, end, size=(self.count, self.batch))

    def train(
        self,
        model: Model,
        parameters: FloatArray,
        x: AnyFloats,
        y: NDArray[np.int64],
        rows: NDArray[np.int64],
        rate: float | FloatArray,
    ) -> Trained:
        """Run E steps of m clients at once on the rows (E, m, batch) of prepared x and of y.

        All begin with the same parameters at the same rate, or each with its own: `parameters` is
        (P,) or (m, P), and `rate` one number or m.
        """
        labels = y.take(rows)
        sent = parameters.astype(model.dtype)
        local = np.tile(sent, (rows.shape[1], 1)) if sent.ndim == 1 else sent.copy()
        if not isinstance(rate, float):
            rate = np.asarray(rate, dtype=model.dtype)[..., None]
        gradient = np.empty_like(local)
        squares = np.zeros(rows.shape[1])
        for step in range(self.count):
            model.gradients(local, x.take(rows[step], axis=0), labels[step], gradient)
            norms = np.vecdot(gradient, gradient)
            squares += norms
            self._descend(local, gradient, norms, rate)
        return Trained((local - sent).astype(np.float64), np.sqrt(squares / self.count))

    def _descend(
        self, local: AnyFloats, gradient: AnyFloats, norms: AnyFloats, rate: float | AnyFloats
    ) -> None:
        if self.clip is not None:
            least = np.finfo(norms.dtype).tiny  # so that a zero gradient stays one
            gradient *= np.minimum(1, self.clip / np.sqrt(np.maximum(norms, least)))[:, None]
        if self.weight_decay:
            gradient += self.weight_decay * local
        gradient *= rate
        local -= gradient


class Held:
    """Evaluate a model on samples that are held here; whoever extends this holds them."""

    data: Split
    model: Model

    def loss(self, parameters: FloatArray) -> float:
        """Return the mean loss over the training samples."""
        losses = self.model.losses(parameters, self._whole_train_x, self.data.train.y)
        return float(losses.mean(dtype=np.float64))

    def right(self, parameters: FloatArray) -> NDArray[np.bool_]:
        """Return which of the samples held out are classified right."""
        return self.model.correct(parameters, self._whole_test_x, self.data.test.y)

    @cached_property
    def _train_x(self) -> AnyFloats:
        return self.model.prepared(self.data.train.x)

    @cached_property
    def _whole_train_x(self) -> AnyFloats:
        return self.model.prepared_whole(self.data.train.x)

    @cached_property
    def _whole_test_x(self) -> AnyFloats:
        return self.model.prepared_whole(self.data.test.x)


class Counted(NamedTuple):
    """A client's share in an evaluation: its mean loss, and how many held out it got right."""

    loss: float
    correct: int
    held_out: int


@dataclass(frozen=True, eq=False)
class LocalTrainer(Held):
    """One client with its own samples only; for the same seeds its numbers are the simulator's.

    Parameters
    ----------
    data, model : Split, Model
        The samples of this client alone, and what is trained on them.
    seeds, client : Seeds, int
        The run's, and the client's number in the fleet: its batches depend on both.
    steps : LocalSteps
        How it trains.
    """

    data: Split
    model: Model
    seeds: Seeds
    client: int
    steps: LocalSteps

    @property
    def samples(self) -> int:
        """n_i."""
        return len(self.data.train.y)

    def train(
        self, parameters: FloatArray, *, round_index: int, learning_rate: float
    ) -> tuple[FloatArray, float]:
        """Return the update and the gradient norm of one round."""
        rows = self.steps.rows(self.seeds, round_index, self.client, 0, self.samples)
        trained = self.steps.train(
            self.model, parameters, self._train_x, self.data.train.y, rows[:, None], learning_rate
        )
        return trained.updates[0], float(trained.grad_norms[0])

    def evaluate(self, parameters: FloatArray) -> Counted:
        """Return F_i(w), and how many of the samples held out are classified right."""
        held_out = len(self.data.test.y)
        correct = int(self.right(parameters).sum()) if held_out else 0
        return Counted(self.loss(parameters), correct, held_out)
