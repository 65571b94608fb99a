"""Train your own PyTorch module on your own data; compare two schemes by time to a loss."""

import numpy as np
from torch import nn

from fedpace import Pilots, Seeds, Simulator, Steady, Stop, constant, sampler_for, train
from fedpace.data.shards import hold_out
from fedpace.models.torch_model import TorchModel

CLIENTS, CLASSES, FEATURES, TARGET = 40, 5, 10, 0.4
rng, seeds = np.random.default_rng(0), Seeds(0)

# Your data: few clients hold most of it, and each knows two classes only.
sizes = 20 + (80 * rng.pareto(1.2, size=CLIENTS)).astype(int).clip(max=2000)
centres = rng.normal(size=(CLASSES, FEATURES))
ys = [rng.choice(rng.choice(CLASSES, 2, replace=False), size=size + 10) for size in sizes]
xs = [centres[y] + rng.normal(size=(y.size, FEATURES)) for y in ys]
data = hold_out(xs, ys, sizes)  # the last ten samples of each client are for testing


# Your model, and the seconds that a round takes on each client.
def network() -> nn.Module:
    """Return a small network."""
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES))


times = Steady(rng.exponential(size=CLIENTS))
backend = Simulator(data, TorchModel(network), times, seeds, local_steps=10, batch=16)

pilots = Pilots([1.4, 1.3, 1.2], rounds=10)  # ten rounds each, or to the last loss; they count
for scheme in ("uniform", "optimal-mean"):
    sampler = sampler_for(scheme, k=5, learn=pilots, max_weight=2)
    stop = Stop(loss=TARGET, rounds=300)
    outcome = train(backend, sampler, schedule=constant(0.01), stop=stop, seeds=seeds)
    seconds = outcome.history.time_to(loss=TARGET)
    print(f"{scheme:12} takes {seconds:4.0f} s to a loss of {TARGET}")
