"""The simulator: all drawn clients train at once, on stacked arrays; time is simulated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.data.shards import Split
from fedpace.models.model import AnyFloats, Model
from fedpace.rounds.backend import Evaluation, Reply
from fedpace.rounds.local import LocalSteps
from fedpace.sampling.design import Draw
from fedpace.seeds import Seeds
from fedpace.times.round_times import RoundTimes


@dataclass(frozen=True, eq=False)
class Simulator:
    """Train drawn clients by local SGD; a round costs what its draw costs, not O(N).

    Parameters
    ----------
    data : Split
        What clients hold.
    model : Model
        What they train.
    times : RoundTimes
        How long each takes, in simulated seconds.
    seeds : Seeds
        The batches of a client in a round depend on these alone, not on who else is drawn.
    local_steps, batch : int ≥ 1
        E, and the samples per step, drawn with replacement.
    weight_decay : float ≥ 0
        λ; each step adds λ w to the gradient.
    clip : float > 0, optional
        Gradients longer than this are scaled down to it.
    """

    data: Split
    model: Model
    times: RoundTimes
    seeds: Seeds
    local_steps: int = 50
    batch: int = 24
    weight_decay: float = 0.0
    clip: float | None = None

    @cached_property
    def weights(self) -> FloatArray:
        """p_i = n_i / Σ n."""
        sizes = self.data.train.sizes.astype(np.float64)
        weights: FloatArray = sizes / sizes.sum()
        return weights

    @property
    def usual_times(self) -> FloatArray:
        """t_i without noise and drift."""
        return self.times.usual

    def initial(self) -> FloatArray:
        """Return the model's initial parameters."""
        return self.model.initial(self.seeds.stream("init"))

    def present(self) -> None:
        """Return None: everyone is there."""

    def run(
        self, parameters: FloatArray, draw: Draw, *, round_index: int, learning_rate: float
    ) -> Reply:
        """Run E local steps of every drawn client."""
        clients = draw.clients
        rows = self._batches(round_index, clients)
        trained = self.steps.train(
            self.model, parameters, self._train_x, self.data.train.y, rows, learning_rate
        )
        return Reply(
            clients, trained.updates, self.times.at(round_index, clients), trained.grad_norms
        )

    def evaluate(self, parameters: FloatArray) -> Evaluation:
        """Return the mean loss over all training samples and the accuracy on all held out."""
        losses = self.model.losses(parameters, self._whole_train_x, self.data.train.y)
        right = self.model.correct(parameters, self._whole_test_x, self.data.test.y)
        return Evaluation(float(losses.mean(dtype=np.float64)), float(right.mean()))

    def _batches(self, round_index: int, clients: IntArray) -> NDArray[np.int64]:
        """Return the rows of x that each client uses in each step, (E, m, batch)."""
        offsets = self.data.train.offsets
        steps = self.steps
        rows = np.empty((steps.count, clients.size, steps.batch), dtype=np.int64)
        for i, client in enumerate(clients.tolist()):
            first, end = offsets[client : client + 2].tolist()
            rows[:, i] = steps.rows(self.seeds, round_index, client, first, end)
        return rows

    @cached_property
    def steps(self) -> LocalSteps:
        """How clients train."""
        return LocalSteps(self.local_steps, self.batch, self.weight_decay, self.clip)

    @cached_property
    def _train_x(self) -> AnyFloats:
        return self.model.prepared(self.data.train.x)

    @cached_property
    def _whole_train_x(self) -> AnyFloats:
        return self.model.prepared_whole(self.data.train.x)

    @cached_property
    def _whole_test_x(self) -> AnyFloats:
        return self.model.prepared_whole(self.data.test.x)
