"""Take a lab down: everything that is the lab's, whatever state it is in."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path

from fedpace.errors import InputError
from fedpace.files import locked
from fedpace.lab.cpu import limits_left, remove_limits
from fedpace.lab.launch import running, stop
from fedpace.lab.links import may_make_networks, network_left, remove_network
from fedpace.lab.register import FILE, Names, forget, lab_folder


def take_down(name: str, state: Path | None = None) -> list[str]:
    """Remove processes, links, namespaces, limits and what was written down; return what there was.

    All follows from the lab's name, so that it does not matter who was killed before. Nothing to
    remove is no error.
    """
    names = Names(name)
    found = left_of(name, state)
    folder = lab_folder(name, state)
    # A lab that is coming up looks under this lock whether it is still there.
    with locked(folder.parent) if folder.parent.is_dir() else nullcontext():
        stop(name)
        if shutil.which("ip") and may_make_networks():
            remove_network(names)
        remove_limits(names)
        forget(folder)
    if left := left_of(name, state):
        raise InputError(
            f"lab '{name}' must be down, got left: {', '.join(left)}; give the same command again "
            "as the user who started it"
        )
    return found


def left_of(name: str, state: Path | None = None) -> list[str]:
    """Return everything that there is of a lab."""
    names = Names(name)
    processes = [f"process {pid} ({device})" for device, pid in running(name).items()]
    network = network_left(names) if shutil.which("ip") else []
    written = lab_folder(name, state) / FILE
    return processes + network + limits_left(names) + [str(written)] * written.exists()
