"""Your own CNN on Fashion-MNIST, spread over 50 clients: three schemes, and a page to look at."""

from pathlib import Path

import numpy as np
from torch import nn

import fedpace
from fedpace.data.images import read_idx
from fedpace.data.partition import dirichlet

FOLDER = Path("/usr/share/datasets/fashion-mnist")  # apt-get install dataset-fashion-mnist
x = read_idx(FOLDER / "train-images-idx3-ubyte.gz")[:5_000, None].astype(np.float32) / 255
y = read_idx(FOLDER / "train-labels-idx1-ubyte.gz")[:5_000]
parts = dirichlet(y, 50, np.random.default_rng(0), concentration=0.3)
clients = [(x[part], y[part]) for part in parts]


def network() -> nn.Module:  # noqa: D103
    convolutions = [nn.Conv2d(1, 8, 5, 2), nn.ReLU(), nn.Conv2d(8, 16, 5, 2), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(256, 10))


how = {"k": 10, "local_steps": 20, "schedule": "constant:0.1", "times": "trace:fedscale"}
fedpace.compare(model=network, clients=clients, seeds=3, target=0.7, show=True, **how)
