"""A Profile on disk: what is read is what was written, and errors say where."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace import InputError
from fedpace.clients_file import read_clients, write_example, write_probabilities

HEADER = "client,samples,time,grad_norm\n"
# Names as they come out of a file: no NUL, no half of a character, line ends as "\n".
NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1, max_size=12
).filter(lambda name: name.strip() != "")
POSITIVE = st.floats(1e-6, 1e6)


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clients-file")


@settings(deadline=None)
@given(
    rows=st.lists(
        st.tuples(NAMES, POSITIVE, POSITIVE, st.one_of(POSITIVE, st.just(0.0))),
        min_size=1,
        max_size=8,
        unique_by=lambda row: row[0].strip(),
    ),
    delimiter=st.sampled_from(",;\t"),
    order=st.permutations(range(5)),
)
def test_what_is_written_is_read_in_any_order_of_columns_and_with_any_delimiter(
    scratch: Path,
    rows: list[tuple[str, float, float, float]],
    delimiter: str,
    order: list[int],
) -> None:
    table = [["Client", "SAMPLES", "time", "grad_norm", "note"]]
    table += [[*map(str, row), "n/a"] for row in rows]
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, delimiter=delimiter, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerows([row[i] for i in order] for row in table)
    file = scratch / "clients.csv"
    file.write_bytes(stream.getvalue().encode())
    clients = read_clients(file)
    names, samples, times, norms = zip(*rows, strict=True)
    assert [name.strip() for name in clients.names] == [name.strip() for name in names]
    assert clients.profile.weights == pytest.approx(np.array(samples) / sum(samples), rel=1e-12)
    assert clients.profile.times.tolist() == list(times)
    assert clients.profile.grad_norms.tolist() == list(norms)


@settings(deadline=None)
@given(names=st.lists(NAMES, min_size=1, max_size=8), data=st.data())
def test_probabilities_come_back_digit_for_digit(
    scratch: Path, names: list[str], data: st.DataObject
) -> None:
    sizes = st.lists(POSITIVE, min_size=len(names), max_size=len(names))
    q, weights = (np.array(column) / sum(column) for column in (data.draw(sizes), data.draw(sizes)))
    tiers = np.arange(len(names)) // 2
    file = scratch / "q.csv"
    write_probabilities(file, names, {"q": q, "aggregation_weight": weights, "tier": tiers})
    with file.open(encoding="utf-8", newline="") as stream:
        header, *rows = csv.reader(stream, strict=True)
    assert header == ["client", "q", "aggregation_weight", "tier"]
    assert [row[0] for row in rows] == names
    assert [float(row[1]) for row in rows] == q.tolist()
    assert [float(row[2]) for row in rows] == weights.tolist()
    assert [row[3] for row in rows] == [str(tier) for tier in tiers]


def test_weights_and_the_default_ratio_reach_the_profile(tmp_path: Path) -> None:
    file = tmp_path / "clients.csv"
    file.write_text("weight,time,grad_norm\n0.5,1,3\n0.5,4,1\n")
    profile = read_clients(file).profile
    assert profile.weights.tolist() == [0.5, 0.5]
    assert profile.beta_over_alpha == 4  # (Σ p G)²


def test_rows_are_counted_as_an_editor_counts_lines(tmp_path: Path) -> None:
    file = tmp_path / "clients.csv"
    file.write_text(HEADER + '"a\nb",1,1,1\n\n\nc,1,1,oops\n')
    with pytest.raises(InputError, match=r"row 6, column 'grad_norm': 'oops'"):
        read_clients(file)


def test_the_first_bad_cell_of_a_column_is_named(tmp_path: Path) -> None:
    file = tmp_path / "clients.csv"
    file.write_text(HEADER + "a,1,1,1\nb,1,x,1\nc,1,y,1\n")
    with pytest.raises(InputError, match=r"row 3, column 'time': 'x'"):
        read_clients(file)


def test_a_long_cell_is_quoted_in_part(tmp_path: Path) -> None:
    file = tmp_path / "clients.csv"
    file.write_text(HEADER + f"a,{'z' * 5000},1,1\n")
    with pytest.raises(InputError, match=r"row 2, column 'samples': 'z+' is not") as caught:
        read_clients(file)
    assert len(str(caught.value)) < 300 + len(str(file))


def test_a_cell_too_large_for_a_table_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "clients.csv"
    file.write_text(HEADER + f'"{"z" * 200_000}",1,1,1\n')
    with pytest.raises(InputError, match="row 2") as caught:
        read_clients(file)
    assert len(str(caught.value)) < 300 + len(str(file))


@pytest.mark.parametrize("n", [1, 2, 11, 500])
def test_an_example_is_a_fleet_with_distinct_names(tmp_path: Path, n: int) -> None:
    file = tmp_path / "clients.csv"
    write_example(file, n, np.random.default_rng(0))
    clients = read_clients(file)
    assert len(set(clients.names)) == n
    assert list(clients.names) == sorted(clients.names)
    assert clients.profile.n == n


def test_an_example_has_a_heavy_tail_of_data_and_of_time(tmp_path: Path) -> None:
    file = tmp_path / "clients.csv"
    write_example(file, 5000, np.random.default_rng(0))
    profile = read_clients(file).profile
    for column in (profile.weights, profile.times):
        assert column.max() > 10 * np.median(column)
    assert profile.grad_norms.min() > 0
