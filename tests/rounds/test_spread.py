"""Clients of a round spread over Dask workers give the simulator's numbers."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpace.errors import InputError
from fedpace.rounds.backend import Backend
from fedpace.rounds.loop import start, train
from fedpace.rounds.schedules import inverse
from fedpace.rounds.simulator import Simulator
from fedpace.rounds.spread import Cluster
from fedpace.rounds.stopping import Stop
from fedpace.sampling.design import Draw, WithReplacement
from fedpace.seeds import Seeds
from fedpace.studies import dask as study_dask
from fedpace.studies.dask import run_spread
from fedpace.studies.experiment import run_one
from fedpace.studies.experiment import simulator as build
from fedpace.studies.processes import Job, Order
from fedpace.studies.store import packed_run
from fedpace.studies.study import Study
from tests.network.fleet import ROOT, SEED, N, ended, simulator, until
from tests.studies.tiny import tiny_study

distributed = pytest.importorskip("distributed")
ALL = Draw(np.arange(N), np.full(N, 0.25))


def dask(*args: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "dask", *map(str, args), "--no-dashboard"],
        cwd=ROOT,  # so that workers can import what the tests use
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield a client of a scheduler with three workers, and the workers."""
    about = tmp_path_factory.mktemp("dask") / "scheduler.json"
    local = str(about.parent)
    place = ("--host", "127.0.0.1", "--scheduler-file", about)
    processes = [dask("scheduler", "--port", "0", *place)]
    try:
        until(lambda: about.exists() and about.read_text().endswith("}"))
        address = json.loads(about.read_text())["address"]
        single = ("--no-nanny", "--nthreads", "1", "--local-directory", local)
        processes += [dask("worker", address, *single) for _ in range(3)]
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(3, timeout=30)
            yield client, processes[1:]
    finally:
        ended(processes)


def test_knows_what_the_simulator_knows(workers: Any) -> None:
    backend, twin = Cluster(workers[0], simulator, SEED), simulator()
    np.testing.assert_array_equal(backend.weights, twin.weights)
    np.testing.assert_array_equal(backend.usual_times, twin.usual_times)
    np.testing.assert_array_equal(backend.initial(), twin.initial())
    assert backend.evaluate(twin.initial()) == twin.evaluate(twin.initial())


def test_a_round_is_that_of_the_simulator_to_the_last_bit(workers: Any) -> None:
    backend, twin = Cluster(workers[0], simulator, SEED), simulator()
    parameters = np.random.default_rng(0).standard_normal(twin.model.size)
    for draw in (ALL, Draw(np.array([1]), np.ones(1)), Draw(np.array([0, 3]), np.ones(2))):
        reply = backend.run(parameters, draw, round_index=5, learning_rate=0.1)
        expected = twin.run(parameters, draw, round_index=5, learning_rate=0.1)
        for mine, other in zip(reply[:4], expected[:4], strict=True):
            np.testing.assert_array_equal(mine, other)


def unreliable(study: str, seed: int) -> Simulator:
    """Fail on the worker, in another way for every seed but the last."""
    if seed == 0:
        raise PermissionError(13, "may not read this")
    if seed == 1:
        raise MemoryError("no room for the images")
    if seed == 2:
        raise InputError("data must be there, got none")
    return build(Study.model_validate_json(study), seed)


def test_a_run_that_fails_on_a_worker_does_not_end_the_others(
    workers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_dask, "_simulator", unreliable)
    study = tiny_study(tmp_path)
    jobs = iter([Job("uniform", seed) for seed in range(4)])
    address = workers[0].scheduler.address
    answers = list(run_spread(Order.of(study), jobs, scheduler=address, warn=print))
    assert [answer.problem for _, answer in answers] == [
        "PermissionError: [Errno 13] may not read this",
        "MemoryError: no room for the images",
        "data must be there, got none",
        "",
    ]
    assert answers[3][1].contents == packed_run(study, "uniform", 3, run_one(study, "uniform", 3))


def history(backend: Backend) -> list[Any]:
    state, _ = start(backend)
    design = WithReplacement(np.full(N, 1 / N), 3, backend.weights)
    rng = Seeds(SEED).stream("draw")
    _, rows = train(backend, design, state, schedule=inverse(0.1), stop=Stop(rounds=12), rng=rng)
    return [(row.round, row.seconds, row.loss, row.accuracy, row.clients.tolist()) for row in rows]


def test_a_run_that_loses_a_worker_is_that_of_the_simulator(workers: Any) -> None:
    client, processes = workers
    backend = Cluster(client, simulator, SEED)
    run = backend.run

    def losing(*args: Any, round_index: int, **kwargs: Any) -> Any:
        if round_index == 4:
            processes[0].kill()  # its share of this round goes to another
        return run(*args, round_index=round_index, **kwargs)

    backend.run = losing  # type: ignore[method-assign]
    assert history(backend) == history(simulator())
    assert len(client.nthreads()) == 2
