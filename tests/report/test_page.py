"""The page: whole without the network, and right in a browser."""

import base64
import csv
import gzip
import html
import io
import json
import re
import tomllib
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpace.report.notes import headline
from fedpace.report.page import page
from fedpace.report.report import Report
from fedpace.report.setups import setups_of, without_sweeps
from fedpace.report.study_tables import csv_text, markdown
from fedpace.report.summary import Summary, summarise
from fedpace.studies.store import Store
from fedpace.studies.study import Study
from fedpace.training.history import History

from .made import SCHEMES, START, made_run, small_study, store_real_runs
from .measured_runs import measured_setup

# The columns of the first table, and those of the CSV whose numbers they show, inverted or not.
SHOWN = (("seconds", False), ("to_uniform", True), ("to_best_other", True), ("accuracy", False))


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
    wait = import_module("selenium.webdriver.support.ui").WebDriverWait(browser, 300)
    wait.until(lambda page: page.execute_script("return document.body.dataset.drawn"))
    return browser


def unpacked(text: str, name: str) -> str:
    """Return what the page holds under a name, as its script unpacks it."""
    (found,) = re.findall(f'id="{name}">(.*?)</script>', text, flags=re.DOTALL)
    return gzip.decompress(base64.b85decode(found.replace(",", "<"))).decode()


def shown_schemes(browser: Any, chart: int) -> set[str]:
    """Return the schemes of which a line is visible in a chart, as drawn, not as asked for."""
    script = """
        const found = new Set();
        const walk = mark => {
            const [first] = mark.items ?? [];
            if (mark.marktype === "line" && first) found.add(first.datum.scheme);
            for (const item of mark.items ?? []) for (const part of item.items ?? []) walk(part);
        };
        const place = document.querySelectorAll("main .plot")[arguments[0]];
        walk(views.get(place).view.scenegraph().root);
        return [...found];
    """
    return set(browser.execute_script(script, chart))


def open_all(browser: Any) -> None:
    """Unfold every part of the page, and wait until its charts are drawn."""
    browser.execute_script("document.querySelectorAll('details').forEach(one => one.open = true)")
    wait = import_module("selenium.webdriver.support.ui").WebDriverWait(browser, 300)
    script = "return [...document.querySelectorAll('main .plot')].every(one => views.has(one))"
    wait.until(lambda page: page.execute_script(script))


def test_page_asks_nobody_for_anything(made: tuple[Path, list[Summary]]) -> None:
    text = made[0].read_text(encoding="utf-8")
    own = re.sub(r'id="(vega|charts)">.*?</script>', "", text, flags=re.DOTALL)
    assert len(own) < len(text) / 4, "Vega is there, once"
    assert len(text.encode()) < 1.5e6
    assert not re.findall(r"https?://|@import|\burl\(", own)
    assert re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=.([^\"'> ]*)", own) == ["data:,"]
    assert "default-src 'none'" in own
    assert "unsafe-eval" not in own


def test_configuration_on_the_page_is_the_study(made: tuple[Path, list[Summary]]) -> None:
    path, (summary, *_) = made
    text = path.read_text(encoding="utf-8")
    (block,) = re.findall("Configuration</summary><pre>(.*?)</pre>", text, flags=re.DOTALL)
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
    for path in Report(summaries, []).write_figures(tmp_path):
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
    wait = import_module("selenium.webdriver.support.ui").WebDriverWait(browser, 300)
    wait.until(lambda page: page.find_elements("css selector", ".plot canvas"))  # its own are
    assert "Content Security Policy" in str(browser.get_log("browser"))


def test_a_run_that_diverged_is_drawn_as_far_as_it_goes(tmp_path: Path) -> None:
    lines = [START, ("train", 1, 1.0, 1.9, 0.1), ("train", 2, 2.0, float("nan"), 0.1)]
    run = made_run(small_study(tmp_path), "uniform", 0, lines)
    text = page([summarise(setups_of([run])[0])], [], runs_in=tmp_path, files_in=tmp_path)
    rows = json.loads(unpacked(text, "charts"))["specs"]["chart-0"]["datasets"]["curves"]
    assert (rows[0]["mean"], rows[-1]["mean"]) == (2.0, None)


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


@pytest.mark.parametrize("name", [r"$\input{x}$", "{{x}}", "a\u202eb", "datum.x", "'];alert(1)//"])
def test_whatever_a_scheme_is_called_it_and_the_others_are_reported(
    name: str, tmp_path: Path
) -> None:
    study = small_study(tmp_path)
    lines = [START, ("train", 1, 3.0, 1.7, 0.5)]
    run = made_run(study, name, 0, lines)
    drawn: dict[str, Any] = {
        "clients": np.array([0]), "client_seconds": np.ones(1), "grad_norms": np.ones(1),
    }  # fmt: skip
    rows = [row._replace(weights=np.ones(1), **drawn) for row in run.history.rows]
    runs = [replace(run, history=History(rows)), made_run(study, "uniform", 0, lines)]
    report = Report.of(runs)
    text = report.write_page(tmp_path, runs_in=tmp_path).read_text(encoding="utf-8")
    assert f'data-scheme="{html.escape(name)}"' in text
    assert "Cannot be shown" not in text
    figures = {path.name for path in report.write_figures(tmp_path)}
    assert {"small-loss-seconds.png", "small-probabilities.png"} <= figures
    assert any(path.startswith("small-timeline-") for path in figures)
    assert all(list(report.write_tables(tmp_path)))


def test_a_setup_that_cannot_be_shown_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("fedpace.report.page")
    usual = module.study_figures

    def failing(summary: Summary) -> Any:
        if summary.setup.study.training.k == 2:
            raise OverflowError("<absurd>")
        return usual(summary)

    monkeypatch.setattr(module, "study_figures", failing)
    runs = [
        made_run(small_study(tmp_path, f"training.k={k}"), "uniform", 0, [START]) for k in (2, 3)
    ]
    report = Report.of(runs)
    text = page(report.summaries, [], runs_in=tmp_path, files_in=tmp_path)
    assert "Cannot be shown: OverflowError: &lt;absurd&gt;" in text
    assert text.count('class="plot"') >= 1


def test_opens_without_an_error_or_a_request(opened: Any, made: tuple[Path, list[Summary]]) -> None:
    open_all(opened)
    assert opened.execute_script("return document.querySelectorAll('.plot canvas').length") >= 7
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
    open_all(opened)
    everyone = shown_schemes(opened, 0)
    assert everyone == set(SCHEMES)
    wait = import_module("selenium.webdriver.support.ui").WebDriverWait(opened, 120)
    button = opened.find_element("css selector", 'section .legend button[data-scheme="uniform"]')
    opened.execute_script("arguments[0].click()", button)
    assert button.get_attribute("aria-pressed") == "false"
    for chart in range(3):
        wait.until(lambda page, chart=chart: shown_schemes(page, chart) == everyone - {"uniform"})
    timeline = opened.find_element("css selector", 'figure.wide[data-scheme="uniform"]')
    assert not timeline.is_displayed()
    opened.execute_script("arguments[0].click()", button)
    wait.until(lambda page: shown_schemes(page, 0) == everyone)
    assert timeline.is_displayed()
    assert opened.get_log("browser") == []


def test_numbers_on_the_page_are_those_of_the_csv(
    opened: Any, made: tuple[Path, list[Summary]]
) -> None:
    table = opened.find_element("css selector", "section table.main")
    assert len(table.find_elements("css selector", "th")) == 5
    lines = table.find_elements("css selector", "tbody tr")
    records = {each["scheme"]: each for each in csv.DictReader(io.StringIO(csv_text(made[1])))}
    compared = 0
    for line in lines:
        record = records[line.get_attribute("data-scheme")]
        cells = [cell.text for cell in line.find_elements("css selector", "td")]
        assert record["scheme"] in cells[0]
        for text, (name, inverted) in zip(cells[1:], SHOWN, strict=True):
            compared += agree(text, record, name, inverted=inverted)
    assert compared > 40
    seconds = [float(records[each.get_attribute("data-scheme")]["seconds"]) for each in lines]
    assert seconds == sorted(seconds)  # the winner first


def agree(text: str, record: dict[str, str], name: str, *, inverted: bool) -> int:
    """Check every number of a cell against the CSV to the digit shown, and count them."""
    numbers = re.findall(r"-?[\d,]*\.?\d+", text)
    ends = ("_high", "_low") if inverted else ("_low", "_high")
    for number, end in zip(numbers, ("", *ends), strict=False):
        value = float(record[f"{name}{end}"])
        value = 1 / value if inverted else 100 * value if "%" in text else value
        digits = len(number.partition(".")[2])
        half_a_digit = 0.5 * 10.0**-digits * (1 + 1e-9)
        assert abs(float(number.replace(",", "")) - value) <= half_a_digit
    if not numbers:
        assert record[name] in ("", "0.0")
    return len(numbers)


def test_a_click_on_a_title_sorts_the_table(opened: Any) -> None:
    def schemes() -> list[str]:
        rows = opened.find_elements("css selector", "table.main tbody tr")
        return [row.get_attribute("data-scheme") for row in rows]

    scheme, seconds, *_ = opened.find_elements("css selector", "table.main th")
    before = schemes()
    opened.execute_script("arguments[0].click()", scheme)
    assert schemes() == sorted(before)
    opened.execute_script("arguments[0].click()", scheme)
    assert schemes() == sorted(before, reverse=True)
    opened.execute_script("arguments[0].click()", seconds)
    values = "return [...document.querySelectorAll(arguments[0])].map(cell => +cell.dataset.value)"
    times = opened.execute_script(values, "table.main td:nth-child(2)")
    assert times == sorted(times)
    assert schemes()[:2] == before[:2]


@pytest.mark.parametrize("width", [360, 400, 1300])
def test_page_is_as_wide_as_the_window(opened: Any, width: int) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        opened.refresh()
        wait = import_module("selenium.webdriver.support.ui").WebDriverWait(opened, 300)
        wait.until(lambda page: page.execute_script("return document.body.dataset.drawn"))
        open_all(opened)
        needed = opened.execute_script("return document.documentElement.scrollWidth")
        assert needed <= width
        overflow = "return arguments[0].scrollWidth - arguments[0].clientWidth"
        main = opened.find_element("css selector", ".scroll:has(table.main)")
        if width >= 400:
            assert opened.execute_script(overflow, main) <= 0
        charts = "return [...document.querySelectorAll('main canvas')].map(c => c.offsetWidth)"
        assert all(0.5 * width / 2 < each <= width for each in opened.execute_script(charts))
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_timelines_of_measured_runs_are_drawn_and_switched(browser: Any, tmp_path: Path) -> None:
    summary = summarise(measured_setup(schemes=("uniform", "optimal-mean"), seeds=1))
    path = tmp_path / "report.html"
    path.write_text(page([summary], [], runs_in=tmp_path, files_in=tmp_path), encoding="utf-8")
    browser.get_log("browser")
    browser.get(path.as_uri())
    wait = import_module("selenium.webdriver.support.ui").WebDriverWait(browser, 300)
    wait.until(lambda page: page.execute_script("return document.body.dataset.drawn"))
    assert not browser.find_elements("css selector", "details canvas")  # folded: not drawn yet
    open_all(browser)
    script = """
        return [...document.querySelectorAll(".wide .plot")].map(
            plot => views.get(plot).view.data("replies").length);
    """
    assert min(browser.execute_script(script)) > 100
    button = browser.find_element("css selector", '.legend button[data-scheme="uniform"]')
    browser.execute_script("arguments[0].click()", button)
    uniform, proposed = browser.find_elements("css selector", "figure.wide")
    assert not uniform.is_displayed()
    assert proposed.is_displayed()
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


def test_a_dark_browser_gets_dark_charts(opened: Any) -> None:
    opened.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    colour = """
        const place = document.querySelector("main .plot");
        return views.get(place)?.view.background();
    """
    wait = import_module("selenium.webdriver.support.ui").WebDriverWait(opened, 120)
    wait.until(lambda page: page.execute_script(colour) == "#16181c")
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    wait.until(lambda page: page.execute_script(colour) == "#ffffff")
