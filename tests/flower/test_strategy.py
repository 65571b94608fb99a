"""The strategy in a federation whose nodes answer, fail, lie, come late, come and go."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy

from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.flower import AdaptiveSampling, WarmUp
from fedpace.sampling.design import WithReplacement
from fedpace.training.sampler import BaseSampler, Plan, SamplerContext
from tests.flower import federation
from tests.flower.federation import (
    CLIENTS,
    DATA,
    START,
    as_vector,
    client_app,
    grid_with,
    steady,
    strategy_on,
)
from tests.flower.memory_grid import NEVER, MemoryGrid
from tests.training.fakes import task


def test_is_a_flower_strategy_with_two_lines() -> None:
    grid = MemoryGrid(client_app(query=False), steady, partitions=range(CLIENTS))
    # With the usual limit on one client's share a round may ask nobody.
    strategy = AdaptiveSampling(k=4, scheme="optimal-mean", clock=grid.clock, largest_share=1.0)
    result = strategy.start(grid=grid, initial_arrays=START, num_rounds=20)
    assert isinstance(strategy, Strategy)
    assert set(result.evaluate_metrics_clientapp) == {10, 20}
    # Of the warm-up alone: ten optimal draws more may, by bad luck, end above.
    assert result.evaluate_metrics_clientapp[10]["eval_loss"] < math.log(3)  # type: ignore[operator]
    assert len(result.train_metrics_clientapp) == 20
    assert strategy.history.rows[-1].round == 20
    loss = federation.evaluated(as_vector(result.arrays)).loss
    assert strategy.history.rows[-1].loss == pytest.approx(loss)


def test_learns_sample_counts_from_replies_where_clients_answer_no_queries() -> None:
    grid = grid_with(query=False)
    strategy = strategy_on(grid, scheme="full", refresh=1)
    strategy.start(grid, START, num_rounds=2)
    assert strategy.outcome is not None
    # Numbers follow the ids, which run against the partitions.
    sizes = DATA.train.sizes[::-1]
    np.testing.assert_allclose(strategy.outcome.profile.weights, sizes / sizes.sum())


def test_times_are_those_measured() -> None:
    grid = grid_with()
    strategy = strategy_on(grid, scheme="full")
    strategy.start(grid, START, num_rounds=1)
    np.testing.assert_allclose(strategy.history.rows[-1].client_seconds, federation.TIMES)
    assert strategy.history.rows[-1].seconds == pytest.approx(federation.TIMES.max())
    assert (strategy.history.rows[-1].bytes_up > 8 * len(as_vector(START))).all()


def test_one_message_goes_to_each_distinct_client() -> None:
    grid = grid_with()
    strategy = strategy_on(grid, scheme="weighted", largest_share=1.0)
    strategy.start(grid, START, num_rounds=15)
    asked = [partitions for kind, partitions in grid.asked if kind == "train"]
    assert all(len(set(each)) == len(each) for each in asked)
    assert any(len(each) < 4 for each in asked)
    for row, partitions in zip(strategy.history.rows[1:], asked, strict=True):
        assert row.clients.tolist() == partitions
        assert row.weights.sum() == pytest.approx(1.0)  # weighted sampling: m_i / K


def spoiled(reply: Message, client: int) -> None:
    """Let some clients send what cannot be used."""
    arrays = reply.content.array_records["arrays"]
    metrics = reply.content.metric_records["metrics"]
    if client == 3:
        raise RuntimeError("out of memory")
    if client == 0:
        arrays["0"].numpy()
        reply.content["arrays"] = ArrayRecord([np.full((3, 8), np.nan), np.zeros(3)])
    if client == 9:
        metrics["num-examples"] = -1
    if client == 6:
        reply.content["arrays"] = ArrayRecord([np.zeros((3, 9)), np.zeros(3)])
    if client == 5:
        metrics["grad-norm"] = math.inf


def test_bad_replies_are_left_out_and_the_reason_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = grid_with(change=spoiled)
    strategy = strategy_on(grid, scheme="full")
    result = strategy.start(grid, START, num_rounds=2)
    for row in strategy.history.rows[1:]:
        assert row.missing.tolist() == [0, 3, 5, 6, 9]
        assert row.refused.tolist() == [0, 5, 6, 9]
    assert np.isfinite(as_vector(result.arrays)).all()
    for reason in ("not finite", "out of memory", "no positive integer", "shape", "gradient norm"):
        assert reason in caplog.text


def test_a_client_that_failed_weighs_more_when_it_answers_again() -> None:
    failed: set[int] = set()

    def fail_once(reply: Message, client: int) -> None:
        if client == 3 and client not in failed:
            failed.add(client)
            raise RuntimeError("out of memory")

    grid = grid_with(change=fail_once)
    strategy = strategy_on(grid, scheme="full")
    strategy.start(grid, START, num_rounds=2)
    first, second = strategy.history.rows[1:]
    assert first.missing.tolist() == [3]
    p = DATA.train.sizes / DATA.train.sizes.sum()
    np.testing.assert_allclose(first.weights, np.delete(p, 3))
    # It answered none of one: its chance is taken as (0 + 1) / (1 + 1).
    np.testing.assert_allclose(second.weights, np.where(np.arange(CLIENTS) == 3, 2 * p, p))


def test_a_norm_that_is_refused_does_not_count_as_reported() -> None:
    def lie(reply: Message, client: int) -> None:
        if client == 11:
            reply.content.metric_records["metrics"]["grad-norm"] = math.nan

    grid = MemoryGrid(client_app(norms=False, change=lie), lambda *_: 1.0, partitions=range(12))
    strategy = strategy_on(grid, scheme="full")
    strategy.start(grid, START, num_rounds=2)
    for row in strategy.history.rows[1:]:
        assert row.refused.tolist() == [11]
        assert (row.grad_norms > 0).all()


def test_if_nobody_answers_the_model_stays_as_it_was() -> None:
    answers = [True]

    def fail(reply: Message, client: int) -> None:
        if not answers:
            raise RuntimeError

    grid = grid_with(change=fail)
    strategy = strategy_on(grid, scheme="uniform")
    models = []

    def watch(server_round: int, arrays: ArrayRecord) -> None:
        models.append(as_vector(arrays))
        if server_round == 1:
            answers.clear()

    strategy.start(grid, START, num_rounds=3, evaluate_fn=watch)
    assert not np.array_equal(models[0], models[1])
    assert all(np.array_equal(models[1], each) for each in models[1:])
    assert strategy.history.rows[-1].round == 3


def test_a_deadline_ends_the_round_and_the_late_are_not_drawn_meanwhile() -> None:
    def seconds(client: int, _: int) -> float:
        return 50.0 if client == 2 else 1.0

    grid = MemoryGrid(client_app(), seconds, partitions=range(4))
    strategy = strategy_on(grid, scheme="full", min_available_nodes=4, deadline=5.0)
    strategy.start(grid, START, num_rounds=3)
    first, second, third = strategy.history.rows[1:]
    assert first.round_seconds == pytest.approx(5.0)
    assert first.missing.tolist() == [2]
    assert second.clients.tolist() == third.clients.tolist() == [0, 1, 3]
    assert second.round_seconds == pytest.approx(1.0)


def test_clients_that_go_leave_the_draw_and_new_ones_join_when_it_is_solved_again() -> None:
    grid = MemoryGrid(client_app(), steady, partitions=range(6))
    strategy = strategy_on(grid, scheme="optimal-max", min_available_nodes=3, refresh=5)
    everyone = MemoryGrid(client_app(), steady, partitions=range(CLIENTS))

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        if server_round == 7:
            del grid.partitions[1000], grid.partitions[999]
            grid.partitions.update({1000 - i: i for i in range(6, CLIENTS)})
            grid._contexts.update(everyone._contexts)
        return MetricRecord({"loss": 1.0})

    strategy.start(grid, START, num_rounds=40, evaluate_fn=evaluate)
    asked = [set(partitions) for kind, partitions in grid.asked if kind == "train"]
    assert set.union(*asked[:7]) <= set(range(6))
    assert set.union(*asked[7:10]) <= {2, 3, 4, 5}
    assert not set.union(*asked[7:]) & {0, 1}
    assert set.union(*asked[10:]) & set(range(6, CLIENTS))
    assert strategy.outcome is not None
    assert strategy.outcome.profile.n == CLIENTS


def test_where_all_clients_are_new_the_design_is_made_for_them() -> None:
    for start in (AdaptiveSampling.start, Strategy.start):
        grid = MemoryGrid(client_app(), steady, partitions=range(4))
        others = MemoryGrid(client_app(), steady, partitions=range(4, 8))
        strategy = strategy_on(grid, min_available_nodes=4, refresh=50)

        def evaluate(
            server_round: int,
            arrays: ArrayRecord,
            grid: MemoryGrid = grid,
            others: MemoryGrid = others,
        ) -> MetricRecord:
            if server_round == 7:
                grid.partitions = others.partitions
                grid._contexts = others._contexts
            return MetricRecord({"loss": 1.0})

        start(strategy, grid, START, num_rounds=10, evaluate_fn=evaluate)
        asked = [set(partitions) for kind, partitions in grid.asked if kind == "train"]
        assert len(asked) == 10
        assert set.union(*asked[7:]) <= set(range(4, 8))


def five_clinics_and_a_hospital(most_samples: float | None) -> FloatArray:
    """Return p as learned from replies, by partition."""

    def tell(reply: Message, client: int) -> None:
        samples = 100_000 if client == 5 else 100
        reply.content.metric_records["metrics"]["num-examples"] = samples

    grid = MemoryGrid(client_app(query=False, change=tell), steady, partitions=range(6))
    strategy = strategy_on(
        grid, scheme="full", min_available_nodes=6, most_samples=most_samples, query=False
    )
    strategy.start(grid, START, num_rounds=2)
    assert strategy.outcome is not None
    return strategy.outcome.profile.weights[::-1]  # numbers follow ids, which run backwards


def test_sample_counts_are_capped_only_where_that_is_asked_for_and_it_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "flwr")
    np.testing.assert_allclose(five_clinics_and_a_hospital(None)[5], 100_000 / 100_500)
    assert "most_samples" not in caplog.text
    np.testing.assert_allclose(five_clinics_and_a_hospital(12)[5], 1200 / 1700)
    said = "reports 100000 samples and counts as 1200: most_samples = 12"
    assert caplog.text.count(said) == 1
    with pytest.raises(InputError, match=r"most_samples must be at least 1, got 0\.5"):
        AdaptiveSampling(k=2, most_samples=0.5)


@pytest.mark.parametrize(
    ("settings", "rounds", "said"),
    [
        (
            {"scheme": "optimal-mean"},
            5,
            "no round is drawn by optimal-mean: all 5 are for learning",
        ),
        ({"target_loss": 0.1}, 6, "no client evaluates, so no target will be reached"),
    ],
)
def test_settings_that_come_to_nothing_are_mentioned(
    settings: dict[str, Any], rounds: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "flwr")
    grid = grid_with()
    strategy_on(grid, **settings).start(grid, START, num_rounds=rounds)
    assert caplog.text.count(said) == 1
    caplog.clear()
    grid = grid_with()
    strategy_on(grid).start(grid, START, num_rounds=6)
    assert said not in caplog.text


def test_without_norms_the_length_of_the_update_stands_in_and_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "flwr")
    grid = grid_with(norms=False)
    strategy_on(grid).start(grid, START, num_rounds=8)
    assert caplog.text.count("the length of the updates stands in for it") == 1


def test_with_steps_and_rate_the_length_of_the_update_is_a_gradient_norm() -> None:
    norms = {}
    for reported in (True, False):
        grid = grid_with(norms=reported)
        strategy = strategy_on(grid, scheme="full", local_steps=federation.STEPS)
        config = ConfigRecord({"lr": federation.RATE})
        strategy.start(grid, START, num_rounds=1, train_config=config)
        norms[reported] = strategy.history.rows[-1].grad_norms
    # The norm of the mean gradient is below the mean norm, and near it after a few steps.
    assert (norms[False] <= norms[True] * (1 + 1e-9)).all()
    assert (norms[False] > 0.3 * norms[True]).all()


class Steps(BaseSampler):
    """Weighted sampling, with three local steps."""

    def design(self, state: Any, context: SamplerContext) -> Plan:
        return Plan(WithReplacement(context.weights, 4, context.weights), local_steps=3)


@pytest.mark.parametrize("chosen", [True, False])
def test_pace_chooses_local_steps_unless_the_app_keeps_its_own(chosen: bool) -> None:
    grid = grid_with(chosen_steps=chosen)
    how: dict[str, Any] = {"scheme": "pace", "mode": "asynchronous", "local_steps": "auto"}
    strategy = strategy_on(grid, **how)
    result = strategy.start(grid, START, num_rounds=40)
    rows = strategy.history.rows
    assert federation.evaluated(as_vector(result.arrays)).loss < math.log(3)
    assert [bool(row.local_steps.size) for row in rows[1:]] == 40 * [chosen]
    with pytest.raises(InputError, match="local_steps must be a number, or left out"):
        strategy_on(grid, **how | {"mode": "synchronous"})


@pytest.mark.parametrize("chosen", [True, False])
def test_local_steps_count_as_chosen_if_the_app_confirms_them(
    chosen: bool, caplog: pytest.LogCaptureFixture
) -> None:
    grid = grid_with(chosen_steps=chosen)
    strategy = strategy_on(grid, scheme=Steps())
    strategy.start(grid, START, num_rounds=2)
    row = strategy.history.rows[1]
    assert row.clients.size
    assert row.local_steps.tolist() == (row.clients.size * [3] if chosen else [])
    assert ("the number of local steps stays as it is" in caplog.text) is not chosen
    fewer = replace(federation.simulator(), local_steps=3) if chosen else federation.simulator()
    for client, norm in zip(row.clients.tolist(), row.grad_norms.tolist(), strict=True):
        given = task([client], fewer.initial(), rate=federation.RATE)
        assert norm == pytest.approx(float(fewer.train_task(given).grad_norms[0]), rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"k": 0}, "k must be at least 1"),
        ({"k": 2, "scheme": "optimal"}, "did you mean 'optimal-max'|use one of|did you mean"),
        ({"k": 2, "deadline": 0.0}, "deadline must be positive"),
        ({"k": 2, "deadline": "auto"}, "deadline must be positive, got 'auto'"),
        ({"k": 2, "take": 3}, "take must be"),
        ({"k": 2, "take": 1, "mode": "asynchronous"}, "take needs rounds, got mode asynchronous"),
        ({"k": 2, "fraction_evaluate": 1.5}, "fraction_evaluate must lie"),
        ({"k": 2, "refresh": 0}, "refresh must be at least 1"),
        ({"k": 4, "max_weight": "most"}, "max_weight must be"),
        ({"k": 4, "c_over_s0": -1.0}, "c_over_s0 must be positive"),
        ({"k": 4, "max_weight": 0.2}, "max_weight must be at least 1/k = 0.25, got 0.2"),
        ({"k": 4, "pilots": WarmUp(0)}, "pilots.rounds must be at least 1, got 0"),
    ],
)
def test_a_wrong_setting_is_refused_at_once(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        AdaptiveSampling(**settings)


def test_the_first_k_of_n_end_a_round_and_the_others_weigh_more_when_in_time() -> None:
    grid = MemoryGrid(client_app(), lambda i, _: 40.0 if i == 0 else 1.0 + i, partitions=range(4))
    strategy = strategy_on(grid, k=4, scheme="full", min_available_nodes=4, take=3)
    strategy.start(grid, START, num_rounds=12)
    rows = strategy.history.rows[1:]
    assert rows[0].clients.tolist() == [1, 2, 3]
    assert rows[0].missing.tolist() == [0]
    assert rows[0].round_seconds == pytest.approx(4.0, rel=0.1)
    assert all(row.round_seconds < 10 for row in rows)  # also where the late one is not drawn


def test_a_learned_deadline_follows_the_clients_drawn() -> None:
    def seconds(client: int, nth: int) -> float:
        return NEVER if client == 0 and nth >= 2 else 2.0 + client

    grid = MemoryGrid(client_app(), seconds, partitions=range(4))
    strategy = strategy_on(grid, k=4, scheme="full", min_available_nodes=3, deadline="learned")
    strategy.start(grid, START, num_rounds=5, timeout=1000.0)
    rows = strategy.history.rows[1:]
    assert rows[2].missing.tolist() == [0]
    assert rows[2].round_seconds == pytest.approx(3 * 5.0, rel=0.1)  # three times the slowest
    assert [row.clients.tolist() for row in rows[3:]] == [[1, 2, 3]] * 2
