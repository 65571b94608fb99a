"""A Flower SuperLink with a few SuperNodes on this machine, with TLS and node authentication.

    python local_federation.py logistic --nodes 4 --delays 0.2 0.5 2 5 --config rounds=10

starts them, runs the app of a folder on them, prints its log, and ends all of it. Each SuperNode
takes some 200 MB, and every message starts a process: ten of them are the most for two cores. The
app's `history` and `checkpoint` are written where this is called from.

Needs `pip install 'fedpace[flower,torch]' 'flwr[simulation]'`: PyTorch for lenet, the simulation
for --simulated.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

MOST_NODES = 10
PATIENCE = 90.0
# Settings of the apps that are files or folders.
FILES = ("checkpoint", "history", "out")
# No reports of use, no look for new versions, and no new environment at every start.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


class LocalFederation:
    """Start a federation on loopback; leaving the `with` block ends it.

    Parameters
    ----------
    folder : Path
        For certificates, keys and logs.
    secure : bool
        With TLS, and only SuperNodes whose keys are registered.
    simulated : int
        Clients in Flower's simulation, instead of SuperNodes; 0 for none.
    at_once : int
        Simulated clients that run at the same time; 0 for half the cores, as Flower does.
    """

    def __init__(
        self, folder: Path, *, secure: bool = True, simulated: int = 0, at_once: int = 0
    ) -> None:
        self.folder, self.secure, self.simulated = folder, secure and not simulated, simulated
        self.at_once = at_once
        self.port = _free_port()
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        self.superlink: subprocess.Popen[bytes] | None = None
        self._environment = os.environ | QUIET | {"FLWR_HOME": str(folder / "home")}
        # Flower starts its own commands by name.
        self._environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._certificate = folder / "certificate.pem"
        self._key = folder / "key.pem"

    def __enter__(self) -> LocalFederation:
        (self.folder / "home").mkdir(parents=True)
        if self.secure:
            _write_certificate(self._certificate, self._key)
        self._write_connection()
        try:
            self.superlink = self._started(
                "superlink", "flower-superlink", "--port", str(self.port), *self._link_options()
            )
            self._wait_for_port()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for partition in list(self.nodes):
            self.end_node(partition)
        if self.superlink is not None:
            end(self.superlink)

    def start_node(self, partition: int, *, delay: float = 0.0) -> None:
        """Start a SuperNode."""
        config = f"partition-id={partition} delay={float(delay)}"
        options = ["--node-config", config, "--superlink", f"127.0.0.1:{self.port}"]
        options += ["--port", str(_free_port())]
        if self.secure:
            options += ["--root-certificates", str(self._certificate)]
            options += ["--ssl-certfile", str(self._certificate), "--ssl-keyfile", str(self._key)]
            options += ["--ssl-ca-certfile", str(self._certificate)]
            options += ["--auth-supernode-private-key", str(self._registered_key(partition))]
        else:
            options += ["--insecure"]
        self.nodes[partition] = self._started(f"node-{partition}", "flower-supernode", *options)

    def end_node(self, partition: int) -> None:
        """Kill a SuperNode and what it has started."""
        end(self.nodes.pop(partition))

    def submit(self, app: Path, config: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Start `flwr run` on an app, and return the process that prints its log."""
        # Flower leaves its builds in the folder of the app, and reads text values in quotes.
        options = ["--run-config", " ".join(map(_quoted, config))] if config else []
        if self.simulated:
            resources = f"num-supernodes={self.simulated}"
            if self.at_once:
                resources += f" client-resources-num-cpus=1 init-args-num-cpus={self.at_once}"
            options += ["--federation-config", resources]
        return subprocess.Popen(
            [_program("flwr"), "run", str(app), "here", "--stream", *options],
            env=self._environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def flwr(self, *arguments: str) -> str:
        """Run a command of Flower's, and return what it prints."""
        done = subprocess.run(
            [_program("flwr"), *arguments], env=self._environment, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"flwr {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def log(self, name: str) -> str:
        """Return what the SuperLink or a node has logged so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _link_options(self) -> list[str]:
        options = ["--disable-runtime-dependency-installation"]
        if self.simulated:
            options.append("--simulation")
        if not self.secure:
            return [*options, "--insecure"]
        options += ["--ssl-certfile", str(self._certificate), "--ssl-keyfile", str(self._key)]
        return [*options, "--ssl-ca-certfile", str(self._certificate), "--enable-supernode-auth"]

    def _registered_key(self, partition: int) -> Path:
        """Return a node's private key, made and registered when it is first asked for."""
        path = self.folder / f"node-{partition}.key"
        if not path.exists():
            _write_node_key(path)
            self.flwr("supernode", "register", f"{path}.pub", "here")
        return path

    def _write_connection(self) -> None:
        security = (
            f'root-certificates = "{self._certificate}"' if self.secure else "insecure = true"
        )
        lines = ["[superlink]", 'default = "here"', "[superlink.here]"]
        lines += [f'address = "127.0.0.1:{self.port}"', security]
        (self.folder / "home" / "config.toml").write_text("\n".join(lines) + "\n")

    def _started(self, name: str, program: str, *options: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [_program(program), *options],
                env=self._environment,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us: we end it
            )

    def _wait_for_port(self) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.superlink and self.superlink.poll() is None:
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.2)
        raise RuntimeError(f"the SuperLink does not listen: {self.log('superlink')[-2000:]}")


def _program(name: str) -> str:
    """Return Flower's command that belongs to this Python."""
    return str(Path(sys.executable).parent / name)


def _quoted(setting: str) -> str:
    """Return a setting as TOML: words in quotes, numbers and truth values without.

    >>> _quoted("learning-rate=1e-3"), _quoted("scheme=uniform")
    ('learning-rate=0.001', 'scheme="uniform"')
    """
    name, _, value = setting.partition("=")
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return f"{name}={number(value)!r}"
    return setting if value in ("true", "false") else f'{name}="{value}"'


def _from_here(setting: str) -> str:
    """Return a setting with its file as seen from here: the app runs in another folder."""
    name, _, value = setting.partition("=")
    return f"{name}={Path(value).absolute()}" if name in FILES and value else setting


def _free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


def end(process: subprocess.Popen[Any]) -> None:
    """End a process that was started here, and all that it has started."""
    for each in [process.pid, *descendants(process.pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def descendants(process: int) -> list[int]:
    """Return the processes that a process has started, and those that they have."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True)
    children: dict[int, list[int]] = {}
    for line in listed.stdout.splitlines():
        child, parent = map(int, line.split())
        children.setdefault(parent, []).append(child)
    found = [process]
    for each in found:
        found += children.get(each, [])
    return found[1:]


def _write_certificate(certificate: Path, key_file: Path) -> None:
    """Write a certificate for this machine that signs itself, for a day."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA384())
    )
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    _write_private(key_file, key, serialization.PrivateFormat.PKCS8)


def _write_node_key(path: Path) -> None:
    """Write a SuperNode's key pair as ssh-keygen does."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_private(path, key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    Path(f"{path}.pub").write_bytes(public + b"\n")


def _write_private(
    path: Path, key: ec.EllipticCurvePrivateKey, kind: serialization.PrivateFormat
) -> None:
    text = key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())
    path.touch(mode=0o600)
    path.write_bytes(text)


def main() -> None:
    """Run an app on a federation of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("app", type=Path, help="the folder of a Flower app")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--delays", type=float, nargs="*", default=[], help="seconds, per node")
    parser.add_argument("--config", nargs="*", default=[], help="settings of the run: name=value")
    parser.add_argument("--insecure", action="store_true", help="without TLS and authentication")
    parser.add_argument("--simulated", action="store_true", help="in Flower's simulation")
    parser.add_argument("--at-once", type=int, default=0, help="simulated clients that run at once")
    options = parser.parse_args()
    if not 1 <= options.nodes <= MOST_NODES and not options.simulated:
        parser.error(f"--nodes must be from 1 to {MOST_NODES}, got {options.nodes}")
    app = options.app.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that its processes end, too
    simulated = options.nodes if options.simulated else 0
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalFederation(
            Path(folder, "federation"),
            secure=not options.insecure,
            simulated=simulated,
            at_once=options.at_once,
        ) as federation,
    ):
        for partition in range(0 if simulated else options.nodes):
            delay = dict(enumerate(options.delays)).get(partition, 0.0)
            federation.start_node(partition, delay=delay)
        config = [*map(_from_here, options.config), f"nodes={options.nodes}"]
        run = federation.submit(app, config)
        assert run.stdout is not None
        for line in run.stdout:
            print(line, end="", flush=True)
        run.wait()
        # `flwr run` exits with 0 whatever becomes of the run.
        if "finished:failed" in federation.flwr("list", "here", "--format", "json"):
            sys.exit("the run failed; its log is above")


if __name__ == "__main__":
    main()
