"""A Profile on disk: one row per client.

Columns `time` (seconds), `grad_norm`, and either `samples` or `weight`; optionally `client`.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, refuse_wide, sum_to_one
from fedpace.errors import InputError, join_names, nearest
from fedpace.files import write_text
from fedpace.profile import Profile

NUMBERS = ("samples", "weight", "time", "grad_norm")
COLUMNS = ("client", *NUMBERS)
WANTED = "'samples' (or 'weight'), 'time' and 'grad_norm'"
# A gradient norm of 0 has a meaning (see Profile.importance); no other column's 0 has.
MAY_BE_ZERO = ("grad_norm",)
REMEDY = {
    "samples": "drop clients without data",
    "weight": "drop clients without data",
    "time": "measure a round of this client, in seconds",
    "grad_norm": "use the mean over clients where it was not measured",
}


class Clients(NamedTuple):
    """The names of the clients, in the order of the file, and what is known of them."""

    names: Sequence[str]
    profile: Profile


class _Table(NamedTuple):
    """The cells of a file by column, and the line each row ends on."""

    path: Path
    cells: dict[str, tuple[str, ...]]
    lines: list[int]

    def numbers(self, name: str) -> FloatArray:
        """Convert a column, or say which cell is not a number that can be used."""
        cells = self.cells[name]
        try:
            values = np.array(cells, dtype=np.float64)
        except ValueError:
            at = next(i for i, cell in enumerate(cells) if not _is_number(cell))
            remedy = "give a plain number"
            if _is_number(cells[at].replace(",", "")):
                remedy = "write decimals with a point, and no thousands separators"
            raise self.refusal(name, at, "is not a number", remedy) from None
        for bad, problem in (
            (~np.isfinite(values), "is not a finite number"),
            (values < 0, "is negative"),
            ((values == 0) & (name not in MAY_BE_ZERO), "is zero"),
        ):
            if bad.any():
                raise self.refusal(name, int(np.argmax(bad)), problem, REMEDY[name])
        return values

    def names(self) -> Sequence[str]:
        """Return the clients' names, or say which one is missing or given twice."""
        if "client" not in self.cells:
            return [str(i) for i in range(len(self.lines))]
        first: dict[str, int] = {}
        names = [cell.strip() for cell in self.cells["client"]]
        for at, name in enumerate(names):
            if not name:
                raise self.refusal("client", at, "is no name", "name every client or none")
            if first.setdefault(name, at) != at:
                problem = f"is the client of row {self.lines[first[name]]} too"
                raise self.refusal("client", at, problem, "give each client one row")
        return names

    def refusal(self, name: str, at: int, problem: str, remedy: str) -> InputError:
        """Return the error for a cell."""
        cell = self.cells[name][at].strip() if name == "client" else self.cells[name][at]
        where = f"{self.path}: row {self.lines[at]}, column '{name}'"
        return InputError(f"{where}: '{cell:.40}' {problem}; {remedy}")


def read_clients(path: Path) -> Clients:
    """Read a clients file; errors name the file, the row, the column, the value and a remedy."""
    header, rows, lines = _read_table(path)
    columns = _known_columns(path, header)
    cells = dict(zip(header, zip(*rows, strict=True), strict=True))
    table = _Table(path, cells, lines)
    numbers = {name: table.numbers(name) for name in columns}
    return Clients(table.names(), _profile(table, numbers))


def _profile(table: _Table, numbers: dict[str, FloatArray]) -> Profile:
    """Make the profile; what it would refuse is said in terms of the file's rows and columns."""
    for name, values in numbers.items():
        where = f"{table.path}: column '{name}'"
        refuse_wide(where, values, lambda row: f"row {table.lines[row]}")
    if "samples" in numbers:
        return Profile.from_samples(numbers["samples"], numbers["time"], numbers["grad_norm"])
    remedy = "divide by the sum, or give sample counts in a column 'samples' instead"
    sum_to_one(f"{table.path}: column 'weight'", numbers["weight"], remedy)
    return Profile(numbers["weight"], numbers["time"], numbers["grad_norm"])


def write_probabilities(
    path: Path, names: Sequence[str], columns: Mapping[str, NDArray[Any]]
) -> None:
    """Write one row per client: its name and the columns, such as q."""
    values = (column.tolist() for column in columns.values())
    rows = zip(map(_quote, names), *values, strict=True)
    lines = (",".join([name, *map(repr, numbers)]) + "\n" for name, *numbers in rows)
    write_text(path, ",".join(["client", *columns]) + "\n" + "".join(lines))


def write_example(path: Path, n: int, rng: np.random.Generator) -> None:
    """Write a typical fleet: a few clients with much data, and a few that are very slow.

    Sample counts follow a power law; gradient norms and device speeds are log-normal; a round
    is 50 local steps at the device's speed plus a transfer at the link's.
    """
    samples = np.maximum((30 * (1 + rng.pareto(1.6, n))).astype(np.int64), 10)
    grad_norms = rng.lognormal(mean=1.0, sigma=0.5, size=n)
    computation = 0.5 * rng.lognormal(sigma=0.7, size=n)
    times = computation + rng.lognormal(sigma=1.0, size=n)
    names = [f"phone-{i:0{len(str(n - 1))}}" for i in range(n)]
    rows = zip(names, samples, times, grad_norms, strict=True)
    lines = [f"{name},{count},{time:.4g},{norm:.4g}\n" for name, count, time, norm in rows]
    write_text(path, "client,samples,time,grad_norm\n" + "".join(lines))


def _read_table(path: Path) -> tuple[list[str], list[list[str]], list[int]]:
    """Return the header, the rows that are not blank, and the line each row ends on."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        remedy = f"'fedpace example {path.name}' writes one to start from"
        raise InputError(f"{path}: no such file; {remedy}") from None
    except UnicodeDecodeError as error:
        byte = f"byte 0x{error.object[error.start]:02x} at offset {error.start}"
        raise InputError(f"{path}: not UTF-8 text ({byte}); save it as CSV in UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; give a CSV file") from None
    if "\0" in text:
        raise InputError(f"{path}: not UTF-8 text (it has NUL bytes); save it as CSV in UTF-8")
    first_line = text.lstrip().split("\n", 1)[0]
    delimiter = max(",;\t", key=first_line.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        filled = (row for row in reader if any(cell.strip() for cell in row))
        header = [name.strip().lower() for name in next(filled, [])]
        for row in filled:
            if len(row) != len(header):
                both = f"has {len(row)} values, the header has {len(header)}"
                raise InputError(f"{path}: row {reader.line_num} {both}; give one value per column")
            rows.append(row)
            lines.append(reader.line_num)
    except csv.Error as error:
        remedy = "check for a quote that is not closed"
        raise InputError(f"{path}: row {reader.line_num}: {error}; {remedy}") from None
    if not any(header):
        raise InputError(f"{path}: is empty; the first row names the columns {WANTED}")
    if not rows:
        raise InputError(f"{path}: has a header but no clients; give one row per client")
    return header, rows, lines


def _known_columns(path: Path, header: list[str]) -> list[str]:
    """Return the numeric columns to read, or say which one is missing or given twice."""
    for name in COLUMNS:
        if header.count(name) > 1:
            raise InputError(f"{path}: column '{name}' occurs twice; keep one")
    present = [name for name in NUMBERS if name in header]
    if "samples" in present and "weight" in present:
        raise InputError(f"{path}: columns 'samples' and 'weight' both occur; keep one of them")
    size = "weight" if "weight" in present else "samples"
    if missing := [name for name in (size, "time", "grad_norm") if name not in present]:
        name = missing[0]
        label = "'samples' (or 'weight')" if name == "samples" else f"'{name}'"
        hint = nearest(name, [other for other in header if other and other not in COLUMNS])
        hint = hint if hint.startswith("did") else f"the file needs {WANTED}"
        found = join_names(f"'{each[:40]}'" for each in header)
        raise InputError(f"{path}: column {label} is missing, found {found}; {hint}")
    return present


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _quote(name: str) -> str:
    special = any(character in name for character in ',"\r\n')
    return '"' + name.replace('"', '""') + '"' if special else name
