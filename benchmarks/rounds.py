"""A round of Simulation Setup 1: fedpace against a plain NumPy loop and Flower's engine.

    OPENBLAS_NUM_THREADS=1 .venv/bin/python benchmarks/rounds.py [--flower PYTHON]

K = 10, E = 50, batch 24, 61 × 10 parameters, evaluation on all 20,509 samples each round. PYTHON is
the interpreter of an environment with flwr[simulation]; without it Flower is left out. All are
measured in turn in one run, several times; the medians are compared.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tables import print_table, seconds

from fedpace import (
    SCHEMES,
    Profile,
    Seeds,
    Simulator,
    Solve,
    Stop,
    SynchronousTraining,
    Task,
    inverse,
)
from fedpace.checks import AnyFloats
from fedpace.sampling.design import Design
from fedpace.studies.build import simulator
from fedpace.studies.study import load_study


def uniform(backend: Simulator) -> Design:
    ones = np.ones(backend.weights.size)
    return SCHEMES["uniform"](Profile(backend.weights, ones, ones), 10)


def fedpace_rounds(rounds: int) -> float:
    """Seconds per round of a run as studies do it: draw, train, aggregate, evaluate."""
    backend = simulator(load_study("simulation-1"), 0)
    stop, seeds = Stop(rounds=rounds), Seeds(0)
    run = SynchronousTraining(
        backend, Solve(SCHEMES["uniform"], 10), schedule=inverse(0.1), stop=stop, seeds=seeds
    )
    began = time.perf_counter()
    while not run.ended:
        backend.submit(run.draw())
        run.complete(backend.collect())
    return (time.perf_counter() - began) / rounds


def parts(rounds: int) -> dict[str, float]:
    """Seconds per round in training, in evaluation, and in everything else."""
    backend = simulator(load_study("simulation-1"), 0)
    parameters, design, rng = backend.initial(), uniform(backend), np.random.default_rng(0)
    backend.evaluate(parameters)
    steps, seeds, offsets = backend.steps, backend.seeds, backend.data.train.offsets.tolist()
    spent = {"draw": 0.0, "batches": 0.0, "training": 0.0, "evaluation": 0.0}
    for index in range(rounds):
        t0 = time.perf_counter()
        draw = design.draw(rng)
        t1 = time.perf_counter()
        for client in draw.clients.tolist():
            steps.rows(seeds, index, client, *offsets[client : client + 2])
        t2 = time.perf_counter()
        backend.train_task(Task(draw.clients, parameters, index, 0.01, 0.0))
        t3 = time.perf_counter()
        backend.evaluate(parameters)
        t4 = time.perf_counter()
        spent["draw"] += t1 - t0
        spent["batches"] += t2 - t1
        spent["training"] += (t3 - t2) - (t2 - t1)
        spent["evaluation"] += t4 - t3
    return {name: value / rounds for name, value in spent.items()}


def loop_rounds(rounds: int, dtype: type[np.floating[Any]]) -> float:
    """Seconds per round of a plain loop: one client at a time, NumPy within a step.

    The same work: local steps with the squared gradient norm of each, the loss on all training
    samples and the accuracy on all held out.
    """
    backend = simulator(load_study("simulation-1"), 0)
    data, test, weights = backend.data.train, backend.data.test, np.zeros((61, 10), dtype)
    x = np.c_[data.x, np.ones(len(data.x))].astype(dtype)
    test_x = np.c_[test.x, np.ones(len(test.x))].astype(dtype)
    design, rng = uniform(backend), np.random.default_rng(0)
    began = time.perf_counter()
    for index in range(rounds):
        draw = design.draw(rng)
        update = np.zeros_like(weights)
        for client, weight in zip(draw.clients, draw.weights, strict=True):
            rows = slice(data.offsets[client], data.offsets[client + 1])
            trained, _ = local(weights, x[rows], data.y[rows], 0.1 / (1 + index), rng)
            update += float(weight) * (trained - weights)
        weights = weights + update
        chosen = softmax(x @ weights)[np.arange(len(data.y)), data.y]
        float(-np.log(np.maximum(chosen, 1e-30)).mean())
        float(((test_x @ weights).argmax(axis=1) == test.y).mean())
    return (time.perf_counter() - began) / rounds


def local(
    weights: AnyFloats, x: AnyFloats, y: np.ndarray, rate: float, rng: np.random.Generator
) -> tuple[AnyFloats, float]:
    weights, squares = weights.copy(), 0.0
    for _ in range(50):
        batch = rng.integers(len(y), size=24)
        residual = softmax(x[batch] @ weights)
        residual[np.arange(24), y[batch]] -= 1
        gradient = (x[batch].T @ residual) / 24
        squares += float((gradient**2).sum())
        weights -= rate * gradient
    return weights, squares / 50


def softmax(scores: AnyFloats) -> AnyFloats:
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    normal: AnyFloats = scores / scores.sum(axis=1, keepdims=True)
    return normal


def both_cores(rounds: int) -> float:
    """Seconds per round when two processes run a study at once."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        list(pool.map(fedpace_rounds, [5, 5]))
        return median(pool.map(fedpace_rounds, [rounds] * 2)) / 2


def flower_rounds(python: str, rounds: int, evaluate: bool) -> float:
    """Seconds per round in Flower's simulation engine, its start not counted."""
    data = simulator(load_study("simulation-1"), 0).data.train
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "shards.npz"
        np.savez(file, x=np.c_[data.x, np.ones(len(data.x))], y=data.y, offsets=data.offsets)
        script = Path(__file__).with_name("flower_rounds.py")
        mode = "evaluate" if evaluate else "train"
        command = [python, str(script), str(file), str(rounds), mode]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    result = next(line for line in done.stdout.splitlines() if line.startswith('{"rounds"'))
    return float(json.loads(result)["seconds"]) / rounds


def multiplication_limit() -> float:
    """Seconds that a round's matrix products would take at the speed of a large product."""
    a = np.random.default_rng(0).random((1000, 1000), dtype=np.float32)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - began)
    rate = 2e9 / min(times)
    training = 9.56 * 50 * 2 * (2 * 24 * 61 * 10)  # 9.56 distinct clients in ten uniform draws
    evaluation = 2 * 20509 * 61 * 10 + 2 * 2278 * 61 * 10
    return (training + evaluation) / rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flower", help="Python with flwr[simulation]")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    measured: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        measured.setdefault(name, []).append(value)

    for _ in range(options.repeats):
        note("fedpace, one core", fedpace_rounds(options.rounds))
        note("plain NumPy loop, float32", loop_rounds(options.rounds // 5, np.float32))
        note("plain NumPy loop, float64", loop_rounds(options.rounds // 5, np.float64))
        note("fedpace, study on both cores", both_cores(options.rounds))
        if options.flower:
            note("Flower's engine, training only", flower_rounds(options.flower, 30, False))
            note(
                "Flower's engine, with server-side evaluation",
                flower_rounds(options.flower, 30, True),
            )
    middle = {name: median(values) for name, values in measured.items()}
    ours, both = middle["fedpace, one core"], middle["fedpace, study on both cores"]
    print_table(
        ["", "per round", "rounds/s", "times fedpace on one core", "times a study on both cores"],
        [
            [name, seconds(value), f"{1 / value:.1f}", f"{value / ours:.1f}", f"{value / both:.1f}"]
            for name, value in middle.items()
        ],
    )
    share = parts(options.rounds)
    total = sum(share.values())
    print_table(
        ["fedpace, one core", "per round", "share"],
        [[name, seconds(value), f"{value / total:.0%}"] for name, value in share.items()],
    )
    limit = multiplication_limit()
    print(f"\nMatrix products at the speed of a 1000 × 1000 product: {seconds(limit)} per round,")
    print(f"so a round takes {ours / limit:.1f} times that limit.")


if __name__ == "__main__":
    main()
