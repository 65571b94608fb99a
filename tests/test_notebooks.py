"""Every notebook in examples/notebooks runs from top to bottom, and shows what it is there for."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples" / "notebooks").glob("*.ipynb"))
# What a cell's last expression shows in a notebook.
SHOW = """
def shown(value):
    html = getattr(value, "_repr_html_", None)
    print(html() if html else repr(value))
"""


def program(notebook: Path) -> str:
    """Return the cells as a script that shows what a notebook would."""
    parts = ["import subprocess", SHOW]
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] != "code":
            continue
        if text.startswith("!"):
            parts.append(f"subprocess.run({text[1:]!r}, shell=True, check=True)")
            continue
        tree = ast.parse(text)
        if isinstance(last := tree.body[-1], ast.Expr):
            tree.body[-1] = ast.parse(f"shown({ast.unparse(last)})").body[0]
        parts.append(ast.unparse(tree))
    return "\n".join(parts)


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_runs_and_shows_the_comparison(notebook: Path, tmp_path: Path) -> None:
    if notebook.stem == "flower":
        pytest.importorskip("ray", reason="Flower's simulation needs flwr[simulation]")
    (tmp_path / "notebook.py").write_text(program(notebook), encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "notebook.py"], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count('<table class="main sortable">') == 1
    assert "<svg" in done.stdout
    assert "uniform" in done.stdout
    assert "Conv2d" in done.stdout or notebook.stem != "own_model"
