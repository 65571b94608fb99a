"""Synthetic(α, β)."""

import numpy as np
import pytest

from fedpace.data.partition import PAPER_SIZES, synthetic
from fedpace.data.shards import hold_out


def test_the_papers_sizes_are_a_hundred_that_sum_to_20509() -> None:
    assert len(PAPER_SIZES) == 100
    assert sum(PAPER_SIZES) == 20_509


def test_clients_train_on_exactly_the_sizes_asked_for_and_test_on_some_more() -> None:
    sizes = np.array([1, 9, 90, 46])
    train, test = synthetic(sizes, np.random.default_rng(0), features=5, test_share=0.1)
    assert train.sizes.tolist() == sizes.tolist()
    assert test.sizes.tolist() == [1, 1, 10, 5]
    assert train.x.shape == (146, 5)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_the_test_share_is_a_share_of_the_whole(share: float) -> None:
    sizes = np.array([2000])
    train, test = synthetic(sizes, np.random.default_rng(0), features=2, test_share=share)
    assert test.sizes[0] / (test.sizes[0] + train.sizes[0]) == pytest.approx(share, abs=1e-3)


def test_the_same_generator_gives_the_same_data() -> None:
    one, other = (synthetic(np.array([5, 7]), np.random.default_rng(3)) for _ in range(2))
    another = synthetic(np.array([5, 7]), np.random.default_rng(4))
    np.testing.assert_array_equal(one.train.x, other.train.x)
    np.testing.assert_array_equal(one.test.y, other.test.y)
    assert (one.train.x != another.train.x).all()


def test_a_label_is_the_largest_entry_of_the_clients_own_model() -> None:
    train, test = synthetic(
        np.array([18]), np.random.default_rng(5), alpha=2.0, beta=3.0, features=4, classes=3
    )
    rng = np.random.default_rng(5)
    shift = rng.normal(0, np.sqrt(2))
    centre = rng.normal(rng.normal(0, np.sqrt(3)), 1, size=4)
    weights, bias = rng.normal(shift, 1, size=(4, 3)), rng.normal(shift, 1, size=3)
    x = rng.normal(centre, [(j + 1) ** -0.6 for j in range(4)], size=(20, 4))
    np.testing.assert_array_equal(np.concatenate([train.x, test.x]), x)
    for row, label in zip(x, np.concatenate([train.y, test.y]), strict=True):
        assert label == np.argmax([weights[:, c] @ row + bias[c] for c in range(3)])


def test_inputs_vary_with_the_variances_of_the_definition() -> None:
    count = 20_000
    data = synthetic(np.array([count]), np.random.default_rng(0), features=6)
    variances = data.train.x.var(axis=0)
    for j, variance in enumerate(variances, start=1):
        expected = j**-1.2
        assert abs(variance - expected) < 5 * expected * np.sqrt(2 / count)


@pytest.mark.parametrize("beta", [0.0, 1.0, 4.0])
def test_beta_is_the_variance_of_the_clients_centres(beta: float) -> None:
    clients, features, size = 800, 20, 30
    data = synthetic(
        np.full(clients, size), np.random.default_rng(1), beta=beta, features=features, classes=2
    )
    means = data.train.x.reshape(clients, size * features).mean(axis=1)
    noise = (np.arange(1, features + 1) ** -1.2).sum() / features**2 / size
    expected = beta + 1 / features + noise
    error = expected * np.sqrt(2 / (clients - 1))
    assert abs(means.var(ddof=1) - expected) < 5 * error


def test_with_alpha_and_beta_zero_clients_are_alike_in_distribution() -> None:
    clients, size = 400, 40
    data = synthetic(
        np.full(clients, size), np.random.default_rng(2), alpha=0, beta=0, features=5, classes=2
    )
    # Each client has its own model, but none leans to a class more than chance has it.
    shares = data.train.y.reshape(clients, size).mean(axis=1)
    error = shares.std(ddof=1) / np.sqrt(clients)
    assert abs(shares.mean() - 0.5) < 5 * error
    halves = shares[:200], shares[200:]
    assert abs(halves[0].mean() - halves[1].mean()) < 5 * np.sqrt(2) * error * np.sqrt(2)


def test_alpha_moves_all_scores_of_a_client_alike_and_so_no_label() -> None:
    # As in the definition of Li et al.: the mean of W_i and b_i is the same for every class.
    near, far = (
        synthetic(np.full(30, 20), np.random.default_rng(3), alpha=alpha) for alpha in (0.0, 9.0)
    )
    np.testing.assert_array_equal(near.train.x, far.train.x)
    np.testing.assert_array_equal(near.train.y, far.train.y)


def test_hold_out_gives_the_first_samples_to_training() -> None:
    xs = [np.arange(6.0).reshape(3, 2), np.arange(4.0).reshape(2, 2)]
    split = hold_out(xs, [np.array([0, 1, 2]), np.array([3, 4])], np.array([2, 1]))
    assert split.train.y.tolist() == [0, 1, 3]
    assert split.test.y.tolist() == [2, 4]
