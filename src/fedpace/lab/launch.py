"""The processes of a lab: started in sessions of their own, and found again by a mark."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

# In each process's environment, lab and device: /proc shows it, and nothing written can be lost.
MARK = "FEDPACE_LAB"
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
# Seconds to wait for a killed process to be gone.
PATIENCE = 10.0
# A process that just becomes another program has no environment for a moment: look twice.
LOOKS, LOOK_AGAIN = 2, 0.05


def start(command: Sequence[str], *, lab: str, device: str, log: Path) -> int:
    """Start a device's process, which outlives this one; return its number."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **ONE_THREAD, MARK: f"{lab} {device}"},
            start_new_session=True,
        )
    # Python would warn of a process that nobody waited for; this one is meant to go on.
    process.returncode = 0
    return process.pid


def running(lab: str) -> dict[str, int]:
    """Return the process of each device of a lab that lives."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and (device := _device_of(int(folder.name), lab)):
            found[device] = int(folder.name)
    return dict(sorted(found.items()))


def stop(lab: str) -> list[str]:
    """Kill every process of a lab and return which devices lived; they have nothing to save."""
    stopped: dict[str, int] = {}
    looks, end = 0, time.monotonic() + PATIENCE
    while looks < LOOKS and time.monotonic() < end:
        left = running(lab)
        stopped |= left
        looks = 0 if left else looks + 1
        for pid in left.values():
            _kill(pid, lab)
        if looks:
            time.sleep(LOOK_AGAIN)
    return sorted(stopped)


def memory(pid: int) -> int:
    """Return the bytes of memory that a process holds, or 0 when it is gone."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _device_of(pid: int, lab: str) -> str | None:
    """Return which device of the lab a process is, or None if it is none."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # gone, or another user's
        return None
    mark = f"{MARK}={lab} ".encode()
    marked = (entry for entry in environment.split(b"\0") if entry.startswith(mark))
    return next((entry.removeprefix(mark).decode(errors="replace") for entry in marked), None)


def _kill(pid: int, lab: str) -> None:
    """Kill a process and wait until it is gone; never one that has got its number since."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            if _device_of(pid, lab):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                gone = select.poll()
                gone.register(handle, select.POLLIN)
                gone.poll(1000 * PATIENCE)
        finally:
            os.close(handle)
    with contextlib.suppress(ChildProcessError):  # where it was ours, do not leave a zombie
        os.waitpid(pid, os.WNOHANG)
