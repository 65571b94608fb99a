"""From a name, or a user's own, to the sampler of a run."""

from pathlib import Path
from typing import Any

import pytest

from fedpace.adapt import original
from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.samplers.build import Pilots, WarmUp, resolve, sampler_for
from fedpace.samplers.pilots import Piloted
from fedpace.samplers.solve import Solve
from fedpace.sampling.design import Design
from fedpace.sampling.schemes import SCHEMES
from fedpace.training.history import Row
from fedpace.training.sampler import SamplerContext
from tests.training.fakes import Fixed


def test_thresholds_that_rise_are_refused() -> None:
    with pytest.raises(InputError, match="thresholds must fall"):
        Pilots([1.0, 1.2], 4)


LEARN: list[Pilots | WarmUp] = [Pilots([1.0], 4), WarmUp(6)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "own_scheme.py"


@pytest.mark.parametrize("scheme", ["full", "uniform", "weighted"])
@pytest.mark.parametrize("learn", LEARN)
def test_a_scheme_that_looks_at_counts_alone_has_no_pilots(
    scheme: str, learn: Pilots | WarmUp
) -> None:
    sampler = sampler_for(scheme, 3, learn=learn)
    assert isinstance(sampler, Solve)
    assert sampler.phase(sampler.init(5)).name == "train"


@pytest.mark.parametrize("scheme", ["statistical", "optimal-mean", "optimal-max"])
def test_any_other_learns_from_pilots_or_a_warm_up(scheme: str) -> None:
    settings: dict[str, Any] = {"refresh": 7, "max_weight": 2.0, "c_over_s0": 0.5}
    piloted = sampler_for(scheme, 3, learn=Pilots([1.0, 0.5], 4), **settings)
    warmed = sampler_for(scheme, 3, learn=WarmUp(6), **settings)
    assert isinstance(piloted, Piloted)
    assert isinstance(warmed, Solve)
    assert (piloted.thresholds, piloted.pilot_rounds, warmed.warm_up) == ([1.0, 0.5], 4, 6)
    for sampler in (piloted, warmed):
        assert sampler.scheme is SCHEMES[scheme]
        assert (sampler.k, sampler.refresh) == (3, 7)
        assert (sampler.max_weight, sampler.c_over_s0) == (2.0, 0.5)


def own(profile: Profile, k: int, *, max_weight: float | None = None) -> Design:
    return SCHEMES["uniform"](profile, k, max_weight=max_weight)


def counting(profile: Profile, k: int, *, max_weight: float | None = None) -> Design:
    return SCHEMES["uniform"](profile, k, max_weight=max_weight)


counting.needs_counts_only = True  # type: ignore[attr-defined]


def test_a_function_of_your_own_is_a_scheme_that_needs_to_learn_unless_it_says_otherwise() -> None:
    assert isinstance(sampler_for(own, 3, learn=LEARN[0]), Piloted)
    assert isinstance(sampler_for(counting, 3, learn=LEARN[0]), Solve)


class Own:
    """A sampler of a user's own."""

    def __init__(self, k: int, memory: float = 0.5) -> None:
        self.k, self.memory = k, memory

    def init(self, n: int) -> int:
        return n

    def design(self, state: int, context: SamplerContext) -> Design:
        return SCHEMES["uniform"](context.blank_profile, self.k)

    def observe(self, state: int, row: Row) -> int:
        return state


def test_a_class_of_samplers_is_called_with_k_and_a_sampler_is_taken_as_it_is() -> None:
    made = sampler_for(Own, 3, learn=LEARN[0])
    assert isinstance(original(made), Own)
    assert original(made).k == 3  # type: ignore[attr-defined]
    given: Any = Own(7, memory=0.1)
    assert original(sampler_for(given, 3, learn=LEARN[0])) is given
    fixed = Fixed(SCHEMES["uniform"](Profile([1.0], [1.0], [1.0]), 3))
    assert sampler_for(fixed, 3, learn=LEARN[0]) is fixed


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_knobs_go_to_a_class_of_your_own_and_nowhere_else(mode: str) -> None:
    made: Any = original(sampler_for(Own, 3, mode=mode, knobs={"memory": 0.1}))
    assert (made.k, made.memory) == (3, 0.1)
    for scheme in (own, Own(3)):
        with pytest.raises(InputError, match="knobs must be those of a class of samplers, got"):
            sampler_for(scheme, 3, mode=mode, knobs={"memory": 0.1})  # type: ignore[arg-type]


def test_names_of_your_own_are_found_in_files_and_modules() -> None:
    assert type(sampler_for(f"{EXAMPLE}:Curious", 3, learn=LEARN[0])).__name__ == "Curious"
    module = "tests.samplers.test_policy"
    assert isinstance(sampler_for(f"{module}:own", 3, learn=LEARN[0]), Piloted)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (
            "optimal-men",
            r"scheme must be a known name.*, got 'optimal-men'; did you mean 'optimal-",
        ),
        ("math:pi", "scheme 'math:pi' must define design, got float without design; define it"),
        (3, "scheme must be a name, got 3"),
    ],
)
def test_what_is_none_is_refused_in_one_line(name: object, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        resolve(name)
    assert "\n" not in str(caught.value)


class Reluctant(Own):
    def __init__(self) -> None:
        super().__init__(3)


class Empty:
    def __init__(self, k: int) -> None:
        pass


@pytest.mark.parametrize(
    ("scheme", "problem"),
    [
        (Reluctant, r"scheme must be made with k=3, got .*Reluctant.*: TypeError: "),
        (Empty, "scheme .*Empty.* must define design, got Empty without design; define it"),
        (3.5, "scheme 3.5 must define design, got float without design; define it"),
    ],
)
def test_a_class_that_is_none_of_samplers_is_refused(scheme: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        sampler_for(scheme, 3, learn=LEARN[0])
    assert "\n" not in str(caught.value)
