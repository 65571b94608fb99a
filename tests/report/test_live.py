"""The page while runs are done: it grows in a browser, and ends with the command."""

from __future__ import annotations

import re
import signal
import socket
import struct
import threading
import urllib.error
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from fedpace.report.live import Live
from fedpace.studies.callbacks import Remaining
from fedpace.studies.runner import run_study
from fedpace.studies.store import Job
from fedpace.training.callbacks import Callback, RunInfo
from fedpace.training.history import Row
from fedpace.training.stopping import Stop
from tests.report.asking import asked, url_of
from tests.studies.tiny import LONG, begin, session_is_empty, tiny_study, wait_until, write_setup
from tests.training.fakes import row

JOB = Job("uniform", 0)


class Gate(Callback):
    """Holds up training at some rounds until it is let through."""

    def __init__(self, *rounds: int) -> None:
        self._closed = {number: threading.Event() for number in rounds}

    def on_row(self, run: RunInfo, row: Row) -> None:
        if run.scheme == JOB.scheme and row.round in self._closed:
            assert self._closed[row.round].wait(600)

    def open(self, number: int) -> None:
        self._closed[number].set()


def test_the_page_grows_in_a_browser_while_runs_are_done(browser: Any, tmp_path: Path) -> None:
    study = tiny_study(tmp_path, "stop.loss=none", "stop.rounds=9")
    gate, out = Gate(2, 5), tmp_path / "runs"
    wait = import_module("selenium.webdriver.support.ui").WebDriverWait(browser, 300)

    def text(selector: str) -> str:
        return str(browser.execute_script(
            "return document.querySelector(arguments[0])?.textContent ?? ''", selector
        ))  # fmt: skip

    def until(condition: Callable[[], object]) -> None:
        wait.until(lambda _: condition())

    def work(live: Live) -> None:
        with live:
            live.of(study)
            schemes = ["uniform", "weighted"]
            run_study(study, schemes, [0], out, processes=1, callbacks=[live, gate])

    live = Live(out, print)
    training = threading.Thread(target=work, args=(live,))
    training.start()
    browser.get_log("browser")
    browser.get(live.url)
    until(lambda: "train, 2" in text("#live tbody"))
    assert "0 of 2 runs are done" in text("#live .standing")
    assert "uniform, seed 0" in text("#live tbody")
    assert re.search(r"client \d+ \(\d", text("#live tbody"))  # who was waited for
    points = """
        const drawn = views.get(document.querySelector("#live .plot"));
        return drawn ? drawn.view.data("runs").length : 0;
    """
    until(lambda: browser.execute_script(points) == 2)
    assert not browser.find_elements("css selector", "main section")
    gate.open(2)
    until(lambda: "train, 5" in text("#live tbody"))
    until(lambda: browser.execute_script(points) == 5)
    assert re.search(r"\d:\d\d:\d\d$", text("#live tbody tr"))  # the time left
    gate.open(5)
    until(lambda: "The command has ended" in text("#live .standing"))
    training.join(60)
    assert not training.is_alive()
    assert "2 of 2 runs are done" in text("#live .standing")
    # The report of what is finished has come, and works as it does in a file.
    assert "weighted" in text("main section table")
    button = browser.find_element("css selector", '.legend button[data-scheme="uniform"]')
    browser.execute_script("arguments[0].click()", button)
    assert button.get_attribute("aria-pressed") == "false"
    assert browser.get_log("browser") == []


def test_only_this_machine_is_answered_and_nothing_but_the_page(tmp_path: Path) -> None:
    with Live(tmp_path, print) as live:
        assert live.url.startswith("http://127.0.0.1:")
        assert "connect-src 'self'" in asked(live.url)
        for url, headers, status in (
            (live.url, {"Host": "example.org:80"}, 403),
            (f"{live.url}etc/passwd", {}, 404),
        ):
            with pytest.raises(urllib.error.HTTPError) as error:
                asked(url, **headers)
            assert error.value.code == status
            error.value.close()


def test_a_browser_that_hangs_up_is_not_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Live(tmp_path, print) as live:
        port = int(live.url.rstrip("/").rpartition(":")[2])
        request = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", port)) as browser:
                browser.sendall(request)
                browser.recv(1)  # the page has begun to come
                # Closed with a reset, as by a tab that is closed.
                browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert "connect-src" in asked(live.url)
        for thread in threading.enumerate():
            if "process_request_thread" in thread.name:
                thread.join(60)
    assert capsys.readouterr().err == ""


def test_a_page_knows_the_rounds_that_a_run_goes_on_from(tmp_path: Path) -> None:
    with Live(tmp_path, print) as live:
        live.of(tiny_study(tmp_path, "stop.rounds=9"))
        live.on_start(RunInfo(*JOB), [row(round=0), row(round=1), row(round=2)])
        live.on_row(RunInfo(*JOB), row(round=3))
        now = asked(f"{live.url}now")
        asked(f"{live.url}seen")  # as a page does at the end, which is waited for
    (run,) = now["runs"]
    assert run["round"] == 3
    assert run["left"] is None  # nothing is known from a single round of now
    assert len(now["chart"]["datasets"]["runs"]) == 3


def test_a_page_tells_who_is_waited_for_before_the_first_round(tmp_path: Path) -> None:
    with Live(tmp_path, print) as live:
        live.of(tiny_study(tmp_path))
        live.awaited = lambda: [f"device-{number}" for number in range(7)]
        live.on_start(RunInfo(*JOB), ())
        (run,) = asked(f"{live.url}now")["runs"]
        asked(f"{live.url}seen")  # as a page does at the end, which is waited for
    names = ", ".join(f"device-{number}" for number in range(5))
    assert run["waits"] == f"{names} and 2 more"
    assert run["round"] is None


def test_numbers_that_are_none_do_not_stop_the_page(tmp_path: Path) -> None:
    with Live(tmp_path, print) as live:
        live.of(tiny_study(tmp_path))
        live.on_row(RunInfo(*JOB), row(round=1, loss=float("nan"), accuracy=float("inf")))
        (run,) = asked(f"{live.url}now")["runs"]
        asked(f"{live.url}seen")  # as a page does at the end, which is waited for
    assert run["loss"] is None
    assert run["accuracy"] is None


def test_what_is_left_follows_the_rounds() -> None:
    remaining = Remaining(Stop(rounds=10), iter([100.0, 103.0, 104.0]).__next__)
    assert remaining.seconds(row(round=1)) is None
    assert remaining.seconds(row(round=4)) == pytest.approx(6.0)  # 3 rounds took 3 s
    assert remaining.seconds(row(round=10)) == 0.0


@pytest.mark.slow
def test_ctrl_c_ends_a_command_with_a_page(tmp_path: Path) -> None:
    changes = [part for each in (*LONG[:1], "stop.rounds=100000") for part in ("--set", each)]
    process = begin(
        write_setup(tmp_path), "--schemes", "uniform", "--out", tmp_path / "runs", "--live",
        "--processes", 2, *changes,
    )  # fmt: skip
    url = url_of(process)
    wait_until(lambda: len(asked(f"{url}now")["runs"]) == 2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted: 0 of 5 runs are stored" in err
    assert "Traceback" not in err
    wait_until(lambda: session_is_empty(process.pid))
