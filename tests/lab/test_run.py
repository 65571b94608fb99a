import numpy as np

from fedpace.lab.run import usual_seconds
from fedpace.rounds.history import Row


def row(clients: list[int], seconds: list[float]) -> Row:
    ones = np.ones(len(clients))
    return Row(
        "train", 1, 1.0, 1.0, 0.5, 1.0, 1.0, np.array(clients), ones, np.array(seconds), ones
    )


def test_usual_seconds_give_every_run_the_same_say() -> None:
    crowded = [row([0, 1], [9.0, 9.0])] * 100
    others = [[row([0, 1], [1.0, 2.0]), row([0], [1.2])], [row([0, 1], [1.1, 2.0])]]
    np.testing.assert_allclose(usual_seconds([crowded, *others], 2), [1.1, 2.0])


def test_one_disturbed_round_does_not_count() -> None:
    rows = [row([0], [seconds]) for seconds in (1.0, 1.0, 50.0)]
    assert usual_seconds([rows], 1) == [1.0]


def test_a_client_that_never_answered_is_as_the_others_are() -> None:
    rows = [row([0, 1], [1.0, 3.0])]
    assert usual_seconds([rows], 3).tolist() == [1.0, 3.0, 2.0]
