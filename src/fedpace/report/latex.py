"""The time-to-target table for a paper."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from fedpace.report.notes import CAPTION, how_measured, sustained_note
from fedpace.report.study_tables import Column, heading, main_columns
from fedpace.report.summary import SchemeSummary, Summary

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
TITLE_WIDTH = 10


def latex(summaries: Sequence[Summary]) -> str:
    r"""Return the main columns, one table per setup, for a text with \usepackage{booktabs}."""
    return "\n".join(_table(summary) for summary in summaries)


def _table(summary: Summary) -> str:
    shown = main_columns(summary, "print")
    said = [CAPTION, *sustained_note(summary), how_measured(summary.setup.study)]
    about = " ".join(said).rstrip()
    body = [line for row in summary.rows for line in _row(row, shown)]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
            rf"\caption{{{_escaped(heading(summary))}. {_escaped(about)}}}\smallskip",
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
    lines = textwrap.wrap(column.title, TITLE_WIDTH)
    return rf"\shortstack[r]{{{NEW_LINE.join(map(_escaped, lines))}}}"


def _row(row: SchemeSummary, shown: Sequence[Column]) -> list[str]:
    """Return a line of values, one of intervals if there are any, and a small gap."""
    values, intervals = zip(*(column.cell(row) for column in shown), strict=True)
    lines = [f"{' & '.join(map(_escaped, values))} {NEW_LINE}"]
    if any(intervals):
        small = (rf"{{\scriptsize {_escaped(part)}}}" if part else "" for part in intervals)
        lines.append(f"{' & '.join(small)} {NEW_LINE}")
    return [*lines, r"\addlinespace"]


def _escaped(text: str) -> str:
    return text.translate(ESCAPES)
