"""Compare the stored runs of two versions bit by bit: draws, weights, losses, times, q.

    python benchmarks/same_numbers.py OLD NEW

Both are directories that `fedpace run` or `fedpace lab run` has written, with the same setup,
schemes and seeds. The files are read as plain arrays, so that the versions need not be the same.
With --measured the clock is a real one: times, and what follows from them, are left out.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

NUMBERS = ("round", "phase", "loss", "accuracy", "clients", "offsets", "weights", "grad_norms")
CLOCK = ("seconds", "round_seconds", "client_seconds", "expected_round_seconds", "profile_times")
DESIGN = ("q", "profile_weights", "profile_grad_norms")


def runs(directory: Path) -> dict[tuple[str, int], dict[str, Any]]:
    found = {}
    for path in sorted((directory / "runs").glob("*.npz")):
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        about = json.loads(str(arrays["about"]))
        scheme, seed = (
            about["identity"][2:4]
            if "identity" in about
            else (
                about["scheme"],
                about["seed"],
            )
        )
        found[scheme, seed] = arrays
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--measured", action="store_true")
    options = parser.parse_args()
    old, new = runs(options.old), runs(options.new)
    columns = NUMBERS if options.measured else (*NUMBERS, *CLOCK, *DESIGN)
    same = 0
    for key in sorted(old.keys() | new.keys()):
        if key not in old or key not in new:
            print(f"{key}: only in {options.old if key in old else options.new}")
            continue
        differing = [
            name
            for name in columns
            if (name in old[key]) != (name in new[key])
            or (name in old[key] and not _equal(old[key][name], new[key][name]))
        ]
        same += not differing
        rounds = len(new[key]["round"]) - 1
        print(f"{key}: {rounds} rounds, {', '.join(differing) or 'all bits the same'}")
    total = len(old.keys() | new.keys())
    print(f"{same} of {total} runs have the same bits in {len(columns)} columns")


def _equal(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


if __name__ == "__main__":
    main()
