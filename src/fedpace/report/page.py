"""The report as one HTML page: charts, tables, configuration, and how to run it again."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import platform
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any

import fedpace
from fedpace.report.charts import Figure, bundle, colour, config, dash, spec
from fedpace.report.clients import html_accounts
from fedpace.report.notes import changes, headline, notes, plural, title_of
from fedpace.report.setups import NO_COMMAND, Setup, Sweep, command, toml
from fedpace.report.study_charts import sensitivity_figure, study_figures
from fedpace.report.study_tables import (
    COSTS,
    csv_text,
    heading,
    html_costs,
    html_table,
    main_table,
    sweep_table,
)
from fedpace.report.summary import Summary
from fedpace.report.timeline import timeline_figure, timelines
from fedpace.studies.store import StoredRun

# "<!--" begins a comment: base 85 without "<", which "," stands for.
UNMARKED = str.maketrans("<", ",")
# What the numbers depend on, and what draws them.
PACKAGES = ("numpy", "scipy", "pydantic", "altair", "vl-convert-python")
# A table of reasons has at most this many lines; the run's rows have them all.
MOST_CHANGES = 30
Specs = dict[str, dict[str, Any]]


def page(
    summaries: Sequence[Summary],
    sweeps: Sequence[Sweep],
    *,
    runs_in: Path,
    files_in: Path,
    live: str = "",
) -> str:
    """Return a page that needs nothing but itself: no network, no other file.

    Every summary has a section, and every sweep. `runs_in` and `files_in` are the directories of
    the runs and of the configurations, for the command that makes them again. `live` is HTML that
    comes first; such a page asks its server for news, see `fedpace.report.live`.
    """
    specs: Specs = {}
    sections = []
    for summary in summaries:
        file = files_in / f"{summary.setup.slug}.toml"
        again = command(summary.setup, file=str(file), out=str(runs_in))
        section = partial(_setup_section, summary, again)
        sections.append(_try_section(specs, summary.setup, section))
    for sweep in sweeps:
        sections.append(_try_section(specs, sweep.members[0], partial(_sweep_section, sweep)))
    runs = sum(len(summary.setup.runs) for summary in summaries)
    runs += sum(len(setup.runs) for sweep in sweeps for setup in sweep.members)
    vega, *scripts = bundle(), f"\n{part('page.js')}\n", *[part("live.js")] * bool(live)
    charts = {"light": config(), "dark": config(dark=True), "specs": specs}
    return Template(part("page.html")).substitute(
        title="fedpace: time to target",
        subtitle=f"{plural(runs, 'run')} in <code>{html.escape(str(runs_in))}</code>. Click a "
        "scheme's name to show or hide it in all charts of its study.",
        version=fedpace.__version__,
        versions=html.escape(_versions([summary.setup for summary in summaries])),
        style=part("page.css"),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
        hashes=" ".join(map(_hash, (vega, *scripts))),
        connect="connect-src 'self'; " * bool(live),
        live=live,
        sections="\n".join(sections),
        charts=pack_text(json.dumps(charts, allow_nan=False, separators=(",", ":"))),
        vega=pack_text(vega),
    )


def _try_section(specs: Specs, setup: Setup, section: Callable[[Specs], str]) -> str:
    """Return a section of the page; if its runs cannot be shown, a section that says why.

    Run files come from elsewhere: whatever one of them says, the others are reported.
    """
    new: Specs = dict(specs)
    try:
        text = section(new)
    except Exception as error:
        why = html.escape(f"{type(error).__name__}: {error}")
        return (
            f"<section><h2>{html.escape(setup.label)}</h2><p>Cannot be shown: {why}</p></section>"
        )
    specs.update(new)
    return text


def _setup_section(summary: Summary, again: str, specs: Specs) -> str:
    setup = summary.setup
    (first, *_), *groups = study_figures(summary)
    main_chart = _figure(specs, first)
    more = [each for group in groups for each in group if each.name != "probabilities"]
    chances = [each for group in groups for each in group if each.name == "probabilities"]
    courses = ""
    for each in timelines(setup):
        courses += _figure(specs, timeline_figure(each))
        courses += html_reasons(setup.of(each.scheme)[0])
    remarks = "".join(f"<li>{html.escape(note)}</li>" for note in notes(summary))
    counts = (plural(len(setup.seeds), "seed"), plural(len(setup.schemes), "scheme"))
    about = f"{', '.join(counts)}, fedpace {setup.version}."
    spent = html_costs(summary)
    folded = [
        ("More charts", _plots(specs, more)),
        ("All times, with intervals", f'<div class="scroll">{html_table(summary)}</div>'),
        ("Costs: device-seconds, traffic, accuracy", f"<p>{COSTS}</p>{spent}" if spent else ""),
        ("Probabilities of the clients", _plots(specs, chances)),
        ("Timelines: which clients were drawn, and why", _grid(courses)),
        ("Clients", "".join(html_accounts(setup.of(scheme)[0]) for scheme in setup.schemes)),
        ("How to read this", f'<ul class="notes">{remarks}</ul>'),
        ("Run it again", f"<pre>{html.escape(again)}</pre>" if again else f"<p>{NO_COMMAND}</p>"),
        ("Configuration", f"<pre>{html.escape(toml(setup.study))}</pre>"),
    ]  # fmt: skip
    return f"""<section id="{setup.slug}">
<h2>{html.escape(heading(summary))}</h2>
<p class="headline">{html.escape(headline(summary))}</p>
<p class="about">{html.escape(about)} {_download(summary)}</p>
{_legend(setup.schemes)}
{main_chart}
<div class="scroll">{main_table(summary)}</div>
{"".join(_details(*each) for each in folded)}</section>"""


def _sweep_section(sweep: Sweep, specs: Specs) -> str:
    first = sweep.base or sweep.members[0]
    schemes = list(dict.fromkeys(name for setup in sweep.members for name in setup.schemes))
    titles, rows = sweep_table(sweep)
    return f"""<section id="{first.slug}-sensitivity">
<h2>Sensitivity to c: {html.escape(title_of(first.study))}</h2>
{_legend(schemes)}
{_figure(specs, sensitivity_figure(sweep))}
<div class="scroll">{_text_table(titles, rows)}</div>
</section>"""


def html_reasons(run: StoredRun) -> str:
    """Return the table of a run's changes of design, with the reason for each; empty without."""
    every = changes(run.history.rows)
    if not every:
        return ""
    rows = [(f"{each.round:,}", f"{each.seconds:,.1f}", each.why) for each in every[:MOST_CHANGES]]
    more = len(every) - MOST_CHANGES
    rest = f"<p>And {more:,} more.</p>" if more > 0 else ""
    title = html.escape(f"Why {run.scheme} drew as it did, seed {run.seed}")
    return (
        f'<div class="wide why" data-scheme="{html.escape(run.scheme)}"><h3>{title}</h3>'
        f'<div class="scroll">{_text_table(("round", "from, s", "why"), rows)}</div>{rest}</div>\n'
    )


def _text_table(titles: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th scope=col>{html.escape(title)}</th>" for title in titles)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _details(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>{body}</details>\n" if body else ""


def _plots(specs: Specs, figures: Sequence[Figure]) -> str:
    return _grid("".join(_figure(specs, each) for each in figures))


def _grid(body: str) -> str:
    return f'<div class="plots">{body}</div>' if body else ""


def _figure(specs: Specs, figure: Figure) -> str:
    """Keep the chart under a new id, and return the place where the page draws it."""
    name = f"chart-{len(specs)}"
    specs[name] = spec(figure)
    kind = ' class="wide"' if figure.wide else ""
    mine = f' data-scheme="{html.escape(figure.scheme)}"' if figure.scheme else ""
    return (
        f"<figure{kind}{mine}><h3>{html.escape(figure.title)}</h3>"
        f'<div class="plot" id="{name}"></div>'
        f"<figcaption>{html.escape(figure.note)}</figcaption></figure>\n"
    )


def _download(summary: Summary) -> str:
    """Return a link to the numbers as a file, which the page holds."""
    text = base64.b64encode(csv_text([summary]).encode()).decode()
    name = f"{summary.setup.slug}.csv"
    return f'<a download="{name}" href="data:text/csv;base64,{text}">Download the CSV</a>'


def _legend(schemes: Sequence[str]) -> str:
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-scheme="{html.escape(scheme)}">'
        f'<svg viewBox="0 0 28 4" aria-hidden="true"><path d="M0 2h28" stroke="{colour(scheme)}" '
        f'stroke-width="3" stroke-dasharray="{" ".join(map(str, dash(scheme)))}"/></svg>'
        f"{html.escape(scheme)}</button>"
        for scheme in schemes
    )
    return f'<div class="legend" role="group" aria-label="Schemes shown">{buttons}</div>'


def part(name: str) -> str:
    """Return the text of a file that pages are made of."""
    return (resources.files("fedpace.report") / name).read_text(encoding="utf-8")


def _versions(setups: Sequence[Setup]) -> str:
    made = ", ".join(sorted({setup.version for setup in setups}))
    tools = [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        if find_spec(name.removesuffix("-python").replace("-", "_")):
            tools.append(f"{name} {metadata.version(name)}")
    page_by = ", ".join([f"fedpace {fedpace.__version__}", *tools])
    return f"Runs made with fedpace {made}. Page made with {page_by}."


@lru_cache(maxsize=2)
def pack_text(text: str) -> str:
    """Return a text packed to less than half of its size, in letters that HTML leaves alone."""
    return base64.b85encode(gzip.compress(text.encode(), 9, mtime=0)).decode().translate(UNMARKED)


def _hash(script: str) -> str:
    """Return the hash by which the page's policy allows a script; no other one is run."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
