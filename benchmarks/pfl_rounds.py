"""The work of one round of Simulation Setup 2 in pfl-research's simulator, on demand.

Run by lenet_rounds.py with the Python of an environment that has pfl and torch. Each line read asks
for one round ("train") or for loss and accuracy on all data ("evaluate"); the answer is a line of
seconds.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn
from torch.nn.functional import cross_entropy

DATA, STEPS, THREADS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
CLIENTS, DRAWN, BATCH, RATE = 100, 10, 24, 0.1


class LeNet5(nn.Sequential):
    """The same layers as fedpace's, with the methods that pfl asks for."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 6, kernel_size=5, padding=2),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(6, 16, kernel_size=5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(400, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, 10),
        )

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.train()
        return cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        self.eval()
        scores = self(x)
        loss = cross_entropy(scores, y, reduction="sum").item()
        right = (scores.argmax(dim=1) == y).sum().item()
        return {"loss": Weighted(loss, len(y)), "accuracy": Weighted(right, len(y))}


def dataset(x: torch.Tensor, y: torch.Tensor) -> PyTorchTensorDataset:
    return PyTorchTensorDataset(tensors=(x, y))


class OnDemand(TrainingProcessCallback):
    """Waits between rounds until it is asked for another; the clock stands still meanwhile."""

    def __init__(self, everything: list[PyTorchTensorDataset]) -> None:
        self.everything = everything
        self.began = 0.0

    def after_central_iteration(
        self,
        aggregate_metrics: Metrics,  # noqa: ARG002
        model: PyTorchModel,
        *,
        central_iteration: int,
    ) -> tuple[bool, Metrics]:
        if central_iteration:  # the first evaluates, too, and does not count
            print(f"seconds {time.perf_counter() - self.began}", flush=True)
        for line in sys.stdin:
            self.began = time.perf_counter()
            if line.strip() == "train":
                return False, Metrics()
            for each in self.everything:
                model.evaluate(each, eval_params=NNEvalHyperParams(local_batch_size=1000))
            print(f"seconds {time.perf_counter() - self.began}", flush=True)
        return True, Metrics()


def main() -> None:
    torch.set_num_threads(THREADS)
    data, rng = np.load(DATA), np.random.default_rng(0)
    x, test_x = (torch.from_numpy(data[name]).view(-1, 1, 28, 28) for name in ("x", "test_x"))
    y, test_y = (torch.from_numpy(data[name]) for name in ("y", "test_y"))

    def own(client: int) -> PyTorchTensorDataset:
        """Return one pass over E batches, drawn with replacement: pfl ends after one pass."""
        first, end = data["offsets"][client : client + 2]
        rows = torch.from_numpy(rng.integers(first, end, size=STEPS * BATCH))
        return dataset(x[rows], y[rows])

    clients = FederatedDataset(own, lambda: int(rng.integers(CLIENTS)))
    module = LeNet5()
    model = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=10**9,
            evaluation_frequency=10**9,
            train_cohort_size=DRAWN,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(clients, clients),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=None,
            local_num_steps=STEPS,
            local_learning_rate=RATE,
            local_batch_size=BATCH,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=1000),
        callbacks=[OnDemand([dataset(x, y), dataset(test_x, test_y)])],
    )


if __name__ == "__main__":
    main()
