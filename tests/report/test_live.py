"""The page while runs are done: it grows in a browser, and ends with the command."""

from __future__ import annotations

import re
import signal
import socket
import struct
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from fedpace.report.live import MOST, Live
from fedpace.studies.build import run_one
from fedpace.studies.runner import run_study
from fedpace.studies.store import Job, Store
from fedpace.training.callbacks import Callback, Remaining, RunInfo
from fedpace.training.history import Row
from fedpace.training.stopping import Stop
from tests.cli.calling import assert_refused, command, run
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
    training.join(600)
    assert not training.is_alive()
    assert "2 of 2 runs are done" in text("#live .standing")
    # The report of what is finished has come, and works as it does in a file.
    assert "weighted" in text("main section table")
    button = browser.find_element("css selector", '.legend button[data-scheme="uniform"]')
    browser.execute_script("arguments[0].click()", button)
    assert button.get_attribute("aria-pressed") == "false"
    assert browser.get_log("browser") == []


def refusal(url: str, *, post: bool = False, site: str = "none", **headers: str) -> int:
    """Return the status of a request that is refused."""
    headers |= {"Sec-Fetch-Site": site}
    with pytest.raises(urllib.error.HTTPError) as error:
        asked(url, headers, post=post)
    with error.value as answer:
        assert answer.read() == b""
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        return answer.code


def test_only_this_machine_is_answered_and_nothing_but_the_page(tmp_path: Path) -> None:
    with Live(tmp_path, print) as live:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{22}/", live.url)
        assert "connect-src 'self'" in asked(live.url)
        assert refusal(live.url, Host="example.org:80") == 403
        assert refusal(f"{live.url}etc/passwd") == 404


def test_nothing_is_answered_without_the_token(tmp_path: Path) -> None:
    with Live(tmp_path, print) as live:
        bare = live.url.rstrip("/").rpartition("/")[0]
        for url in (f"{bare}/", f"{bare}/now", f"{bare}/{'x' * 22}/", f"{bare}/{'x' * 22}/now"):
            assert refusal(url) == 404


def test_commands_of_other_sites_are_not_obeyed(tmp_path: Path) -> None:
    with Live(tmp_path, print) as live:
        seen = live.url + "seen"
        bare = live.url.rstrip("/").rpartition("/")[0]
        assert refusal(seen) == 404  # as an image of another page asks
        assert refusal(seen, post=True, site="cross-site") == 403
        assert refusal(f"{bare}/seen", post=True) == 403
        assert refusal(live.url, site="same-site") == 403
        assert not live._seen.is_set()
        asked(seen, {"Sec-Fetch-Site": "same-origin"}, post=True)
        assert live._seen.wait(60)  # it is set after the answer


def test_the_page_is_sent_with_a_policy(tmp_path: Path) -> None:
    with Live(tmp_path, print) as live, urllib.request.urlopen(live.url, timeout=600) as answer:
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert policy.endswith("; frame-ancestors 'none'")
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Server"] == "fedpace"


def test_unfinished_requests_hold_few_threads_and_not_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpace.report.live.LONGEST", 0.5)
    with Live(tmp_path, print) as live, ExitStack() as stack:
        before, port = threading.active_count(), urlsplit(live.url).port
        for _ in range(100):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", port or 0)))
            with suppress(OSError):  # it may be closed by now
                stranger.sendall(b"GET / HTTP/1.1\r\nHost: ")
            assert threading.active_count() <= before + MOST

        def answered() -> bool:
            with suppress(OSError):
                return "connect-src" in asked(live.url)
            return False

        wait_until(answered)  # while the strangers are still there


def test_a_request_that_comes_byte_by_byte_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpace.report.live.LONGEST", 0.5)
    with Live(tmp_path, print) as live:
        address = "127.0.0.1", urlsplit(live.url).port or 0
        with socket.create_connection(address) as stranger:
            stranger.settimeout(0.05)
            open_, ended = True, (ConnectionResetError, BrokenPipeError)
            while open_:
                try:
                    stranger.sendall(b"x")
                    open_ = bool(stranger.recv(1))
                except TimeoutError:
                    continue
                except ended:
                    open_ = False


def test_a_browser_that_hangs_up_is_not_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Live(tmp_path, print) as live:
        port, path = urlsplit(live.url).port or 0, urlsplit(live.url).path
        request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", port)) as browser:
                browser.sendall(request)
                browser.recv(1)  # the page has begun to come
                # Closed with a reset, as by a tab that is closed.
                browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert "connect-src" in asked(live.url)
        for thread in threading.enumerate():
            if "process_request_thread" in thread.name:
                thread.join(600)
    assert capsys.readouterr().err == ""


def test_a_page_knows_the_rounds_that_a_run_goes_on_from(tmp_path: Path) -> None:
    with Live(tmp_path, print) as live:
        live.of(tiny_study(tmp_path, "stop.rounds=9"))
        live.on_start(RunInfo(*JOB), [row(round=0), row(round=1), row(round=2)])
        live.on_row(RunInfo(*JOB), row(round=3))
        now = asked(f"{live.url}now")
        asked(f"{live.url}seen", post=True)  # as a page does at the end, which is waited for
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
        asked(f"{live.url}seen", post=True)  # as a page does at the end, which is waited for
    names = ", ".join(f"device-{number}" for number in range(5))
    assert run["waits"] == f"{names} and 2 more"
    assert run["round"] is None


def test_numbers_that_are_none_do_not_stop_the_page(tmp_path: Path) -> None:
    with Live(tmp_path, print) as live:
        live.of(tiny_study(tmp_path))
        live.on_row(RunInfo(*JOB), row(round=1, loss=float("nan"), accuracy=float("inf")))
        (run,) = asked(f"{live.url}now")["runs"]
        asked(f"{live.url}seen", post=True)  # as a page does at the end, which is waited for
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
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "interrupted: 0 of 5 runs are stored" in err
    assert "Traceback" not in err
    wait_until(lambda: session_is_empty(process.pid))


def test_a_stored_study_is_opened_and_grows(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    study = tiny_study(tmp_path, "stop.loss=none", "stop.rounds=2")
    Store(out).save(study, "uniform", 0, run_one(study, "uniform", 0))
    command_line = command("live", out)
    with subprocess.Popen(command_line, stderr=subprocess.PIPE, text=True) as process:
        url = url_of(process)
        assert "1 run in" in asked(url)
        now = asked(f"{url}now")
        assert (now["stored"], now["total"], now["over"]) == (1, 0, False)
        Store(out).save(study, "uniform", 1, run_one(study, "uniform", 1))
        assert asked(f"{url}now")["stored"] == 2
        assert "2 runs in" in asked(url)
        process.send_signal(signal.SIGINT)
        assert process.wait(600) == 0
    done = run("live", tmp_path / "nothing")
    assert_refused(done, "is not a directory")
