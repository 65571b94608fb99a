"""Limits of a device's computation: which cores, and what share of one."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from fedpace.errors import InputError
from fedpace.lab.register import Names

CGROUPS = Path("/sys/fs/cgroup")
# Microseconds in which a share is counted: short, so that a local step is slowed down evenly.
PERIOD = 10_000
LEAST_SHARE = 0.1


def parsed_cores(text: str) -> list[int]:
    """Return the cores of a text such as "0-1" or "0,2", which this process must be allowed.

    >>> parsed_cores("0")
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
    """Say why a share of a core cannot be kept here."""
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
    """Put a process into a control group of its own that has a share of a core."""
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
    """Remove the lab's control groups; their processes must be gone."""
    for group in limits_left(names):
        for folder in (*Path(group).glob("[0-9]*"), Path(group)):
            _remove(folder)


def limits_left(names: Names) -> list[str]:
    """Return the lab's control groups that are there."""
    groups = (root / _group(names) for root in (CGROUPS, CGROUPS / "cpu"))
    return [str(group) for group in groups if group.is_dir()]


def _group(names: Names) -> str:
    return f"fedpace-{names.lab}"


def _root() -> Path | None:
    """Return where groups with cpu limits can be made: of version 2, or of version 1."""
    for root, sign in ((CGROUPS, "cgroup.controllers"), (CGROUPS / "cpu", "cpu.cfs_quota_us")):
        here = (root / sign).is_file() or (root / "cgroup.procs").is_file()
        if not here or not os.access(root, os.W_OK):
            continue
        enabled = root / "cgroup.subtree_control"  # version 1 has none: the folder is the cpu's
        if not enabled.exists() or "cpu" in enabled.read_text().split():
            return root
    return None


def _remove(folder: Path) -> None:
    """Remove a group; the kernel may hold it a moment longer than its processes."""
    for _ in range(50):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)
