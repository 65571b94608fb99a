"""What becomes of the replies, against plain loops."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpace.conformance import check_server
from fedpace.errors import InputError
from fedpace.sampling.design import Draw, WithReplacement
from fedpace.seeds import Seeds
from fedpace.servers.average import Adam, Average, Yogi
from fedpace.servers.build import server_for
from fedpace.servers.memory import Memory
from fedpace.training.backend import Reply
from fedpace.training.server import BaseServer
from fedpace.training.stopping import Stop, inverse
from fedpace.training.train import train

from .fakes import Fixed, small_simulator

OWN = '''
class Halving:
    """Half of the average."""

    def init(self, parameters):
        return None

    def apply(self, state, parameters, draw, reply):
        return parameters + draw.weights @ reply.updates / 2, state

ready = Halving()

def made():
    return Halving()

def broken():
    return 1 / 0

NUMBER = 3
'''


def rounds(count: int = 6, size: int = 5) -> list[tuple[Draw, Reply]]:
    rng = np.random.default_rng(0)
    made = []
    for index in range(count):
        m = 1 + index % 3
        clients, ones = np.arange(m), np.ones(m)
        reply = Reply(clients, rng.normal(size=(m, size)), ones, ones)
        made.append((Draw(clients, rng.random(m) + 0.2), reply))
    return made


def applied(server: BaseServer, start: Any) -> list[list[float]]:
    """Return the models after each round."""
    parameters, state, models = start, server.init(start), []
    for draw, reply in rounds():
        parameters, state = server.apply(state, parameters, draw, reply)
        models.append(parameters.tolist())
    return models


def test_the_average_adds_weighted_updates_without_renormalising() -> None:
    draw = Draw(np.array([0, 4]), np.array([2.0, 0.5]))
    reply = Reply(draw.clients, np.array([[1.0, 0], [2, 4]]), np.ones(2), np.ones(2))
    model, state = Average().apply(None, np.array([1.0, 2.0]), draw, reply)
    assert model.tolist() == [4.0, 4.0]
    assert state is None


def adam_second(v: float, u: float, beta: float) -> float:
    return beta * v + (1 - beta) * u * u


def yogi_second(v: float, u: float, beta: float) -> float:
    sign = (v > u * u) - (v < u * u)
    return v - (1 - beta) * u * u * sign


@pytest.mark.parametrize(("kind", "second"), [(Adam, adam_second), (Yogi, yogi_second)])
@pytest.mark.parametrize("betas", [(0.9, 0.99), (0.0, 0.5)])
def test_adam_and_yogi_follow_their_formulas_number_by_number(
    kind: type[Adam], second: Callable[[float, float, float], float], betas: tuple[float, float]
) -> None:
    rate, floor = 0.3, 1e-2
    start = np.linspace(-1, 1, 5)
    w, m, v = start.tolist(), [0.0] * 5, [floor**2] * 5
    expected = []
    for draw, reply in rounds():
        for j in range(5):
            u = 0.0
            for weight, update in zip(draw.weights.tolist(), reply.updates.tolist(), strict=True):
                u += weight * update[j]
            m[j] = betas[0] * m[j] + (1 - betas[0]) * u
            v[j] = second(v[j], u, betas[1])
            w[j] = w[j] + rate * m[j] / (math.sqrt(v[j]) + floor)
        expected.append(list(w))
    np.testing.assert_allclose(applied(kind(rate, betas, floor), start), expected, rtol=1e-12)


def test_yogi_forgets_a_large_update_more_slowly_than_adam() -> None:
    ones = np.ones(1)
    draw, large = Draw(np.array([0]), ones), Reply(np.array([0]), np.full((1, 1), 5.0), ones, ones)
    tiny = large._replace(updates=np.full((1, 1), 1e-3))
    left = []
    for server in (Adam(), Yogi()):
        state = server.init(np.zeros(1))
        for reply in (large, *[tiny] * 50):
            _, state = server.apply(state, np.zeros(1), draw, reply)
        left.append(float(state["second"][0]))
    assert left[1] > 1.5 * left[0]


@pytest.mark.parametrize("server", [Average(), Adam(), Yogi(), Memory()], ids=str)
def test_every_server_keeps_to_the_rules(server: BaseServer) -> None:
    check_server(lambda: server)


@pytest.mark.parametrize("server", [Adam(0.1), Yogi(0.1), Memory()], ids=str)
def test_a_run_with_an_adaptive_server_learns(server: BaseServer) -> None:
    backend = small_simulator(2)
    outcome = train(
        backend,
        Fixed(WithReplacement(np.full(6, 1 / 6), 3, backend.weights)),
        schedule=inverse(0.1),
        stop=Stop(rounds=25),
        seeds=Seeds(0),
        server=server,
    )
    assert outcome.history.rows[-1].loss < 0.9 * outcome.history.rows[0].loss


# By name.


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("average", Average()),
        ("memory", Memory()),
        ("auto", Average()),
        ("adam", Adam()),
        ("yogi", Yogi()),
        ("adam:0.1", Adam(0.1)),
        ("yogi:1e-3", Yogi(1e-3)),
    ],
)
def test_servers_are_read_from_text(text: str, server: BaseServer) -> None:
    named = server_for(text)
    assert named == server
    assert type(named) is type(server)


@pytest.mark.parametrize("kind", ["adam", "yogi"])
@pytest.mark.parametrize("rate", ["", "x", "0", "-1", "inf", "nan", "1:2"])
def test_a_rate_that_is_none_is_refused(kind: str, rate: str) -> None:
    with pytest.raises(InputError, match=f"server must be {kind}:RATE, got '.*'; write {kind}:0"):
        server_for(f"{kind}:{rate}")


def test_an_unknown_server_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"server must be .*, got 'avrage'; did you mean 'average"):
        server_for("avrage")


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "own_server.py"
    path.write_text(OWN, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", ["Halving", "ready", "made"])
def test_a_server_of_your_own_is_an_object_a_class_or_a_function(own: str, name: str) -> None:
    server = server_for(f"{own}:{name}")
    check_server(lambda: server)
    assert type(server).__name__ == "Halving"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("NUMBER", "server '.*:NUMBER' must define apply, got int without apply; define it"),
        ("broken", r"server must be made without arguments, got '.*:broken': ZeroDivisionError"),
        ("math:cos", r"server must be made without arguments, got 'math:cos': TypeError"),
        ("math:pi", "server 'math:pi' must define apply, got float without apply; define it"),
    ],
)
def test_what_is_no_server_is_refused_in_one_line(own: str, name: str, problem: str) -> None:
    text = name if ":" in name else f"{own}:{name}"
    with pytest.raises(InputError, match=problem) as caught:
        server_for(text)
    assert "\n" not in str(caught.value)


def test_a_module_of_this_folder_is_found(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(own).parent)
    try:
        assert type(server_for("own_server:ready")).__name__ == "Halving"
    finally:
        sys.modules.pop("own_server", None)
