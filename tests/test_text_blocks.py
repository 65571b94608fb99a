"""What pages show but tests do not run can be read: commands, Python, TOML; and the API page."""

import ast
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main

import fedpace
from fedpace.cli import app, options
from fedpace.samplers.build import resolve
from fedpace.studies.runner import grids, load_studies
from fedpace.studies.study import setups
from tests.pages import PAGES, ROOT, SITE, blocks

# Blocks that nobody runs: whole studies, parts of the reader's programs, changes to them.
SHOWN = ("text", "py", "diff")
# Commands of others that a block may hold beside ours, and words of the shell.
OTHERS = (
    "pip",
    "make",
    "cd",
    "python",
    "git",
    "for",
    "done",
    "#",
    "mkdocs",
    "npm",
    "node",
    "flwr",
    ".",
)


def read_command(line: str) -> None:
    """Parse a command of ours as far as can be without running it."""
    words = shlex.split(line, comments=True)[1:]
    group: Any = typer.main.get_command(app)
    context = group.make_context("fedpace", words, resilient_parsing=False)
    while hasattr(group, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        name, group, rest = group.resolve_command(context, rest)
        context = group.make_context(name, rest, parent=context)
    given = context.params
    if setup := given.get("setup"):
        assert setup.endswith(".toml") or setup in [*setups(), *grids()], setup
        if not setup.endswith(".toml"):
            load_studies(setup, given.get("overrides") or ())
    if given.get("schemes") and ".py:" not in given["schemes"]:
        options.named_schemes(given["schemes"], resolve, every=options.TRAINED)


def lines_of(text: str) -> list[str]:
    """Return the commands of a block, with the variables and loops of the shell filled in."""
    text = re.sub(r"\s*\\\n\s*", " ", text)
    values = {}
    for name, value in re.findall(r'^(\w)="(.*)"$', text, re.MULTILINE):
        values[name] = value
    for name, first in re.findall(r"^for (\w+) in (\S+)", text, re.MULTILINE):
        values[name] = first
    for name, value in values.items():
        text = re.sub(rf"\${name}\b", value.replace("\\", r"\\"), text)
    kept = [line.strip() for line in text.splitlines()]
    kept = [line for line in kept if line and not re.match(r'\w="', line)]
    return [each.strip() for line in kept for each in line.split("&&")]


def is_shell(text: str) -> bool:
    return bool(re.search(r"^ *(\$ )?(fedpace|pip|make|cd|flwr) ", text, re.MULTILINE))


def read_block(language: str, text: str) -> None:
    """Raise where a block is neither commands, nor Python, nor TOML."""
    if language == "diff":
        assert all(line[:1] in " +-" for line in text.splitlines())
        return
    if is_shell(text):
        for line in lines_of(text):
            first = line.removeprefix("$ ").split()[0]
            if first == "fedpace":
                read_command(line.removeprefix("$ "))
            else:
                assert first in OTHERS, line
        return
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        ast.parse(text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_that_is_not_run_can_be_read(page: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        for block in blocks(page.read_text(encoding="utf-8")):
            where = f"{page.name}, line {block.line}"
            if block.language in SHOWN:
                try:
                    read_block(block.language, block.text)
                except Exception as error:
                    raise AssertionError(f"{where}: {error!r}") from error
            else:
                known = ("python", "console", "sh", "toml", "csv", "math", "")
                assert block.language in known, f"{where}: {block.language}"
                assert block.language or not is_shell(block.text), where


@pytest.mark.parametrize(
    "line",
    [
        "fedpace run simulation-9 --out runs",
        "fedpace run simulation-1 --out runs --sead 3",
        "fedpace run simulation-1 --out runs --schemes best",
        "fedpace run simulation-1 --out runs --set training.kk=3",
        "fedpace lab go",
    ],
)
def test_a_command_that_does_not_exist_is_found(line: str) -> None:
    with pytest.raises(Exception, match=r"simulation-9|--sead|best|kk|go"):
        read_command(line)


def test_text_that_is_nothing_is_found() -> None:
    with pytest.raises(SyntaxError):
        read_block("text", "neither this = nor that\n")
    with pytest.raises(AssertionError):
        read_block("text", "fedpace data where\nrm this\n")


def test_the_api_page_has_every_public_name() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    shown = [name.rpartition(".")[2] for name in re.findall(r"^::: fedpace\.(\S+)$", page, re.M)]
    assert set(fedpace.__all__) <= set(shown)
    assert len(set(shown)) == len(shown)


def test_every_page_is_in_the_navigation() -> None:
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in SITE:
        assert page.relative_to(ROOT / "docs").as_posix() in listed
