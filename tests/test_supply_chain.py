"""What others can change under us is pinned: packages by hash, actions by commit."""

import re
from pathlib import Path
from typing import Any

import pytest

yaml: Any = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]
# PyTorch's wheels, and what they need, differ by machine.
LISTS = sorted({*(ROOT / "requirements").glob("*.txt")} - {ROOT / "requirements" / "torch.txt"})
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.name)
def test_every_package_has_a_version_and_hashes(path: Path) -> None:
    packages = path.read_text().replace("\\\n", "").splitlines()
    assert len(packages) > 30
    for each in packages:
        assert re.fullmatch(
            r"[\w.-]+(\[[\w,-]+\])?==[\w.+]+( ; [^-]*)?(\s+--hash=sha256:[0-9a-f]{64})+", each
        )


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.name)
def test_every_wanted_package_is_pinned(path: Path) -> None:
    wanted = re.findall(r"^[\w-]+", path.with_suffix(".in").read_text(), re.MULTILINE)
    pinned = {
        name.lower() for name in re.findall(r"^([\w.-]+)[^\s=]*==", path.read_text(), re.MULTILINE)
    }
    assert {name.lower() for name in wanted if not name.startswith("-")} <= pinned


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_and_keep_no_token(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    for step in steps:
        if "uses" in step:
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step["uses"])
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_what_is_published_comes_from_a_job_without_tests_and_tokens() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    build = jobs["build"]
    assert build["permissions"] == {"contents": "read"}
    commands = " ".join(step.get("run", "") for step in build["steps"])
    assert "--require-hashes" in commands
    assert not re.search(r"pytest|\.ci/run|make |secrets\.|github\.token", commands)
    assert set(jobs["publish"]["needs"]) == {"test", "build", "try"}
