"""The code blocks of README.md and docs/, and the command lines in them."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SITE = sorted((ROOT / "docs").glob("**/*.md"))
PAGES = [ROOT / "README.md", *SITE, ROOT / "examples" / "flower" / "baseline" / "README.md"]
FENCE = re.compile(
    r"""^( *)```([\w-]+)?(?: title="([\w.]+)")?[^\n]*\n(.*?)^\1```$""", re.MULTILINE | re.DOTALL
)


class Block(NamedTuple):
    language: str
    text: str
    line: int
    file: str = ""


def blocks(page: str) -> Iterator[Block]:
    """Yield the blocks; one with a title is the file of that name."""
    for found in FENCE.finditer(page):
        line = page.count("\n", 0, found.start()) + 1
        yield Block(found[2] or "", textwrap.dedent(found[4]), line, found[3] or "")


def commands(text: str) -> Iterator[tuple[str, int]]:
    """Yield the command lines for fedpace, and the exit status they are shown to have."""
    lines = text.replace("\\\n", " ").splitlines()
    prompted = any(line.startswith("$ ") for line in lines)
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if prompted and not line.startswith("$ "):
            continue
        command = line.removeprefix("$ ")
        if command.split()[:1] == ["fedpace"]:
            yield command, 2 if following.startswith("fedpace: ") else 0
