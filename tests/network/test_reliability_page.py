"""The tests that docs/reliability.md names are there."""

import re

from tests.network.fleet import ROOT


def test_every_test_that_the_page_names_exists() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    named = set(re.findall(r"\btest_\w+(?!\w|\.py)", page))
    folders = [ROOT / "tests" / name for name in ("network", "lab")]
    written = "".join(file.read_text() for folder in folders for file in folder.glob("test_*.py"))
    assert len(named) > 40
    assert {name for name in named if f"def {name}(" not in written} == set()
