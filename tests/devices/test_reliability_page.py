"""The tests that docs/reliability.md names are there."""

import re

from tests.devices.fleet import ROOT


def test_every_test_that_the_page_names_exists() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    written = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    named = set(re.findall(r"\btest_\w+(?!\w|\.py)", page))
    assert len(named) > 40
    assert {name for name in named if f"def {name}(" not in "".join(written.values())} == set()
    for file, name in re.findall(r"`([\w/]+\.py)::(test_\w+)", page):
        place = ROOT / file if file.startswith("tests/") else ROOT / "tests" / "devices" / file
        assert f"def {name}(" in written[place], file


def test_the_folder_s_readme_lists_every_file() -> None:
    folder = ROOT / "src" / "fedpace" / "devices"
    named = set(re.findall(r"^\| `(\w+\.py)`", (folder / "README.md").read_text(), re.MULTILINE))
    there = {path.name for path in (*folder.glob("*.py"), *folder.glob("lab/*.py"))}
    assert named == there - {"__init__.py", "devices_pb2.py"}
