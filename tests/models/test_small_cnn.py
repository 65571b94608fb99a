"""The small CNN against a plain convolution, and its gradient against differences."""

import numpy as np

from fedpace.models.networks import SmallCnn


def by_hand(model: SmallCnn, parameters: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Return the scores of one image, pixel by pixel."""
    coarse = np.array(
        [[image[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].mean() for j in range(14)] for i in range(14)]
    )
    first = 17 * model.channels
    filters = parameters[:first].reshape(17, model.channels)
    linear = parameters[first:].reshape(-1, model.classes)
    features = []
    for i in range(6):
        for j in range(6):
            window = coarse[2 * i : 2 * i + 4, 2 * j : 2 * j + 4].ravel()
            features += [max(0.0, window @ f[:-1] + f[-1]) for f in filters.T]
    scores: np.ndarray = np.array(features) @ linear[:-1] + linear[-1]
    return scores


def made() -> tuple[SmallCnn, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    model = SmallCnn(classes=3, channels=2, dtype=np.float64)
    return model, model.initial(rng), rng.random((6, 784)), rng.integers(0, 3, 6)


def test_losses_are_those_of_a_plain_convolution() -> None:
    model, parameters, x, y = made()
    scores = np.array([by_hand(model, parameters, each.reshape(28, 28)) for each in x])
    expected = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(6), y]
    windows = model.prepare_whole(x)
    np.testing.assert_allclose(model.losses(parameters, windows, y), expected)
    right = model.correct(parameters, windows, y)
    assert right.tolist() == (scores.argmax(axis=1) == y).tolist()


def test_gradients_of_several_clients_are_differences_of_their_losses() -> None:
    model, parameters, x, y = made()
    rng = np.random.default_rng(1)
    both = np.stack([parameters, parameters + 0.1 * rng.normal(size=model.size)])
    windows, labels = model.prepare(x).reshape(2, 3, 36, 17), y.reshape(2, 3)
    found = np.empty_like(both)
    model.gradients(both, windows, labels, found)
    step = 1e-6
    for client in range(2):
        for place in rng.choice(model.size, 40, replace=False):
            moved = [both[client].copy(), both[client].copy()]
            moved[0][place] += step
            moved[1][place] -= step
            up, down = (model.losses(w, windows[client], labels[client]).mean() for w in moved)
            np.testing.assert_allclose(found[client, place], (up - down) / (2 * step), atol=1e-7)


def test_it_trains_in_single_precision_from_a_start_of_its_seed() -> None:
    model = SmallCnn(classes=10)
    one, other = (model.initial(np.random.default_rng(seed)) for seed in (0, 1))
    assert model.size == one.size == 3026
    assert not np.array_equal(one, other)
    assert model.prepare(np.zeros((2, 784))).dtype == np.float32
