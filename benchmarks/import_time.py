"""Measure what starting costs: imports, help, and the files that a run and its report go through.

    python benchmarks/import_time.py [--runs 10]

Every run is a fresh interpreter; the statements take turns, so that a busy moment of the machine
hits all of them. Times are seconds of CPU, less those of an empty interpreter. A file counts if
one of its functions is called, in any process; comprehensions of constants do not count.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tables import print_table, seconds

STATEMENTS = {
    "pass": ["-c", "pass"],
    "import numpy": ["-c", "import numpy"],
    "import numpy, scipy.optimize": ["-c", "import numpy, scipy.optimize"],
    "import fedpace": ["-c", "import fedpace"],
    "fedpace --help": ["-m", "fedpace", "--help"],
}
LISTED = """
import sys
before = set(sys.modules)
import fedpace
for name in sorted({name.partition(".")[0] for name in set(sys.modules) - before}):
    origin = getattr(sys.modules.get(name), "__file__", None) or ""
    if "site-packages" in origin:
        print(name)
"""
# Every process of a run imports this; it notes the files whose functions are called.
TRACED = """
import os, sys, threading
seen = set()
def note(frame, event, _):
    name = frame.f_code.co_filename
    if event != "call" or "/fedpace/" not in name or name in seen:
        return
    kind = frame.f_code.co_name
    if frame.f_code.co_flags & 2 and not (kind[0] == "<" and kind != "<lambda>"):
        seen.add(name)
        with open(os.path.join(os.environ["TRACED"], str(os.getpid())), "a") as file:
            file.write(name.rpartition("/fedpace/")[2] + "\\n")
sys.setprofile(note)
threading.setprofile(note)
"""
RUN = ["run", "simulation-1", "--schemes", "pace", "--seeds", "1", "--set", "stop.rounds=8"]


def cpu(arguments: list[str]) -> float:
    """Return the seconds of CPU of a fresh interpreter."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def files_called() -> set[str]:
    """Return the files of fedpace that a run and its report go through."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(TRACED, encoding="utf-8")
        notes, out = folder / "notes", str(folder / "runs")
        notes.mkdir()
        path = os.pathsep.join([name, os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "TRACED": str(notes), "PYTHONPATH": path}
        for command in ([*RUN, "--out", out], ["report", out]):
            subprocess.run(
                [sys.executable, "-m", "fedpace", *command],
                check=True,
                capture_output=True,
                env=environment,
            )
        return {line for each in notes.iterdir() for line in each.read_text().split()}


def main() -> None:
    """Print the table and the lists."""
    parser = argparse.ArgumentParser(description="Measure what starting fedpace costs.")
    parser.add_argument("--runs", type=int, default=10)
    runs = parser.parse_args().runs
    taken: dict[str, list[float]] = {statement: [] for statement in STATEMENTS}
    for _ in range(runs):
        for statement, arguments in STATEMENTS.items():
            taken[statement].append(cpu(arguments))
    empty = statistics.median(taken.pop("pass"))
    medians = {name: statistics.median(values) - empty for name, values in taken.items()}
    base = medians["import numpy"]
    print_table(
        ["statement", "median", "least", "over numpy"],
        (
            [f"`{name}`", seconds(value), seconds(min(taken[name]) - empty), f"{value / base:.2f}×"]
            for name, value in medians.items()
        ),
    )
    listed = subprocess.run(
        [sys.executable, "-c", LISTED], check=True, capture_output=True, text=True
    )
    print("\nThird-party packages after `import fedpace`:", ", ".join(listed.stdout.split()))
    print(f"\nFiles that `fedpace {' '.join(RUN)}` and its report go through:", len(files_called()))


if __name__ == "__main__":
    main()
