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
