"""Samplers, servers and backends that do not subclass work in both modes."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.samplers.solve import Solve
from fedpace.sampling.design import Draw
from fedpace.sampling.schemes import SCHEMES
from fedpace.seeds import Seeds
from fedpace.servers.average import Average
from fedpace.training.backend import Reply, Task
from fedpace.training.sampler import SamplerContext
from fedpace.training.stopping import Stop, constant
from fedpace.training.train import train
from fedpace.training.training import Outcome

from .fakes import assert_same_outcome, small_simulator

MODES: list[dict[str, Any]] = [{}, {"mode": "asynchronous", "at_once": 2, "buffer": 1}]


class OwnSampler:
    """Weighted sampling, with the one required method."""

    def design(self, state: Any, context: SamplerContext) -> Any:
        return SCHEMES["weighted"](context.blank_profile, 2)


class OwnServer:
    """The weighted average, with the one required method."""

    def apply(self, state: Any, parameters: FloatArray, draw: Draw, reply: Reply) -> Any:
        return parameters + draw.weights @ reply.updates, state


class OwnBackend:
    """The simulator, with the required methods only."""

    evaluates_any = True

    def __init__(self) -> None:
        self._inner = small_simulator()

    @property
    def weights(self) -> FloatArray:
        return self._inner.weights

    @property
    def usual_times(self) -> FloatArray | None:
        return self._inner.usual_times

    def initial(self) -> FloatArray:
        return self._inner.initial()

    def submit(self, task: Task) -> None:
        self._inner.submit(task)

    def collect(self, count: int | None = None) -> Reply:
        return self._inner.collect(count)

    def evaluate(self, parameters: FloatArray, *, due: bool = True) -> Any:
        return self._inner.evaluate(parameters, due=due)


def run(backend: Any, sampler: Any, server: Any, mode: dict[str, Any]) -> Outcome:
    return train(
        backend,
        sampler,
        server=server,
        schedule=constant(0.1),
        stop=Stop(rounds=4),
        seeds=Seeds(0),
        **mode,
    )


@pytest.mark.parametrize("mode", MODES, ids=["synchronous", "asynchronous"])
def test_objects_that_do_not_subclass_train_as_ours_do(mode: dict[str, Any]) -> None:
    own = run(OwnBackend(), OwnSampler(), OwnServer(), mode)
    ours = run(small_simulator(), Solve(SCHEMES["weighted"], k=2), Average(), mode)
    rows = [row._replace(slow_accuracy=np.nan) for row in ours.history.rows]
    assert_same_outcome(own, ours._replace(history=type(ours.history)(rows)))


class Typos:
    class Sampler(OwnSampler):
        def observ(self, state: Any, row: Any) -> Any:
            return state

    class Server(OwnServer):
        def residual_norm(self, state: Any, updates: Any) -> Any: ...

    class Backend(OwnBackend):
        def presents(self, round_index: int, seconds: float) -> Any: ...


@pytest.mark.parametrize("mode", MODES, ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((OwnBackend, Typos.Sampler, OwnServer), "sampler must .*'observ' .*mean 'observe'"),
        (
            (OwnBackend, OwnSampler, Typos.Server),
            "server must .*'residual_norm' .*mean 'residual_norms'",
        ),
        ((Typos.Backend, OwnSampler, OwnServer), "backend must .*'presents' .*mean 'present'"),
        ((OwnBackend, object, OwnServer), "sampler must define design, got object without"),
        ((OwnBackend, OwnSampler, object), "server must define apply, got object without"),
        ((object, OwnSampler, OwnServer), "backend must define weights, .*, got object without"),
    ],
)
def test_a_misspelt_or_missing_hook_is_named(
    parts: Any, message: str, mode: dict[str, Any]
) -> None:
    backend, sampler, server = (cast(Any, part)() for part in parts)
    with pytest.raises(InputError, match=message) as caught:
        run(backend, sampler, server, mode)
    assert "\n" not in str(caught.value)
