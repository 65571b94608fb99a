"""Times that stay, and times that vary."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from fedpace.errors import InputError
from fedpace.seeds import Seeds
from fedpace.times.round_times import Steady, Varying

USUAL = np.array([1.0, 2.0, 4.0, 8.0])
EVERYONE = np.arange(4)


@dataclass(frozen=True)
class CountingSeeds(Seeds):
    """Seeds that remember which streams were asked for."""

    asked: list[tuple[int, ...]] = field(default_factory=list)

    def stream(self, name: str, *numbers: int) -> np.random.Generator:
        self.asked.append(numbers)
        return super().stream(name, *numbers)


def factors(times: Varying, rounds: int) -> np.ndarray:
    return np.array([times.at(r, EVERYONE) / USUAL for r in range(rounds)])


def test_steady_times_do_not_change() -> None:
    times = Steady(USUAL)
    for r in (0, 7):
        assert times.at(r, np.array([3, 0])).tolist() == [8, 1]


def test_without_variation_times_are_the_usual_ones() -> None:
    np.testing.assert_array_equal(Varying(USUAL, Seeds(0)).at(5, EVERYONE), USUAL)


def test_noise_has_mean_one_and_the_given_sigma() -> None:
    drawn = factors(Varying(USUAL, Seeds(0), noise=0.4), 2500).ravel()
    assert abs(drawn.mean() - 1) < 5 * drawn.std(ddof=1) / np.sqrt(drawn.size)
    logs = np.log(drawn)
    assert abs(logs.std(ddof=1) - 0.4) < 5 * 0.4 / np.sqrt(2 * drawn.size)


def test_drift_repeats_after_a_period_and_swings_by_its_factor() -> None:
    times = Varying(USUAL, Seeds(3), drift=0.5, period=40)
    drawn = factors(times, 80)
    np.testing.assert_allclose(drawn[:40], drawn[40:])
    assert drawn.max() <= np.exp(0.5)
    assert drawn.min() >= np.exp(-0.5)
    # Between two of 40 rounds the sine misses its top by at most 1 − cos(π/40).
    np.testing.assert_array_less(0.5 * np.cos(np.pi / 40) - 1e-9, np.log(drawn[:40]).max(axis=0))


def test_clients_drift_out_of_step() -> None:
    drawn = factors(Varying(USUAL, Seeds(3), drift=0.5, period=40), 40)
    assert len(set(drawn.argmax(axis=0).tolist())) > 1


def test_clients_are_busy_for_the_given_share_of_rounds() -> None:
    drawn = factors(Varying(USUAL, Seeds(1), busy=0.2, busy_factor=5), 1000).ravel()
    busy = np.isclose(drawn, 5)
    assert (busy | np.isclose(drawn, 1)).all()
    assert abs(busy.mean() - 0.2) < 5 * np.sqrt(0.2 * 0.8 / busy.size)


def test_times_do_not_depend_on_the_order_of_asking_nor_on_who_else_is_asked() -> None:
    def fresh() -> Varying:
        return Varying(USUAL, Seeds(9), noise=0.3, drift=0.2, busy=0.3)

    times = fresh()
    forward = {r: times.at(r, EVERYONE) for r in range(5)}
    times = fresh()
    for r in reversed(range(5)):
        for client in (2, 0, 3, 1):
            assert times.at(r, np.array([client]))[0] == forward[r][client]


def test_another_seed_gives_other_noise() -> None:
    one, other = (Varying(USUAL, Seeds(seed), noise=0.3).at(0, EVERYONE) for seed in (0, 1))
    assert (one != other).all()


def test_only_the_clients_asked_for_cost_anything() -> None:
    seeds = CountingSeeds(0)
    times = Varying(np.ones(100_000), seeds, noise=0.1, drift=0.1, busy=0.1)
    times.at(4, np.array([7, 99_999]))
    assert {numbers[-1] for numbers in seeds.asked} == {7, 99_999}
    assert len(seeds.asked) <= 4


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
    ],
)
def test_refuses_variation_outside_its_range(argument: str, value: float, condition: str) -> None:
    with pytest.raises(InputError, match=f"{argument} must {condition}, got {value}; see Varying"):
        Varying(USUAL, Seeds(0), **{argument: value})


@pytest.mark.parametrize("argument", ["noise", "drift", "busy_factor"])
def test_refuses_infinite_variation(argument: str) -> None:
    with pytest.raises(InputError, match=f"{argument} must .*got inf"):
        Varying(USUAL, Seeds(0), **{argument: float("inf")})


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_refuses_usual_times_that_are_no_times(value: float) -> None:
    for make in (Steady, lambda usual: Varying(usual, Seeds(0))):
        with pytest.raises(InputError, match=r"times must be .*for client 1; "):
            make(np.array([1.0, value]))
