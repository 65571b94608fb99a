"""Measure what `import fedpace` costs, and which packages it brings along.

    python benchmarks/import_time.py [--runs 10]

Every run is a fresh interpreter that times the import statement itself; the statements take
turns, so that a busy moment of the machine hits all of them.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

from tables import print_table, seconds

STATEMENTS = ("import numpy", "import numpy, scipy.optimize", "import fedpace")

TIMED = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"
LISTED = """
import sys
before = set(sys.modules)
import fedpace
for name in sorted({name.partition(".")[0] for name in set(sys.modules) - before}):
    origin = getattr(sys.modules.get(name), "__file__", None) or ""
    if "site-packages" in origin:
        print(name)
"""


def run(code: str) -> str:
    """Return what the code prints in a fresh interpreter."""
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    return result.stdout


def main() -> None:
    """Print the table and the list."""
    parser = argparse.ArgumentParser(description="Measure the import of fedpace.")
    parser.add_argument("--runs", type=int, default=10)
    runs = parser.parse_args().runs
    taken: dict[str, list[float]] = {statement: [] for statement in STATEMENTS}
    for _ in range(runs):
        for statement in STATEMENTS:
            taken[statement].append(float(run(TIMED.format(statement))))
    medians = {statement: statistics.median(values) for statement, values in taken.items()}
    base = medians["import numpy"]
    print_table(
        ["statement", "median", "least", "over numpy"],
        (
            [f"`{name}`", seconds(value), seconds(min(taken[name])), f"{value / base:.2f}×"]
            for name, value in medians.items()
        ),
    )
    print("\nThird-party packages after `import fedpace`:", ", ".join(run(LISTED).split()))


if __name__ == "__main__":
    main()
