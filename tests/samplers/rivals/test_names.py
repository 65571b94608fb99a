"""Every rival is a scheme that can be named, keeps the rules of samplers, and says its bias."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedpace.conformance import check_sampler
from fedpace.errors import InputError
from fedpace.registry import METHODS, RIVAL, SYNCHRONOUS, is_biased, method_names
from fedpace.samplers.build import resolve, sampler_for
from fedpace.samplers.rivals.candidates import PowerOfChoice
from fedpace.sampling.schemes import is_scheme
from fedpace.studies.build import run_one
from tests.studies.tiny import tiny_study
from tests.training.fakes import assert_same_rows

RIVALS = method_names(RIVAL, mode=SYNCHRONOUS)
UNBIASED = {"ocs", "aocs", "clustered", "clustered-optimal-mean", "fedvarp", "fedstale"}


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("k", [1, 3, 20])
def test_every_rival_keeps_the_rules(name: str, k: int) -> None:
    check_sampler(lambda: sampler_for(name, k))
    check_sampler(lambda: sampler_for(name, k), n=12, seed=1)


def test_bias_is_said() -> None:
    assert {name for name in RIVALS if not is_biased(name)} == UNBIASED
    for name in RIVALS:
        rival = METHODS[name].load()
        made: Any = rival.func if isinstance(rival, partial) else rival
        docstring = " ".join(str(made.__doc__).split())
        if not is_scheme(rival) or isinstance(rival, partial):
            assert ("**biased**" in docstring.lower()) == is_biased(name) == made.biased, name
            assert "Source: " in docstring, name
            assert "Differs from" in docstring, name


@pytest.mark.parametrize("name", RIVALS)
def test_every_rival_runs_in_a_study_the_same_every_time(tmp_path: Path, name: str) -> None:
    study = tiny_study(tmp_path, "stop.loss=none", "training.schedule=constant:0.05")
    outcome, again = (run_one(study, name, 0) for _ in range(2))
    rows = outcome.history.rows
    assert rows[-1].loss < rows[0].loss
    assert [each.seconds for each in rows] == sorted(each.seconds for each in rows)
    assert_same_rows(rows, again.history.rows)


def test_knobs_are_a_sampler_s_own() -> None:
    sampler = sampler_for("pow-d", 3, knobs={"d": 9})
    assert sampler == PowerOfChoice(3, d=9)
    with pytest.raises(InputError, match="scheme must be made with k=3, size=9, got 'pow-d'"):
        sampler_for("pow-d", 3, knobs={"size": 9})
    with pytest.raises(InputError, match="knobs must be those of a class of samplers, got d for"):
        sampler_for("uniform", 3, knobs={"d": 9})
    with pytest.raises(InputError, match="did you mean 'oort'"):
        resolve("oortt")
