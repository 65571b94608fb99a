"""The report's page while runs are done: served on this machine, it grows."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from fedpace.errors import listed
from fedpace.report.drawing import Axis, Drawing, Level, Line, Mark, looks
from fedpace.report.page import page, part
from fedpace.report.plots import Plot, numbers, plot_of
from fedpace.report.study_drawings import LABELS, loss_axis
from fedpace.report.titles import title_of
from fedpace.report.written import Report
from fedpace.rounds.rows import Row
from fedpace.studies.experiment import stopping
from fedpace.studies.processes import Job
from fedpace.studies.runner import Standing
from fedpace.studies.store import Store, StoredRun
from fedpace.studies.study import Study
from fedpace.studies.watching import Remaining

# Nobody else on the network is answered.
HERE = "127.0.0.1"
# Seconds: a page that asked within these is open, and is given as long to see the end.
OPEN, FAREWELL = 5.0, 10.0
# Of one line; a screen shows no more.
MOST_POINTS = 500
# The names of those waited for that are written out.
NAMED = 5


@dataclass
class _Going:
    """A run under way: its clock, losses, last row, and how long it may last."""

    remaining: Remaining
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    row: Row | None = None
    left: float | None = None


class Live:
    """Serve the page of the runs in a directory, with what is under way on top; a `Watcher`.

    Parameters
    ----------
    directory : Path
        Where runs are stored.
    say : callable of a str
        Told of runs that cannot be read.

    Attributes
    ----------
    url : str
        Where the page is.
    awaited : callable
        Returns the names of the devices that are waited for; none where clients are simulated.
    """

    def __init__(self, directory: Path, say: Callable[[str], None]) -> None:
        self.awaited: Callable[[], Sequence[str]] = tuple
        self._directory, self._say = directory, say
        self._study: Study | None = None
        self._standing = Standing(0, 1)
        self._going: dict[Job, _Going] = {}
        self._known: set[str] = set()
        self._runs: list[StoredRun] = []
        self._page = (-1, "")
        self._stored, self._over = 0, False
        self._asked, self._seen = -math.inf, threading.Event()
        self._making = threading.Lock()
        self.page()  # says now which package is missing
        self._server = _Server((HERE, 0), _answering(self))
        self.url = f"http://{HERE}:{self._server.server_port}/"
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
        """Know whose runs come next."""
        self._study, self._going = study, {}

    def standing(self, now: Standing) -> None:
        """Know how many runs are done."""
        self._standing = now

    def begin(self, job: Job) -> None:
        """Know that a run begins; one that is not told of begins with its first round."""
        if self._study is not None:
            self._going = {**self._going, job: _Going(Remaining(stopping(self._study)))}

    def row(self, job: Job, row: Row) -> None:
        """See a round that a run has finished."""
        if job not in self._going:
            self.begin(job)
        run = self._going[job]
        run.seconds.append(row.seconds)
        run.losses.append(row.loss)
        run.row, run.left = row, run.remaining.seconds(row)

    def resumed(self, job: Job, rows: Sequence[Row]) -> None:
        """Know the rounds of an earlier command; they say nothing of how long the rest takes."""
        if job not in self._going:
            self.begin(job)
        run = self._going[job]
        run.seconds += [row.seconds for row in rows]
        run.losses += [row.loss for row in rows]
        run.row = rows[-1] if rows else None

    def done(self, job: Job) -> None:
        """Know that a run is over, and put it into the report."""
        self._going = {each: run for each, run in self._going.items() if each != job}
        self._stored += 1

    def page(self) -> str:
        """Return the page of what is stored by now."""
        with self._making:
            if self._page[0] != self._stored:
                stored, store = self._stored, Store(self._directory)
                new = store.keys() - self._known
                self._runs += store.runs(self._say, keys=new)
                self._known |= new
                report = Report.of(self._runs)
                here = self._directory
                top = Template(part("live.html")).substitute(stored=stored)
                self._page = stored, page(*report, runs_in=here, files_in=here, live=top)
            return self._page[1]

    def now(self) -> dict[str, Any]:
        """Return what is under way, as JSON values."""
        self._asked = time.monotonic()
        going, standing = self._going, self._standing
        return {
            "heading": "" if self._study is None else title_of(self._study),
            "done": standing.done,
            "total": standing.total,
            "left": standing.seconds_left,
            "stored": self._stored,
            "over": self._over,
            "runs": [self._told(job, run) for job, run in going.items()],
            "plot": self._plot(going),
        }

    def seen(self) -> None:
        """Know that an open page has seen the end."""
        self._seen.set()

    def _told(self, job: Job, run: _Going) -> dict[str, Any]:
        row = run.row
        told = {"name": str(job), "waits": self._waits(row), "left": run.left, "share": 0.0}
        if row is None:
            return told | dict.fromkeys(("phase", "round", "seconds", "loss", "accuracy"))
        seconds, loss, accuracy = numbers([row.seconds, row.loss, row.accuracy])
        now = {"seconds": seconds, "loss": loss, "accuracy": accuracy}
        return told | now | {
            "phase": row.phase, "round": row.round, "share": run.remaining.share(row),
        }  # fmt: skip

    def _waits(self, row: Row | None) -> str:
        """Return who is waited for, or who was longest in the last round."""
        if names := self.awaited():
            more = len(names) - NAMED
            return listed(names[:NAMED]) + f" and {more} more" * (more > 0)
        if row is None or not row.clients.size:
            return ""
        slowest = int(np.argmax(row.client_seconds))
        return f"client {row.clients[slowest]} ({row.client_seconds[slowest]:.3g} s)"

    def _plot(self, going: dict[Job, _Going]) -> Plot:
        lines = [_line(*each) for each in going.items() if each[1].losses]
        marks: list[Mark] = [*lines]
        if self._study is not None and self._study.stop.loss is not None:
            marks.append(Level(self._study.stop.loss, "target loss", below=True))
        x = Axis(LABELS["seconds"], ends=(0, None))
        y = loss_axis(loss for run in going.values() for loss in run.losses)
        plot = plot_of(Drawing(name="live", title="", x=x, y=y, marks=marks))
        plot["layout"] |= {"showlegend": True, "uirevision": "live"}
        return plot


def _line(job: Job, run: _Going) -> Line:
    every = max(len(run.losses) // MOST_POINTS, 1)
    x, y = run.seconds[::every], run.losses[::every]
    return Line(x, y, hover="{x:.1f} s: {y:.4f}", **looks(job.scheme, str(job)))


class _Server(ThreadingHTTPServer):
    """Answer each browser in a thread of its own; one that hangs up is nothing to speak of."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the error, unless the browser has gone away."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _answering(live: Live) -> type[BaseHTTPRequestHandler]:
    """Return what answers a browser: the page, the news, and nothing else."""

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host = self.headers.get("Host", "").rpartition(":")[0]
            if host not in (HERE, "localhost"):  # a page from elsewhere that poses as ours
                self.send_error(403)
            elif self.path == "/":
                self._send(live.page(), "text/html")
            elif self.path == "/now":
                self._send(json.dumps(live.now(), allow_nan=False), "application/json")
            elif self.path == "/seen":
                self._send("", "text/plain")
                live.seen()
            else:
                self.send_error(404)

        def _send(self, text: str, kind: str) -> None:
            contents = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(contents)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(contents)

        def log_message(self, *_: object) -> None:
            """Keep silent."""

    return Answering
