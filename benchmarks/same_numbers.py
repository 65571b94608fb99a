"""Check that two versions of fedpace give the same draws, weights and losses, bit by bit.

All schemes of simulation-1 and prototype-simulated, in both modes, two seeds. Run it with each
version, then compare; what was run is not run again:

    python benchmarks/same_numbers.py run before      # with the version before
    python benchmarks/same_numbers.py run after       # with the version after
    python benchmarks/same_numbers.py compare before after

Settings after the folder apply to all runs: `run before stop.rounds=25` is short.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SETUPS = ("simulation-1", "prototype-simulated")
MODES = {
    "synchronous": "all,rivals",
    "asynchronous": "pace,uniform,weighted,statistical,optimal-mean",
}
SEEDS = 2
# Texts, which may be reworded.
TEXTS = ("about", "why", "ended")


def run(out: Path, overrides: Sequence[str] = ()) -> None:
    """Run every study with the fedpace of this environment."""
    for setup in SETUPS:
        for mode, schemes in MODES.items():
            command = [sys.executable, "-m", "fedpace", "run", setup, "--schemes", schemes]
            command += ["--seeds", str(SEEDS)]
            for setting in (f"training.mode={mode}", *overrides):
                command += ["--set", setting]
            subprocess.run([*command, "--out", str(out / f"{setup}-{mode}")], check=True)


def load(folder: Path) -> dict[tuple[str, str, int], dict[str, NDArray[Any]]]:
    """Return the arrays of every run by folder, scheme and seed."""
    found = {}
    for path in sorted(folder.glob("*/runs/*.npz")):
        with np.load(path) as file:
            arrays = dict(file)
        about = json.loads(str(arrays["about"]))
        _version, _settings, scheme, seed, _own = about["identity"]
        found[path.parent.parent.name, scheme, seed] = arrays
    return found


def differences(before: dict[str, NDArray[Any]], after: dict[str, NDArray[Any]]) -> list[str]:
    """Return the names of the arrays that differ; new ones do not count."""
    return [
        name
        for name in before
        if name not in TEXTS
        and not (name in after and np.array_equal(*_comparable(before[name], after[name])))
    ]


def _comparable(one: NDArray[Any], other: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return floats as their bits, so that NaN equals NaN."""
    if one.dtype.kind == other.dtype.kind == "f":
        return one.astype(np.float64).view(np.int64), other.astype(np.float64).view(np.int64)
    return one, other


def compare(one: Path, other: Path) -> int:
    """Print what differs, and return how many runs do."""
    before, after = load(one), load(other)
    changed = 0
    for key in sorted(before.keys() | after.keys()):
        if key not in before or key not in after:
            print(*key, "only in", one if key in before else other)
            changed += 1
        elif names := differences(before[key], after[key]):
            print(*key, "differs in", ", ".join(names))
            changed += 1
    print(f"{len(before.keys() & after.keys())} runs compared, {changed} differ")
    return changed


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", out, *overrides]:
            run(Path(out), overrides)
        case ["compare", one, other]:
            sys.exit(min(compare(Path(one), Path(other)), 1))
        case _:
            sys.exit(__doc__)
