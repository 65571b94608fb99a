"""Bring the repository's other pages into the site, and point links at where they are there.

MkDocs calls these functions. Sources keep links that work in the repository, where
`../examples/own_scheme.py` is a file; in the site it is a place on the page of examples.
"""

import json
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = {
    "benchmarks.md": "benchmarks/README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
}
LANGUAGES = {".py": "python", ".js": "javascript", ".ipynb": "python"}
PLACES = {source: page for page, source in PAGES.items()}
ELSEWHERE = re.compile(
    r"""<(?:script|img|iframe)[^>]* src="https?:|<link[^>]*stylesheet[^>]*"https?:"""
)
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that do not lie in docs/, and one with every example."""
    for page, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "examples.md", content=examples()))
    return files


def examples() -> str:
    """Return a page with every script of examples/, each under its path."""
    parts = ["# Examples\n\nEach of these runs as it is; the tests run them too.\n"]
    for script in scripts("examples"):
        path = script.relative_to(ROOT).as_posix()
        text = script.read_text(encoding="utf-8")
        shown = f"```{LANGUAGES[script.suffix]}\n{text}```\n"
        shown = cells(text) if script.suffix == ".ipynb" else shown
        parts.append(f"## {path} {{ #{anchor(path)} }}\n\n{shown}")
    return "\n".join(parts)


def cells(notebook: str) -> str:
    """Return a notebook's cells as Markdown."""
    parts = []
    for cell in json.loads(notebook)["cells"]:
        text = "".join(cell["source"])
        code = cell["cell_type"] == "code"
        parts.append(f"```python\n{text}\n```\n" if code else f"{text.removeprefix('# ')}\n")
    return "\n".join(parts)


def scripts(folder: str) -> list[Path]:
    """Return what is to be seen of a folder, top first."""
    found = [
        script
        for script in (ROOT / folder).rglob("*.*")
        if script.suffix in LANGUAGES
        and script.stat().st_size > 100
        and "node_modules" not in script.parts
    ]
    return sorted(found, key=lambda script: (len(script.parts), script))


def anchor(path: str) -> str:
    """Return the place of a script, or of the first one of its folder, on the page of examples."""
    first = ROOT / path if (ROOT / path).is_file() else scripts(path)[0]
    return re.sub(r"\W+", "-", first.relative_to(ROOT / "examples").as_posix())


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Point links between files of the repository at pages of the site."""
    here = page.file.src_uri
    source = PAGES.get(here, f"docs/{here}")

    def place(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
        if target.startswith("examples/") and (ROOT / target).exists():
            target = f"docs/examples.md#{anchor(target)}"
        target = PLACES.get(target, target.removeprefix("docs/"))
        return posixpath.relpath(target, posixpath.dirname(here) or ".")

    return LINK.sub(place, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001
    """Refuse a page that asks another host for a script, a picture or a style."""
    if found := ELSEWHERE.search(output):
        raise PluginError(f"{page.file.src_uri} must come from one host, got {found[0]}")
    return output
