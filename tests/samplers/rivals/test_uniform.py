"""FedAU's weights by hand, and FedVARP and FedStale against their formula."""

from typing import Any

import numpy as np
import pytest

from fedpace.errors import InputError
from fedpace.samplers.rivals.candidates import FedAU, FedStale
from fedpace.sampling.design import Draw
from fedpace.servers.build import server_for
from fedpace.servers.memory import Memory
from fedpace.training.backend import Reply
from fedpace.training.sampler import SamplerContext
from fedpace.training.updates import RoundUpdates
from tests.training.fakes import row

P = np.array([0.4, 0.3, 0.2, 0.1])


def test_the_weight_is_the_mean_interval_between_replies() -> None:
    sampler = FedAU(2, longest=5)
    state = sampler.init(4)
    came = [[0], [0, 1], [], [0], [0, 1]]
    for index, clients in enumerate(came, 1):
        state = sampler.observe(state, row(clients, round=index))
    # 0: 1, 1, 2, 1; 1: 2, 3; 2 and 3: never, cut at 5.
    np.testing.assert_allclose(state["mean"], [1.25, 2.5, 5.0, 5.0])
    draw = sampler.design(state, SamplerContext(P)).draw(np.random.default_rng(0))
    np.testing.assert_allclose(draw.weights, (P * state["mean"])[draw.clients])


def test_before_the_first_interval_the_weight_is_that_of_the_data() -> None:
    draw = FedAU(4).design(FedAU(4).init(4), SamplerContext(P)).draw(np.random.default_rng(0))
    np.testing.assert_allclose(draw.weights, P)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_the_step_is_that_of_the_papers(beta: float) -> None:
    rng = np.random.default_rng(0)
    sampler = FedStale(2, beta=beta)
    server: Any = sampler.server
    start = rng.normal(size=3)
    state, w = server.init(start), start
    h, naive = np.zeros((4, 3)), start
    for index in range(6):
        draw = sampler.design(None, SamplerContext(P)).draw(np.random.default_rng(index))
        updates = rng.normal(size=(4, 3))
        reply = Reply(draw.clients, updates[draw.clients], np.ones(2), np.ones(2))
        seen = RoundUpdates(w, 1.0, draw, reply, P)
        w, state = server.step(state, seen)
        weights = 4 * P[draw.clients] / 2
        naive = naive + beta * P @ h + weights @ (updates - beta * h)[draw.clients]
        h[draw.clients] = updates[draw.clients]
        np.testing.assert_allclose(w, naive, atol=1e-6)


def test_the_draw_is_unbiased_also_among_those_present() -> None:
    design = FedStale(2).design(None, SamplerContext(P)).among(np.array([True, False, True, True]))
    sums = np.zeros(4)
    draws = 6000
    for seed in range(draws):
        draw = design.draw(np.random.default_rng(seed))
        sums[draw.clients] += draw.weights
    expected = np.array([4, 0, 2, 1]) / 7
    spread = expected * np.sqrt((3 / 2 - 1) / draws)
    assert (np.abs(sums / draws - expected) <= 5 * spread + 1e-12).all()


def test_servers_by_name_and_what_is_refused() -> None:
    assert repr(server_for("fedvarp")) == repr(Memory(beta=1.0))
    assert repr(server_for("fedstale:0.3")) == repr(Memory(beta=0.3))
    with pytest.raises(InputError, match="server must be fedstale:BETA, got 'fedstale:2'"):
        server_for("fedstale:2")
    with pytest.raises(InputError, match="server must be fedstale:BETA, got 'fedstale:'"):
        server_for("fedstale")
    with pytest.raises(InputError, match="beta must be from 0 to 1, got"):
        FedStale(2, beta=1.5)


def test_the_mean_of_those_who_answered_is_a_server_by_name() -> None:
    reply = Reply(np.array([0, 1]), np.array([[1.0], [4.0]]), np.ones(2), np.ones(2))
    draw = Draw(np.array([0, 1]), np.array([0.4, 0.2]))
    after, _ = server_for("mean").apply(None, np.zeros(1), draw, reply)
    np.testing.assert_allclose(after, [2.0])
