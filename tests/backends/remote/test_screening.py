"""What clients send is checked at the border."""

import contextlib
import json
import math
from typing import Any

import numpy as np
import pytest

from fedpace import InputError
from fedpace.backends.remote.screening import BadReplyError, Border, Claims, FirstReplies
from fedpace.training.updates import length_of

FINE = np.array([3.0, 4.0])


def used() -> Border:
    """A border that has seen what is usual: updates of length 5, norms of 2."""
    border = Border()
    for client in range(6):
        border.update(client, length_of(FINE))
        border.grad_norm(client, 2.0)
    return border


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.array([1.0, np.nan]), "not finite"),
        (np.array([np.inf, 1.0]), "not finite"),
        (np.array([1e300, 1e300]), "not finite"),  # its length is not
        (FINE * 10_001, "far longer than usual"),
    ],
)
def test_refuses_what_is_no_update(values: Any, reason: str) -> None:
    with pytest.raises(BadReplyError, match=reason), np.errstate(over="ignore"):
        used().update(0, length_of(values))


@pytest.mark.parametrize(("times", "counts"), [(99, 99), (100, 100), (101, 100), (9_999, 100)])
def test_a_long_update_counts_as_a_hundred_usual_ones(times: float, counts: float) -> None:
    assert used().update(0, 5.0 * times) * times == pytest.approx(counts)


def test_measures_an_update_in_either_precision() -> None:
    for dtype in (np.float32, np.float64):
        assert length_of(FINE.astype(dtype)) == 5.0
        assert length_of((1e25 * FINE).astype(dtype)) == pytest.approx(5e25, rel=1e-6)
    many = np.full(300_000, 0.1, np.float32)
    assert length_of(many) == pytest.approx(0.1 * 300_000**0.5, rel=1e-6)


def test_knows_nothing_of_what_is_usual_at_first() -> None:
    border = Border()
    border.update(0, length_of(FINE))
    border.update(0, length_of(FINE * 1e6))


def test_a_fleet_that_has_converged_may_move_again() -> None:
    border = Border()
    for _ in range(10):
        border.update(0, length_of(FINE * 0))
    border.update(0, length_of(FINE))


@pytest.mark.parametrize("client", [0, 7])
def test_a_client_may_go_on_when_the_others_have_converged(client: int) -> None:
    border = used()
    for _ in range(300):
        for each in range(1, 6):
            border.update(each, length_of(FINE * 1e-6))
    assert border.update(client, length_of(FINE * 50)) == 1


def test_a_late_client_is_compared_with_how_far_others_moved_at_first() -> None:
    border = used()
    for client in range(10, 60):  # more than those who answered at first
        border.update(client, length_of(FINE * 1e-9))
    again = Border(json.loads(json.dumps(border.memory)))
    assert again.update(99, length_of(FINE * 50)) == 1


@pytest.mark.parametrize("client", [0, 77])
def test_a_client_cannot_work_its_way_up(client: int) -> None:
    border, longest = used(), 0.0
    for step in range(20):
        with contextlib.suppress(BadReplyError):
            longest = max(longest, 9**step * border.update(client, length_of(FINE * 9**step)))
    assert longest == pytest.approx(100)


def test_updates_of_zeros_do_not_make_others_too_long() -> None:
    border = used()
    for client in range(10, 30):
        border.update(client, 0.0)
    assert border.update(0, length_of(FINE)) == 1
    with pytest.raises(BadReplyError, match="far longer"):
        border.update(0, length_of(FINE * 1e6))


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, "2", None, True, 10**400])
def test_refuses_what_is_no_gradient_norm(value: object) -> None:
    with pytest.raises(BadReplyError, match="gradient norm"):
        used().grad_norm(0, value)


def test_a_boastful_gradient_norm_counts_for_ten_times_the_others() -> None:
    border = used()
    assert border.grad_norm(0, 1e30) == 20.0
    assert border.grad_norm(1, 2.5) == 2.5  # and does not raise what is usual


@pytest.mark.parametrize("value", [0, -3, 2.0, "7", None, True, 2**60])
def test_refuses_what_is_no_count(value: object) -> None:
    with pytest.raises(BadReplyError, match="number of samples"):
        Border().count(value)


def test_takes_a_count_and_a_loss() -> None:
    assert Border().count(7) == 7
    assert Border().loss(0, 0.25) == 0.25


@pytest.mark.parametrize("value", [math.nan, math.inf, "0", None, False])
def test_refuses_what_is_no_loss(value: object) -> None:
    with pytest.raises(BadReplyError, match="loss"):
        Border().loss(0, value)


def test_one_client_cannot_move_the_loss_far_from_what_the_others_report() -> None:
    border = Border()
    for client in range(6):
        assert border.loss(client, 2.0 + client / 10) == 2.0 + client / 10
    assert border.loss(6, 1e308) == pytest.approx(22.5)
    assert border.loss(6, -1e6) == pytest.approx(0.225)
    assert border.loss(0, 3.0) == 3.0


def test_losses_that_may_be_negative_are_left_alone() -> None:
    border = Border()
    for client in range(6):
        border.loss(client, -1.0)
    assert border.loss(6, -500.0) == -500.0


@pytest.mark.parametrize("value", [-1.0, math.nan, "1", None])
def test_refuses_what_is_no_time(value: object) -> None:
    with pytest.raises(BadReplyError, match="time"):
        Border().seconds(value)


def test_takes_a_time() -> None:
    assert Border().seconds(1.5) == 1.5


@pytest.mark.parametrize("value", [1e-40, 1e-150, 0.0, 1e-320])
def test_a_modest_gradient_norm_counts_for_a_hundredth_of_the_others(value: float) -> None:
    border = used()
    assert border.grad_norm(0, value) == pytest.approx(0.02)
    assert border.grad_norm(1, 1.5) == 1.5  # and does not lower what is usual


@pytest.mark.parametrize("value", [1e-40, 1e308])
@pytest.mark.parametrize("liar", [0, 1, 2])
def test_of_three_one_is_held_to_what_the_others_say(value: float, liar: int) -> None:
    border, said = Border(), [value if client == liar else 2.0 for client in range(3)]
    border.meet(Claims(client, grad_norm=each) for client, each in enumerate(said))
    norms = [border.grad_norm(client, each) for client, each in enumerate(said)]
    assert [norm for client, norm in enumerate(norms) if client != liar] == [2.0, 2.0]
    assert norms[liar] in (pytest.approx(0.02), pytest.approx(20.0))


@pytest.mark.parametrize("first", [True, False])
def test_a_first_update_is_judged_by_the_others_of_its_round(first: bool) -> None:
    border, far = Border(), FINE * 1e37
    updates = {0: far, 1: FINE, 2: FINE} if first else {0: FINE, 1: FINE, 2: far}
    border.meet(Claims(client, length_of(update)) for client, update in updates.items())
    for client, update in updates.items():
        if update is far:
            with pytest.raises(BadReplyError, match="far longer than usual"):
                border.update(client, length_of(update))
        else:
            border.update(client, length_of(update))


def test_an_update_of_next_to_nothing_does_not_shut_the_others_out() -> None:
    border = Border()
    for _ in range(4):
        updates = {0: FINE * 1e-30, 1: FINE, 2: FINE}
        border.meet(Claims(client, length_of(update)) for client, update in updates.items())
        for client, update in updates.items():
            assert border.update(client, length_of(update)) == 1


def test_whoever_answers_without_work_is_not_taken_for_fast_without_end() -> None:
    border = Border()
    border.meet(Claims(client, seconds=2.0) for client in range(1, 7))
    assert border.took(0, 1e-3) == pytest.approx(0.1)
    assert border.took(0, 0.5) == 0.5
    assert border.took(3, 40.0) == 40.0


def test_a_refused_reply_leaves_nothing_behind() -> None:
    border = used()
    before = border.memory
    border.meet([Claims(7, length_of(FINE * 1e9), 1e300, 1e300, 1e300)])
    border.forget(7)
    # Except a length, which counts once in the median.
    assert border.memory == before | {"lengths": before["lengths"] | {"7": 5e9}}


def test_a_border_made_with_the_memory_of_another_knows_as_much() -> None:
    border = used()
    for client in range(6):
        border.loss(client, 2.0)
        border.took(client, 1.0)
    again = Border(json.loads(json.dumps(border.memory)))
    assert again.memory == border.memory
    with pytest.raises(BadReplyError, match="far longer"):
        again.update(0, length_of(FINE * 1e37))
    assert again.grad_norm(0, 1e30) == 20.0
    assert again.loss(0, -1e9) == pytest.approx(0.2)
    assert again.took(0, 0.0) == pytest.approx(0.05)


def test_a_norm_is_believed_as_far_as_the_update_bears_it_out() -> None:
    border = Border()
    for client in range(6):
        border.meet([Claims(client, length_of(FINE), 2.0)])
        assert border.grad_norm(client, 2.0, 5.0) == 2.0
    assert border.grad_norm(0, 15.0, 5.0) == pytest.approx(8.0)  # four times the usual 0.4 · 5
    assert border.grad_norm(1, 2.0, 0.0) == pytest.approx(0.02)  # sent nothing
    assert border.grad_norm(2, 3.0, 2.5) == 3.0


def test_a_norm_within_all_bounds_is_left_as_it_is_to_the_last_digit() -> None:
    border, rng = Border(), np.random.default_rng(0)
    for client, length in enumerate(rng.uniform(1, 2, 300).tolist()):
        assert border.grad_norm(client, 1.0, length) == 1.0  # 1 / length · length is not, at times


def test_norms_without_an_update_are_judged_by_themselves_alone() -> None:
    assert used().grad_norm(0, 19.0) == 19.0


def test_a_client_that_answers_often_with_tiny_updates_shuts_nobody_out() -> None:
    border, counts = used(), 0
    for turn in range(60):
        for _ in range(20):
            border.meet([Claims(7, length_of(FINE * 1e-30))])
            border.update(7, length_of(FINE * 1e-30))
        client = turn % 7
        border.meet([Claims(client, length_of(FINE))])
        counts += border.update(client, length_of(FINE)) == 1
    assert counts == 60


def test_an_honest_fleet_with_fast_clients_that_have_converged_refuses_none_of_its_own() -> None:
    rng, border = np.random.default_rng(0), Border()
    seconds = np.geomspace(0.1, 100.0, 40)  # the fast answer a thousand times as often
    due, answers = seconds.copy(), np.zeros(40)
    for _ in range(1048):
        client = int(np.argmin(due))
        answers[client] += 1
        due[client] += seconds[client]
        length = max(0.9 ** answers[client], 1e-6) * rng.uniform(0.5, 2.0)
        border.meet([Claims(client, length_of(FINE * length))])
        assert border.update(client, length_of(FINE * length)) == 1
    assert answers.max() > 30 * np.median(answers)  # by replies, the fast would be the median


def held_back(updates: dict[int, Any]) -> tuple[list[int], list[int]]:
    """Return who is accepted and who is refused where replies come one by one, in this order."""
    border = Border()
    first, accepted, refused = FirstReplies[int](border), [], []
    for client in updates:
        judged = first.release({client: client}, reachable=range(40))
        border.meet(Claims(each, length_of(updates[each])) for each in judged)
        for each in judged:
            try:
                assert border.update(each, length_of(updates[each])) == 1
                accepted.append(each)
            except BadReplyError:
                refused.append(each)
    return accepted, refused


@pytest.mark.parametrize("scale", [1e37, 1e6, 1.1e4])
@pytest.mark.parametrize("place", [*range(0, 13, 3), 10, 11])
def test_a_large_first_update_is_refused_wherever_it_comes(scale: float, place: int) -> None:
    updates = {client: FINE * (scale if client == place else 1) for client in range(13)}
    assert held_back(updates) == ([i for i in range(13) if i != place], [place])


@pytest.mark.parametrize("colluders", [range(5), range(6, 11), (0, 3, 4, 8, 12)])
@pytest.mark.parametrize("scale", [1e6, 1e-30])
def test_five_of_forty_gain_nothing_by_answering_first(colluders: Any, scale: float) -> None:
    updates = {i: FINE * (scale if i in colluders else 1) for i in range(40)}
    assert held_back(updates)[1] == ([*colluders] if scale > 1 else [])


def test_nobody_is_shut_out_for_good_where_most_of_the_first_clients_lie() -> None:
    border, refused = Border(), []
    for client in range(40):
        update = FINE * (1e-30 if client < 8 else 1)
        border.meet([Claims(client, length_of(update))])
        try:
            border.update(client, length_of(update))
        except BadReplyError:
            refused.append(client)
    assert set(refused) <= set(range(4, 17))
    border.meet([Claims(9, length_of(FINE))])
    border.update(9, length_of(FINE))


def test_a_fleet_that_stands_still_lets_nobody_leap() -> None:
    border = used()
    for client in range(6):
        border.update(client, length_of(FINE * 0))
    border.update(1, length_of(FINE))
    with pytest.raises(BadReplyError, match="far longer"):
        border.update(0, length_of(FINE * 1e37))


def test_a_signalling_nan_is_refused_without_a_warning() -> None:
    update = np.zeros(2, dtype=np.float32)
    update.view(np.uint32)[0] = 0x7FA00000
    border = used()
    border.meet([Claims(0, length_of(update))])
    with pytest.raises(BadReplyError, match="not finite"):
        border.update(0, length_of(update))


@pytest.mark.parametrize(
    ("n", "after"),
    [(1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (6, 5), (19, 5), (20, 6), (40, 11), (1000, 25)],
)
def test_holds_until_enough_of_the_fleet_have_answered(n: int, after: int) -> None:
    first = FirstReplies[int](Border())
    for client in range(after - 1):
        assert first.release({client: client}, reachable=range(n)) == []
        assert first.clients == list(range(client + 1))
    assert first.release({after - 1: after - 1}, reachable=range(n)) == list(range(after))
    assert first.clients == []


def test_holds_no_longer_than_four_times_as_many_replies_and_failures() -> None:
    first = FirstReplies[int](Border())
    assert first.release({0: 0}, reachable=range(10)) == []
    for _ in range(18):
        assert first.release({}, reachable=range(10), failed=1) == []
    assert first.release({}, reachable=range(10), failed=1) == [0]


def test_holds_nothing_after_a_restart() -> None:
    again = FirstReplies[int](Border(json.loads(json.dumps(used().memory))))
    assert again.release({9: 9}, reachable=range(10)) == [9]


@pytest.mark.parametrize(
    "memory",
    [
        {"lengths": [1.0, 2.0]},
        {"lengths": {"0": math.nan}},
        {"norms": {"a": 1.0}},
        {"ratios": {"0": [3]}},
        {"usual": "5"},
        {"usual": -1.0},
        {"seconds": {"0": "1"}},
    ],
)
def test_a_crafted_memory_is_an_error_that_says_so(memory: Any) -> None:
    with pytest.raises(InputError, match="memory must be that of a border"):
        Border(memory)


def test_what_is_held_of_a_client_that_is_asked_again_is_dropped() -> None:
    first = FirstReplies[int](Border())
    first.release({0: 0}, reachable=range(40))
    first.drop([0, 1])
    assert first.clients == []
