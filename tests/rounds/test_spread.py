"""Clients of a round spread over Dask workers give the simulator's numbers."""

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from fedpace.conformance.backends import check_backend
from fedpace.errors import InputError
from fedpace.estimation.pace import Pace
from fedpace.estimation.policy import stream_sampler_for
from fedpace.rounds.backend import Backend, Task
from fedpace.rounds.local import Trained
from fedpace.rounds.run import train
from fedpace.rounds.schedules import inverse
from fedpace.rounds.simulator import Simulator
from fedpace.rounds.spread import Spread
from fedpace.rounds.stopping import Stop
from fedpace.rounds.training import Outcome
from fedpace.sampling.design import WithReplacement
from fedpace.seeds import Seeds
from fedpace.studies import dask as study_dask
from fedpace.studies.dask import run_spread
from fedpace.studies.experiment import run_one
from fedpace.studies.experiment import simulator as build
from fedpace.studies.processes import Job, Order
from fedpace.studies.store import packed_run
from fedpace.studies.watching import Watchers
from tests.studies.clusters import Cluster, cluster
from tests.studies.tiny import tiny_study

from .fakes import Fixed, assert_same_outcome, small_simulator, task

pytest.importorskip("distributed")


class Workers(NamedTuple):
    client: Any
    cluster: Cluster


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Yield a client of a scheduler with three workers, and the workers."""
    distributed = importlib.import_module("distributed")
    with (
        cluster(tmp_path_factory.mktemp("dask"), workers=3) as there,
        distributed.Client(there.address, set_as_default=False) as client,
    ):
        client.wait_for_workers(3, timeout=30)
        yield Workers(client, there)


def twin(seed: int = 3) -> Simulator:
    return small_simulator(seed)


def test_knows_what_the_simulator_knows(workers: Workers) -> None:
    backend, other = Spread(workers.client, twin), twin()
    np.testing.assert_array_equal(backend.weights, other.weights)
    np.testing.assert_array_equal(backend.usual_times, other.usual_times)
    np.testing.assert_array_equal(backend.initial(), other.initial())
    assert backend.evaluate(other.initial()) == other.evaluate(other.initial())
    assert backend.evaluate(other.initial(), due=False) is None


def test_clients_say_how_a_model_does(workers: Workers) -> None:
    backend, other = Spread(workers.client, twin), twin()
    asked = task([1, 4], other.initial())
    ways: list[dict[str, Any]] = [{}, {"samples": 5}, {"held_out": True}]
    for more in ways:
        for mine, theirs in zip(
            backend.probe(asked, **more), other.probe(asked, **more), strict=True
        ):
            np.testing.assert_array_equal(mine, theirs)
    for backend_like in (backend, other):
        backend_like.submit(asked._replace(losses=True))
    np.testing.assert_array_equal(backend.collect().rms_losses, other.collect().rms_losses)
    assert backend.evaluate(other.initial()) == other.evaluate(other.initial())
    assert backend.slow_accuracy == other.slow_accuracy


def hidden() -> Simulator:
    return replace(twin(), times_known=False)


def test_hides_times_that_are_hidden(workers: Workers) -> None:
    assert Spread(workers.client, hidden).usual_times is None


def test_keeps_to_the_rules_of_a_backend(workers: Workers) -> None:
    check_backend(lambda: Spread(workers.client, twin))


@pytest.mark.parametrize("clients", [[0, 1, 2, 3, 4, 5], [1], [0, 3]])
def test_a_round_is_that_of_the_simulator_to_the_last_bit(
    workers: Workers, clients: list[int]
) -> None:
    backend, other = Spread(workers.client, twin), twin()
    parameters = np.random.default_rng(0).standard_normal(other.model.size)
    task = Task(np.array(clients), parameters, 5, 0.1, 12.0)
    for each in (backend, other):
        each.submit(task)
    for mine, theirs in zip(backend.collect()[:4], other.collect()[:4], strict=True):
        np.testing.assert_array_equal(mine, theirs)


def unreliable(order: Order, seed: int) -> Simulator:
    """Fail on the worker, in another way for every seed but the last."""
    if seed == 0:
        raise PermissionError(13, "may not read this")
    if seed == 1:
        raise MemoryError("no room for the images")
    if seed == 2:
        raise InputError("data must be there, got none")
    return build(order.opened(), seed)


def test_a_run_that_fails_on_a_worker_does_not_end_the_others(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_dask, "_simulator", unreliable)
    study = tiny_study(tmp_path)
    jobs = iter([Job("uniform", seed) for seed in range(4)])
    order = Order.of(study, ["uniform"])
    answers = list(
        run_spread(order, jobs, scheduler=workers.cluster.address, warn=print, watcher=Watchers())
    )
    assert [answer.problem for _, answer in answers] == [
        "PermissionError: [Errno 13] may not read this",
        "MemoryError: no room for the images",
        "data must be there, got none",
        "",
    ]
    assert answers[3][1].contents == packed_run(study, "uniform", 3, run_one(study, "uniform", 3))


def trained(backend: Backend) -> Outcome:
    design = WithReplacement(np.full(6, 1 / 6), 3, backend.weights)
    return train(backend, Fixed(design), schedule=inverse(0.1), stop=Stop(rounds=8), seeds=Seeds(3))


def paced(backend: Backend) -> Outcome:
    return train(backend, Pace(k=2), schedule=inverse(0.1), stop=Stop(rounds=12), seeds=Seeds(3))


def streamed(backend: Backend) -> Outcome:
    sampler = stream_sampler_for("weighted", 3, buffer=2)
    how: dict[str, Any] = {"mode": "asynchronous", "at_once": 3, "buffer": 2}
    stop = Stop(rounds=12)
    return train(backend, sampler, schedule=inverse(0.1), stop=stop, seeds=Seeds(3), **how)


def test_without_a_barrier_tasks_are_spread_too(workers: Workers) -> None:
    assert_same_outcome(streamed(Spread(workers.client, twin)), streamed(twin()))


def test_pace_sees_the_same_updates_and_draws_the_same(workers: Workers) -> None:
    assert_same_outcome(paced(Spread(workers.client, twin)), paced(twin()))


class Losing(Spread):
    """Loses a worker in the fourth round."""

    doomed: Any = None

    def trained_each(self, tasks: Sequence[Task]) -> list[Trained]:
        if tasks[0].round_index == 3:
            self.doomed.kill()  # its share of this round goes to another
        return super().trained_each(tasks)


def test_a_run_that_loses_a_worker_is_that_of_the_simulator(workers: Workers) -> None:
    backend = Losing(workers.client, twin)
    backend.doomed = workers.cluster.workers[0]
    assert_same_outcome(trained(backend), trained(twin()))
    assert len(workers.client.nthreads()) == 2
