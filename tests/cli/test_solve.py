"""`fedpace solve` as its user meets it."""

import csv
import os
import re
import stat
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedpace
from fedpace.clients_file import read_clients
from fedpace.sampling.independent import Independent
from tests.cli.calling import (
    assert_refused,
    contents,
    fields,
    library_rows,
    run,
    strict_json,
)


def test_solve_prints_every_scheme_with_the_librarys_numbers(fleet: Path) -> None:
    outcome = run("solve", "clients.csv", "-k", 7)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    printed = {
        words[0]: [float(word) for word in words[1:]]
        for line in outcome.stdout.splitlines()
        if (words := line.split()) and words[0] in fedpace.SCHEMES
    }
    assert list(printed) == list(fedpace.SCHEMES)
    for row in library_rows("clients.csv", 7):
        expected = [row.round_time, row.variance_term, row.largest_weight, row.relative_time]
        assert printed[row.scheme] == pytest.approx(expected, rel=5e-3, abs=5e-4)
    assert printed["uniform"][-1] == 1


def test_solve_prints_the_fastest_and_the_slowest_clients(fleet: Path) -> None:
    clients = read_clients(Path("clients.csv"))
    order = np.argsort(clients.profile.times)
    shown = [clients.names[i] for i in (*order[:5], *order[-5:])]
    lines = [line.split() for line in run("solve", "clients.csv", "-k", 7).stdout.splitlines()]
    rows = [words for words in lines if words and words[0].startswith("phone-")]
    assert [words[0] for words in rows] == shown
    design = fedpace.SCHEMES["optimal-max"](clients.profile, 7)
    assert isinstance(design, fedpace.WithReplacement)
    q = dict(zip(clients.names, design.q, strict=True))
    for words in rows:
        assert float(words[3]) == pytest.approx(q[words[0]], rel=1e-3)


def test_json_is_all_there_is_on_standard_output_and_equals_the_library(fleet: Path) -> None:
    outcome = run("solve", "clients.csv", "-k", 7, "--json", "-o", "q.csv", "--plot", "q.png")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    record = strict_json(outcome.stdout)
    clients = read_clients(Path("clients.csv"))
    rows = library_rows("clients.csv", 7)
    design = next(row.design for row in rows if row.scheme == "optimal-max")
    assert isinstance(design, fedpace.WithReplacement)
    assert design.solution is not None
    assert record["k"] == 7
    assert record["scheme"] == "optimal-max"
    assert record["beta_over_alpha"] == clients.profile.beta_over_alpha
    assert record["schemes"] == [fields(row) for row in library_rows("clients.csv", 7)]
    assert record["clients"] == list(clients.names)
    assert record["q"] == design.q.tolist()
    for name, value in record["solution"].items():
        assert value == getattr(design.solution, name)
    assert (fleet / "q.csv").exists()
    assert (fleet / "q.png").exists()


@pytest.mark.parametrize("scheme", fedpace.SCHEMES)
@pytest.mark.parametrize("ratio", ["0", "1", "1e12"])
def test_json_is_valid_for_every_scheme_and_ratio(fleet: Path, scheme: str, ratio: str) -> None:
    outcome = run("solve", "clients.csv", "--scheme", scheme, "--beta-over-alpha", ratio, "--json")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    record = strict_json(outcome.stdout)
    assert record["beta_over_alpha"] == float(ratio)
    assert ("q" in record) == (scheme != "full")


@pytest.mark.parametrize("scheme", [name for name in fedpace.SCHEMES if name != "full"])
def test_the_file_of_probabilities_equals_the_library(fleet: Path, scheme: str) -> None:
    outcome = run("solve", "clients.csv", "-k", 7, "--scheme", scheme, "-o", "q.csv")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert "q.csv" in outcome.stdout
    clients = read_clients(Path("clients.csv"))
    design = fedpace.SCHEMES[scheme](clients.profile, 7)
    assert isinstance(design, fedpace.WithReplacement | fedpace.Tiered | Independent)
    with (fleet / "q.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    columns = design.columns()
    assert list(rows[0]) == ["client", *columns]
    assert list(columns)[:2] == ["q", "aggregation_weight"]
    assert [row["client"] for row in rows] == list(clients.names)
    for name, values in columns.items():
        assert [float(row[name]) for row in rows] == pytest.approx(values.tolist(), rel=1e-9)
    q = columns["q"]
    assert q.sum() == pytest.approx(1, abs=1e-12)
    drawn = 7 * q
    if isinstance(design, fedpace.Tiered):
        drawn = design.chances[design.tiers] * design.inclusion
    if isinstance(design, Independent):
        drawn = design.inclusion / design.somebody
    weights = clients.profile.weights / drawn
    assert columns["aggregation_weight"] == pytest.approx(weights, rel=1e-12)


def test_a_loose_proof_names_the_closer_one_and_the_bound_is_put_in_its_place(fleet: Path) -> None:
    loose = run("solve", "clients.csv", "-k", 7).stdout
    assert "% above the global optimum" not in loose
    assert "--certify proves how near it is" in loose
    assert "Note: predicted times are those of a bound" in loose
    close = run("solve", "clients.csv", "-k", 7, "--certify").stdout
    assert "% above the global optimum" in close
    assert "local optimum" not in close
    assert "Note: predicted times are those of a bound" in run("plan", "clients.csv").stdout


def test_tiers_are_shown_and_recorded(fleet: Path) -> None:
    args = ["solve", "clients.csv", "-k", "7", "--scheme", "optimal-tiers"]
    outcome = run(*args, "--plot", "q.png")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    clients = read_clients(Path("clients.csv"))
    design = fedpace.SCHEMES["optimal-tiers"](clients.profile, 7)
    assert isinstance(design, fedpace.Tiered)
    assert f"Tiers: {design.chances.size}" in outcome.stdout
    assert "a local optimum" in outcome.stdout
    assert "--certify" not in outcome.stdout  # which is for another scheme
    assert (fleet / "q.png").exists()
    record = strict_json(run(*args, "--json").stdout)
    assert record["tier"] == record["solution"]["tiers"] == design.tiers.tolist()
    assert record["solution"]["chances"] == pytest.approx(design.chances.tolist(), rel=1e-9)
    assert record["inclusion"] == pytest.approx(design.inclusion.tolist(), rel=1e-9)
    assert record["q"] == pytest.approx(design.q.tolist(), rel=1e-9)


def test_no_weight_exceeds_the_cap(fleet: Path) -> None:
    free = run("solve", "clients.csv", "-k", 4, "--json")
    assert max(row["largest_weight"] for row in strict_json(free.stdout)["schemes"][3:]) > 0.6
    outcome = run("solve", "clients.csv", "-k", 4, "--max-weight", 0.6, "--json", "-o", "q.csv")
    record = strict_json(outcome.stdout)
    assert all(row["largest_weight"] <= 0.6 * (1 + 1e-9) for row in record["schemes"][3:])
    weights = np.loadtxt(fleet / "q.csv", delimiter=",", skiprows=1, usecols=2)
    assert weights.max() <= 0.6 * (1 + 1e-9)
    expected = [fields(row) for row in library_rows("clients.csv", 4, cap=0.6)]
    assert record["schemes"] == expected


def test_a_risky_weight_is_noted_and_the_cap_of_1_ends_the_note(folder: Path) -> None:
    assert run("example", "clients.csv", "--force").returncode == 0
    risky = run("solve", "clients.csv", "-k", 2)
    assert "above 1 a single draw" in " ".join(risky.stdout.split())
    for k in (2, 3, 5, 10):  # the weights of some of them exceed 1 by rounding
        capped = run("solve", "clients.csv", "-k", k, "--max-weight", 1)
        assert capped.returncode == 0
        assert "above 1" not in " ".join(capped.stdout.split())


def test_a_picture_opens(fleet: Path) -> None:
    for ending in ("PNG", "pdf", "svg"):
        outcome = run("solve", "clients.csv", "--plot", f"q.{ending}")
        assert (outcome.returncode, outcome.stderr) == (0, "")
        assert f"q.{ending}" in outcome.stdout
    assert (fleet / "q.PNG").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    with Image.open(fleet / "q.PNG") as picture:
        picture.load()
        assert picture.format == "PNG"
        assert min(picture.size) > 400
        assert len(picture.convert("RGB").getcolors(maxcolors=1 << 24) or []) > 50
    assert (fleet / "q.pdf").read_bytes().startswith(b"%PDF-")
    assert (fleet / "q.pdf").read_bytes().rstrip().endswith(b"%%EOF")
    assert ET.parse(fleet / "q.svg").getroot().tag.endswith("svg")


def test_a_loose_bound_names_certify_which_prints_a_tight_one(fleet: Path) -> None:
    said = [
        " ".join(run("solve", "clients.csv", "-k", 10, *more).stdout.split())
        for more in ((), ("--certify",))
    ]
    assert "too loose to tell; --certify proves how near it is" in said[0]
    found = re.search(r"at most ([\d.]+) % above", said[1])
    assert found, said[1]
    assert 0 <= float(found[1]) < 20


def test_certify_describes_the_probabilities_it_returns(folder: Path) -> None:
    # Dynamic programming finds a better local optimum here than the usual starts do.
    weights = [0.0412, 0.1407, 0.0367, 0.0228, 0.0373, 0.2202, 0.1445, 0.1086, 0.1377, 0.1102]
    times = [0.8238, 4.1339, 1.5531, 2.0444, 0.2091, 3.774, 5.8339, 0.9744, 0.61, 2.2519]
    norms = [5.7698, 1.8521, 1.5121, 0.3456, 1.2436, 1.4896, 2.6442, 1.4513, 4.044, 5.44]
    rows = (f"{1e4 * p:.0f},{t},{g}\n" for p, t, g in zip(weights, times, norms, strict=True))
    (folder / "local.csv").write_text("samples,time,grad_norm\n" + "".join(rows))
    args = ["solve", "local.csv", "-k", "119", "--beta-over-alpha", "468.3", "--json"]
    usual, certified = (strict_json(run(*args, *more).stdout) for more in ([], ["--certify"]))
    assert certified["solution"]["objective"] < 0.999 * usual["solution"]["objective"]
    profile = read_clients(Path("local.csv")).profile
    row, before = (
        next(each for each in record["schemes"] if each["scheme"] == "optimal-max")
        for record in (certified, usual)
    )
    assert row["round_time"] == pytest.approx(
        fedpace.expected_round_time(certified["q"], profile.times, 119)
    )
    ratio = certified["solution"]["objective"] / usual["solution"]["objective"]
    assert row["relative_time"] == pytest.approx(ratio * before["relative_time"])


def test_full_has_a_table_and_no_probabilities(fleet: Path) -> None:
    outcome = run("solve", "clients.csv", "--scheme", "full")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert "optimal-max" in outcome.stdout
    assert "phone-" not in outcome.stdout


def test_output_replaces_an_old_file_at_once(fleet: Path) -> None:
    (fleet / "q.csv").write_text("old")
    with (fleet / "q.csv").open() as old:
        assert run("solve", "clients.csv", "-o", "q.csv").returncode == 0
        assert old.read() == "old"  # whoever has it open keeps all of it
    assert (fleet / "q.csv").read_text().startswith("client,q,")
    assert sorted(contents(fleet)) == ["clients.csv", "q.csv"]


def test_the_mode_of_output_honours_the_umask(fleet: Path) -> None:
    usual = os.umask(0o027)
    try:
        assert run("solve", "clients.csv", "-o", "q.csv", "--plot", "q.png").returncode == 0
    finally:
        os.umask(usual)
    for name in ("q.csv", "q.png"):
        assert stat.S_IMODE((fleet / name).stat().st_mode) == 0o640


OWN = """
from fedpace import Everyone, WithReplacement

def fastest(profile, k, *, max_weight=None):
    q = 1 / profile.times
    return WithReplacement(q / q.sum(), k, profile.weights)

def nobody_chosen(profile, k, *, max_weight=None):
    return Everyone(profile.weights)
"""


def test_a_scheme_of_the_users_own_is_solved_beside_the_others(fleet: Path) -> None:
    (fleet / "own.py").write_text(OWN)
    record = strict_json(run("solve", "clients.csv", "--scheme", "own.py:fastest", "--json").stdout)
    assert [row["scheme"] for row in record["schemes"]] == [*fedpace.SCHEMES, "own.py:fastest"]
    times = read_clients(Path("clients.csv")).profile.times
    assert record["q"] == pytest.approx((1 / times / (1 / times).sum()).tolist())


def test_a_design_without_probabilities_is_not_written(fleet: Path) -> None:
    (fleet / "own.py").write_text(OWN)
    done = run("solve", "clients.csv", "--scheme", "own.py:nobody_chosen", "-o", "q.csv")
    assert_refused(done, "'own.py:nobody_chosen' has no probabilities to write; choose another")
    assert not (fleet / "q.csv").exists()
