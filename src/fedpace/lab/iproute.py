"""Call iproute2: `ip` for links and namespaces, `tc` for rates."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from typing import Any

from fedpace.errors import InputError


def need_iproute() -> None:
    """Say what to install where `ip` or `tc` is missing."""
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if missing:
        raise InputError(
            f"the lab needs the programs ip and tc, got no {' and no '.join(missing)}; "
            "install them, with: apt-get install iproute2, or dnf install iproute iproute-tc"
        )


def may_make_networks() -> bool:
    """Tell whether this user may make namespaces: root, that is."""
    return os.geteuid() == 0


def ip_batch(lines: Iterable[str], namespace: str | None = None) -> None:
    """Run many `ip` commands in one process."""
    _call(["ip", *_within(namespace), "-batch", "-"], "\n".join(lines))


def ip_batch_as_far_as_possible(lines: Iterable[str]) -> None:
    """Run many `ip` commands, whether they succeed or not: what they remove may just have gone."""
    command = ["ip", "-force", "-batch", "-"]
    subprocess.run(command, input="\n".join(lines), text=True, capture_output=True, check=False)


def tc_batch(lines: Iterable[str], namespace: str | None = None) -> None:
    """Run many `tc` commands in one process."""
    _call(["tc", *_within(namespace), "-batch", "-"], "\n".join(lines))


def ip_json(*arguments: str) -> list[dict[str, Any]]:
    """Return what `ip` shows, as records."""
    text = _call(["ip", "-json", *arguments])
    return [record for record in json.loads(text or "[]") if record]


def namespaces() -> list[str]:
    """Return the names of all network namespaces."""
    return [str(record["name"]) for record in ip_json("netns", "list")]


def links() -> list[str]:
    """Return the names of all interfaces."""
    return [str(record["ifname"]) for record in ip_json("link", "show")]


def _within(namespace: str | None) -> list[str]:
    return [] if namespace is None else ["-netns", namespace]


def _call(command: list[str], text: str = "") -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(
            f"{command[0]} must succeed, got: {done.stderr.strip()}; the lab needs root, and a "
            "Linux kernel with network namespaces, veth, bridge and tbf; --paced does without"
        )
    return done.stdout
