"""The package from outside: what importing it loads, and the names that others rely on."""

import inspect
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import fedpace

LOADED = """
import json, sys
before = set(sys.modules)
import fedpace
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps(sorted(new - set(sys.stdlib_module_names))))
"""


def test_importing_loads_nothing_but_numpy_and_scipy() -> None:
    run = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=600
    )
    loaded = set(json.loads(run.stdout))
    assert "fedpace" in loaded
    assert loaded <= {"fedpace", "lazy_loader", "numpy", "scipy"}


def test_importing_prints_and_warns_nothing() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import fedpace"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_public_names_exist_are_few_and_documented() -> None:
    assert len(fedpace.__all__) <= 60
    assert len(set(fedpace.__all__)) == len(fedpace.__all__)
    for name in fedpace.__all__:
        assert inspect.getdoc(getattr(fedpace, name)), name


@pytest.mark.parametrize(
    ("name", "keywords"),
    [
        ("Profile", "weights times grad_norms beta_over_alpha"),
        ("expected_round_time", "q times k"),
        ("variance_term", "q weights grad_norms"),
        ("solve_mean_time", "weights times grad_norms beta_over_alpha max_weight k"),
        ("solve_max_time", "weights times grad_norms beta_over_alpha k max_weight"),
    ],
)
def test_arguments_have_the_names_and_the_order_that_others_rely_on(
    name: str, keywords: str
) -> None:
    parameters = list(inspect.signature(getattr(fedpace, name)).parameters)
    assert parameters[: len(keywords.split())] == keywords.split()


def test_everything_can_be_called_by_keyword() -> None:
    columns: dict[str, Any] = {"weights": [0.6, 0.4], "times": [1.0, 3.0], "grad_norms": [1.0, 2.0]}
    profile = fedpace.Profile(**columns, beta_over_alpha=1.0)
    for name in ("uniform", "weighted", "statistical", "optimal-mean", "optimal-max"):
        design = fedpace.SCHEMES[name](profile, k=10)
        assert isinstance(design, fedpace.WithReplacement)
        assert design.q.sum() == pytest.approx(1)
    draw = fedpace.SCHEMES["full"](profile, k=10).draw(rng=np.random.default_rng(0))
    assert draw.clients.tolist() == [0, 1]
    assert draw.weights.tolist() == [0.6, 0.4]
    q = [0.5, 0.5]
    assert fedpace.expected_round_time(q=q, times=columns["times"], k=2) == 2.5
    spread = fedpace.variance_term(q=q, weights=[0.5, 0.5], grad_norms=[3.0, 1.0])
    assert spread == 5.0
    mean = fedpace.solve_mean_time(**columns, beta_over_alpha=1.0, max_weight=None, k=10)
    best = fedpace.solve_max_time(**columns, beta_over_alpha=1.0, k=10, max_weight=None)
    for solution in (mean, best):
        assert solution.q.sum() == pytest.approx(1)
        assert solution.objective > 0
        assert solution.status == "converged"
        assert solution.iterations >= 1


def test_the_version_has_three_numbers() -> None:
    assert len([int(part) for part in fedpace.__version__.split(".")]) == 3
