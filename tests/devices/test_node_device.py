"""A device in another language, which knows devices.proto only, takes part in a run."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fedpace.devices.certificates import make_certificates
from fedpace.devices.server import DeviceServer
from fedpace.devices.wire import Certificates
from fedpace.samplers.solve import Solve
from fedpace.sampling.schemes import SCHEMES
from fedpace.seeds import Seeds
from fedpace.training.stopping import Stop, inverse
from fedpace.training.train import train
from tests.devices.fleet import (
    NAMES,
    ROOT,
    SEED,
    N,
    Running,
    joined,
    prepared,
    split,
    task,
    trainer,
)

FOLDER = ROOT / "examples" / "node_device"
PROTO = ROOT / "src" / "fedpace" / "network" / "devices.proto"
CLIENT = 2


def packages() -> Path:
    """Return the folder of the Node packages: beside the example, or in NODE_PATH."""
    if shutil.which("node") is None:
        pytest.skip("needs Node.js: the command node is not here")
    for folder in (FOLDER / "node_modules", Path(os.environ.get("NODE_PATH", "/nowhere"))):
        if (folder / "@grpc" / "grpc-js").is_dir() and (folder / "@grpc" / "proto-loader").is_dir():
            return folder
    pytest.skip("needs @grpc/grpc-js and @grpc/proto-loader: npm install in examples/node_device")


def samples() -> str:
    own = [part.client(CLIENT) for part in split()]
    rows = [[[x.tolist(), int(y)] for x, y in zip(part.x, part.y, strict=True)] for part in own]
    return json.dumps({"classes": 3, "train": rows[0], "test": rows[1]})


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
def test_a_device_in_javascript_trains_with_the_others(
    tmp_path: Path, processes: list[Running], encrypted: bool
) -> None:
    environment = os.environ | {"NODE_PATH": str(packages())}
    (tmp_path / "samples.json").write_text(samples())
    certs = [str(tmp_path / "certs")] if encrypted else []
    if encrypted:
        make_certificates(tmp_path / "certs", NAMES, ["127.0.0.1"])
    tls = Certificates.read(tmp_path / "certs") if encrypted else None
    with DeviceServer(NAMES, tls=tls) as server:
        port = server.address[1]
        node: list[str | Path] = [
            "node",
            FOLDER / "device.js",
            f"127.0.0.1:{port}",
            NAMES[CLIENT],
            PROTO,
        ]
        node += [tmp_path / "samples.json", *certs]
        processes.append(subprocess.Popen(node, env=environment))
        more = [0, *certs] if certs else []
        processes += [joined(port, i, *more) for i in range(N) if i != CLIENT]
        devices = prepared(server, patience=60.0)
        assert devices.samples[NAMES[CLIENT]] == len(split().train.client(CLIENT).y)
        # At the same rate it goes the same way as the device in Python: the batches differ.
        devices.submit(task(devices.initial(), [CLIENT]))
        update = devices.collect().updates[0]
        ours, _ = trainer(CLIENT).train(devices.initial(), round_index=0, learning_rate=0.1)
        assert update @ ours / np.linalg.norm(update) / np.linalg.norm(ours) > 0.5
        outcome = train(
            devices,
            Solve(SCHEMES["uniform"], k=3),
            schedule=inverse(0.1),
            stop=Stop(rounds=10),
            seeds=Seeds(SEED),
        )
        rows = outcome.history.rows
        assert CLIENT in np.concatenate([row.clients for row in rows])
        assert rows[-1].loss < rows[0].loss
        reasons = {reason for client, reason in server.refusals if client == CLIENT}
        assert reasons <= {"gradient norm bounded"}  # as any device's may be
    assert processes[0].wait(300) == 0  # it was told goodbye
