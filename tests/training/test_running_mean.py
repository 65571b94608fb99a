"""Asynchronous training hands out the running mean of its models where that is better."""

from typing import Any, ClassVar

import numpy as np
import pytest

from fedpace.samplers.build import sampler_for
from fedpace.seeds import Seeds
from fedpace.times.round_times import Steady
from fedpace.training.backend import Evaluation
from fedpace.training.checkpoint import Checkpoint
from fedpace.training.running_mean import add_model, begin_mean
from fedpace.training.stopping import Stop, constant
from fedpace.training.train import train
from fedpace.training.training import Outcome
from tests.training.fakes import LARGER, small_simulator


def averaged(models: list[float], at_once: int, updates: int = 1) -> float:
    state = begin_mean()
    for value in models:
        state = add_model(state, np.array([value]), updates, at_once)
    return float(state["mean"][0])


def test_the_first_models_count_alike_and_later_ones_are_forgotten() -> None:
    models = np.random.default_rng(0).normal(size=300).tolist()
    assert averaged(models[:12], at_once=6) == pytest.approx(np.mean(models[:12]))
    expected = np.mean(models[:12])
    for value in models[12:]:
        expected += (value - expected) / 12
    assert averaged(models, at_once=6) == pytest.approx(expected)


def test_a_step_counts_by_its_updates() -> None:
    assert averaged([1.0, 4.0], at_once=6, updates=6) == pytest.approx(2.5)
    assert add_model(begin_mean(), np.ones(1), 12, 6)["mean"].size == 0  # it is the latest model


def test_a_model_that_is_not_finite_does_not_stay() -> None:
    assert averaged([1.0, np.inf, 3.0], at_once=6) == 3.0


def run(backend: Any = None, *, scheme: str = "fedasync", **how: Any) -> Outcome:
    sampler = sampler_for(scheme, 3, mode="asynchronous")
    how = {"schedule": constant(0.3), "stop": Stop(rounds=60), "seeds": Seeds(1), **how}
    made = backend or small_simulator(times=Steady(LARGER))
    return train(made, sampler, mode="asynchronous", at_once=3, buffer=1, **how)


def test_what_is_handed_out_is_the_better_of_both_and_has_the_loss_of_the_history() -> None:
    backend = small_simulator(times=Steady(LARGER))
    outcome = run(backend)
    latest, mean = outcome.state.parameters, outcome.state.running["mean"]
    assert any(outcome.parameters is each for each in (latest, mean))
    loss = backend.loss(outcome.parameters)
    assert outcome.history.rows[-1].loss == loss
    assert backend.loss(mean) < backend.loss(latest)  # with single steps at this rate


def test_the_accuracy_of_slow_clients_is_that_of_the_model_that_is_handed_out() -> None:
    class Slow(type(small_simulator())):  # type: ignore[misc]
        """A fleet whose accuracy of slow clients is the loss of the model."""

        def evaluate(self, parameters: Any, *, due: bool = True) -> Evaluation | None:
            found: Evaluation | None = super().evaluate(parameters, due=due)
            self.slow_accuracy = np.nan if found is None else found.loss
            return found

    calm = small_simulator(times=Steady(LARGER))
    backend = Slow(**{name: getattr(calm, name) for name in calm.__dataclass_fields__})
    rows = run(backend).history.rows[1:]
    assert [row.slow_accuracy for row in rows] == [row.loss for row in rows]


def test_where_evaluating_is_no_simulation_the_mean_alone_is_evaluated() -> None:
    class Real(type(small_simulator())):  # type: ignore[misc]
        evaluates_any = False
        evaluated: ClassVar[list[Any]] = []

        def evaluate(self, parameters: Any, *, due: bool = True) -> Evaluation | None:
            self.evaluated.append(parameters)
            return super().evaluate(parameters, due=due)  # type: ignore[no-any-return]

    calm = small_simulator(times=Steady(LARGER))
    backend = Real(**{name: getattr(calm, name) for name in calm.__dataclass_fields__})
    outcome = run(backend)
    assert len(backend.evaluated) == 61
    assert outcome.parameters is outcome.state.running["mean"]


def test_an_interrupted_run_goes_on_with_the_same_mean(tmp_path: Any) -> None:
    whole = run(scheme="pace")
    path = tmp_path / "run.npz"
    run(scheme="pace", stop=Stop(rounds=25), callbacks=[Checkpoint(path, {})])
    found = Checkpoint(path, {}).resume()
    assert found is not None
    assert found.state.running["mean"].size
    assert found.state.running["updates"] > 1
    assert whole.state.running["least"] <= found.state.running["least"]


def test_training_that_diverges_goes_back_to_its_best_model() -> None:
    class Wild(type(small_simulator())):  # type: ignore[misc]
        """A fleet whose updates are a million times too long for a while."""

        def collect(self, count: int | None = None) -> Any:
            reply = super().collect(count)
            asked = self.__dict__["asked"] = self.__dict__.get("asked", 0) + 1
            if 100 <= asked < 110:
                reply.updates[:] *= -1e6
            return reply

    calm = small_simulator(times=Steady(LARGER))
    losses = {}
    for scheme in ("pace", "fedasync"):
        backend = Wild(**{name: getattr(calm, name) for name in calm.__dataclass_fields__})
        rows = run(backend, scheme=scheme, stop=Stop(rounds=300)).history.rows
        losses[scheme] = [row.loss for row in rows]
    assert max(losses["pace"]) > 10 * losses["pace"][0]
    assert losses["pace"][-1] < losses["pace"][0]
    assert losses["fedasync"][-1] > 10 * losses["pace"][-1]


def test_a_loss_that_is_not_measured_is_no_divergence() -> None:
    class Silent(type(small_simulator())):  # type: ignore[misc]
        """A fleet that measures no loss after the first steps."""

        def evaluate(self, parameters: Any, *, due: bool = True) -> Evaluation | None:
            found: Evaluation | None = super().evaluate(parameters, due=due)
            count = self.__dict__["count"] = self.__dict__.get("count", 0) + 1
            return found if count < 10 or found is None else found._replace(loss=np.nan)

    calm = small_simulator(times=Steady(LARGER))
    fields = {name: getattr(calm, name) for name in calm.__dataclass_fields__}
    stop = Stop(rounds=200, blind=True)
    how: dict[str, Any] = {"scheme": "pace", "stop": stop, "schedule": constant(0.03)}
    silent, measured = run(Silent(**fields), **how), run(calm, **how)
    assert calm.loss(silent.parameters) < 1.1 * measured.history.rows[-1].loss
