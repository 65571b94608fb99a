"""`fedpace plan` as its user meets it."""

import csv
import re
from pathlib import Path

import pytest
from PIL import Image

import fedpace
from fedpace.sampling.plan import usual_ks
from tests.cli.calling import (
    HEADER,
    fields,
    library_rows,
    run,
    strict_json,
)


def test_plan_prints_three_tables_with_the_librarys_numbers(fleet: Path) -> None:
    outcome = run("plan", "clients.csv", "-k", 7)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    text = outcome.stdout.replace(" *", "")
    ks = usual_ks(60, 7)
    printed = [
        [float(word) for word in line.split()]
        for line in text.splitlines()
        if re.fullmatch(r"[\d.,e+\- ]+", line) and line.strip()
    ]
    assert [row[0] for row in printed] == 3 * ks
    rows = library_rows("clients.csv", 7, ks)
    columns = ("relative_time", "round_time", "variance_term")
    for i, k in enumerate(ks):
        for j, column in enumerate(columns):
            expected = [getattr(row, column) for row in rows if row.k == k]
            assert printed[i + j * len(ks)][1:] == pytest.approx(expected, rel=5e-3, abs=5e-4)


def test_the_tables_fit_80_columns(fleet: Path) -> None:
    lines = run("plan", "clients.csv", "-k", 7).stdout.splitlines()
    tables = [line for line in lines if re.match(r"\s*(K|\d+) ", line)]
    assert len(tables) == 3 * (1 + len(usual_ks(60, 7)))
    assert max(map(len, tables)) <= 80


def test_the_best_k_is_the_least_of_the_table(fleet: Path) -> None:
    outcome = run("plan", "clients.csv", "-k", 7)
    best = min(library_rows("clients.csv", 7, usual_ks(60, 7)), key=lambda row: row.relative_time)
    assert outcome.stdout.count(" *") == 1
    starred = next(line for line in outcome.stdout.splitlines() if " *" in line)
    assert int(starred.split()[0]) == best.k
    assert f"{best.scheme} with K = {best.k}, {best.relative_time:.3g} of" in outcome.stdout


def test_full_as_the_best_is_not_given_a_k(folder: Path) -> None:
    (folder / "equal.csv").write_text(HEADER + "".join(f"c{i},5,2,1\n" for i in range(20)))
    outcome = run("plan", "equal.csv")
    assert outcome.returncode == 0
    assert "Best (*): full" in outcome.stdout
    assert "full with K" not in outcome.stdout  # everyone takes part, whatever K
    # Full participation is not recommended on the word of the bound alone.
    rows = [row for row in library_rows("equal.csv", 10) if row.scheme != "full"]
    best = min(rows, key=lambda row: row.relative_time)
    sentence = " ".join(outcome.stdout.split()).partition(
        "of a bound, which assumes the worst variance"
    )[2]
    assert f"(docs/results). Recommended is {best.scheme} with K = 10. It rests on" in sentence
    record = strict_json(run("plan", "equal.csv", "--json").stdout)
    assert record["best"]["scheme"] == "full"
    assert record["recommended"] == fields(best)


def test_without_another_to_recommend_the_bound_is_doubted_all_the_same(folder: Path) -> None:
    (folder / "equal.csv").write_text(HEADER + "".join(f"c{i},5,2,1\n" for i in range(20)))
    args = ["plan", "equal.csv", "--schemes", "full"]
    text = " ".join(run(*args).stdout.split())
    assert "3.8 times as slow as optimal-mean (docs/results). It rests on" in text
    assert strict_json(run(*args, "--json").stdout)["recommended"] is None


def test_the_example_is_not_told_to_draw_everyone(folder: Path) -> None:
    assert run("example", "clients.csv", "--force").returncode == 0
    record = strict_json(run("plan", "clients.csv", "-k", 10, "--json").stdout)
    assert record["recommended"] == record["best"]
    assert record["best"]["scheme"] != "full"
    assert record["best"]["k"] < 100
    assert "Recommended is" not in run("plan", "clients.csv", "-k", 10).stdout  # it is the best


def test_plan_json_equals_the_library(fleet: Path) -> None:
    outcome = run("plan", "clients.csv", "-k", 7, "--ks", "20,3,3", "--max-weight", 1, "--json")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    record = strict_json(outcome.stdout)
    rows = library_rows("clients.csv", 7, [3, 20], 1)
    assert record["k"] == 7
    assert record["rows"] == [fields(row) for row in rows]
    assert record["best"] == min(record["rows"], key=lambda row: row["relative_time"])


def test_plan_writes_its_table(fleet: Path) -> None:
    args = ["plan", "clients.csv", "-k", "7", "--ks", "2,30"]
    outcome = run(*args, "-o", "plan.csv", "--plot", "plan.png")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    with (fleet / "plan.csv").open(encoding="utf-8", newline="") as stream:
        written = list(csv.DictReader(stream))
    expected = [fields(row) for row in library_rows("clients.csv", 7, [2, 30])]
    assert len(written) == 2 * len(fedpace.SCHEMES)
    for row, values in zip(written, expected, strict=True):
        assert list(row) == list(values)
        assert row["scheme"] == values["scheme"]
        for name in list(values)[1:]:
            assert float(row[name]) == values[name]
    with Image.open(fleet / "plan.png") as picture:
        picture.load()
        assert picture.format == "PNG"


def test_plan_compares_only_the_schemes_asked_for(fleet: Path) -> None:
    args = ["plan", "clients.csv", "-k", "7", "--ks", "3,20", "--schemes", "optimal-mean,full"]
    record = strict_json(run(*args, "--json").stdout)
    assert [(row["k"], row["scheme"]) for row in record["rows"]] == [
        (k, scheme) for k in (3, 20) for scheme in ("optimal-mean", "full")
    ]
    every = [fields(row) for row in library_rows("clients.csv", 7, [3, 20])]
    assert all(row in every for row in record["rows"])
    printed = run(*args).stdout
    assert "optimal-mean" in printed
    assert "statistical" not in printed


def test_plan_compares_a_scheme_of_the_users_own(fleet: Path) -> None:
    (fleet / "own.py").write_text(
        "from fedpace import SCHEMES\n\nmine = SCHEMES['statistical']\n", encoding="utf-8"
    )
    args = ["plan", "clients.csv", "--ks", "5", "--schemes", "statistical,own.py:mine", "--json"]
    theirs, mine = strict_json(run(*args).stdout)["rows"]
    assert mine.pop("scheme") == "own.py:mine"
    assert theirs.pop("scheme") == "statistical"
    assert mine == theirs


def test_a_shared_link_makes_fewer_clients_best(fleet: Path) -> None:
    args = ("plan", "clients.csv", "-k", 7, "--schemes", "uniform,optimal-tiers", "--json")
    free = strict_json(run(*args).stdout)
    shared = run(*args, "--link", "shared:5", "--megabits", 64)
    assert (shared.returncode, shared.stderr) == (0, "")
    assert strict_json(shared.stdout)["best"]["k"] < free["best"]["k"]
    bad = run(*args, "--link", "shared:0")
    assert bad.returncode == 2
    assert "link must have a positive, finite capacity, got 0; write" in bad.stderr


def test_asynchronous_plans_compare_numbers_of_clients_at_work(fleet: Path) -> None:
    args = ["plan", "clients.csv", "--asynchronous", "-k", 3, "--link", "shared:5", "--json"]
    done = run(*args)
    record = strict_json(done.stdout)
    assert {row["scheme"] for row in record["rows"]} == {
        "uniform", "weighted", "statistical", "optimal-mean"
    }  # fmt: skip
    shown = run(*args[:-1], "--plot", "plan.svg")
    assert "mean values of the queue" in shown.stdout
    assert f"optimal-mean with C = {record['best']['k']}, " in shown.stdout
    assert "It rests on the times and norms of the file" in shown.stdout
    done = run("plan", "clients.csv", "--asynchronous", "--schemes", "full")
    assert done.returncode == 2
    assert "scheme must have asynchronous shares, got 'full'; choose of uniform" in done.stderr
    done = run("plan", "clients.csv", "--asynchronous", "--ks", "9999")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
