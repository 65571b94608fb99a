"""A server as a process, which goes on from its checkpoint; arguments: PORT FILE ROUNDS."""

import sys
from pathlib import Path

import numpy as np
from fedpace.rounds.loop import start, train

from fedpace.network.devices import Devices
from fedpace.network.server import DeviceServer
from fedpace.rounds.backend import Backend
from fedpace.rounds.checkpoint import Checkpoint
from fedpace.rounds.rows import Row
from fedpace.rounds.schedules import inverse
from fedpace.rounds.stopping import Stop
from fedpace.sampling.design import WithReplacement
from fedpace.seeds import Seeds
from tests.network.fleet import MODEL, NAMES, SEED, N

ABOUT = {"seed": SEED}


def trained(backend: Backend, file: Path, rounds: int) -> list[Row]:
    """Train so many rounds with a checkpoint after each."""
    journal = Checkpoint(file, ABOUT)
    state, first = start(backend, journal=journal)
    design = WithReplacement(np.full(N, 1 / N), 2, backend.weights)
    _, rows = train(
        backend,
        design,
        state,
        schedule=inverse(0.1),
        stop=Stop(rounds=rounds),
        rng=Seeds(SEED).stream("draw"),
        journal=journal,
    )
    return [first, *rows]


def main() -> None:
    port, file, rounds = sys.argv[1:]
    with DeviceServer(NAMES, port=int(port)) as server:
        devices = Devices(server, MODEL, Seeds(SEED), least=N, patience=60.0)
        devices.prepare({"seed": SEED})
        trained(devices, Path(file), int(rounds))


if __name__ == "__main__":
    main()
