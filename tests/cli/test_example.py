"""`fedpace example` as its user meets it."""

from pathlib import Path

import pytest

from tests.cli.calling import (
    GOOD,
    assert_refused,
    run,
)


def test_example_is_the_same_for_the_same_seed(folder: Path) -> None:
    for name, seed in (("a.csv", 3), ("b.csv", 3), ("c.csv", 4)):
        assert run("example", name, "--clients", 20, "--seed", seed).returncode == 0
    texts = [(folder / name).read_text() for name in ("a.csv", "b.csv", "c.csv")]
    assert texts[0] == texts[1] != texts[2]
    assert len(texts[0].splitlines()) == 21


def test_example_overwrites_only_when_told_to(folder: Path) -> None:
    assert_refused(run("example", "clients.csv"), "clients.csv", "--force")
    assert (folder / "clients.csv").read_text() == GOOD
    assert run("example", "clients.csv", "--force").returncode == 0
    assert (folder / "clients.csv").read_text() != GOOD


@pytest.mark.parametrize("n", [1, 2, 1000])
def test_an_example_is_accepted_by_the_command_it_names(folder: Path, n: int) -> None:
    outcome = run("example", "new.csv", "--clients", n)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    next_command = outcome.stdout.split("Next: ")[1].split()
    assert next_command[0] == "fedpace"
    assert run(*next_command[1:]).returncode == 0


def test_brackets_in_a_file_name_are_printed(folder: Path) -> None:
    (folder / "[red]").mkdir()
    outcome = run("example", "[red]/clients.csv")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout.startswith("[red]/clients.csv: ")
    outcome = run("solve", "[red]/clients.csv", "-o", "[red]/q.csv")
    assert "Written: [red]/q.csv" in outcome.stdout
