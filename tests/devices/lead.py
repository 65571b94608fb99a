"""A server as a process, which goes on from its checkpoint; arguments: PORT FILE ROUNDS MODE."""

import sys
from pathlib import Path
from typing import Any

from fedpace.devices.backend import DeviceBackend
from fedpace.devices.server import DeviceServer
from fedpace.samplers.solve import Solve
from fedpace.sampling.schemes import SCHEMES
from fedpace.seeds import Seeds
from fedpace.training.backend import BaseBackend
from fedpace.training.checkpoint import Checkpoint
from fedpace.training.history import Row
from fedpace.training.stopping import Stop, inverse
from fedpace.training.train import train
from tests.devices.fleet import MODEL, NAMES, SEED, N

ABOUT = {"seed": SEED}


def trained(backend: BaseBackend, file: Path, rounds: int, mode: str = "synchronous") -> list[Row]:
    """Train so many rounds with a checkpoint after each."""
    how: dict[str, Any] = {} if mode == "synchronous" else {"at_once": 2, "buffer": 2}
    outcome = train(
        backend,
        Solve(SCHEMES["uniform"], k=2),
        schedule=inverse(0.1),
        stop=Stop(rounds=rounds),
        seeds=Seeds(SEED),
        callbacks=[Checkpoint(file, ABOUT)],
        mode=mode,
        **how,
    )
    return list(outcome.history.rows)


def main() -> None:
    port, file, rounds, *mode = sys.argv[1:]
    with DeviceServer(NAMES, port=int(port)) as server:
        devices = DeviceBackend(server, MODEL, Seeds(SEED), least=N, patience=60.0)
        devices.prepare({"seed": SEED})
        trained(devices, Path(file), int(rounds), *mode)


if __name__ == "__main__":
    main()
