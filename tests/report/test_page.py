"""The page: whole without the network, and right in a browser."""

import base64
import csv
import gzip
import html
import io
import json
import re
import sys
import tomllib
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpace.errors import MissingExtraError
from fedpace.report.headline import headline
from fedpace.report.page import page
from fedpace.report.pictures import write_figures
from fedpace.report.setups import setups_of, without_sweeps
from fedpace.report.study_tables import csv_text, markdown
from fedpace.report.summary import Summary, summarise
from fedpace.rounds.rows import History
from fedpace.studies.store import Store
from fedpace.studies.study import Study

from .made import SCHEMES, START, made_run, small_study, store_real_runs
from .measured_runs import measured_setup

# The column of the page, and the one of the CSV whose numbers it shows.
SHOWN = {
    "time to loss 1.75, s": "seconds",
    "time until sustained, s": "sustained_seconds",
    "time vs optimal-mean, sustained": "sustained_to_proposed",
    "rounds": "rounds",
    "pilot time, s": "pilot_seconds",
    "time without pilots, s": "net_seconds",
    "time vs uniform": "to_uniform",
    "time vs optimal-mean": "to_proposed",
    "vs optimal-mean, without pilots": "net_to_proposed",
    "paper, s": "paper_seconds",
    "vs optimal-mean, paper": "paper_ratio",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Summary]]:
    """Write the page of three seeds of all schemes and of a sweep of c."""
    folder = tmp_path_factory.mktemp("runs")
    store_real_runs(folder)
    for c in (0.0, 2.0):
        store_real_runs(folder, f"sampling.c_over_s0={c}", seeds=1)
    setups, sweeps = without_sweeps(setups_of(Store(folder).runs()))
    summaries = [summarise(setup) for setup in setups]
    path = folder / "report.html"
    path.write_text(page(summaries, sweeps, runs_in=folder, files_in=folder), encoding="utf-8")
    return path, summaries


@pytest.fixture
def opened(browser: Any, made: tuple[Path, list[Summary]]) -> Any:
    browser.get(made[0].as_uri())
    wait = import_module("selenium.webdriver.support.ui").WebDriverWait(browser, 60)
    wait.until(lambda page: page.execute_script("return document.body.dataset.drawn"))
    return browser


def unpacked(text: str, name: str) -> str:
    """Return what the page holds under a name, as its script unpacks it."""
    (found,) = re.findall(f'id="{name}">(.*?)</script>', text, flags=re.DOTALL)
    return gzip.decompress(base64.b85decode(found.replace(",", "<"))).decode()


def shown_schemes(browser: Any, plot: int) -> set[str]:
    """Return the schemes of which a line is visible in a plot, as drawn, not as asked for."""
    script = """
        const plot = document.querySelectorAll(".plot")[arguments[0]];
        return plot._fullData.filter(trace => trace.visible === true)
            .filter(trace => plot.querySelector(".scatterlayer .trace" + trace.uid))
            .map(trace => trace.name);
    """
    return set(browser.execute_script(script, plot))


def test_page_asks_nobody_for_anything(made: tuple[Path, list[Summary]]) -> None:
    text = made[0].read_text(encoding="utf-8")
    own = re.sub(r'id="(plotly|plots)">.*?</script>', "", text, flags=re.DOTALL)
    assert len(own) < len(text) / 4, "plotly.js is there, once"
    assert len(text.encode()) < 2e6
    assert not re.findall(r"https?://|@import|\burl\(", own)
    assert re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=.([^\"'> ]*)", own) == ["data:,"]
    assert "default-src 'none'" in own


def test_configuration_on_the_page_is_the_study(made: tuple[Path, list[Summary]]) -> None:
    path, (summary, *_) = made
    text = path.read_text(encoding="utf-8")
    (block,) = re.findall("<details>.*?<pre>(.*?)</pre>", text, flags=re.DOTALL)
    assert Study.model_validate(tomllib.loads(html.unescape(block))) == summary.setup.study
    assert f"fedpace run {path.parent}/small.toml --schemes {','.join(SCHEMES)} --seeds 3" in text


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    title = "</script><script>alert(1)</script>"
    study = small_study(tmp_path).model_copy(update={"title": title})
    run = made_run(study, "uniform", 0, [START])
    text = page([summarise(setups_of([run])[0])], [], runs_in=Path("<b>"), files_in=Path("x"))
    assert "alert(1)</script>" not in text
    assert "<code>&lt;b&gt;</code>" in text


def test_a_scheme_of_your_own_cannot_break_the_page(tmp_path: Path) -> None:
    study, name = small_study(tmp_path), 'a "<i>own</i>" & such.py:mine'
    runs = [made_run(study, scheme, 0, [START]) for scheme in (name, "optimal-mean")]
    summaries = [summarise(setup) for setup in setups_of(runs)]
    made = page(summaries, [], runs_in=tmp_path, files_in=tmp_path)
    assert "<i>" not in made
    assert f'data-scheme="{html.escape(name)}"' in made


EVIL = "<img src=x onerror=\"document.title='forged'\">"


def crafted(folder: Path) -> list[Summary]:
    """Return what a crafted run file says: elements of HTML wherever a text can be."""
    study = small_study(folder, f"title={EVIL}")
    lines = [START, ("train", 1, 3.0, 1.7, 0.5), ("train", 2, 4.0, 1.6, 0.5)]
    runs = [made_run(study, name, 0, lines, version=EVIL) for name in (EVIL, "=1+1", "uniform")]
    drawn: dict[str, Any] = {
        "clients": np.array([0]),
        "client_seconds": np.ones(1),
        "grad_norms": np.ones(1),
    }
    rows = [[row._replace(why=EVIL, weights=np.ones(1), **drawn) for row in run.history.rows]
            for run in runs]  # fmt: skip
    runs = [replace(run, history=History(each)) for run, each in zip(runs, rows, strict=True)]
    return [summarise(setup) for setup in setups_of(runs)]


def test_a_crafted_run_file_adds_no_element_and_no_formula(tmp_path: Path) -> None:
    summaries = crafted(tmp_path)
    text = page(summaries, [], runs_in=tmp_path, files_in=tmp_path)
    assert "onerror=" in text  # it is shown
    assert "<img" not in text
    assert "<img" not in markdown(summaries)
    lines = list(csv.DictReader(io.StringIO(csv_text(summaries))))
    assert "'=1+1" in [line["scheme"] for line in lines]
    for path in write_figures(summaries, [], tmp_path):
        assert re.fullmatch(r"[A-Za-z0-9.-]+", path.name)


def test_no_script_is_run_but_the_pages_own(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    text = page(crafted(tmp_path), [], runs_in=tmp_path, files_in=tmp_path)
    assert "unsafe-inline" not in text.partition("script-src")[2].partition(";")[0]
    # As if some place had been forgotten.
    forgotten = f"{EVIL}<script>document.title = 'forged'</script></main>"
    path.write_text(text.replace("</main>", forgotten), encoding="utf-8")
    browser.get_log("browser")
    browser.get(path.as_uri())
    assert browser.title == "fedpace: time to target"
    assert browser.find_elements("css selector", ".plot .main-svg")  # its own are
    assert "Content Security Policy" in str(browser.get_log("browser"))


def test_a_run_that_diverged_is_drawn_as_far_as_it_goes(tmp_path: Path) -> None:
    lines = [START, ("train", 1, 1.0, 1.9, 0.1), ("train", 2, 2.0, float("nan"), 0.1)]
    run = made_run(small_study(tmp_path), "uniform", 0, lines)
    text = page([summarise(setups_of([run])[0])], [], runs_in=tmp_path, files_in=tmp_path)
    losses = json.loads(unpacked(text, "plots"))["plot-0"]["data"][1]["y"]
    assert (losses[0], losses[-1]) == (2.0, None)


def test_absurd_numbers_of_a_run_file_are_shown_somehow(tmp_path: Path) -> None:
    lines = [("train", i, 1e308, 1e308, 0.1) for i in range(3)]
    run = made_run(small_study(tmp_path), "uniform", 0, lines)
    drawn: dict[str, Any] = {
        "clients": np.array([0]), "client_seconds": np.ones(1), "grad_norms": np.ones(1),
    }  # fmt: skip
    rows = [row._replace(weights=np.ones(1), **drawn) for row in run.history.rows]
    run = replace(run, history=History(rows))
    text = page([summarise(setups_of([run])[0])], [], runs_in=tmp_path, files_in=tmp_path)
    assert "</html>" in text


def test_without_plotly_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    summary = summarise(setups_of([made_run(small_study(tmp_path), "full", 0, [START])])[0])
    with pytest.raises(MissingExtraError, match=r"fedpace\[report\]"):
        page([summary], [], runs_in=tmp_path, files_in=tmp_path)


def test_opens_without_an_error_or_a_request(opened: Any, made: tuple[Path, list[Summary]]) -> None:
    assert opened.execute_script("return document.querySelectorAll('.plot .main-svg').length") >= 7
    assert opened.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    asked = {
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
        and message["params"]["documentURL"] == made[0].as_uri()  # not Chromium's own tabs
    }
    outside = {url for url in asked if not url.startswith(("data:", "blob:"))}
    assert outside == {made[0].as_uri()}


def test_a_click_on_the_legend_switches_a_scheme_off_and_on_in_all_plots(opened: Any) -> None:
    everyone = shown_schemes(opened, 0)
    assert everyone == set(SCHEMES)
    button = opened.find_element("css selector", 'section .legend button[data-scheme="uniform"]')
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    for plot in range(3):
        assert shown_schemes(opened, plot) == everyone - {"uniform"}
    button.click()
    assert shown_schemes(opened, 0) == everyone
    assert opened.get_log("browser") == []


def test_numbers_on_the_page_are_those_of_the_csv(
    opened: Any, made: tuple[Path, list[Summary]]
) -> None:
    table = opened.find_element("css selector", "section table")
    titles = [cell.text.replace("\n", " ") for cell in table.find_elements("css selector", "th")]
    lines = table.find_elements("css selector", "tbody tr")
    records = csv.DictReader(io.StringIO(csv_text(made[1])))
    compared = 0
    for line, record in zip(lines, records, strict=True):
        cells = [cell.text for cell in line.find_elements("css selector", "td")]
        shown = dict(zip(titles, cells, strict=True))
        assert shown["scheme"] == record["scheme"]
        assert shown["reached"] == f"{record['reached']} of {record['runs']}"
        for title, name in SHOWN.items():  # a column that holds nothing is left out
            compared += agree(shown.get(title, ""), record, name)
    assert compared > 60


def agree(text: str, record: dict[str, str], name: str) -> int:
    """Check every number of a cell against the CSV to the digit shown, and count them."""
    numbers = re.findall(r"-?[\d,]*\.?\d+", text)
    names = (name, f"{name}_low", f"{name}_high")
    for number, column in zip(numbers, names, strict=False):
        digits = len(number.partition(".")[2])
        half_a_digit = 0.5 * 10.0**-digits * (1 + 1e-9)
        assert abs(float(number.replace(",", "")) - float(record[column])) <= half_a_digit
    if not numbers:
        assert record[name] in ("", "0.0")
    return len(numbers)


@pytest.mark.parametrize("width", [360, 1300])
def test_page_is_as_wide_as_the_window(opened: Any, width: int) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        opened.refresh()
        needed = opened.execute_script("return document.documentElement.scrollWidth")
        assert needed <= width
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_timelines_of_measured_runs_are_drawn_and_switched(browser: Any, tmp_path: Path) -> None:
    summary = summarise(measured_setup(schemes=("uniform", "optimal-mean"), seeds=1))
    path = tmp_path / "report.html"
    path.write_text(page([summary], [], runs_in=tmp_path, files_in=tmp_path), encoding="utf-8")
    browser.get(path.as_uri())
    script = """
        return [...document.querySelectorAll(".wide .plot")].map(plot =>
            [plot.querySelectorAll(".barlayer .point path").length,
             [...plot.querySelectorAll(".annotation-text")].map(text => text.textContent)]);
    """
    uniform, proposed = browser.execute_script(script)
    assert min(uniform[0], proposed[0]) > 100
    assert (uniform[1], proposed[1]) == (["training"], ["weighted pilot", "training"])
    browser.find_element("css selector", '.legend button[data-scheme="uniform"]').click()
    assert browser.execute_script(script)[0][0] == 0
    assert browser.execute_script(script)[1][0] == proposed[0]
    assert browser.get_log("browser") == []


def test_the_page_says_who_was_first_and_offers_the_numbers(
    made: tuple[Path, list[Summary]],
) -> None:
    path, (summary, *_) = made
    text = path.read_text(encoding="utf-8")
    said = headline(summary)
    assert f'<p class="headline">{html.escape(said)}</p>' in text
    (packed,) = set(re.findall(r'download="small.csv" href="data:text/csv;base64,([^"]*)"', text))
    assert base64.b64decode(packed).decode() == csv_text([summary])


def test_a_dark_browser_gets_dark_plots(opened: Any) -> None:
    opened.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    colour = "return document.querySelector('.plot').layout.paper_bgcolor"
    wait = import_module("selenium.webdriver.support.ui").WebDriverWait(opened, 20)
    wait.until(lambda page: page.execute_script(colour) == "#16181c")
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_every_logarithmic_axis_has_numbers(opened: Any) -> None:
    script = """
        return [...document.querySelectorAll(".plot")].map(plot =>
            [".xtick text", ".ytick text"].map(s => plot.querySelectorAll(s).length));
    """
    assert all(min(ticks) >= 2 for ticks in opened.execute_script(script))
