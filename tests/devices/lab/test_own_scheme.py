"""The example of a sampler of one's own, on a lab."""

from pathlib import Path

import numpy as np

from tests.devices.lab.conftest import Up
from tests.devices.lab.labs import in_namespaces, lab, only_run

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_scheme.py"


@in_namespaces
def test_a_sampler_of_ones_own_learns_from_devices(four: Up, tmp_path: Path) -> None:
    done = lab(
        "run", four.setup, *four.options, "--schemes", f"{EXAMPLE}:Curious", "--out", tmp_path
    )
    assert done.returncode == 0, done.stderr
    run = only_run(tmp_path)
    assert run.ended == "rounds"
    assert run.q is not None
    assert not np.allclose(run.q, run.profile.weights)
