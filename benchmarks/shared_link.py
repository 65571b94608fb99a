"""Measure transfers over one limited link, and compare them with the simulated ones.

Two network namespaces are joined by a link that `tc` limits (a token bucket with one queue).
Each client waits for its computing time, then sends its megabits over TCP. Needs root and
iproute2: python benchmarks/shared_link.py --rate 20 --clients 10
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from fedpace.times.links import SharedLink

# Of a full Ethernet frame, what TCP carries for the application: tc counts the frame.
PAYLOAD = 1448 / 1514
HERE, THERE, PORT = "10.250.77.1", "10.250.77.2", 7000


def call(command: str) -> None:
    subprocess.run(command.split(), check=True)


@contextmanager
def limited_link(rate: float) -> Iterator[tuple[str, str]]:
    """Two namespaces, and a link between them that carries `rate` megabits a second each way."""
    clients, server = (f"fpl{os.getpid()}{end}" for end in "cs")
    try:
        for space in (clients, server):
            call(f"ip netns add {space}")
        call(f"ip link add v0 netns {clients} type veth peer name v0 netns {server}")
        for space, address in ((clients, HERE), (server, THERE)):
            call(f"ip -n {space} address add {address}/30 dev v0")
            call(f"ip -n {space} link set v0 up")
            # Packets as long as on a wire, so that the bucket counts frames.
            call(f"ip -n {space} link set v0 gso_max_size 1514 gso_max_segs 1")
            limit = f"tbf rate {rate}mbit burst 16kb latency 200ms"
            call(f"tc -n {space} qdisc add dev v0 root {limit}")
        yield clients, server
    finally:
        for space in (clients, server):
            subprocess.run(["ip", "netns", "delete", space], check=False)


def receive(count: int, size: int) -> None:
    """Answer each of `count` connections when all its bytes have arrived."""

    def answer(connection: socket.socket) -> None:
        left = size
        while left:
            left -= len(connection.recv(min(left, 65536)))
        connection.sendall(b"!")

    with socket.create_server((THERE, PORT), backlog=count) as listening:
        print("ready", flush=True)
        threads = []
        for _ in range(count):
            connection, _ = listening.accept()
            threads.append(threading.Thread(target=answer, args=(connection,)))
            threads[-1].start()
        for thread in threads:
            thread.join()


def send(waits: list[float], size: int) -> None:
    """Connect all clients; after its wait each sends its bytes; print when each is answered."""
    connections = [socket.create_connection((THERE, PORT)) for _ in waits]
    ends = [0.0] * len(waits)
    begin = time.monotonic()

    def transfer(client: int) -> None:
        time.sleep(max(begin + waits[client] - time.monotonic(), 0.0))
        connections[client].sendall(bytes(size))
        connections[client].recv(1)
        ends[client] = time.monotonic() - begin

    threads = [threading.Thread(target=transfer, args=(client,)) for client in range(len(waits))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(ends))


def measure(spaces: tuple[str, str], waits: list[float], size: int) -> list[float]:
    """Return the measured ends of one round."""
    clients, server = (["ip", "netns", "exec", each, sys.executable, __file__] for each in spaces)
    receiver = [*server, "--receive", str(len(waits)), str(size)]
    with subprocess.Popen(receiver, stdout=subprocess.PIPE) as receiving:
        assert receiving.stdout is not None
        receiving.stdout.readline()
        sender = [*clients, "--send", json.dumps(waits), str(size)]
        found = subprocess.run(sender, check=True, capture_output=True)
    ends: list[float] = json.loads(found.stdout)
    return ends


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=20.0, help="Mbit/s of the link")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--megabits", type=float, default=4.0, help="of each client")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--receive", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--send", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which removes the namespaces
    if given.receive:
        return receive(*given.receive)
    if given.send:
        return send(json.loads(given.send[0]), int(given.send[1]))
    size, rng = round(given.megabits * 1e6 / 8), np.random.default_rng(0)
    link = SharedLink(given.rate * PAYLOAD)
    rounds, single = [], []
    with limited_link(given.rate) as spaces:
        for _ in range(given.rounds):
            waits = rng.exponential(size=given.clients)
            ends = np.array(measure(spaces, waits.tolist(), size))
            simulated = link.ends(waits, np.full(given.clients, size * 8 / 1e6))
            rounds.append(ends.max() / simulated.max() - 1)
            single.append(np.abs(ends / simulated - 1).mean())
            print(f"round: measured {ends.max():.3f} s, simulated {simulated.max():.3f} s")
    print(f"round time: {np.mean(rounds):+.2%} on average, {np.abs(rounds).max():.2%} at most")
    print(f"single clients: {np.mean(single):.2%} off on average")
    return None


if __name__ == "__main__":
    main()
