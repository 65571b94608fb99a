"""Arguments of `train` that are easily taken for others are refused with a remedy."""

from typing import Any

import pytest

from fedpace import InputError, Seeds, Stop, constant, sampler_for, train

from .fakes import small_simulator

FINE: dict[str, Any] = {
    "sampler": sampler_for("uniform", 2),
    "schedule": constant(0.1),
    "stop": Stop(rounds=1),
    "seeds": Seeds(0),
}


@pytest.mark.parametrize(
    ("name", "value"), [("seeds", 0), ("sampler", "uniform"), ("schedule", 0.1), ("stop", 5)]
)
def test_says_what_to_give_instead(name: str, value: object) -> None:
    given = FINE | {name: value}
    with pytest.raises(InputError, match=rf"{name} must be .* got .*; give"):
        train(small_simulator(), given.pop("sampler"), **given)
