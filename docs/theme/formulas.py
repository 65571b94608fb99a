"""Typeset formulas: blocks of LaTeX, p_i and C^{K−1} in the text, and blocks without a language.

MkDocs calls `on_config` and `on_page_content`. A block ```math becomes MathML when the site is
built, so that browsers show it without a script or a network. Docstrings and text keep formulas as
plain text, which reads well in an editor; a page shows indices and powers as such.
"""

import re

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

# A block without a language is a formula; other code, tags and headings' places stay as they are.
FORMULA = re.compile(r"<pre>(?:<span></span>)?<code>.*?</code></pre>", re.DOTALL)
PLAIN = re.compile(r"<pre.*?</pre>|<code.*?</code>|<math.*?</math>|<[^>]*>", re.DOTALL)
RAISED = re.compile(r"(?<=[\w)′₀-₉}>])\^(?:\{([^}]*)\}|([−*]?\w+))")
# One letter with any index (t_max), or any word with the index of a client or tier (weights_i). A
# square belongs to the whole.
LOWERED = re.compile(
    r"(?<![\w.])([^\W\d_])_(?:\{([^}]*)\}|([^\W²³]+))|(?<![\w.])([^\W\d_]+)_([ijg])(?![^\W²³])"
)


def typeset(text: str) -> str:
    """Return HTML text with indices and powers as elements."""

    def lowered(found: re.Match[str]) -> str:
        return f"{found[1] or found[4]}<sub>{typeset(found[2] or found[3] or found[5])}</sub>"

    return RAISED.sub(lambda m: f"<sup>{m[1] or m[2]}</sup>", LOWERED.sub(lowered, text))


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


def mathml(source: str, *_: object, **__: object) -> str:
    """Return a block of LaTeX as MathML; pymdownx.superfences calls this."""
    return f'<div class="formula">{convert(source.strip(), display="block")}</div>'


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Let ```math blocks be formulas."""
    fences = [{"name": "math", "class": "formula", "format": mathml}]
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": fences}
    return config


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Typeset a page, and leave out the `::` with which docstrings announce a block."""
    html = re.sub(r"<p>::</p>\s*", "", html).replace("::</p>", ":</p>")
    return between(PLAIN, FORMULA.sub(block, html))
