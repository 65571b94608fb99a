"""Remote clients are in a share of the rounds at most, and the aggregate keeps its mean."""

import itertools

import numpy as np
import pytest

from fedpace.backends.simulator import Simulator
from fedpace.errors import InputError
from fedpace.sampling.design import Draw, WithReplacement
from fedpace.sampling.tiers import Tiered
from fedpace.seeds import Seeds
from fedpace.training.backend import Reply
from fedpace.training.share_limit import (
    DrawShares,
    agreement,
    asked_share,
    check_share,
    limit_shares,
    update_draw_shares,
)
from fedpace.training.stopping import Stop, inverse
from fedpace.training.synchronous import SynchronousTraining

from .fakes import Fixed, small_simulator

N = 40


class FixedNumbers:
    """A generator of numbers that a test chooses."""

    def __init__(self, kept: tuple[bool, ...], chances: np.ndarray) -> None:
        self._numbers = np.where(kept, chances - 1e-9, chances)

    def random(self, size: int) -> np.ndarray:
        assert size == self._numbers.size
        return self._numbers


def test_what_is_left_out_keeps_the_mean_by_enumeration() -> None:
    draw = Draw(np.array([0, 3, 7]), np.array([0.2, 0.3, 0.5]))
    often, asked = np.zeros(N), np.zeros(N)
    often[[0, 3, 7]] = 1.0, 0.8, 0.1
    asked[[0, 3]] = 0.6, 0.3
    chances = np.array([0.5 * 0.5 / 0.6, 0.5 / 0.8, 1.0])
    mean = np.zeros(N)
    for kept in itertools.product([True, False], repeat=3):
        if not kept[2]:
            continue  # it was hardly ever drawn
        chance = np.prod(np.where(kept, chances, 1 - chances))
        shares, rng = DrawShares(often, asked), FixedNumbers(kept, chances)
        found = limit_shares(draw, shares, share=0.5, rng=rng)  # type: ignore[arg-type]
        assert found.clients.tolist() == draw.clients[list(kept)].tolist()
        mean[found.clients] += chance * found.weights
    np.testing.assert_allclose(mean[draw.clients], draw.weights)


def test_a_generator_is_not_touched_where_nobody_is_drawn_too_often() -> None:
    draw, rng = Draw(np.array([0, 1]), np.array([0.5, 0.5])), np.random.default_rng(3)
    before = rng.bit_generator.state
    assert (
        limit_shares(draw, DrawShares(np.full(N, 0.3), np.full(N, 0.2)), share=0.5, rng=rng) is draw
    )
    assert rng.bit_generator.state == before


def run(backend: Simulator, rounds: int, design: object) -> SynchronousTraining:
    made = SynchronousTraining(
        backend,
        Fixed(design),  # type: ignore[arg-type]
        schedule=inverse(0.1),
        stop=Stop(rounds=rounds),
        seeds=Seeds(0),
        evaluate_every=0,
    )
    while not made.ended:
        backend.submit(made.draw())
        made.complete(backend.collect())
    return made


def remote(share: float | None) -> Simulator:
    backend = small_simulator()
    if share is not None:
        backend.largest_share = share
    return backend


def shares(made: SynchronousTraining) -> np.ndarray:
    rows = made.rows[1:]
    return np.array([np.mean([i in row.clients for row in rows]) for i in range(6)])


def test_a_remote_client_that_is_always_drawn_is_in_half_of_the_rounds() -> None:
    q = np.array([0.95, 0.01, 0.01, 0.01, 0.01, 0.01])
    design = WithReplacement(q, 2, np.full(6, 1 / 6))
    assert shares(run(remote(None), 200, design))[0] > 0.95
    limit = 0.5
    error = 5 * np.sqrt(limit * (1 - limit) / 200)
    assert shares(run(remote(limit), 200, design))[0] <= limit + error


def test_a_tier_that_has_most_turns_is_limited() -> None:
    tiers, weights = np.array([0, 1, 1, 1, 1, 1]), np.full(6, 1 / 6)
    design = Tiered(tiers, [0.9, 0.1], [1.0, 0.2, 0.2, 0.2, 0.2, 0.2], weights)
    assert shares(run(remote(None), 300, design))[0] > 0.8
    limit = 0.5
    error = 5 * np.sqrt(limit * (1 - limit) / 300)
    made = run(remote(limit), 300, design)
    assert shares(made)[0] <= limit + error
    assert all(row.clients.size for row in made.rows[1:])  # of one client, too: drawn again
    # In half of the rounds instead of in nine of ten, so that it counts for p / 0.5 when it is.
    heavier = [row.weights[0] for row in made.rows[150:] if row.clients.tolist() == [0]]
    assert np.mean(heavier) == pytest.approx((1 / 6) / 0.5, rel=0.15)


@pytest.mark.parametrize("k", [1, 2, 10])
def test_a_round_in_which_all_would_be_left_out_is_drawn_again_and_keeps_the_mean(k: int) -> None:
    q = np.array([0.9, 0.02, 0.02, 0.02, 0.02, 0.02])
    weights = np.full(6, 1 / 6)
    made = run(remote(0.5), 600, WithReplacement(q, k, weights))
    rows = made.rows[200:]  # how often it is drawn again is known by then
    assert all(row.clients.size for row in rows)
    total = np.zeros((len(rows), 6))
    for row, each in zip(rows, total, strict=True):
        each[row.clients] = row.weights
    error = total.std(axis=0, ddof=1) / np.sqrt(len(rows))
    assert np.all(np.abs(total.mean(axis=0) - weights) < 5 * error)


@pytest.mark.parametrize("k", [1, 2, 10, 40])
def test_nobody_is_expected_twice_in_a_round(k: int) -> None:
    q = np.array([0.95, 0.01, 0.01, 0.01, 0.01, 0.01])  # drawn up to 38 times in a round
    made = run(remote(0.5), 150, WithReplacement(q, k, np.full(6, 1 / 6)))
    for row in made.rows[1:]:
        asked = np.concatenate([row.clients, row.missing])
        assert np.unique(asked).size == asked.size


def test_where_one_client_is_all_there_is_to_draw_it_is_kept() -> None:
    only = WithReplacement(np.array([1.0, 0, 0, 0, 0, 0]) + 1e-15, 1, np.full(6, 1 / 6))
    made = run(remote(0.5), 100, only)
    assert all(row.clients.tolist() == [0] for row in made.rows[1:])


def test_a_few_draws_in_a_row_are_no_sign_of_anything() -> None:
    draw, rng, often = Draw(np.array([0]), np.array([1.0])), np.random.default_rng(0), np.zeros(0)
    for rounds in range(6):
        often = update_draw_shares(often, draw, N)
        asked = asked_share(np.array([rounds]), rounds, N)
        assert limit_shares(draw, DrawShares(often, asked), share=0.5, rng=rng) is draw


def test_twice_the_fair_share_is_allowed_in_small_fleets_however_few_a_draw_has() -> None:
    draw, rng = Draw(np.array([1]), np.array([0.7])), np.random.default_rng(0)
    often = np.array([0.4, 0.6, 0.4, 0.4])  # two of four, drawn with replacement: at times one
    assert limit_shares(draw, DrawShares(often, often), share=0.5, rng=rng) is draw
    design = WithReplacement(np.full(6, 1 / 6), 3, np.full(6, 1 / 6))
    drawn = [
        [row.clients.tolist() for row in run(remote(share), 200, design).rows]
        for share in (None, 0.5)
    ]
    assert drawn[0] == drawn[1]
    assert all(drawn[0][1:])  # a round with nobody would take no time


def test_simulated_runs_are_not_limited() -> None:
    made = run(remote(None), 5, WithReplacement(np.full(6, 1 / 6), 2, np.full(6, 1 / 6)))
    assert made.state.often.size == 0
    assert all(row.agreement.size == 0 for row in made.rows)


def test_agreement_is_the_cosine_with_the_others() -> None:
    updates = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, 0.0]])
    reply = Reply(np.arange(4), updates, np.ones(4), np.ones(4))
    found = agreement(np.array([0.25, 0.5, 0.25, 1.0]), reply)
    others = np.array([-0.25, 0.5])  # of the first
    assert found[0] == pytest.approx(-0.25 / np.linalg.norm(others))
    assert found[1] == pytest.approx(np.nan, nan_ok=True)  # the others cancel
    assert np.isnan(found[3])
    alone = Reply(np.arange(1), updates[:1], np.ones(1), np.ones(1))
    assert np.isnan(agreement(np.ones(1), alone)).all()


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan"), "half"])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(InputError, match="largest_share must"):
        check_share("largest_share", share)
