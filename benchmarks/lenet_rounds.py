"""A round of Simulation Setup 2: fedpace against a plain PyTorch loop and pfl-research.

    .venv/bin/python benchmarks/lenet_rounds.py [--pfl PYTHON] [--threads 1 2]

LeNet-5, K = 10 different clients, E = 50, batch 24, on random images of MNIST's shape: 100 clients
with 15,129 samples for training and 1,681 held out. PYTHON is the interpreter of an environment
with pfl and the same torch; without it pfl is left out. All train one round in turn, several times;
the medians are compared. Evaluation, of the loss on the first and the accuracy on the second, is
measured apart.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from tables import median_time, print_table, seconds, time_of
from torch import nn
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

from fedpace import Average, Draw, Seeds, Shards, Simulator, Split, Steady, Task
from fedpace.data.partition import power_law_sizes
from fedpace.models.torch_model import TorchModel, lenet5

CLIENTS, DRAWN, BATCH, RATE = 100, 10, 24, 0.1
OURS, PLAIN, PFL = "fedpace", "plain PyTorch loop", "pfl-research"
Ways = dict[str, dict[str, Callable[[], float]]]  # by what is measured and by whom, in seconds


def images() -> Split:
    """Return random images as the setup has them: many small clients and few large ones."""
    rng = np.random.default_rng(0)
    sizes = power_law_sizes(CLIENTS, 15129, rng)

    def shards(sizes: np.ndarray) -> Shards:
        xs = [rng.normal(size=(size, 784)).astype(np.float32) for size in sizes]
        return Shards.from_clients(xs, [rng.integers(10, size=size) for size in sizes])

    return Split(shards(sizes), shards(16 + (np.arange(CLIENTS) < 1681 - 16 * CLIENTS)))


class Ours:
    """Rounds as studies run them; whom to draw is decided here, to be the same for all."""

    def __init__(self, data: Split, steps: int, threads: int) -> None:
        model = TorchModel(lenet5, input_shape=(1, 28, 28), threads=threads)
        times = Steady(np.ones(CLIENTS))
        self.backend = Simulator(data, model, times, Seeds(0), local_steps=steps, batch=BATCH)
        self.parameters = self.backend.initial()
        self.rng = np.random.default_rng(0)

    def train(self) -> None:
        draw = Draw(drawn(self.rng), np.full(DRAWN, 1 / DRAWN))
        self.backend.submit(Task(draw.clients, self.parameters, 0, RATE, 0.0))
        reply = self.backend.collect()
        self.parameters, _ = Average().apply(None, self.parameters, draw, reply)

    def evaluate(self) -> None:
        self.backend.evaluate(self.parameters)


class Plain:
    """The same work as it is usually written: a copy of the module and an optimiser per client."""

    def __init__(self, data: Split, steps: int) -> None:
        self.steps = steps
        self.offsets = data.train.offsets
        self.x, self.test_x = (torch.from_numpy(each.x).view(-1, 1, 28, 28) for each in data)
        self.y, self.test_y = (torch.from_numpy(each.y) for each in data)
        self.module = lenet5()
        self.rng = np.random.default_rng(0)

    def train(self) -> None:
        states = [self.local(int(client)).state_dict() for client in drawn(self.rng)]
        mean = {name: sum(each[name] for each in states) / DRAWN for name in states[0]}
        self.module.load_state_dict(mean)

    def local(self, client: int) -> nn.Module:
        module: nn.Module = deepcopy(self.module).train()
        optimiser = torch.optim.SGD(module.parameters(), lr=RATE)
        first, end = self.offsets[client : client + 2].tolist()
        for _ in range(self.steps):
            rows = torch.randint(first, end, (BATCH,))
            optimiser.zero_grad()
            torch.autograd.backward(cross_entropy(module(self.x[rows]), self.y[rows]))
            optimiser.step()
        return module

    def evaluate(self) -> None:
        self.module.eval()
        loss = right = 0.0
        with torch.no_grad():
            for x, y in zip(torch.split(self.x, 1000), torch.split(self.y, 1000), strict=True):
                loss += float(cross_entropy(self.module(x), y, reduction="sum"))
            for x, y in zip(
                torch.split(self.test_x, 1000), torch.split(self.test_y, 1000), strict=True
            ):
                right += float((self.module(x).argmax(dim=1) == y).sum())


def drawn(rng: np.random.Generator) -> np.ndarray:
    return np.sort(rng.choice(CLIENTS, size=DRAWN, replace=False))


@contextmanager
def pfl(python: str, data: Split, steps: int, threads: int) -> Iterator[Callable[[str], float]]:
    """Start pfl in its own environment; what is yielded has it work once, and returns seconds."""
    script = Path(__file__).with_name("pfl_rounds.py")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "images.npz"
        train, test = data
        np.savez(file, x=train.x, y=train.y, offsets=train.offsets, test_x=test.x, test_y=test.y)
        with subprocess.Popen(
            [python, str(script), str(file), str(steps), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            sending, answers = process.stdin, process.stdout

            def ask(what: str) -> float:
                sending.write(f"{what}\n")
                sending.flush()
                line = next(line for line in answers if line.startswith("seconds "))
                return float(line.split()[1])

            yield ask
            sending.close()  # which ends it
            answers.read()  # its last words, for which the pipe must be open


def compare(ways: Ways, repeats: int, threads: int) -> None:
    """Let all work in turn, after once that does not count, and print medians and ratios."""
    rows = []
    for what, by_whom in ways.items():
        measured: dict[str, list[float]] = {name: [] for name in by_whom}
        for repeat in range(repeats + 1):
            for name, once in by_whom.items():
                took = once()
                if repeat:
                    measured[name].append(took)
        ours = median(measured[OURS])
        rows += [
            [f"{what}, {name}", seconds(median(values)), f"{median(values) / ours:.2f}"]
            for name, values in measured.items()
        ]
    print_table([f"{threads} thread{'s'[: threads - 1]}", "median", "times fedpace"], rows)


def shares(ours: Ours) -> None:
    """Print where a round's time goes, as PyTorch's profiler sees it."""
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        took = time_of(ours.train)
    spent: defaultdict[str, float] = defaultdict(float)
    for event in watched.key_averages():
        spent[part(event.key)] += event.self_cpu_time_total / 1e6
    spent["outside PyTorch: NumPy and Python"] = took - sum(spent.values())
    print_table(
        ["a round of fedpace, under the profiler", "seconds", "share"],
        [[name, seconds(value), f"{value / took:.0%}"] for name, value in spent.items()],
    )


def stacking(calls: int) -> None:
    """Print what one step of all clients takes, looped and stacked, on one thread."""
    rng = np.random.default_rng(0)
    makes: dict[str, Callable[[], nn.Module]] = {
        "LeNet-5": lenet5,
        "784-64-10 perceptron": lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10)
        ),
        "784-10 linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)),
    }
    x = rng.normal(size=(DRAWN, BATCH, 1, 28, 28)).astype(np.float32)
    y = rng.integers(10, size=(DRAWN, BATCH))
    rows = []
    for name, make in makes.items():
        took = []
        for stacked in (False, True):
            model = TorchModel(make, input_shape=(1, 28, 28), stacked=stacked, threads=1)
            each = np.tile(model.initial(rng).astype(np.float32), (DRAWN, 1))
            step = partial(model.gradients, each, x, y, np.empty_like(each))
            took.append(median_time(step, calls))
        looped, together = took
        rows.append([name, seconds(looped), seconds(together), f"{together / looped:.2f}"])
    print_table(["gradients of 10 clients", "looped", "stacked", "stacked/looped"], rows)


def part(operation: str) -> str:
    if "conv" in operation:
        return "convolutions"
    if "pool" in operation:
        return "pooling"
    if operation in ("aten::addmm", "aten::mm"):
        return "linear layers"
    return "other operations"


def measure(options: argparse.Namespace, data: Split, threads: int) -> None:
    """Compare all with this number of threads."""
    torch.set_num_threads(threads)
    steps = options.local_steps
    ours, plain = Ours(data, steps, threads), Plain(data, steps)
    ways: Ways = {
        "training": {OURS: lambda: time_of(ours.train), PLAIN: lambda: time_of(plain.train)},
        "evaluation": {
            OURS: lambda: time_of(ours.evaluate),
            PLAIN: lambda: time_of(plain.evaluate),
        },
    }
    if options.pfl is None:
        compare(ways, options.repeats, threads)
    else:
        with pfl(options.pfl, data, steps, threads) as ask:
            ways["training"][PFL] = lambda: ask("train")
            ways["evaluation"][PFL] = lambda: ask("evaluate")
            compare(ways, options.repeats, threads)
    shares(ours)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pfl", help="Python with pfl and torch")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--local-steps", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    data = images()
    for threads in options.threads:
        measure(options, data, threads)
    stacking(10 * options.repeats)


if __name__ == "__main__":
    main()
