"""The names of a lab's parts, by which they are found again, and the file that describes it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from fedpace.devices.device import device_names
from fedpace.errors import InputError
from fedpace.files import write_text

FILE = "lab.json"
LONGEST_NAME = 32


@dataclass(frozen=True)
class Names:
    """Name the parts of a lab, so that they are found again after a crash.

    Interface names, of at most 15 characters, contain a hash of the lab's name.

    >>> names = Names("proto")
    >>> names.namespace(7), len(names.veth(999)) <= 15
    ('fp-proto-007', True)
    """

    lab: str

    def __post_init__(self) -> None:
        fine = re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", self.lab)
        if not fine or len(self.lab) > LONGEST_NAME:
            raise InputError(
                f"--name must be up to {LONGEST_NAME} small letters, digits and hyphens, got "
                f"'{self.lab}'; write proto"
            )

    @property
    def bridge(self) -> str:
        """The bridge that joins the devices."""
        return f"fp{self._short}b"

    def namespace(self, device: int) -> str:
        """Return the network namespace of a device."""
        return f"fp-{self.lab}-{device:03d}"

    def veth(self, device: int) -> str:
        """Return the bridge's end of a device's link."""
        return f"fp{self._short}d{device:03d}"

    @property
    def shared(self) -> str:
        """The interface through which all packets pass, if devices share the server's link."""
        return f"fp{self._short}s"

    def owns_namespace(self, name: str) -> bool:
        """Return whether a namespace is this lab's.

        >>> Names("a").owns_namespace("fp-a-001"), Names("a").owns_namespace("fp-a-1-001")
        (True, False)
        """
        return re.fullmatch(rf"fp-{self.lab}-\d{{3}}", name) is not None

    def owns_link(self, name: str) -> bool:
        """Return whether an interface is this lab's."""
        return re.fullmatch(rf"fp{self._short}(b|s|d\d{{3}})", name) is not None

    @property
    def _short(self) -> str:
        return hashlib.blake2b(self.lab.encode(), digest_size=4).hexdigest()


@dataclass(frozen=True)
class Lab:
    """A lab that is up; rates and measured times are empty until known."""

    name: str
    devices: int
    setup: str  # the study that the rates were calibrated for
    asked: list[float]  # round time of each device, in seconds, before scaling
    time_scale: float
    how: Literal["namespaces", "paced"]  # whether `tc` or the devices themselves limit the rates
    host: str
    port: int
    packet: int  # bytes of the longest packet of a link
    rates: list[float]  # of each device's link, in bytes per second
    measured: list[float]  # round time of each device, in seconds
    link: str | None = None  # of the server, as a study names it, if the devices share it
    allow: list[str] = field(default_factory=list)  # own files and modules that devices may run

    @property
    def names(self) -> Names:
        """The names of its parts."""
        return Names(self.name)

    @property
    def device_names(self) -> list[str]:
        """The names of its devices."""
        return device_names(self.devices)

    @property
    def wanted(self) -> list[float]:
        """The round times asked for, scaled."""
        return [seconds * self.time_scale for seconds in self.asked]


def labs_folder(given: Path | None = None) -> Path:
    """Return the folder of labs: the one given, or the user's."""
    if given is not None:
        return given
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home, "fedpace", "labs")


def lab_folder(name: str, given: Path | None = None) -> Path:
    """Return the folder of one lab."""
    return labs_folder(given) / Names(name).lab


def claim(lab: Lab, folder: Path) -> None:
    """Create a lab's file; fails if another process creates the same lab."""
    path = folder / FILE
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(_text(lab))
    except FileExistsError:
        raise name_taken_error(lab.name, str(path)) from None
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise InputError(
            f"{path}: cannot be written: {error.strerror}; choose another --state"
        ) from None


def name_taken_error(name: str, left: str) -> InputError:
    """Return the error that parts of a lab of this name exist."""
    return InputError(
        f"--name must be free, got '{name}', of which there is {left}; take it down first with: "
        f"fedpace lab down --name {name}"
    )


def write_lab(lab: Lab, folder: Path) -> None:
    """Replace a lab's file."""
    write_text(folder / FILE, _text(lab))


def _text(lab: Lab) -> str:
    return json.dumps(asdict(lab), indent=2) + "\n"


def read_lab(name: str, given: Path | None = None) -> Lab:
    """Read a lab's file; InputError if the lab is not up."""
    path = lab_folder(name, given) / FILE
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Lab(**{field.name: values[field.name] for field in fields(Lab)})
    except FileNotFoundError:
        raise InputError(
            f"--name must be a lab that is up, got '{name}'; start it with: fedpace lab up "
            f"--name {name}"
        ) from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{path}: cannot be read as a lab: {error}; remove it with: fedpace lab down "
            f"--name {name}"
        ) from None


def known_labs(given: Path | None = None) -> list[str]:
    """Return the names of all labs in the folder."""
    return sorted(path.parent.name for path in labs_folder(given).glob(f"*/{FILE}"))


def forget(folder: Path) -> None:
    """Remove a lab's folder; other folders are left alone."""
    if not (folder / FILE).exists():
        return
    with contextlib.suppress(OSError):  # the caller checks what is left
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != FILE:
                path.unlink()
        (folder / FILE).unlink()  # last, so that an interrupted removal can be repeated
        folder.rmdir()
