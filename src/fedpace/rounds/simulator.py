"""The simulator: all drawn clients train at once, on stacked arrays; time is simulated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.data.shards import Split
from fedpace.models.model import AnyFloats, Model
from fedpace.rounds.backend import Evaluation, Task
from fedpace.rounds.local import LocalSteps, Trained
from fedpace.rounds.simulated import SimulatedClock
from fedpace.seeds import Seeds
from fedpace.times.round_times import RoundTimes


@dataclass(eq=False)
class Simulator(SimulatedClock):
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
    times_known : bool
        Whether the server knows each client's usual time; else it must learn it.
    """

    data: Split
    model: Model
    times: RoundTimes
    seeds: Seeds
    local_steps: int = 50
    batch: int = 24
    weight_decay: float = 0.0
    clip: float | None = None
    times_known: bool = True

    def __post_init__(self) -> None:
        super().__init__()

    @cached_property
    def weights(self) -> FloatArray:
        """p_i = n_i / Σ n."""
        sizes = self.data.train.sizes.astype(np.float64)
        weights: FloatArray = sizes / sizes.sum()
        return weights

    def initial(self) -> FloatArray:
        """Return the model's initial parameters."""
        return self.model.initial(self.seeds.stream("init"))

    def trained(self, task: Task) -> Trained:
        """Run E local steps of every client of the task."""
        rows = self._batches(task.round_index, task.clients)
        return self.steps.train(
            self.model,
            task.parameters,
            self._train_x,
            self.data.train.y,
            rows,
            task.learning_rate,
        )

    def evaluate(self, parameters: FloatArray, *, due: bool = True) -> Evaluation | None:
        """Return the mean loss over all training samples and the accuracy on all held out."""
        if not due:
            return None
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
