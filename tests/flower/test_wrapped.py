"""Another Flower strategy aggregates what fedpace draws and weights."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import (
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
    Krum,
)

from fedpace.errors import InputError, TooFewClientsError
from fedpace.flower import AdaptiveSampling
from fedpace.report.setups import setups_of
from fedpace.studies.store import Store
from tests.flower.federation import START, as_vector, client_app, grid_with, steady, strategy_on
from tests.flower.memory_grid import MemoryGrid


def trained(strategy: FedAvg | None, rounds: int = 6, **settings: Any) -> Any:
    grid = grid_with()
    ours = strategy_on(grid, strategy=strategy, **settings)
    result = ours.start(grid, START, num_rounds=rounds)
    return ours, as_vector(result.arrays)


@pytest.mark.parametrize("scheme", ["pace", "weighted", "optimal-mean"])
def test_fedavg_returns_our_own_aggregate(scheme: str) -> None:
    alone, mine = trained(None, scheme=scheme)
    composed, theirs = trained(FedAvg(), scheme=scheme)
    np.testing.assert_allclose(theirs, mine, rtol=1e-5, atol=1e-6)
    draws = [[row.clients.tolist() for row in each.history.rows] for each in (alone, composed)]
    assert draws[0] == draws[1]


def test_fedadam_takes_the_unbiased_aggregate_as_its_gradient() -> None:
    settings = {"scheme": "weighted"}
    strategy = FedAdam(eta=0.1, beta_1=0.9, beta_2=0.99, tau=1e-3)
    _, theirs = trained(strategy, rounds=1, **settings)
    _, average = trained(None, rounds=1, **settings)
    start = as_vector(START)
    delta = average - start
    first, second = 0.1 * delta, 0.01 * delta**2
    rate = 0.1 * np.sqrt(1 - 0.99**2) / (1 - 0.9**2)
    expected = start + rate * first / (np.sqrt(second) + 1e-3)
    np.testing.assert_allclose(theirs, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "strategy", [FedAdam(eta=0.05), FedYogi(eta=0.05), FedAvgM(server_momentum=0.5)]
)
def test_server_optimisers_lower_the_loss(strategy: FedAvg) -> None:
    ours, _ = trained(strategy, rounds=6, evaluate_every=1, fraction_evaluate=1.0)
    losses = [row.loss for row in ours.history.rows if not np.isnan(row.loss)]
    assert min(losses[1:]) < losses[0]


def test_fedprox_tells_clients_its_term() -> None:
    seen: list[Any] = []

    class Watched(MemoryGrid):
        def push_messages(self, messages: Any) -> Any:
            messages = list(messages)
            records = [each.content.config_records.get("config", {}) for each in messages]
            seen.extend(record.get("proximal-mu") for record in records)
            return super().push_messages(messages)

    grid = Watched(client_app(), steady, partitions=range(12))
    strategy_on(grid, strategy=FedProx(proximal_mu=0.3)).start(grid, START, num_rounds=2)
    assert 0.3 in seen


class Own(FedAdam):
    """A user's subclass: it changes the config, and looks at what was aggregated."""

    def __init__(self) -> None:
        super().__init__(eta=0.05, fraction_train=0.25)
        self.answers: list[int] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> Any:
        config["mine"] = server_round
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Any
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        self.answers.append(len(replies))
        return super().aggregate_train(server_round, replies)


def test_a_subclass_has_its_say(caplog: pytest.LogCaptureFixture) -> None:
    own = Own()
    with caplog.at_level(logging.INFO, "flwr"):
        ours, _ = trained(own, rounds=4)
    assert own.answers == [row.clients.size for row in ours.history.rows[1:]]
    assert own.fraction_train == 0.25  # as it was
    assert "fraction_train of Own is not used: k = 4" in caplog.text


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (FedMedian(), "takes no weights"),
        (FedTrimmedAvg(), "takes no weights"),
        (Krum(num_malicious_nodes=1), "chooses among the replies"),
        (10, "strategy must be FedAvg"),
    ],
)
def test_what_cannot_be_unbiased_is_refused(strategy: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        AdaptiveSampling(strategy, k=4)


@pytest.mark.parametrize("name", ["fraction_train", "min_train_nodes", "weighted_by_key"])
def test_arguments_of_fedavg_get_a_hint(name: str) -> None:
    with pytest.raises(InputError, match=f"takes no {name}; give"):
        AdaptiveSampling(**{"k": 4, name: 1})  # type: ignore[arg-type]


def test_nobody_is_queried_unless_asked_for() -> None:
    grid = grid_with(query=False)
    AdaptiveSampling(k=3, clock=grid.clock, evaluate_every=0).start(grid, START, num_rounds=2)
    assert {kind for kind, _ in grid.asked} == {"train"}


def test_all_clients_failing_is_an_error_with_their_own_reason() -> None:
    def broken(reply: Message, client: int) -> None:
        raise RuntimeError(f"no data on client {client}")

    grid = MemoryGrid(client_app(change=broken), steady, partitions=range(12))
    with pytest.raises(TooFewClientsError, match=r"in 3 rounds, the latest: .*no data on client"):
        strategy_on(grid).start(grid, START, num_rounds=3)


class Evaluating(FedAvg):
    """A user's subclass that configures evaluations and has a loop of its own."""

    def configure_evaluate(self, *how: Any) -> Any:
        for message in super().configure_evaluate(*how):
            message.content["mine"] = ConfigRecord({"batch": 8})
            yield message

    def start(self, *how: Any, **more: Any) -> Any:
        raise AssertionError


def test_evaluations_are_those_of_the_wrapped_strategy_and_its_start_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[Any] = []

    class Watching(MemoryGrid):
        def push_messages(self, messages: Any) -> Any:
            messages = list(messages)
            if messages[0].metadata.message_type == "evaluate":
                seen.append([each.content["mine"]["batch"] for each in messages])
            return super().push_messages(messages)

    grid = Watching(client_app(), steady, partitions=range(12))
    own = Evaluating(fraction_evaluate=0.25, min_evaluate_nodes=5)
    strategy = strategy_on(grid, strategy=own, evaluate_every=1, fraction_evaluate=None)
    with caplog.at_level(logging.INFO, "flwr"):
        strategy.start(grid, START, num_rounds=2)
    assert seen == [[8] * 3, [8] * 3]
    assert own.fraction_evaluate == 0.25  # as it was
    assert "start of Evaluating is not called" in caplog.text
    none = FedAvg(fraction_evaluate=0.0)
    assert not AdaptiveSampling(none, k=4).clients_evaluate
    assert AdaptiveSampling(none, k=4, fraction_evaluate=0.5).clients_evaluate


@pytest.mark.parametrize(
    "make",
    [
        lambda: FedAdam(eta=0.05),
        lambda: FedYogi(eta=0.05),
        lambda: FedAvgM(server_momentum=0.5, server_learning_rate=0.5),
    ],
)
def test_moments_are_in_the_checkpoint(make: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"scheme": "weighted"}
    _, expected = trained(make(), 6, **settings)
    settings["checkpoint"] = tmp_path / "run.npz"
    trained(make(), 3, **settings)
    _, resumed = trained(make(), 6, **settings)
    np.testing.assert_allclose(resumed, expected, rtol=1e-6, atol=1e-8)


def test_asynchronously_a_fedavg_may_bring_metrics_and_messages_but_no_model() -> None:
    def largest(records: list[Any], weighted_by: str) -> MetricRecord:
        found = [max(each.metric_records["metrics"]["num-examples"] for each in records)]
        return MetricRecord({"largest": found[0], "replies": len(records)})

    settings = {"mode": "asynchronous", "k": 3, "buffer": 2, "scheme": "weighted"}
    _, alone = trained(None, rounds=10, **settings)
    grid = grid_with()
    ours = strategy_on(grid, strategy=FedAvg(train_metrics_aggr_fn=largest), **settings)
    result = ours.start(grid, START, num_rounds=10)
    np.testing.assert_array_equal(as_vector(result.arrays), alone)
    assert {frozenset(each) for each in result.train_metrics_clientapp.values()} == {
        frozenset({"largest", "replies"})
    }
    assert max(float(each["replies"]) for each in result.train_metrics_clientapp.values()) > 1  # type: ignore[arg-type]
    AdaptiveSampling(FedProx(proximal_mu=0.1), k=3, mode="asynchronous")
    with pytest.raises(InputError, match="aggregate as FedAvg in mode asynchronous, got FedAdam"):
        AdaptiveSampling(FedAdam(), k=3, mode="asynchronous")


WRAPPERS: dict[str, Any] = {
    "DifferentialPrivacyServerSideFixedClipping": (1.0, 1.0, 4),
    "DifferentialPrivacyClientSideFixedClipping": (1.0, 1.0, 4),
    "DifferentialPrivacyServerSideAdaptiveClipping": (0.1, 4),
    "DifferentialPrivacyClientSideAdaptiveClipping": (0.1, 4),
}


@pytest.mark.parametrize("name", [name for name in WRAPPERS if hasattr(strategies, name)])
def test_flowers_privacy_wrappers_are_refused_before_anything_is_sent(name: str) -> None:
    grid = grid_with()
    private = getattr(strategies, name)(strategy_on(grid), *WRAPPERS[name])
    with pytest.raises(InputError, match=f"{name} must not wrap AdaptiveSampling"):
        private.start(grid, START, num_rounds=1)
    assert not grid.asked


def test_legacy_strategies_and_components_get_a_sentence() -> None:
    with pytest.raises(InputError, match="got legacy ServerAppComponents; write @app"):
        AdaptiveSampling(k=3).initialize_parameters(client_manager=None)
    legacy = pytest.importorskip("flwr.server.strategy")
    with pytest.raises(InputError, match=r"from flwr.serverapp.strategy, got FedAvg.* of flwr.ser"):
        AdaptiveSampling(legacy.FedAvg(), k=3)


def test_plain_fedavg_is_a_row_of_the_report(tmp_path: Path) -> None:
    grid = grid_with()
    ours = strategy_on(grid, out=tmp_path, evaluate_every=1, fraction_evaluate=1.0, target_loss=0.9)
    ours.start(grid, START, num_rounds=40)
    other = grid_with()
    same = strategy_on(
        other, out=tmp_path, evaluate_every=1, fraction_evaluate=1.0, target_loss=0.9
    )
    plain = same.recorded(FedAvg(fraction_train=0.5, min_available_nodes=12))
    random.seed(0)  # by which FedAvg chooses
    result = plain.start(other, START, num_rounds=40)
    rows = plain.history.rows
    assert [row.clients.size for row in rows[1:3]] == [6, 6]
    assert rows[1].round_seconds == pytest.approx(rows[1].client_seconds.max())
    assert result.arrays is not None
    (setup,) = setups_of(Store(tmp_path).runs())
    assert setup.schemes == ["optimal-mean", "FedAvg"]
    (run,) = setup.of("FedAvg")
    assert run.ended == "target loss"
    assert run.history.rows[-1].loss <= 0.9
