"""In NVFlare's own simulator: the example's job, and our backend on its tasks."""

from __future__ import annotations

import csv
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "nvflare"
needs_nvflare = pytest.mark.skipif(
    importlib.util.find_spec("nvflare") is None, reason="needs NVFlare: make nvflare"
)


# A controller that checks our backend instead of training.
CHECKING = """
from fedpace.conformance import check_backend
from fedpace.nvflare import AdaptiveSampling, SitesBackend


class Checking(AdaptiveSampling):
    def run(self):
        backend = SitesBackend(self, self.load_model())
        check_backend(lambda: backend)
        self.info("fedpace: the backend is checked")
"""


def run(script: Path, *options: str) -> str:
    """Run a job in the simulator, and return its log."""
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, script, *options],
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout


@needs_nvflare
@pytest.mark.slow
def test_a_job_learns_with_the_weights_of_its_draws(tmp_path: Path) -> None:
    history = tmp_path / "history.csv"
    log = run(EXAMPLE / "job.py", f"--history={history}", "--scheme=uniform", "--rounds=8")
    assert "ERROR" not in log, log[-3000:]
    with history.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["round"] for row in rows] == [str(number) for number in range(9)]
    assert float(rows[-1]["loss_estimate"]) < 0.5 * float(rows[1]["loss_estimate"])
    # Sites hold 40, 80, 120 and 160 samples: of N = 4, p_i / (K q_i) = 2 p_i for each draw.
    shares = {str(site): (site + 1) / 10 for site in range(4)}
    known: set[str] = set()
    for row in rows[1:]:
        clients = row["clients"].split()
        if known == set(shares):
            draws = [
                float(weight) / (2 * shares[client])
                for client, weight in zip(clients, row["weights"].split(), strict=True)
            ]
            assert draws == pytest.approx([1, 1] if len(clients) == 2 else [2])
        known |= set(clients)
    assert known == set(shares)


@needs_nvflare
@pytest.mark.slow
def test_sites_are_a_backend_as_any_other(tmp_path: Path) -> None:
    text = (EXAMPLE / "job.py").read_text()
    text = text.replace("from fedpace.nvflare import", "from checking import Checking as")
    script = tmp_path / "job.py"
    added = "    job.to_server(str(HERE / 'checking.py'))\n    job.to_clients"
    script.write_text(text.replace("    job.to_clients", added))
    (tmp_path / "checking.py").write_text(CHECKING)
    (tmp_path / "client.py").write_text((EXAMPLE / "client.py").read_text())
    assert "fedpace: the backend is checked" in run(script)


def test_without_nvflare_the_extra_is_named() -> None:
    code = "import sys; sys.modules['nvflare'] = None; import fedpace.nvflare"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'fedpace[nvflare]'" in done.stderr
