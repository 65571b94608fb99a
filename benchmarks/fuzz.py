"""Feed damaged and crafted input to everything that reads what others wrote.

Each decoder gets mutations of valid input, of bytes and of the values inside, with right checksums.
It must accept them or raise the error that callers expect; anything else is printed and counted.

    python benchmarks/fuzz.py --minutes 10
    python benchmarks/fuzz.py --minutes 1 --only checkpoint
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import sys
import tempfile
import time
import traceback
import warnings
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tables import print_table

from fedpace import Seeds, Stop, constant, sampler_for, train
from fedpace.backends.remote.screening import BadReplyError, Border, Claims
from fedpace.clients_file import read_clients, write_example
from fedpace.data.images import read_idx
from fedpace.devices.device import read_samples
from fedpace.devices.devices_pb2 import Asked, Said
from fedpace.devices.shard import OwnShard, job_of
from fedpace.devices.wire import MessageReader, ProtocolError, encode
from fedpace.errors import InputError
from fedpace.studies.build import run_one, simulator
from fedpace.studies.store import DamagedRunError, Store, rows_of
from fedpace.studies.study import load_study
from fedpace.training.checkpoint import Checkpoint
from fedpace.training.updates import length_of

STUDY = [
    "data.sizes=power-law", "data.clients=6", "data.samples=120", "data.smallest=5",
    "data.features=4", "training.k=2", "training.local_steps=1", "stop.rounds=3", "stop.loss=none",
]  # fmt: skip
WORDS = (
    b"\0", b"\xff" * 8, b"NaN", b"Infinity", b"-1", b"1e999", b"9" * 400, b"[" * 2000, b"null",
    b'"', b"{}", b"\n", b"\xc3\x28", b"../..", b"file.py:f", b"=1+1", b",", b"__class__",
)  # fmt: skip
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, 2**70, 1e308, -1e308, float("nan"), float("inf"), "", "x" * 999, "\0",
    [], {}, [[]], {"array": "x"}, {"dict": {}}, ["a"], 0.5,
)  # fmt: skip
Random = np.random.Generator


class Target(NamedTuple):
    """What makes an input, what reads it, and the errors that it may raise."""

    make: Callable[[Random], Any]
    read: Callable[[Any], object]
    expected: tuple[type[Exception], ...]


def damaged(rng: Random, seeds: list[bytes]) -> bytes:
    """Return one of the seeds with a few parts changed, cut out, doubled or put in."""
    data = bytearray(seeds[int(rng.integers(len(seeds)))])
    for _ in range(int(rng.integers(1, 6))):
        at, end = sorted(rng.integers(0, len(data) + 1, 2).tolist())
        kind = int(rng.integers(5))
        if kind == 0 and data:
            data[min(at, len(data) - 1)] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            del data[at : min(end, at + 40)]
        elif kind == 2:
            data[at:at] = data[at : min(end, at + 200)]
        elif kind == 3:
            data[at:at] = WORDS[int(rng.integers(len(WORDS)))]
        else:
            other = seeds[int(rng.integers(len(seeds)))]
            data[at:] = other[at:]
    return bytes(data)


def odd(rng: Random) -> Any:
    return ODD[int(rng.integers(len(ODD)))]


def altered(rng: Random, value: Any) -> Any:
    """Return JSON values with one of them exchanged, left out or renamed."""
    if rng.random() < 0.2 or not isinstance(value, (dict, list)) or not value:
        return odd(rng)
    if isinstance(value, list):
        at = int(rng.integers(len(value)))
        return [*value[:at], altered(rng, value[at]), *value[at + 1 :]]
    name = list(value)[int(rng.integers(len(value)))]
    rest = {key: each for key, each in value.items() if key != name}
    if rng.random() < 0.2:
        return rest if rng.random() < 0.5 else rest | {f"{name}x": value[name]}
    return rest | {name: altered(rng, value[name])}


def altered_arrays(rng: Random, arrays: dict[str, Any]) -> dict[str, Any]:
    """Return named arrays with one of another type, shape or value; texts are JSON."""
    name = list(arrays)[int(rng.integers(len(arrays)))]
    array, kind = arrays[name], int(rng.integers(7))
    if array.dtype.kind == "U" and array.ndim == 0 and kind < 5:
        changed: Any = np.array(json.dumps(altered(rng, json.loads(str(array)))))
    elif kind == 0:
        return {key: each for key, each in arrays.items() if key != name}
    elif kind == 1:
        changed = array.astype(str)
    elif kind == 2:
        changed = array.ravel()[: int(rng.integers(array.size + 1))]
    elif kind == 3:
        changed = np.concatenate([array.ravel(), array.ravel()])
    elif kind == 4:
        changed = array[None]
    elif array.size and array.dtype.kind in "fiub":
        changed = array.copy()
        wide = np.array([-1, 0, 2**31, 2**62, 1e300, np.nan])[int(rng.integers(6))]
        with np.errstate(all="ignore"):
            changed.flat[int(rng.integers(array.size))] = np.asarray(wide).astype(array.dtype)
    else:
        changed = np.zeros(0)
    return arrays | {name: changed}


def npz(arrays: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=True, **arrays)
    return buffer.getvalue()


def opened(path: Path, cut: int = 0) -> dict[str, Any]:
    data = path.read_bytes()
    with np.load(io.BytesIO(data[: len(data) - cut])) as file:
        return dict(file)


def targets(folder: Path) -> Iterator[tuple[str, Target]]:
    """Yield every decoder by name."""
    study = load_study("simulation-1", STUDY)
    floats = np.arange(5, dtype=np.float32)

    said = [b"".join(encode(Said(task=3, update={"grad_norm": 1.0, "loss": 2.0}), floats))]
    said += [
        Said(hello={"name": "a"}).SerializeToString(),
        *encode(Said(task=1, ready={"samples": 9})),
    ]
    asked = [b"".join(encode(Asked(task=3, train={"round": 1, "learning_rate": 0.1}), floats))]
    for name, kind, seeds in (("said", Said, said), ("asked", Asked, asked)):

        def take(data: bytes, kind: Any = kind) -> object:
            reader = MessageReader(kind)
            reader.most_floats = 5
            return reader.take(data)

        yield f"message {name}", Target(partial(damaged, seeds=seeds), take, (ProtocolError,))

    job = json.loads(json.dumps(job_of(study, 0, ["a", "b"])))
    yield "job", Target(lambda r: altered(r, job), lambda it: _job(it), (InputError,))

    def written(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
        def check(data: bytes) -> object:
            (folder / name).write_bytes(data)
            return read(folder / name)

        return check

    write_example(folder / "clients.csv", 8, np.random.default_rng(0))
    csv = [(folder / "clients.csv").read_bytes()]
    yield (
        "clients.csv",
        Target(lambda r: damaged(r, csv), written("c.csv", read_clients), (InputError,)),
    )
    counts = [b"name,samples\na,3\nb,4\n"]
    yield (
        "samples file",
        Target(lambda r: damaged(r, counts), written("s.csv", read_samples), (InputError,)),
    )
    toml = [b'base = "simulation-1"\n[training]\nk = 3\n[stop]\nrounds = 5\n']
    load = lambda path: load_study(str(path))  # noqa: E731
    yield "study.toml", Target(lambda r: damaged(r, toml), written("t.toml", load), (InputError,))
    idx = [bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2, *range(8)])]
    yield "idx", Target(lambda r: damaged(r, idx), written("i", read_idx), (InputError,))

    store = Store(folder / "out")
    run = opened(store.save(study, "uniform", 0, run_one(study, "uniform", 0)))

    def read_run(arrays: dict[str, Any]) -> object:
        data = npz(arrays)
        try:
            identity = json.loads(str(arrays["about"]))["identity"]
        except (KeyError, TypeError, ValueError):
            identity = []
        key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:20]
        path = folder / f"{key}-{hashlib.sha256(data).hexdigest()[:16]}.npz"
        path.write_bytes(data)
        try:
            return store.load(path), rows_of(data)
        finally:
            path.unlink()

    yield "run", Target(lambda r: altered_arrays(r, run), read_run, (DamagedRunError,))

    path = folder / "checkpoint.npz"

    def go_on(rounds: int) -> object:
        sampler = sampler_for("pace", 2)
        journal = Checkpoint(path, {"run": 1})
        memory = journal.notes.get("screen")
        journal.live = {"screen": lambda: Border(memory).memory}
        return train(
            simulator(study, 0), sampler, schedule=constant(0.1), seeds=Seeds(0),
            stop=Stop(rounds=rounds), callbacks=[journal],
        )  # fmt: skip

    go_on(4)
    good = opened(path, cut=32)

    def resume(arrays: dict[str, Any]) -> object:
        data = npz(arrays)
        path.write_bytes(data + hashlib.sha256(data).digest())
        return go_on(6)

    yield "checkpoint", Target(lambda r: altered_arrays(r, good), resume, (InputError,))

    def screen(values: list[Any]) -> object:
        update, norm, loss, seconds = values
        border = Border()
        for client in range(6):
            border.update(client, length_of(np.ones(3)))
        length = length_of(update)
        border.meet([Claims(0, length, norm, loss, 1.0)])
        border.update(0, length)
        return border.grad_norm(0, norm, 1.0), border.loss(0, loss), border.seconds(seconds)

    def reply(rng: Random) -> list[Any]:
        update = rng.choice([0.0, 1.0, np.nan, np.inf, 1e300, -1e-300], 3)
        bits = rng.integers(0, 2**32, 3, dtype=np.uint32).view(np.float32)
        return [update if rng.random() < 0.5 else bits, odd(rng), odd(rng), odd(rng)]

    yield "numbers of a reply", Target(reply, screen, (BadReplyError,))


def _job(job: Any) -> object:
    return OwnShard("a")._read(job if isinstance(job, dict) else {"study": job})


def fuzz(
    target: Target, seconds: float, rng: Random, most: float = np.inf
) -> tuple[int, int, list[str]]:
    """Return how many inputs were tried, how many refused, and the unexpected errors."""
    tried = refused = 0
    found: dict[str, str] = {}
    end = time.monotonic() + seconds
    while tried < most and (time.monotonic() < end or not tried):
        given, tried = target.make(rng), tried + 1
        try:
            target.read(given)
        except target.expected:
            refused += 1
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            ours = [each for each in frames if "fedpace" in each.filename] or frames
            where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
            found.setdefault(where, f"{where}: {type(error).__name__}: {error!s:.90}")
    return tried, refused, list(found.values())


def main() -> int:
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all decoders together")
    parser.add_argument("--only", default="", help="decoders whose name holds this")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("error")  # as in the tests
    logging.disable(logging.CRITICAL)
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        chosen = [(name, each) for name, each in targets(Path(folder)) if options.only in name]
        rows = []
        for name, target in chosen:
            seconds = 60 * options.minutes / len(chosen)
            tried, refused, found = fuzz(target, seconds, np.random.default_rng(options.seed))
            rows.append((name, f"{tried:,}", f"{refused:,}", f"{len(found)}"))
            problems += [f"{name}: {each}" for each in found]
        print_table(("decoder", "tried", "refused", "unexpected"), rows)
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
