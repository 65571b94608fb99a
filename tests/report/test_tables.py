"""Tables say what the library computed, and nothing is cut or taken for markup."""

import re

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table

import fedpace
from fedpace.clients_file import Clients
from fedpace.report.tables import BREAKS, clients_table, plan_tables, schemes_table, tiers_table


def fleet(n: int, names: list[str] | None = None) -> Clients:
    rng = np.random.default_rng(n)
    profile = fedpace.Profile.from_samples(
        rng.integers(10, 100, n), rng.lognormal(size=n), rng.lognormal(size=n)
    )
    return Clients(names or [f"client-{i}" for i in range(n)], profile)


def lines(*tables: Table) -> list[str]:
    console = Console(width=150, color_system=None)
    with console.capture() as capture:
        for table in tables:
            console.print(table)
    return capture.get().splitlines()


def bold_rows(table: Table) -> list[int]:
    return [i for i, row in enumerate(table.rows) if row.style == "bold"]


def weighted_design(clients: Clients) -> fedpace.WithReplacement:
    design = fedpace.SCHEMES["statistical"](clients.profile, 10)
    assert isinstance(design, fedpace.WithReplacement)
    return design


def test_the_scheme_with_the_least_time_is_bold() -> None:
    rows = list(fedpace.plan(fleet(40).profile, 10))
    table = schemes_table(rows, k=10)
    best = int(np.argmin([row.relative_time for row in rows]))
    assert bold_rows(table) == [best]
    assert table.row_count == len(fedpace.SCHEMES)


def test_the_headings_name_quantities_and_units() -> None:
    rows = list(fedpace.plan(fleet(40).profile, 1234))
    text = " ".join(lines(schemes_table(rows, k=1234)))
    for words in ("K = 1,234", "round, s", "variance", "largest", "uniform = 1"):
        assert words in text


@pytest.mark.parametrize(("n", "shown"), [(1, 1), (2, 2), (10, 10), (11, 10), (500, 10)])
def test_a_small_fleet_is_shown_whole_and_a_large_one_by_its_ends(n: int, shown: int) -> None:
    clients = fleet(n)
    design = weighted_design(clients)
    table = clients_table(clients, design.columns(), scheme="statistical", show=5)
    assert table.row_count == shown
    rows = [line.split() for line in lines(table) if line.strip().startswith("client-")]
    order = np.argsort(clients.profile.times, kind="stable")
    wanted = order if n <= 10 else [*order[:5], *order[-5:]]
    assert [row[0] for row in rows] == [clients.names[i] for i in wanted]
    for i, row in zip(wanted, rows, strict=True):
        importance = clients.profile.weights * clients.profile.grad_norms
        expected = [
            clients.profile.times[i],
            importance[i] / importance.sum(),
            design.q[i],
            clients.profile.weights[i] / (10 * design.q[i]),
        ]
        assert [float(word) for word in row[1:]] == pytest.approx(expected, rel=5e-3)


@pytest.mark.parametrize(("count", "shown"), [(1, 1), (10, 10), (11, 10), (40, 10)])
def test_few_tiers_are_shown_whole_and_many_by_their_ends(count: int, shown: int) -> None:
    profile = fleet(40).profile
    found = fedpace.solve_tiers(
        profile.weights, profile.times, profile.grad_norms, None, k=5, tiers=count
    )
    design = fedpace.Tiered(found.tiers, found.chances, found.inclusion, profile.weights, k=5)
    table = tiers_table(profile, design, show=5)
    rows = [words for line in lines(table) if (words := line.split()) and words[0].isdecimal()]
    wanted = [*range(count)] if count <= 10 else [*range(5), *range(count - 5, count)]
    assert [int(row[0]) for row in rows] == wanted
    assert table.row_count == shown
    for g, row in zip(wanted, rows, strict=True):
        members = design.tiers == g
        expected = [
            members.sum(),
            profile.times[members].max(),
            design.chances[g],
            design.tier_times(profile.times)[g],
            profile.weights[members].sum() / design.chances[g],
        ]
        assert [float(word) for word in row[1:]] == pytest.approx(expected, rel=5e-3)


def test_brackets_in_a_name_are_not_markup() -> None:
    clients = fleet(3, ["[/red]", "[bold]b", "[link=x]"])
    text = "\n".join(
        lines(clients_table(clients, weighted_design(clients).columns(), scheme="x", show=5))
    )
    for name in clients.names:
        assert name in text


def test_control_characters_in_a_name_do_not_reach_the_terminal() -> None:
    clients = fleet(2, ["\x1b[2Ja", "b\x07"])
    text = "\n".join(
        lines(clients_table(clients, weighted_design(clients).columns(), scheme="x", show=5))
    )
    assert "\x1b" not in text
    assert "\x07" not in text


def test_the_plan_marks_one_cell_the_least() -> None:
    rows = list(fedpace.plan(fleet(40).profile, 10, ks=[2, 10, 40]))
    times, rounds, variances = plan_tables(rows, k=10)
    best = min(rows, key=lambda row: row.relative_time)
    starred = [line for line in lines(times) if "*" in line]
    assert len(starred) == 1
    assert re.findall(r"([\d.]+) \*", starred[0]) == [f"{best.relative_time:.3f}"]
    assert starred[0].split()[0] == str(best.k)
    assert "*" not in "".join(lines(rounds, variances))


def test_the_plan_has_a_row_for_each_k_and_a_column_for_each_scheme() -> None:
    rows = list(fedpace.plan(fleet(40).profile, 10, ks=[1, 1000]))
    for table in plan_tables(rows, k=10):
        titles = [str(column.header) for column in table.columns]
        names = [BREAKS.get(name, name).replace("\n", "") for name in fedpace.SCHEMES]
        assert [title.replace("\n", "") for title in titles] == ["K", *names]
        assert table.row_count == 2
        assert any(line.split()[:1] == ["1,000"] for line in lines(table))
