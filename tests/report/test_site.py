"""The site of the documentation, opened from a folder, without a server or a network."""

import importlib.util
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ALL_THERE = importlib.util.find_spec("mkdocs") and importlib.util.find_spec("latex2mathml")
pytestmark = pytest.mark.skipif(not ALL_THERE, reason="needs what `make docs` installs")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder],
        cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True,
    )  # fmt: skip
    return folder


def test_the_search_finds_pages_without_a_server(site: Path, browser: Any) -> None:
    wait = import_module("selenium.webdriver.support.ui").WebDriverWait(browser, 60)
    browser.get((site / "start" / "flower.html").as_uri())
    browser.find_element("css selector", ".md-search__input").send_keys("checkpoint")
    links = wait.until(lambda it: it.find_elements("css selector", ".md-search-result__link"))
    assert any("reliability.html" in link.get_attribute("href") for link in links)


def test_formulas_are_drawn_as_formulas_and_stay_in_their_boxes(site: Path, browser: Any) -> None:
    in_source = (ROOT / "docs" / "method.md").read_text(encoding="utf-8").count("```math")
    page = (site / "method.html").read_text(encoding="utf-8")
    assert (
        page.count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">') == in_source
    )
    assert not re.findall(r"<merror|\\[a-zA-Z]+", "".join(re.findall(r"<math.*?</math>", page)))
    browser.get((site / "method.html").as_uri())
    heights, outside = browser.execute_script(
        "const all = [...document.querySelectorAll('div.formula')];"
        "return [all.map((e) => e.querySelector('math').getBoundingClientRect().height),"
        "        document.documentElement.scrollWidth - innerWidth]"
    )
    assert len(heights) == in_source
    assert outside <= 0
    # A fraction or the limits of a sum stand above each other: most are higher than a line of text.
    assert sum(height > 30 for height in heights) > in_source / 2
