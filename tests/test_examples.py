"""Every script in examples/ runs, and prints what it is there to show."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
FASHION = Path("/usr/share/datasets/fashion-mnist")


def output(script: Path, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "BROWSER": "true"},
    )
    assert done.returncode == 0, done.stderr
    progress = re.compile(r"\d+/\d+ runs, [\d:]+ elapsed(, about [\d:]+ left)?")
    assert all(progress.fullmatch(line) for line in done.stderr.splitlines()), done.stderr
    return done.stdout


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_runs_without_a_warning_and_prints_something(script: Path, tmp_path: Path) -> None:
    if script.stem == "fashion_mnist" and not FASHION.is_dir():
        pytest.skip("needs Debian's package dataset-fashion-mnist")
    if script.stem == "fashion_mnist":  # minutes; less will do here
        text = script.read_text(encoding="utf-8")
        assert "seeds=3, target=0.7" in text
        script = tmp_path / "shorter.py"
        script.write_text(text.replace("seeds=3, target=0.7", "seeds=1, target=1.6"))
    printed = output(script, tmp_path)
    assert printed.strip()
    if script.stem == "own_model":
        uniform, optimal = (float(each) for each in re.findall(r"takes +(\d+) s", printed))
        assert optimal < uniform
    if script.stem == "shorter":
        assert "pace" in printed
        assert (tmp_path / "runs" / "report.html").exists()


def test_an_own_model_takes_less_than_forty_lines() -> None:
    (script,) = (each for each in EXAMPLES if each.stem == "own_model")
    assert len(script.read_text(encoding="utf-8").splitlines()) < 40


def test_an_own_network_is_compared_in_at_most_25_lines() -> None:
    (script,) = (each for each in EXAMPLES if each.stem == "fashion_mnist")
    assert len(script.read_text(encoding="utf-8").splitlines()) <= 25
