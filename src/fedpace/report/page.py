"""One page with everything: table, interactive figures, configuration, how to run it again."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import platform
from collections.abc import Sequence
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path
from string import Template

import fedpace
from fedpace.errors import needs
from fedpace.report.accounts import html_accounts
from fedpace.report.drawing import Drawing, colour, dash
from fedpace.report.headline import headline
from fedpace.report.notes import notes
from fedpace.report.plots import Plot, plot_of
from fedpace.report.reasons import html_reasons
from fedpace.report.rerun import NO_COMMAND, command, toml
from fedpace.report.setups import Setup, Sweep
from fedpace.report.study_drawings import drawings, sensitivity_drawing
from fedpace.report.study_tables import (
    csv_text,
    heading,
    html_costs,
    html_table,
    sweep_table,
)
from fedpace.report.summary import Summary
from fedpace.report.timeline_drawing import timeline_drawing
from fedpace.report.timelines import timelines
from fedpace.report.titles import plural, title_of

# "<!--" begins a comment: base 85 without "<", which "," stands for.
UNMARKED = str.maketrans("<", ",")
# What the numbers depend on, and what draws them.
PACKAGES = ("numpy", "scipy", "pydantic", "matplotlib", "plotly")


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
    the runs and of the configurations, for the command that makes them again. With `live`, HTML
    that comes first, it asks whoever served it for news: see `fedpace.report.live`.
    """
    plots: dict[str, Plot] = {}
    sections = []
    for summary in summaries:
        file = files_in / f"{summary.setup.slug}.toml"
        again = command(summary.setup, file=str(file), out=str(runs_in))
        sections.append(_setup_section(summary, plots, again))
    sections += [_sweep_section(sweep, plots) for sweep in sweeps]
    runs = sum(len(summary.setup.runs) for summary in summaries)
    runs += sum(len(setup.runs) for sweep in sweeps for setup in sweep.members)
    plotly, *scripts = _plotly(), f"\n{part('page.js')}\n", *[part("live.js")] * bool(live)
    return Template(part("page.html")).substitute(
        title="fedpace: time to target",
        subtitle=f"{plural(runs, 'run')} in <code>{html.escape(str(runs_in))}</code>. A click on a "
        "scheme's name shows or hides it in all figures of its setup.",
        version=fedpace.__version__,
        versions=html.escape(_versions([summary.setup for summary in summaries])),
        style=part("page.css"),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
        hashes=" ".join(map(_hash, (plotly, *scripts))),
        connect="connect-src 'self'; " * bool(live),
        live=live,
        sections="\n".join(sections),
        plots=packed(json.dumps(plots, allow_nan=False, separators=(",", ":"))),
        plotly=packed(plotly),
    )


def _setup_section(summary: Summary, plots: dict[str, Plot], again: str) -> str:
    setup = summary.setup
    figures = [_figure(plots, each) for group in drawings(summary) for each in group]
    for each in timelines(setup):
        figures.append(_figure(plots, timeline_drawing(each)))
        figures.append(html_reasons(setup.of(each.scheme)[0]))
    remarks = "".join(f"<li>{html.escape(note)}</li>" for note in notes(summary))
    counts = (plural(len(setup.seeds), "seed"), plural(len(setup.schemes), "scheme"))
    about = f"{', '.join(counts)}, fedpace {setup.version}."
    return f"""<section id="{setup.slug}">
<h2>{html.escape(heading(summary))}</h2>
<p class="headline">{html.escape(headline(summary))}</p>
<p class="about">{html.escape(about)} {_download(summary)}</p>
<div class="scroll">{html_table(summary)}</div>
{html_costs(summary)}
<ul class="notes">{remarks}</ul>
{_legend(setup.schemes)}
<div class="plots">{"".join(figures)}</div>
{"".join(html_accounts(setup.of(scheme)[0]) for scheme in setup.schemes)}
<h3>Run it again</h3>
{f"<pre>{html.escape(again)}</pre>" if again else f"<p>{NO_COMMAND}</p>"}
<details><summary>Configuration</summary><pre>{html.escape(toml(setup.study))}</pre></details>
</section>"""


def _sweep_section(sweep: Sweep, plots: dict[str, Plot]) -> str:
    first = sweep.base or sweep.members[0]
    schemes = list(dict.fromkeys(name for setup in sweep.members for name in setup.schemes))
    titles, rows = sweep_table(sweep)
    head = "".join(f"<th scope=col>{html.escape(title)}</th>" for title in titles)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"""<section id="{first.slug}-sensitivity">
<h2>Sensitivity to c: {html.escape(title_of(first.study))}</h2>
{_legend(schemes)}
<div class="plots">
{_figure(plots, sensitivity_drawing(sweep))}
<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>
</div>
</section>"""


def _figure(plots: dict[str, Plot], drawing: Drawing) -> str:
    """Keep the plot under a new id, and return the place where the page draws it."""
    name = f"plot-{len(plots)}"
    plots[name] = plot_of(drawing)
    kind = ' class="wide"' if drawing.wide else ""
    return (
        f'<figure{kind}><h3>{html.escape(drawing.title)}</h3><div class="plot" id="{name}"></div>'
        f"<figcaption>{html.escape(drawing.note)}</figcaption></figure>\n"
    )


def _download(summary: Summary) -> str:
    """Return a link to the numbers as a file, which the page holds."""
    packed = base64.b64encode(csv_text([summary]).encode()).decode()
    name = f"{summary.setup.slug}.csv"
    return f'<a download="{name}" href="data:text/csv;base64,{packed}">Download the CSV</a>'


def _legend(schemes: Sequence[str]) -> str:
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-scheme="{html.escape(scheme)}" '
        f'data-dash="{dash(scheme)}" style="--colour: {colour(scheme)}">{html.escape(scheme)}'
        "</button>"
        for scheme in schemes
    )
    return f'<div class="legend" role="group" aria-label="Schemes shown">{buttons}</div>'


def part(name: str) -> str:
    """Return the text of a file that pages are made of."""
    return (resources.files("fedpace.report") / name).read_text(encoding="utf-8")


def _versions(setups: Sequence[Setup]) -> str:
    made = ", ".join(sorted({setup.version for setup in setups}))
    tools = [f"Python {platform.python_version()}"]
    tools += [f"{name} {metadata.version(name)}" for name in PACKAGES if find_spec(name)]
    page_by = ", ".join([f"fedpace {fedpace.__version__}", *tools])
    return f"Runs made with fedpace {made}. Page made with {page_by}."


def packed(text: str) -> str:
    """Return a text packed to less than half of its size, in letters that HTML leaves alone."""
    return base64.b85encode(gzip.compress(text.encode(), 9, mtime=0)).decode().translate(UNMARKED)


def _plotly() -> str:
    with needs("the page needs Plotly", "report"):
        from plotly.offline import get_plotlyjs
    # As a browser reads lines, or the hash would be another.
    return str(get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n")


def _hash(script: str) -> str:
    """Return what the page's policy knows a script by: no other one is run."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
