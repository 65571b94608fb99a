"""Updates are cut and made noisy before they leave a client, and what that costs is counted."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from fedpace.backends.local import LocalTrainer
from fedpace.backends.privacy import Privacy, describe_epsilon, epsilon, times_asked
from fedpace.errors import InputError
from fedpace.samplers.rivals.candidates import OptimalClients
from fedpace.sampling.design import WithReplacement
from fedpace.seeds import Seeds
from fedpace.training.backend import Task
from fedpace.training.history import Row
from fedpace.training.stopping import Stop, constant
from fedpace.training.train import train
from tests.training.fakes import Fixed, small_simulator

MANY = 20_000


def test_nothing_longer_than_the_clip_leaves_a_client_and_the_noise_is_as_set() -> None:
    update, rng = np.full(MANY, 7.0), np.random.default_rng(0)
    assert np.linalg.norm(Privacy(2.0, 0.0).release(update, rng)) == pytest.approx(2.0)
    short = update / 1e6
    np.testing.assert_array_equal(Privacy(2.0, 0.0).release(short, rng), short)
    noise = Privacy(2.0, 1.5).release(np.zeros(MANY), rng)
    assert abs(noise.mean()) < 5 * 3.0 / np.sqrt(MANY)
    assert abs(noise.std() - 3.0) < 5 * 3.0 / np.sqrt(2 * MANY)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e308])
def test_an_update_that_is_none_leaves_nothing_but_noise(bad: float) -> None:
    update = np.full(4, bad)
    assert np.isfinite(Privacy(1.0, 1.0).release(update, np.random.default_rng(0))).all()
    assert np.linalg.norm(Privacy(1.0, 0.0).release(update, np.random.default_rng(0))) <= 1.0


@pytest.mark.parametrize(("noise", "times"), [(8.0, 1), (8.0, 30), (20.0, 200)])
def test_epsilon_is_that_of_the_gaussian_mechanism(noise: float, times: int) -> None:
    # Its exact curve [Balle18, Thm. 8]; so many times it is once with noise over their root.
    mu = 2 * np.sqrt(times) / noise

    def beyond(eps: float) -> float:
        below = norm.cdf(mu / 2 - eps / mu) - np.exp(eps) * norm.cdf(-mu / 2 - eps / mu)
        return float(below - 1e-5)

    exact = brentq(beyond, 1e-3, 100)
    assert exact <= epsilon(noise, times) <= 1.01 * exact


def test_a_client_is_counted_whenever_it_was_asked() -> None:
    rows = [
        Row("train", 1, 1.0, 0.5, 0.5, 1.0, 1.0, np.array([0, 2])),
        Row("train", 2, 2.0, 0.5, 0.5, 1.0, 1.0, np.array([2]), missing=np.array([0, 3])),
    ]
    assert times_asked(rows).tolist() == [2, 0, 2, 1]
    assert times_asked([]).size == 0
    assert describe_epsilon(8.0, [rows]).startswith(
        "the client asked most often in a run, 2 times, has ε = "
    )


def test_a_client_whose_reply_a_sampler_leaves_out_is_counted_too() -> None:
    simulator = small_simulator()
    outcome = train(
        simulator,
        OptimalClients(k=2),
        schedule=constant(0.05),
        stop=Stop(rounds=3),
        seeds=Seeds(0),
    )
    rows = outcome.history.rows
    assert any(row.left_out.size for row in rows)
    assert times_asked(rows).tolist() == [3] * simulator.weights.size


def test_without_the_accountant_the_account_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **more: Any) -> Any:
        if name.startswith("dp_accounting"):
            raise ModuleNotFoundError(name)
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    row = Row("train", 1, 1.0, 0.5, 0.5, 1.0, 1.0, np.array([0]))
    assert "pip install 'fedpace[privacy]'" in describe_epsilon(8.0, [[row]])


def test_simulated_clients_release_the_same_however_they_are_trained() -> None:
    plain, backend = small_simulator(), small_simulator()
    backend.privacy = Privacy(0.01, 2.0)
    tasks = [Task(np.array([client]), backend.initial(), 3, 0.1, 0.0) for client in range(3)]
    together = backend.train_tasks(tasks)
    alone = [backend.train_task(task) for task in tasks]
    for one, other, task in zip(together, alone, tasks, strict=True):
        np.testing.assert_array_equal(one.updates, other.updates)
        exact = plain.train_task(task).updates[0]
        kept = exact * min(1.0, 0.01 / np.linalg.norm(exact))
        noise = one.updates[0] - kept
        assert 0 < np.abs(noise).max() < 6 * 0.02
        # What the server learns of the gradient is what the noisy update says.
        length = np.linalg.norm(one.updates[0])
        assert one.grad_norms[0] == pytest.approx(length / (backend.local_steps * 0.1))
    assert not np.array_equal(together[0].updates[0], together[1].updates[0])


def test_the_noise_of_a_device_does_not_follow_from_the_seed() -> None:
    plain = small_simulator()
    data = plain.data
    trainer = LocalTrainer(
        data, plain.model, plain.seeds, 0, plain.steps, privacy=Privacy(1.0, 1.0)
    )
    start = plain.initial()
    first, second = (trainer.train(start, round_index=0, learning_rate=0.1)[0] for _ in range(2))
    assert np.abs(first - second).max() > 0


def test_weights_enlarge_the_noise_as_the_page_says() -> None:
    p, q, k = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.3, 0.6]), 4
    design, rng = WithReplacement(q, k, p), np.random.default_rng(0)
    found = np.array([np.square(design.draw(rng).weights).sum() for _ in range(MANY)])
    expected = np.square(p).sum() + (np.square(p) * (1 - q) / q).sum() / k
    assert abs(found.mean() - expected) < 5 * found.std(ddof=1) / np.sqrt(MANY)
    best = WithReplacement(p, k, p)
    least = [np.square(best.draw(rng).weights).sum() for _ in range(MANY)]
    assert np.mean(least) < found.mean()


def test_a_run_trains_with_little_noise_and_not_with_much() -> None:
    losses = {}
    for noise in (0.0, 0.01, 100.0):
        backend = small_simulator()
        backend.privacy = Privacy(1.0, noise)
        design = WithReplacement(np.full(6, 1 / 6), 3, np.full(6, 1 / 6))
        done = train(
            backend,
            Fixed(design),
            schedule=constant(0.1),
            stop=Stop(rounds=20),
            seeds=Seeds(0),
        )
        losses[noise] = done.history.rows[-1].loss
    begin = done.history.rows[0].loss
    assert losses[0.0] < begin
    assert losses[0.01] < begin
    assert losses[100.0] > begin


@pytest.mark.parametrize(("clip", "noise"), [(0.0, 1.0), (-1.0, 1.0), (1.0, -0.1), (np.nan, 1.0)])
def test_settings_that_are_none_are_refused(clip: float, noise: float) -> None:
    with pytest.raises(InputError, match=r"privacy\.(clip|noise) must"):
        Privacy(clip, noise)
