"""Times that stay, and times that vary with the clock."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError
from fedpace.seeds import Seeds
from fedpace.times.availability import with_availability
from fedpace.times.round_times import (
    BaseTimes,
    Steady,
    Varying,
    as_times,
)

USUAL = np.array([1.0, 2.0, 4.0, 8.0])
EVERYONE = np.arange(4)


@dataclass(frozen=True)
class CountingSeeds(Seeds):
    """Seeds that remember which streams were asked for."""

    asked: list[tuple[int, ...]] = field(default_factory=list)

    def stream(self, name: str, *numbers: int) -> np.random.Generator:
        self.asked.append(numbers)
        return super().stream(name, *numbers)


def at(
    times: BaseTimes, seconds: float, clients: IntArray = EVERYONE, *, round_index: int = 0
) -> FloatArray:
    return times.at(seconds, clients, round_index=round_index)


def by_the_clock(times: Varying, seconds: FloatArray) -> FloatArray:
    """Return how much slower than usual each client is, one row per time of the clock."""
    return np.array([at(times, each) / USUAL for each in seconds.tolist()])


def by_round(times: Varying, rounds: int) -> FloatArray:
    """Return how much slower than usual each client is, one row per task, all at one time."""
    return np.array([at(times, 5.0, round_index=r) / USUAL for r in range(rounds)])


def test_steady_times_do_not_change() -> None:
    times = Steady(USUAL)
    for seconds in (0.0, 70.0):
        assert at(times, seconds, np.array([3, 0]), round_index=7).tolist() == [8, 1]


def test_without_variation_times_are_the_usual_ones() -> None:
    np.testing.assert_array_equal(at(Varying(USUAL, Seeds(0)), 5.0), USUAL)


@pytest.mark.parametrize("times", [Steady(USUAL), Varying(USUAL, Seeds(0), busy=0.5)])
def test_everyone_is_there_at_once(times: BaseTimes) -> None:
    assert times.present(12.0) == (None, 0.0)


def test_noise_has_mean_one_and_the_given_sigma() -> None:
    drawn = by_round(Varying(USUAL, Seeds(0), noise=0.4), 2500).ravel()
    assert abs(drawn.mean() - 1) < 5 * drawn.std(ddof=1) / np.sqrt(drawn.size)
    logs = np.log(drawn)
    assert abs(logs.std(ddof=1) - 0.4) < 5 * 0.4 / np.sqrt(2 * drawn.size)


def test_noise_is_drawn_for_each_task_and_not_by_the_clock() -> None:
    times = Varying(USUAL, Seeds(0), noise=0.4)
    assert (at(times, 0.0, round_index=3) == at(times, 99.0, round_index=3)).all()
    assert (at(times, 0.0, round_index=3) != at(times, 0.0, round_index=4)).all()


@given(st.floats(0, 1e4), st.integers(0, 10**6), st.integers(0, 10**6))
def test_drift_and_spells_follow_the_clock_and_not_the_number_of_the_round(
    seconds: float, one: int, other: int
) -> None:
    times = Varying(USUAL, Seeds(3), drift=0.5, period=40, busy=0.3, spell=7)
    np.testing.assert_array_equal(
        at(times, seconds, round_index=one), at(times, seconds, round_index=other)
    )


def test_drift_repeats_after_a_period_of_seconds_and_swings_by_its_factor() -> None:
    times = Varying(USUAL, Seeds(3), drift=0.5, period=40)
    clock = np.arange(0.0, 80.0)
    drawn = by_the_clock(times, clock)
    np.testing.assert_allclose(drawn[:40], drawn[40:])
    assert drawn.max() <= np.exp(0.5)
    assert drawn.min() >= np.exp(-0.5)
    # Between two of 40 seconds the sine misses its top by at most 1 − cos(π/40).
    np.testing.assert_array_less(0.5 * np.cos(np.pi / 40) - 1e-9, np.log(drawn[:40]).max(axis=0))


def test_clients_drift_out_of_step() -> None:
    drawn = by_the_clock(Varying(USUAL, Seeds(3), drift=0.5, period=40), np.arange(40.0))
    assert len(set(drawn.argmax(axis=0).tolist())) > 1


def test_clients_are_busy_for_the_given_share_of_spells() -> None:
    times = Varying(USUAL, Seeds(1), busy=0.2, busy_factor=5, spell=3.0)
    drawn = by_the_clock(times, np.arange(0.0, 3000.0, 3.0)).ravel()
    busy = np.isclose(drawn, 5)
    assert (busy | np.isclose(drawn, 1)).all()
    assert abs(busy.mean() - 0.2) < 5 * np.sqrt(0.2 * 0.8 / busy.size)


def test_a_busy_spell_lasts_its_seconds() -> None:
    step, spell = 0.25, 6.0
    times = Varying(USUAL, Seeds(2), busy=0.4, busy_factor=5, spell=spell)
    busy = np.isclose(by_the_clock(times, np.arange(0, 600, step)), 5)
    for client in EVERYONE:
        changes = step * np.flatnonzero(np.diff(busy[:, client].astype(int)))
        assert changes.size > 20
        # Spells of equal kind may follow each other, so a stretch is a multiple of a spell.
        stretches = np.diff(changes) / spell
        np.testing.assert_allclose(stretches, np.rint(stretches), atol=step / spell)
        assert np.isclose(stretches, 1.0).any()


def test_spells_of_clients_begin_out_of_step() -> None:
    times = Varying(USUAL, Seeds(2), busy=0.4, busy_factor=5, spell=6.0)
    busy = np.isclose(by_the_clock(times, np.arange(0, 300, 0.25)), 5)
    first = [int(np.flatnonzero(np.diff(busy[:, i].astype(int)))[0]) % 24 for i in EVERYONE]
    assert len(set(first)) > 1


def test_times_do_not_depend_on_the_order_of_asking_nor_on_who_else_is_asked() -> None:
    def fresh() -> Varying:
        return Varying(USUAL, Seeds(9), noise=0.3, drift=0.2, busy=0.3)

    times = fresh()
    forward = {r: at(times, 9.0 * r, round_index=r) for r in range(5)}
    times = fresh()
    for r in reversed(range(5)):
        for client in (2, 0, 3, 1):
            assert at(times, 9.0 * r, np.array([client]), round_index=r)[0] == forward[r][client]


def test_another_seed_gives_other_noise() -> None:
    one, other = (at(Varying(USUAL, Seeds(seed), noise=0.3), 0.0) for seed in (0, 1))
    assert (one != other).all()


@pytest.mark.parametrize(
    ("variation", "streams"),
    [({"noise": 0.1}, 2), ({"noise": 0.1, "drift": 0.1, "busy": 0.1}, 6), ({"busy": 0.1}, 4)],
)
def test_only_the_clients_asked_for_cost_anything(
    variation: dict[str, float], streams: int
) -> None:
    seeds = CountingSeeds(0)
    times = Varying(np.ones(100_000), seeds, **variation)
    at(times, 4.0, np.array([7, 99_999]))
    assert {numbers[-1] for numbers in seeds.asked} == {7, 99_999}
    assert len(seeds.asked) == streams


@pytest.mark.parametrize(
    ("argument", "value", "condition"),
    [
        ("noise", -0.1, "be at least 0"),
        ("noise", float("nan"), "be at least 0"),
        ("drift", -1.0, "be at least 0"),
        ("period", 0.0, "be positive"),
        ("busy", 1.0, "be at least 0 and below 1"),
        ("busy", -0.1, "be at least 0 and below 1"),
        ("busy_factor", 0.5, "be at least 1"),
        ("spell", 0.0, "be positive"),
        ("spell", float("inf"), "be positive"),
    ],
)
def test_refuses_variation_outside_its_range(argument: str, value: float, condition: str) -> None:
    with pytest.raises(InputError, match=f"{argument} must {condition}, got {value}; see Varying"):
        Varying(USUAL, Seeds(0), **{argument: value})


@pytest.mark.parametrize("argument", ["noise", "drift", "busy_factor"])
def test_refuses_infinite_variation(argument: str) -> None:
    with pytest.raises(InputError, match=rf"{argument} must .*got inf"):
        Varying(USUAL, Seeds(0), **{argument: float("inf")})


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_refuses_usual_times_that_are_no_times(value: float) -> None:
    for make in (Steady, lambda usual: Varying(usual, Seeds(0))):
        with pytest.raises(InputError, match=r"times must be .*for client 1; "):
            make(np.array([1.0, value]))


def test_the_server_may_know_times_that_change() -> None:
    class Changing(Steady):
        def usual_at(self, seconds: float) -> FloatArray:
            return self.usual * (2 if seconds >= 60 else 1)

    times = Changing(np.arange(1.0, 11.0))
    np.testing.assert_array_equal(times.usual_at(60.0), 2 * times.usual)
    np.testing.assert_array_equal(Steady(times.usual).usual_at(60.0), times.usual)
    present = with_availability("markov:5:5", times, Seeds(1))
    np.testing.assert_array_equal(present.usual_at(60.0), 2 * times.usual)


def test_an_object_with_times_only_is_always_available() -> None:
    class Mine:
        usual = np.array([1.0, 2.0])

        def at(self, seconds: float, clients: IntArray, *, round_index: int) -> FloatArray:
            return self.usual[clients]

    times = as_times(Mine())
    assert times.present(5.0).clients is None
    assert times.usual_at(5.0).tolist() == [1.0, 2.0]
    assert times.leaves(5.0, np.array([1])).tolist() == [np.inf]
    with pytest.raises(InputError, match="times must define usual, at, got object without usual"):
        as_times(object())
    with pytest.raises(NotImplementedError, match="BaseTimes must define usual"):
        _ = BaseTimes().usual
    with pytest.raises(NotImplementedError, match="BaseTimes must define at"):
        BaseTimes().at(0.0, np.array([0]), round_index=0)
