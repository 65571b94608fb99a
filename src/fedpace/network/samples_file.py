"""How many samples devices have, as the operator knows it."""

from __future__ import annotations

import csv
from pathlib import Path

from fedpace.errors import InputError

HEADER = ["name", "samples"]


def read_samples(path: Path) -> dict[str, int]:
    """Return the counts of a CSV file with the columns name and samples."""
    try:
        lines = list(csv.reader(path.read_text(encoding="utf-8").splitlines(), strict=True))
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read: {error}; give a CSV file") from None
    if not lines or [each.strip() for each in lines[0]] != HEADER:
        raise InputError(f"{path}: line 1 must be 'name,samples', got {lines[:1]!r:.60}; write it")
    counts: dict[str, int] = {}
    for number, line in enumerate(lines[1:], start=2):
        if not line:
            continue
        name, count = line if len(line) == 2 else ("", "")
        if not name or name in counts or not count.strip().isdecimal() or int(count) < 1:
            raise InputError(
                f"{path}: line {number} must be a new name and a positive integer, got "
                f"{line!r:.60}; write kitchen,120"
            )
        counts[name] = int(count)
    return counts
