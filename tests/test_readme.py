"""Every example in README.md and docs/ runs, in the order in which it stands."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import mypy.api
import pytest

from tests.pages import PAGES, ROOT, Block, blocks, commands


def run_command(command: str, status: int) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        command, shell=True, capture_output=True, text=True, env=os.environ | {"PATH": path}
    )
    assert ended.returncode == status, f"{command}\n{ended.stdout}\n{ended.stderr}"
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_example_on_the_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.file:
            Path(block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            # Blank lines in front make a traceback point into the page.
            exec(compile("\n" * block.line + block.text, str(page), "exec"), namespace)
        elif block.language in ("console", "sh"):
            for command, status in commands(block.text):
                run_command(command, status)


def test_the_readme_shows_python_and_the_command_line() -> None:
    found = list(blocks((ROOT / "README.md").read_text(encoding="utf-8")))
    assert any(block.language == "python" for block in found)
    assert any(list(commands(block.text)) for block in found if block.language == "console")


def test_blocks_and_commands_are_found_as_they_are_written() -> None:
    page = textwrap.dedent(
        """\
        text
        ```python
        x = 1
        ```
        - item
          ```console
          $ fedpace solve a.csv \\
              -k 3  # comment
          fedpace: a.csv: no such file
          $ make test
          fedpace is not run here
          ```
        ```
        fedpace plain
        ```
        ```sh
        pip install fedpace
        fedpace plan b.csv
        ```
        ```toml title="a.toml"
        k = 1
        ```
        """
    )
    python, console, plain, shell, file = blocks(page)
    assert python == Block("python", "x = 1\n", 2)
    assert list(commands(console.text)) == [("fedpace solve a.csv      -k 3  # comment", 2)]
    assert plain.language == ""
    assert list(commands(shell.text)) == [("fedpace plan b.csv", 0)]
    assert (file.text, file.file) == ("k = 1\n", "a.toml")


def test_the_readmes_python_passes_strict_type_checks(tmp_path: Path) -> None:
    example = next(blocks((ROOT / "README.md").read_text(encoding="utf-8")))
    (tmp_path / "example.py").write_text(example.text, encoding="utf-8")
    said, problems, status = mypy.api.run(
        ["--strict", "--cache-dir", str(ROOT / ".mypy_cache"), str(tmp_path / "example.py")]
    )
    assert status == 0, said + problems
