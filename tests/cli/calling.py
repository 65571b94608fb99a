"""Call the command line: in this process, or in one of its own."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import fedpace
from fedpace.cli import main
from fedpace.clients_file import read_clients
from fedpace.sampling.plan import Prediction

HEADER = "client,samples,time,grad_norm\n"
GOOD = HEADER + "ada,30,1.5,2\nbob,50,0.5,1\ncyd,20,4,3\n"
Done: TypeAlias = subprocess.CompletedProcess[str]


def run(*args: object, encoding: str = "utf-8") -> Done:
    """Run `fedpace` in this process, which saves the start of another."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding, newline="") for _ in range(2))
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", ["fedpace", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert isinstance(ended.value.code, int)
    return subprocess.CompletedProcess((), ended.value.code, _text(out), _text(err))


def _text(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


def command(*args: object) -> list[str]:
    """Return the words that run `fedpace` in a process of its own."""
    return [sys.executable, "-m", "fedpace", *map(str, args)]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def assert_refused(done: Done, *fragments: str) -> None:
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("fedpace: ")
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith("\n")
    for fragment in fragments:
        assert fragment in done.stderr


def strict_json(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def library_rows(
    file: str, k: int, ks: list[int] | None = None, cap: float | None = None
) -> list[Prediction]:
    return list(fedpace.plan(read_clients(Path(file)).profile, k, ks=ks, max_weight=cap))


def fields(row: Prediction) -> dict[str, Any]:
    return {name: value for name, value in row._asdict().items() if name != "design"}
