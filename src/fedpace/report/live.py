"""The report's page while runs are under way, served on this machine."""

from __future__ import annotations

import contextlib
import json
import math
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hmac import compare_digest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from string import Template
from typing import Any

import altair as alt
import numpy as np

from fedpace.errors import join_names
from fedpace.report.charts import (
    Figure,
    chart_of,
    colour,
    dash,
    level,
    log_position,
    numbers,
    records,
    spec,
)
from fedpace.report.notes import title_of
from fedpace.report.page import page, part
from fedpace.report.report import Report
from fedpace.report.study_charts import LABELS
from fedpace.studies.build import stop_rule
from fedpace.studies.store import Job, Store, StoredRun
from fedpace.studies.study import Study
from fedpace.training.callbacks import Callback, Progress, Remaining, RunInfo
from fedpace.training.history import Row

# Only this machine is answered.
HERE = "127.0.0.1"
# Seconds: a page that asked within OPEN is open, and gets FAREWELL to see the end.
OPEN, FAREWELL = 5.0, 10.0
# Connections at the same time, and seconds for each.
MOST, LONGEST = 16, 10.0
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # it would tell the token
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
# The policy that the page itself gives.
POLICY = re.compile(r'"Content-Security-Policy" content="([^"]+)"')
# Of one line; a screen shows no more.
MOST_POINTS = 500
# Devices that are waited for, written out by name.
NAMED = 5


@dataclass
class _Going:
    """A run under way: its clock, losses, last row, and how long it may last."""

    remaining: Remaining
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    row: Row | None = None
    left: float | None = None


class Live(Callback):
    """Serve the page of the runs in a directory, with what is under way on top.

    Parameters
    ----------
    directory : Path
        Where runs are stored.
    say : callable of a str
        Called with a message for each run that cannot be read.

    Attributes
    ----------
    url : str
        Where the page is. It holds a token: who does not know it gets nothing.
    awaited : callable
        Returns the names of the devices that are waited for; none where clients are simulated.
    """

    def __init__(self, directory: Path, say: Callable[[str], None]) -> None:
        self.awaited: Callable[[], Sequence[str]] = tuple
        self._directory, self._say = directory, say
        self._study: Study | None = None
        self._standing = Progress(0, 0)
        self._going: dict[Job, _Going] = {}
        self._known: set[str] = set()
        self._runs: list[StoredRun] = []
        self._page = ""
        self._over = False
        self._asked, self._seen = -math.inf, threading.Event()
        self._making = threading.Lock()
        self.page()  # says now which package is missing
        token = secrets.token_urlsafe(16)
        self._server = _Server((HERE, 0), _make_handler(self, token))
        self.url = f"http://{HERE}:{self._server.server_port}/{token}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Live:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        """Stop serving, once an open page has seen the end; after an error, at once."""
        self._over = True
        if error is None and time.monotonic() - self._asked < OPEN:
            self._seen.wait(FAREWELL)
        self._server.shutdown()
        self._server.server_close()

    def of(self, study: Study) -> None:
        """Set the study whose runs come next."""
        self._study, self._going = study, {}

    def on_progress(self, progress: Progress) -> None:
        """Show how many runs are done."""
        self._standing = progress

    def on_start(self, run: RunInfo, rows: Sequence[Row]) -> None:
        """Show a run, with its rounds of an earlier command."""
        if self._study is None:
            return
        job, going = Job(run.scheme, run.seed), _Going(Remaining(stop_rule(self._study)))
        rounds = rows[1:]  # the first row is that of the initial model
        going.seconds += [row.seconds for row in rounds]
        going.losses += [row.loss for row in rounds]
        going.row = rounds[-1] if rounds else None
        self._going = {**self._going, job: going}

    def on_row(self, run: RunInfo, row: Row) -> None:
        """Show a round."""
        if (job := Job(run.scheme, run.seed)) not in self._going:
            self.on_start(run, ())
        going = self._going[job]
        going.seconds.append(row.seconds)
        going.losses.append(row.loss)
        going.row, going.left = row, going.remaining.seconds(row)

    def on_end(self, run: RunInfo) -> None:
        """Put a run into the report."""
        over = Job(run.scheme, run.seed)
        self._going = {job: going for job, going in self._going.items() if job != over}

    def page(self) -> str:
        """Return the page of what is stored by now."""
        with self._making:
            store, here = Store(self._directory), self._directory
            if (new := store.keys() - self._known) or not self._page:
                self._runs += store.runs(self._say, keys=new)
                self._known |= new
                top = Template(part("live.html")).substitute(stored=len(self._known))
                self._page = page(*Report.of(self._runs), runs_in=here, files_in=here, live=top)
            return self._page

    def now(self) -> dict[str, Any]:
        """Return what is under way, as JSON values."""
        self._asked = time.monotonic()
        going, standing = self._going, self._standing
        return {
            "heading": "" if self._study is None else title_of(self._study),
            "done": standing.done,
            "total": standing.total,
            "left": standing.seconds_left,
            "stored": len(Store(self._directory).keys() | self._known),
            "over": self._over,
            "runs": [self._status(job, run) for job, run in going.items()],
            "chart": self._chart(going),
        }

    def mark_seen(self) -> None:
        """Note that an open page has seen the end."""
        self._seen.set()

    def _status(self, job: Job, run: _Going) -> dict[str, Any]:
        row = run.row
        status = {"name": str(job), "waits": self._waits(row), "left": run.left, "share": 0.0}
        if row is None:
            return status | dict.fromkeys(("phase", "round", "seconds", "loss", "accuracy"))
        seconds, loss, accuracy = numbers([row.seconds, row.loss, row.accuracy])
        now = {"seconds": seconds, "loss": loss, "accuracy": accuracy}
        return status | now | {
            "phase": row.phase, "round": row.round, "share": run.remaining.share(row),
        }  # fmt: skip

    def _waits(self, row: Row | None) -> str:
        """Return the clients waited for, or the slowest client of the last round."""
        if names := self.awaited():
            more = len(names) - NAMED
            return join_names(names[:NAMED]) + f" and {more} more" * (more > 0)
        if row is None or not row.clients.size:
            return ""
        slowest = int(np.argmax(row.client_seconds))
        return f"client {row.clients[slowest]} ({row.client_seconds[slowest]:.3g} s)"

    def _chart(self, going: dict[Job, _Going]) -> dict[str, Any] | None:
        """Return the losses of the runs under way as a chart; None before the first."""
        shown = {str(job): (job, run) for job, run in going.items() if run.losses}
        if not shown:
            return None
        stop = None if self._study is None else self._study.stop.loss
        rows = [row for name, (_, run) in shown.items() for row in _points(name, run)]
        names = list(shown)
        legend = alt.Legend(orient="bottom", columns=2)
        looks: dict[str, Any] = {"title": None, "sort": names, "legend": legend}
        colours = [colour(job.scheme) for job, _ in shown.values()]
        dashes = [dash(job.scheme) for job, _ in shown.values()]
        losses = [row["loss"] for row in rows if row["loss"] is not None]
        ends = losses if stop is None else [*losses, stop]
        lines = chart_of("runs").mark_line(clip=True).encode(
            x=alt.X("seconds:Q", title=LABELS["seconds"]),
            y=alt.Y("loss:Q", title=LABELS["loss"], **log_position(ends)),
            color=alt.Color("run:N", **looks).scale(domain=names, range=colours),
            strokeDash=alt.StrokeDash("run:N", **looks).scale(domain=names, range=dashes),
            tooltip=["run:N", "seconds:Q", "loss:Q"],
        )  # fmt: skip
        target = [] if stop is None else level(stop, "target loss", below=True)
        chart = alt.layer(lines, *target, height=300)
        return spec(Figure(name="live", title="", chart=chart, data={"runs": rows}, legend=True))


def _points(name: str, run: _Going) -> list[dict[str, Any]]:
    every = max(len(run.losses) // MOST_POINTS, 1)
    seconds, losses = run.seconds[::every], run.losses[::every]
    return records(
        run=[name] * len(losses), seconds=numbers(seconds), loss=numbers(losses, log=True)
    )


class _Server(ThreadingHTTPServer):
    """Answer each browser in a thread of its own: at most `MOST`, with `LONGEST` s to ask."""

    daemon_threads = True

    def __init__(self, *where: Any) -> None:
        self._open: dict[Any, float] = {}
        super().__init__(*where)

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002
        """Take no more connections than `MOST`; the others are closed."""
        if len(self._open) >= MOST:
            return False
        self._open[request] = time.monotonic()
        return True

    def note_request(self, request: Any) -> None:
        """Note that a request has come; the answer may take longer."""
        self._open[request] = math.inf

    def service_actions(self) -> None:
        """End connections that do not ask in time: twice a second, and after each new one."""
        for request, since in self._open.copy().items():
            if time.monotonic() - since > LONGEST:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the error, unless the browser has gone away."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _make_handler(live: Live, token: str) -> type[BaseHTTPRequestHandler]:
    """Return the request handler: the page, its news, and nothing else."""

    class Answering(BaseHTTPRequestHandler):
        timeout = LONGEST  # without a byte

        def do_GET(self) -> None:
            if self._is_refused():
                self._send("", "text/plain", 403)
            elif self._asks("/"):
                page = live.page()
                self._send(page, "text/html", policy=POLICY.findall(page)[0])
            elif self._asks("/now"):
                self._send(json.dumps(live.now(), allow_nan=False), "application/json")
            else:
                self._send("", "text/plain", 404)

        def do_POST(self) -> None:
            if self._is_refused() or not self._asks("/seen"):
                self._send("", "text/plain", 403)
            else:
                self._send("", "text/plain")
                live.mark_seen()

        def _is_refused(self) -> bool:
            """Tell whether the request is that of a page from elsewhere, or poses as ours."""
            assert isinstance(self.server, _Server)
            self.server.note_request(self.connection)
            host = self.headers.get("Host", "").rpartition(":")[0]
            site = self.headers.get("Sec-Fetch-Site", "none")
            return host not in (HERE, "localhost") or site not in ("none", "same-origin")

        def _asks(self, path: str) -> bool:
            return compare_digest(self.path.encode(), f"/{token}{path}".encode())

        def _send(
            self, text: str, kind: str, status: int = 200, policy: str = "default-src 'none'"
        ) -> None:
            contents = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(contents)))
            self.send_header("Content-Security-Policy", f"{policy}; frame-ancestors 'none'")
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(contents)

        def send_error(self, code: int, *_: object, **__: object) -> None:
            """Answer what is no request, with nothing but its status."""
            self._send("", "text/plain", code)

        def version_string(self) -> str:
            """Say no versions."""
            return "fedpace"

        def log_message(self, *_: object) -> None:
            """Keep silent."""

    return Answering
