"""Names: ours, a package's, and a user's own, in modules and in files."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedpace import lookup
from fedpace.errors import InputError
from fedpace.lookup import fingerprint, provide_sources, read_sources
from fedpace.samplers.build import WarmUp, sampler_for
from fedpace.samplers.solve import Solve
from fedpace.servers.build import server_for

KNOWN = {"one": 1, "two": 2}
GROUP = "fedpace.numbers"


def find(name: object) -> Any:
    return lookup.find(name, KNOWN, argument="number", group=GROUP)


def problem(name: object) -> str:
    """Return the one line that refuses a name."""
    with pytest.raises(InputError) as caught:
        find(name)
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith("number must ")
    return said


def written(folder: Path, text: str, name: str = "own.py") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave neither texts nor modules behind."""
    monkeypatch.setattr(lookup, "_sources", {})
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_known_name_is_what_comes_with_fedpace() -> None:
    assert find("two") == 2


def test_a_module_is_imported_and_a_file_is_run(tmp_path: Path) -> None:
    assert find("math:pi") == pytest.approx(3.14159, abs=1e-5)
    assert find(f"{written(tmp_path, 'mine = 7')}:mine") == 7


def test_the_same_text_is_run_once_and_a_changed_one_again(tmp_path: Path) -> None:
    name = f"{written(tmp_path, 'mine = object()')}:mine"
    first = find(name)
    assert find(name) is first
    written(tmp_path, "mine = object()  # changed")
    assert find(name) is not first


def test_a_file_may_import_its_neighbours_and_define_dataclasses(tmp_path: Path) -> None:
    written(tmp_path, "FACTOR = 6", "neighbour_of_mine.py")
    text = (
        "from dataclasses import dataclass\nfrom neighbour_of_mine import FACTOR\n"
        "@dataclass\nclass Mine:\n    factor: int = FACTOR\n"
    )
    assert find(f"{written(tmp_path, text)}:Mine")().factor == 6
    assert str(tmp_path) not in sys.path


def test_a_module_of_the_folder_one_is_in_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, "mine = 3", "module_of_mine.py")
    monkeypatch.chdir(tmp_path)
    assert find("module_of_mine:mine") == 3


def installed(folder: Path, entry: str, text: str = "LARGEST = 99", group: str = GROUP) -> None:
    """Write what an installed package consists of: its module, and what it says of itself."""
    written(folder, text, "package_of_numbers.py")
    about = folder / "package_of_numbers-1.0.dist-info"
    about.mkdir()
    about.joinpath("METADATA").write_text("Name: package-of-numbers\nVersion: 1.0\n")
    about.joinpath("entry_points.txt").write_text(f"[{group}]\n{entry}\n")


def test_a_package_names_its_own_by_an_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, "largest = package_of_numbers:LARGEST")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find("largest") == 99
    assert "did you mean 'largest'?" in problem("largset")


OWN = """
from fedpace import SCHEMES, Average

def theirs(profile, k, *, max_weight=None):
    return SCHEMES["weighted"](profile, k)

class Server(Average):
    pass
"""


def test_a_package_may_bring_schemes_and_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = (
        "theirs = package_of_numbers:theirs\n[fedpace.servers]\nown = package_of_numbers:Server"
    )
    installed(tmp_path, entries, OWN, group="fedpace.schemes")
    monkeypatch.syspath_prepend(str(tmp_path))
    sampler = sampler_for("theirs", 3, learn=WarmUp(2))
    assert isinstance(sampler, Solve)
    assert sampler.scheme.__module__ == "package_of_numbers"
    assert type(server_for("own")).__name__ == "Server"
    with pytest.raises(InputError, match="did you mean 'theirs'"):
        sampler_for("thiers", 3, learn=WarmUp(2))


def test_an_entry_point_that_leads_nowhere_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, "largest = package_of_numbers:LARGE")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "must be defined in its module, got 'largest'; did you mean 'LARGEST'" in problem(
        "largest"
    )


@pytest.mark.parametrize("name", [3, None, ["one"]])
def test_what_is_no_name_is_refused(name: object) -> None:
    assert "must be a name, got " in problem(name)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    assert "got 'tow'; did you mean 'two'?" in problem("tow")
    assert "module:name or file.py:name" in problem("tow")


def test_a_missing_name_is_refused_with_the_nearest(tmp_path: Path) -> None:
    file = written(tmp_path, "mine = 1\nyours = 2\n_hidden = 3\n")
    assert f"got '{file}:mien'; did you mean 'mine'?" in problem(f"{file}:mien")
    assert problem(f"{file}:xyz").endswith("use one of: mine, yours")


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("a = 1\nb = (\n", 2, "SyntaxError: '(' was never closed"),
        ("a = 1\n\n  b = 2\n", 3, "IndentationError: unexpected indent"),
        ("import nothing_of_the_kind\n", 1, "ModuleNotFoundError: No module named 'nothing_of"),
        ("a = 1\nb = 1 / 0\n", 2, "ZeroDivisionError: division by zero"),
        ("def f():\n    raise ValueError('two\\nlines')\n\nf()\n", 2, "ValueError: two lines"),
        ("from math import nonsense\n", 1, "ImportError: cannot import name 'nonsense'"),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit: 3"),
    ],
)
def test_a_file_that_fails_is_told_with_file_line_and_reason(
    tmp_path: Path, text: str, line: int, reason: str
) -> None:
    file = written(tmp_path, text)
    said = problem(f"{file}:mine")
    assert f"got '{file}:mine': {file}, line {line}: {reason}" in said
    assert said.count("line ") == 1
    assert problem(f"{file}:mine") == said  # and again: a failed module is not kept


def test_a_failure_in_a_neighbour_is_told_with_its_place(tmp_path: Path) -> None:
    neighbour = written(tmp_path, "\n\n1 / 0\n", "failing_neighbour.py")
    said = problem(f"{written(tmp_path, 'import failing_neighbour')}:mine")
    assert f"{neighbour}, line 3: ZeroDivisionError" in said


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nothing_of_the_kind:mine", "ModuleNotFoundError: No module named 'nothing_of_the_kind'"),
        (":mine", "ValueError: Empty module name"),
        ("..up:mine", "TypeError: "),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(name: str, reason: str) -> None:
    assert f"must be in a module that can be imported, got '{name}': {reason}" in problem(name)


def test_a_misspelt_name_with_a_number_is_refused_with_the_nearest() -> None:
    assert problem("tow:0.1").endswith("No module named 'tow'; did you mean 'two'?")


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    there = f"{tmp_path}/none.py:mine"
    assert f"got '{there}': No such file or directory; give its path" in problem(there)
    (tmp_path / "folder.py").mkdir()
    assert "Is a directory" in problem(f"{tmp_path}/folder.py:mine")
    (tmp_path / "bytes.py").write_bytes(b"\xff\xfe\x00")
    assert "can't decode byte" in problem(f"{tmp_path}/bytes.py:mine")


# For another machine.


def test_texts_take_the_place_of_files_that_are_not_there() -> None:
    provide_sources({"far/away.py": "mine = 41"})
    assert find("far/away.py:mine") == 41
    provide_sources({"far/away.py": "mine = 42"})
    assert find("far/away.py:mine") == 42


def test_the_texts_of_files_are_gathered_and_modules_are_not(tmp_path: Path) -> None:
    file = written(tmp_path, "mine = 7")
    assert read_sources([f"{file}:mine", "uniform", "math:pi", "adam:0.1"]) == {file: "mine = 7"}


def test_a_fingerprint_changes_with_the_file_and_there_is_none_without_one(tmp_path: Path) -> None:
    file = written(tmp_path, "mine = 7")
    first = fingerprint(f"{file}:mine")
    assert first is not None
    assert fingerprint(f"{file}:other") == first
    written(tmp_path, "mine = 8")
    assert fingerprint(f"{file}:mine") != first
    assert fingerprint("uniform") is None
    assert fingerprint("math:pi") is None


def test_a_fingerprint_of_a_text_is_that_of_its_file(tmp_path: Path) -> None:
    file = written(tmp_path, "mine = 7")
    here = fingerprint(f"{file}:mine")
    Path(file).unlink()
    provide_sources({file: "mine = 7"})
    assert fingerprint(f"{file}:mine") == here
