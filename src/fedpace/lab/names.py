"""What a lab's parts are called: everything follows from the lab's name."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from fedpace.errors import InputError

LONGEST_NAME = 32


@dataclass(frozen=True)
class Names:
    """Name the parts of a lab, so that they are found again whatever was killed.

    Names of interfaces have at most 15 characters: a hash stands for the lab's name there.

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

    def owns_namespace(self, name: str) -> bool:
        """Tell whether a namespace is this lab's.

        >>> Names("a").owns_namespace("fp-a-001"), Names("a").owns_namespace("fp-a-1-001")
        (True, False)
        """
        return re.fullmatch(rf"fp-{self.lab}-\d{{3}}", name) is not None

    def owns_link(self, name: str) -> bool:
        """Tell whether an interface is this lab's."""
        return re.fullmatch(rf"fp{self._short}(b|d\d{{3}})", name) is not None

    @property
    def _short(self) -> str:
        return hashlib.blake2b(self.lab.encode(), digest_size=4).hexdigest()
