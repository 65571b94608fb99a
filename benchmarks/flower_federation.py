"""Time to a target loss on a real, heterogeneous Flower federation: FedAvg against ours.

    python benchmarks/flower_federation.py --out /tmp/federation

One SuperLink and a few SuperNodes on this machine, with injected delays from 0.2 to 7 seconds;
every scheme trains from the same model on the same nodes, one after the other. Schemes that the
output already holds whole are not run again. Ours are asked for as the two lines of docs/flower.md
do; with `--query` nodes are first asked for their partition, which takes a while, and then the
floor of a round can be measured. Needs flwr, and a quiet machine: every message starts a process.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "flower"
ASYNCHRONOUS = "pace-asynchronous"
SCHEMES = ("fedavg", "uniform", "optimal-mean", "optimal-max", "pace", ASYNCHRONOUS)
DEFAULT = ("fedavg", "optimal-mean", "pace", ASYNCHRONOUS)
# Such that FedAvg needs some thirty rounds.
STEPS, RATE = 10, 0.003
FASTEST, SLOWEST = 0.2, 7.0


def delays(nodes: int, order: int, fastest: float = FASTEST) -> list[float]:
    """Return delays in equal ratios, in a random order.

    Who is slow decides what there is to gain: see flower_floor.py for many orders. The order here
    was fixed before anything was measured.
    """
    steps = np.geomspace(fastest, SLOWEST, nodes)
    return [round(float(each), 2) for each in np.random.default_rng(order).permutation(steps)]


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def app_in(folder: Path) -> Path:
    """Return the logistic example with the benchmark's server."""
    app = folder / "app"
    shutil.copytree(EXAMPLE / "logistic", app)
    shutil.copy(
        Path(__file__).with_name("flower_federation_server.py"), app / "logistic_app/server_app.py"
    )
    with (app / "pyproject.toml").open("a") as file:
        file.write('target = 0.0\nlimit = 0.0\nquery = false\nout = ""\n')
    return app


def measured(out: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each scheme so far."""
    rows: dict[str, list[dict[str, Any]]] = {}
    if out.exists():
        for line in out.read_text().splitlines():
            row = json.loads(line)
            if row["round"] == 0:
                rows[row["scheme"]] = []  # begun anew
            rows[row["scheme"]].append(row)
    return rows


def finished(rows: list[dict[str, Any]], target: float, limit: float) -> bool:
    return bool(rows) and (rows[-1]["loss"] <= target or rows[-1]["seconds"] > limit)


def run(local: ModuleType, federation: Any, app: Path, config: list[str], limit: float) -> None:
    """Run one scheme to its end, or a little beyond its limit."""
    process = federation.submit(app, config)
    end = time.monotonic() + limit + 120
    for line in process.stdout:
        print("   ", line.rstrip()[:150], flush=True)
        if "benchmark: over" in line or time.monotonic() > end:
            break
    local.end(process)


def shown(rows: dict[str, list[dict[str, Any]]], target: float) -> None:
    """Print a table: seconds and rounds to the target, seconds per round, and the ratio."""
    reached = {
        scheme: next((row for row in found if row["loss"] <= target), None)
        for scheme, found in rows.items()
    }
    ours = reached.get("pace")
    print(f"\nTime to a loss of {target}\n")
    print("| scheme | seconds | rounds | seconds a round | over pace |")
    print("|---|---:|---:|---:|---:|")
    for scheme, found in rows.items():
        last = found[-1]
        row, bound = reached[scheme] or last, "" if reached[scheme] else "> "
        ratio = f"{bound}{row['seconds'] / ours['seconds']:.2f}×" if ours else ""
        per_round = last["seconds"] / max(last["round"], 1)
        cells = [scheme, f"{bound}{row['seconds']:.0f}", f"{bound}{row['round']}"]
        print(f"| {' | '.join([*cells, f'{per_round:.1f}', ratio])} |")


def floor(out: Path, waits: list[float]) -> None:
    """Print what a round costs beyond the longest delay of those drawn."""
    import csv

    beyond: list[float] = []
    for path in sorted(out.parent.glob(f"{out.name}.*.csv")):
        if ASYNCHRONOUS in path.name:
            continue
        with path.open() as file:
            for row in csv.DictReader(file):
                if row["clients"]:
                    longest = max(waits[int(client)] for client in row["clients"].split())
                    beyond.append(float(row["round_seconds"]) - longest)
    if beyond:
        low, middle, high = np.quantile(beyond, [0.1, 0.5, 0.9])
        print(
            f"\nFlower's floor: a round takes {middle:.1f} s (10 to 90 %: {low:.1f} to {high:.1f}) "
            f"beyond the longest delay drawn, in {len(beyond)} rounds."
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="a file of JSON lines; it resumes")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("-k", type=int, default=3)
    parser.add_argument("--order", type=int, default=3, help="seed of who is slow")
    parser.add_argument("--target", type=float, default=0.45)
    parser.add_argument("--limit", type=float, default=400.0, help="seconds per scheme")
    parser.add_argument("--schemes", nargs="*", default=list(DEFAULT), choices=SCHEMES)
    parser.add_argument("--query", action="store_true", help="ask nodes who they are first")
    options = parser.parse_args()
    out = options.out.resolve()
    os.environ["PYTHONPATH"] = str(ROOT / "src")
    local = loaded(EXAMPLE / "local_federation.py")
    waits = delays(options.nodes, options.order)
    print(f"{options.nodes} nodes, K = {options.k}, delays {waits} s", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        app = app_in(folder)
        with local.LocalFederation(folder / "federation") as federation:
            for partition, wait in enumerate(waits):
                federation.start_node(partition, delay=wait)
            for scheme in options.schemes:
                if finished(measured(out).get(scheme, []), options.target, options.limit):
                    continue
                config = [
                    f"scheme={scheme}", f"k={options.k}", f"nodes={options.nodes}", "rounds=500",
                    f"target={options.target}", f"limit={options.limit}", f"out={out}",
                    f"local-steps={STEPS}", f"learning-rate={RATE}",
                    f"query={str(options.query).lower()}",
                ]  # fmt: skip
                print(scheme, flush=True)
                run(local, federation, app, config, options.limit)
    shown(measured(out), options.target)
    if options.query:
        floor(out, waits)


if __name__ == "__main__":
    main()
