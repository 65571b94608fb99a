"""Tables of studies: one row per scheme, for the terminal, Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import html
import io
import math
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

from rich.markup import escape
from rich.table import Table

from fedpace.files import csv_cell
from fedpace.registry import is_biased
from fedpace.report.notes import (
    CAPTION,
    how_measured,
    is_published,
    notes,
    sustained_note,
    title_of,
)
from fedpace.report.setups import Sweep, plain_name
from fedpace.report.summary import BASELINE, PROPOSED, SchemeSummary, Summary, sensitivities
from fedpace.report.tables import new_table, printable
from fedpace.report.time_to_target import COST_COLUMNS, Costs, Interval, invert

NO_VALUES = "–"
# Titles are broken into lines of about this many letters where room is short.
TITLE_WIDTH = 12
# Above the table of costs.
COSTS = (
    "Costs until the target was reached or the run ended. Device-seconds are all seconds that "
    "clients worked; wasted is the share of candidates, late replies, clients that left and the "
    "dropped pilot; the busiest client has this share of the work that counted. Bytes are "
    "measured, or those of the model in single precision. Accuracy is that at the end of the run, "
    "on the clients' test data."
)
# Letters of a terminal, and columns that a table keeps even if they are more.
TERMINAL_WIDTH, LEAST_COLUMNS = 80, 4
Cell = tuple[str, str]
Narrow = Literal["terminal", "print"]


class Column(NamedTuple):
    """A column: its title, and its cell of a row, a value and its interval.

    The terminal and a page of a paper are narrow: `fits` says which of them have the column.
    """

    title: str
    cell: Callable[[SchemeSummary], Cell]
    fits: tuple[Narrow, ...] = ("terminal", "print")


def columns(summary: Summary) -> list[Column]:
    """Return the columns of a setup's table; the paper's and the accuracy's where there are any."""
    sustained = f"time vs {PROPOSED}, sustained"
    unpiloted = f"vs {PROPOSED}, without pilots"
    accuracy = f"time to accuracy {100 * summary.accuracy.value:.1f} %, s"
    every = [
        Column("scheme", lambda row: (_mark(row.scheme), "")),
        Column("reached", lambda row: (f"{row.reached} of {row.runs}", "")),
        Column(f"time to {summary.target}, s", lambda row: _cell(row.seconds, _seconds)),
        Column("time until sustained, s", lambda row: _cell(row.sustained_seconds, _seconds)),
        Column("rounds", lambda row: _cell(row.rounds, _rounds), ()),
        Column("pilot time, s", lambda row: _cell(row.pilot_seconds, _seconds), ()),
        Column("time without pilots, s", lambda row: _cell(row.net_seconds, _seconds), ()),
        Column(f"time vs {BASELINE}", lambda row: _cell(row.to_uniform, _ratio), ("terminal",)),
        Column(f"time vs {PROPOSED}", lambda row: _cell(row.to_proposed, _ratio)),
        Column(sustained, lambda row: _cell(row.sustained_to_proposed, _ratio), ("print",)),
        Column(unpiloted, lambda row: _cell(row.net_to_proposed, _ratio), ("terminal",)),
        Column("paper, s", lambda row: (_seconds(row.paper_seconds), ""), ()),
        Column(f"vs {PROPOSED}, paper", lambda row: (_ratio(row.paper_ratio), "")),
        Column(accuracy, _accuracy, ()),
        Column("over the limit", lambda row: _cell(row.to_limit, _ratio), ()),
    ]
    study = summary.setup.study
    left_out = set[str]()
    if not study.paper or not is_published(study):  # the numbers are not those of the paper's setup
        left_out |= {"paper, s", f"vs {PROPOSED}, paper"}
    if not math.isfinite(summary.accuracy.value):
        left_out.add(accuracy)
    if not any(row.pilot_seconds.value > 0 for row in summary.rows):
        left_out |= {"pilot time, s", "time without pilots, s", unpiloted}
    shown = [column for column in every if column.title not in left_out]
    # A column without any value is left out.
    return [each for each in shown if any(each.cell(row)[0] != NO_VALUES for row in summary.rows)]


def cost_columns(summary: Summary) -> list[Column]:
    """Return the columns of the table of costs; none where runs did not count them."""
    if all(math.isnan(row.costs.device_seconds.value) for row in summary.rows):
        return []
    found = [Column("scheme", lambda row: (_mark(row.scheme), ""))]
    for name, (title, kind) in COST_COLUMNS.items():
        # Staleness is for asynchronous runs, and not every backend knows the rest.
        if any(math.isfinite(getattr(row.costs, name).value) for row in summary.rows):
            found.append(Column(title, partial(_cost_cell, name=name, text=COST_TEXTS[kind])))
    return found


def _cost_cell(row: SchemeSummary, *, name: str, text: Callable[[float], str]) -> Cell:
    return _cell(getattr(row.costs, name), text)


def main_columns(summary: Summary, place: Narrow) -> list[Column]:
    """Return the columns that fit a narrow place."""
    return [column for column in columns(summary) if place in column.fits]


def markdown(summaries: Sequence[Summary], sweeps: Sequence[Sweep] = ()) -> str:
    """Return one heading, table and list of notes per setup, and one table per sweep of c."""
    parts = []
    for summary in summaries:
        shown = columns(summary)
        cells = [[_join(column.cell(row)) for column in shown] for row in summary.rows]
        remarks = "\n".join(f"- {note}" for note in notes(summary))
        table = _markdown_table([column.title for column in shown], cells)
        parts.append(f"## {_plain(heading(summary))}\n\n{table}\n\n{_plain(remarks)}\n")
        if spent := cost_columns(summary):
            cells = [[_join(column.cell(row)) for column in spent] for row in summary.rows]
            table = _markdown_table([column.title for column in spent], cells)
            parts.append(f"{COSTS}\n\n{table}\n")
    for sweep in sweeps:
        title = f"## Sensitivity to c: {_plain(title_of(sweep.members[0].study))}"
        parts.append(f"{title}\n\n{_markdown_table(*sweep_table(sweep))}\n")
    return "\n".join(parts)


def csv_text(summaries: Sequence[Summary]) -> str:
    """Return every number, in full, one line per setup and scheme."""
    text = io.StringIO()
    records = [_record(summary, row) for summary in summaries for row in summary.rows]
    lines = [*map(list, records[:1]), *(map(csv_cell, record.values()) for record in records)]
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def rank_rows(summary: Summary) -> list[SchemeSummary]:
    """Return the rows by time to the target, first those with most runs that reached it."""
    return sorted(
        summary.rows,
        key=lambda row: (-row.reached / row.runs, _or_last(row.seconds.value), row.scheme),
    )


def main_table(summary: Summary) -> str:
    """Return the table of five columns that a reader sees first, the winner on top.

    A star marks the first scheme where its interval against the best other excludes 1.
    """
    titles = ("scheme", f"seconds to {summary.target}", f"times sooner than {BASELINE}",
              "times sooner than the best other", "accuracy at the end")  # fmt: skip
    head = "".join(f"<th scope=col tabindex=0>{html.escape(title)}</th>" for title in titles)
    body = ""
    for place, row in enumerate(rank_rows(summary)):
        first = place == 0 and row.reached == row.runs > 0
        star = "★ " * (first and row.to_best_other.high < 1)
        misses = f"{row.reached} of {row.runs} runs" * (row.reached < row.runs)
        seconds, interval = _cell(row.seconds, _seconds)
        cells = (
            ((f"{star}{_mark(row.scheme)}", misses), row.scheme),
            ((seconds, interval), row.seconds.value),
            (_cell(invert(row.to_uniform), _times), 1 / row.to_uniform.value),
            (_cell(invert(row.to_best_other), _times), 1 / row.to_best_other.value),
            (_cell(row.costs.accuracy, _percent), row.costs.accuracy.value),
        )
        line = "".join(_sortable_cell(*each) for each in cells)
        mark = ' class="first"' * first
        body += f'<tr{mark} data-scheme="{html.escape(row.scheme)}">{line}</tr>\n'
    head = f"<thead><tr>{head}</tr></thead>"
    return f'<table class="main sortable">{head}\n<tbody>\n{body}</tbody></table>'


def _sortable_cell(cell: Cell, value: str | float) -> str:
    known = isinstance(value, str) or math.isfinite(value)
    sorted_by = html.escape(f"{value}") if known else ""
    return _html_cell(cell).replace("<td>", f'<td data-value="{sorted_by}">', 1)


def _or_last(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def html_costs(summary: Summary) -> str:
    """Return the table of costs for the page; empty where runs did not count them."""
    if not (shown := cost_columns(summary)):
        return ""
    return f'<div class="scroll">{_html_table(summary, shown)}</div>'


def html_table(summary: Summary) -> str:
    """Return the table for the page; the cells have the same text as in Markdown."""
    return _html_table(summary, columns(summary))


def _html_table(summary: Summary, shown: Sequence[Column]) -> str:
    body = ""
    head = "".join(f"<th scope=col>{html.escape(column.title)}</th>" for column in shown)
    for row in summary.rows:
        cells = "".join(_html_cell(column.cell(row)) for column in shown)
        body += f'<tr data-scheme="{html.escape(row.scheme)}">{cells}</tr>\n'
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>"


def sweep_table(sweep: Sweep) -> tuple[list[str], list[list[str]]]:
    """Return the titles and the lines of seconds to the target against c/S_0, by scheme."""
    lines = sensitivities(sweep)
    titles = ["c / S₀", *(f"{line.scheme}, s" for line in lines)]
    rows = [
        [f"{value:g}", *(_join(_cell(line.seconds[index], _seconds)) for line in lines)]
        for index, value in enumerate(sweep.values)
    ]
    if sweep.base is not None:
        rows.append(["estimated", *(_join(_cell(line.estimated, _seconds)) for line in lines)])
    return titles, rows


def terminal_table(summary: Summary) -> Table:
    """Return the table for the terminal: the main columns, intervals below their values.

    As many of them as fit its usual width.
    """
    shown = main_columns(summary, "terminal")
    while len(shown) > LEAST_COLUMNS and _width(shown, summary) > TERMINAL_WIDTH:
        shown = shown[:-1]
    titles = (textwrap.fill(column.title, TITLE_WIDTH) for column in shown)
    table = new_table(escape(printable(heading(summary))), *titles)
    table.title_style, table.padding = "bold", (0, 1, 0, 0)
    for column in table.columns:
        column.no_wrap = True
    for row in summary.rows:
        cells = (column.cell(row) for column in shown)
        table.add_row(
            *("\n".join(escape(printable(part)) for part in cell if part) for cell in cells)
        )
    return table


def _width(shown: Sequence[Column], summary: Summary) -> int:
    """Return the letters that the columns take, with a space on either side."""
    total = 0
    for column in shown:
        lines = textwrap.fill(column.title, TITLE_WIDTH).splitlines()
        lines += [part for row in summary.rows for part in column.cell(row)]
        total += max(map(len, lines)) + 1
    return total + 1


def heading(summary: Summary) -> str:
    """Return the title of a setup, and in what it differs from others of its name."""
    study = summary.setup.study
    return title_of(study) + summary.setup.label.removeprefix(study.name)


def _markdown_table(titles: list[str], rows: list[list[str]]) -> str:
    lines = [titles, ["---"] + ["---:"] * (len(titles) - 1), *rows]
    escaped = ([_plain(text).replace("|", "\\|") for text in cells] for cells in lines)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in escaped)


def _plain(text: str) -> str:
    """Return a text in which Markdown finds no element of HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _mark(scheme: str) -> str:
    """Return a scheme's name, with a mark if it is known to be biased."""
    return f"{scheme} (biased)" if is_biased(plain_name(scheme)) else scheme


def _accuracy(row: SchemeSummary) -> Cell:
    value, interval = _cell(row.accuracy_seconds, _seconds)
    if row.accuracy_reached < row.runs:
        interval = f"{interval} {row.accuracy_reached} of {row.runs}".strip()
    return value, interval


def _cell(interval: Interval, text: Callable[[float], str]) -> Cell:
    value = f"{interval.bound} {text(interval.value)}".strip()
    if not math.isfinite(interval.low) or interval.low == interval.high:
        return value, ""
    low, high = (text(end).removesuffix("×").removesuffix(" %") for end in interval[1:3])
    return value, f"[{low}, {high}]"


def _seconds(value: float) -> str:
    """Return a time with about four digits; none at all reads as nothing."""
    if not math.isfinite(value) or value == 0:
        return NO_VALUES
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}"


def _rounds(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else NO_VALUES


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %" if math.isfinite(value) else NO_VALUES


COST_TEXTS = {"count": _rounds, "amount": _seconds, "share": _percent}


def _ratio(value: float) -> str:
    return f"{value:.2f}×" if math.isfinite(value) else NO_VALUES


def _times(value: float) -> str:
    """Return a ratio with about three digits, for the narrow table."""
    return _ratio(value) if not 10 <= value < math.inf else f"{value:.1f}×"


def _join(cell: Cell) -> str:
    return " ".join(part for part in cell if part)


def _html_cell(cell: Cell) -> str:
    value, interval = map(html.escape, cell)
    return f"<td>{value}" + (f" <small>{interval}</small>" if interval else "") + "</td>"


def _record(summary: Summary, row: SchemeSummary) -> dict[str, object]:
    """Return a line of the CSV; an interval is three columns, an unknown number is empty."""
    record: dict[str, object] = {"setup": summary.setup.label, "target": summary.target}
    for name, value in row._asdict().items():
        for key, each in value._asdict().items() if isinstance(value, Costs) else [(name, value)]:
            if isinstance(each, Interval):
                record |= {key: each.value, f"{key}_low": each.low, f"{key}_high": each.high}
                record[f"{key}_bound"] = each.bound
            else:
                record[key] = each
    for name, value in record.items():
        if isinstance(value, float) and not math.isfinite(value):
            record[name] = ""
    return record


# What LaTeX reads as a command or does not have in its fonts.
ESCAPES = str.maketrans(
    {
        "%": r"\%", "&": r"\&", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
        "\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}",
        "≥": r"$\ge$", "≤": r"$\le$", "≈": r"$\approx$", "×": r"$\times$", "–": "--",
    }
)  # fmt: skip
NEW_LINE = r"\\"
# Titles are broken into lines of about this many letters, so that the table fits a page.
LATEX_WIDTH = 10


def latex(summaries: Sequence[Summary]) -> str:
    r"""Return the main columns, one table per setup, for a text with \usepackage{booktabs}."""
    return "\n".join(_table(summary) for summary in summaries)


def _table(summary: Summary) -> str:
    shown = main_columns(summary, "print")
    said = [CAPTION, *sustained_note(summary), how_measured(summary.setup.study)]
    about = " ".join(said).rstrip()
    body = [line for row in summary.rows for line in _cells(row, shown)]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
            rf"\caption{{{_escape(heading(summary))}. {_escape(about)}}}\smallskip",
            rf"\begin{{tabular}}{{@{{}}l{'r' * (len(shown) - 1)}@{{}}}}",
            r"\toprule",
            f"{' & '.join(map(_title, shown))} {NEW_LINE}",
            r"\midrule",
            *body[:-1],
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _title(column: Column) -> str:
    lines = textwrap.wrap(column.title, LATEX_WIDTH)
    return rf"\shortstack[r]{{{NEW_LINE.join(map(_escape, lines))}}}"


def _cells(row: SchemeSummary, shown: Sequence[Column]) -> list[str]:
    """Return a line of values, one of intervals if there are any, and a small gap."""
    values, intervals = zip(*(column.cell(row) for column in shown), strict=True)
    lines = [f"{' & '.join(map(_escape, values))} {NEW_LINE}"]
    if any(intervals):
        small = (rf"{{\scriptsize {_escape(part)}}}" if part else "" for part in intervals)
        lines.append(f"{' & '.join(small)} {NEW_LINE}")
    return [*lines, r"\addlinespace"]


def _escape(text: str) -> str:
    return text.translate(ESCAPES)
