"""The tests that docs/reliability.md names are there."""

import re

from tests.network.fleet import ROOT


def test_every_test_that_the_page_names_exists() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    named = set(re.findall(r"\btest_\w+(?!\w|\.py)", page))
    places = ("network/test_*.py", "lab/test_*.py", "cli/test_lab.py")
    files = [file for place in places for file in (ROOT / "tests").glob(place)]
    written = "".join(file.read_text() for file in files)
    assert len(named) > 40
    assert {name for name in named if f"def {name}(" not in written} == set()
