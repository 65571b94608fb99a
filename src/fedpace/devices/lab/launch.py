"""The processes of a lab, and their limits: cores, and a share of one."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from fedpace.devices.lab.register import Names
from fedpace.errors import InputError

# Environment variable with lab and device: processes are found by it in /proc, even after a crash.
MARK = "FEDPACE_LAB"
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
# Seconds to wait for the end of a killed process.
PATIENCE = 10.0
# During exec a process has no environment for a moment: look twice.
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
    # Avoid Python's warning about a process that goes on.
    process.returncode = 0
    return process.pid


def running_devices(lab: str) -> dict[str, int]:
    """Return the process id of each running device of a lab."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and (device := _device_of(int(folder.name), lab)):
            found[device] = int(folder.name)
    return dict(sorted(found.items()))


def stop(lab: str) -> list[str]:
    """Kill every process of a lab, and return the devices that ran; they have nothing to save."""
    stopped: dict[str, int] = {}
    looks, end = 0, time.monotonic() + PATIENCE
    while looks < LOOKS and time.monotonic() < end:
        left = running_devices(lab)
        stopped |= left
        looks = 0 if left else looks + 1
        for pid in left.values():
            _kill(pid, lab)
        if looks:
            time.sleep(LOOK_AGAIN)
    return sorted(stopped)


def memory(pid: int) -> int:
    """Return the bytes of memory of a process, or 0 if it has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _device_of(pid: int, lab: str) -> str | None:
    """Return the device of a process, or None if it is not the lab's."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # ended, or another user's
        return None
    mark = f"{MARK}={lab} ".encode()
    marked = (entry for entry in environment.split(b"\0") if entry.startswith(mark))
    return next((entry.removeprefix(mark).decode(errors="replace") for entry in marked), None)


def _kill(pid: int, lab: str) -> None:
    """Kill a process and wait for its end; never another process that has reused its number."""
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
    with contextlib.suppress(ChildProcessError):  # do not leave a zombie if it was a child
        os.waitpid(pid, os.WNOHANG)


CGROUPS = Path("/sys/fs/cgroup")
# Microseconds per period of a share: short, so that local steps are slowed down evenly.
PERIOD = 10_000
LEAST_SHARE = 0.1


def parse_cores(text: str) -> list[int]:
    """Return the cores of a text such as "0-1" or "0,2"; this process must be allowed to use them.

    >>> parse_cores("0")
    [0]
    """
    try:
        cores: list[int] = []
        for part in text.split(","):
            first, _, last = part.partition("-")
            cores += range(int(first), int(last or first) + 1)
    except ValueError:
        cores = []
    usable = os.sched_getaffinity(0)
    if not cores or not usable.issuperset(cores):
        raise InputError(
            f"--cores must be some of {', '.join(map(str, sorted(usable)))}, got '{text}'; "
            "write 0-1 or 0,2"
        )
    return cores


def pin(pid: int, core: int) -> None:
    """Keep a process on one core."""
    with contextlib.suppress(ProcessLookupError):
        os.sched_setaffinity(pid, {core})


def check_share(share: float) -> None:
    """Refuse a share of a core that cannot be enforced here."""
    if not LEAST_SHARE <= share <= 1:
        raise InputError(
            f"--cpu-share must be from {LEAST_SHARE:g} to 1 of a core, got {share:g}; write 0.25"
        )
    if _root() is None:
        raise InputError(
            f"--cpu-share needs control groups with cpu limits that this user may write, got none "
            f"under {CGROUPS}; leave it out, or use --cores"
        )


def limit(names: Names, device: int, pid: int, share: float) -> None:
    """Put a process into its own control group with a share of a core."""
    root = _root()
    assert root is not None, "check_share comes first"
    folder = root / _group(names) / f"{device:03d}"
    folder.mkdir(parents=True, exist_ok=True)
    quota = round(share * PERIOD)
    if (folder / "cpu.cfs_quota_us").exists():
        (folder / "cpu.cfs_period_us").write_text(str(PERIOD))
        (folder / "cpu.cfs_quota_us").write_text(str(quota))
    else:
        (root / _group(names) / "cgroup.subtree_control").write_text("+cpu")
        (folder / "cpu.max").write_text(f"{quota} {PERIOD}")
    with contextlib.suppress(ProcessLookupError):
        (folder / "cgroup.procs").write_text(str(pid))


def remove_limits(names: Names) -> None:
    """Remove the lab's control groups; their processes must have ended."""
    for group in limits_left(names):
        for folder in (*Path(group).glob("[0-9]*"), Path(group)):
            _remove(folder)


def limits_left(names: Names) -> list[str]:
    """Return the existing control groups of the lab."""
    groups = (root / _group(names) for root in (CGROUPS, CGROUPS / "cpu"))
    return [str(group) for group in groups if group.is_dir()]


def _group(names: Names) -> str:
    return f"fedpace-{names.lab}"


def _root() -> Path | None:
    """Return a folder for control groups with CPU limits, of version 2 or 1, if there is one."""
    for root, sign in ((CGROUPS, "cgroup.controllers"), (CGROUPS / "cpu", "cpu.cfs_quota_us")):
        here = (root / sign).is_file() or (root / "cgroup.procs").is_file()
        if not here or not os.access(root, os.W_OK):
            continue
        enabled = root / "cgroup.subtree_control"  # version 1 has no such file
        if not enabled.exists() or "cpu" in enabled.read_text().split():
            return root
    return None


def _remove(folder: Path) -> None:
    """Remove a group; it may be busy for a moment after its processes end."""
    for _ in range(50):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)
