"""The example of a sampler of one's own, through the command line."""

from pathlib import Path

import numpy as np

from fedpace.studies.store import Store
from tests.cli.calling import assert_refused, run
from tests.devices.lab.labs import write_setup

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_scheme.py"
CURIOUS = f"{EXAMPLE}:Curious"


def test_the_example_takes_at_most_sixty_lines() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 60


def test_a_sampler_of_ones_own_enters_a_study_and_its_report(tmp_path: Path) -> None:
    setup, out = write_setup(tmp_path), tmp_path / "runs"
    done = run("run", setup, "--schemes", f"weighted,{CURIOUS}", "--seeds", 2, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "own_scheme.py:Curious" in done.stdout
    runs = {(each.scheme, each.seed): each for each in Store(out).runs()}
    assert set(runs) == {(name, seed) for name in ("weighted", CURIOUS) for seed in (0, 1)}
    mine = runs[CURIOUS, 0]
    assert mine.q is not None
    # It has learned: the last q is not the first, which is that of weighted sampling.
    assert not np.allclose(mine.q, mine.profile.weights)
    report = run("report", out)
    assert report.returncode == 0, report.stderr
    assert "Curious" in (out / "report.html").read_text(encoding="utf-8")


def test_a_sampler_is_no_scheme_for_solve_and_plan(tmp_path: Path) -> None:
    assert run("example", tmp_path / "c.csv", "--clients", 5).returncode == 0
    for command in (("solve", "--scheme"), ("plan", "--schemes")):
        done = run(command[0], tmp_path / "c.csv", command[1], CURIOUS)
        assert_refused(done, "must be a function from a profile to a design", "fedpace run")
