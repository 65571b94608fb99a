"""Typeset formulas: p_i and C^{K−1} in the text, and in blocks without a language.

MkDocs calls `on_page_content`. Sources keep formulas as plain text, which reads well in an editor
and in docstrings; a page shows indices and powers as such.
"""

import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

# A block without a language is a formula; other code, tags and headings' places stay as they are.
FORMULA = re.compile(r"<pre>(?:<span></span>)?<code>.*?</code></pre>", re.DOTALL)
PLAIN = re.compile(r"<pre.*?</pre>|<code.*?</code>|<[^>]*>", re.DOTALL)
RAISED = re.compile(r"(?<=[\w)′₀-₉}>])\^(?:\{([^}]*)\}|([−*]?\w+))")
# One letter with any index (t_max), or any word with the index of a client or tier (weights_i). A
# square belongs to the whole.
LOWERED = re.compile(
    r"(?<![\w.])([^\W\d_])_(?:\{([^}]*)\}|([^\W²³]+))|(?<![\w.])([^\W\d_]+)_([ijg])(?![^\W²³])"
)


def typeset(text: str) -> str:
    """Return HTML text with indices and powers as elements."""
    text = LOWERED.sub(lambda m: f"{m[1] or m[4]}<sub>{m[2] or m[3] or m[5]}</sub>", text)
    return RAISED.sub(lambda m: f"<sup>{m[1] or m[2]}</sup>", text)


def between(pieces: re.Pattern[str], html: str) -> str:
    """Return `html` with everything typeset that `pieces` does not match."""
    done, at = [], 0
    for piece in pieces.finditer(html):
        done += [typeset(html[at : piece.start()]), piece[0]]
        at = piece.end()
    return "".join([*done, typeset(html[at:])])


def block(found: re.Match[str]) -> str:
    """Return a block of formulas, or of plain text where it holds none."""
    made = between(re.compile(r"<[^>]*>"), found[0])
    return made.replace("<pre>", '<pre class="formula">', 1) if made != found[0] else made


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Typeset a page, and leave out the `::` with which docstrings announce a block."""
    html = re.sub(r"<p>::</p>\s*", "", html).replace("::</p>", ":</p>")
    return between(PLAIN, FORMULA.sub(block, html))
