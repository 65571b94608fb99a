"""Keep PyTorch's arrays on a device, and count what is moved there and back."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace.errors import InputError, needs

with needs("PyTorch models need torch", "torch"):
    import torch
from torch import Tensor

AUTO = "auto"
# Samples per pass when all are evaluated: as many as fit the cache of a CPU; a GPU takes more.
AT_ONCE, AT_ONCE_ON_GPU = 512, 8192


class Place:
    """A device, and the arrays of data that stay there.

    Attributes
    ----------
    sent, fetched : int
        Arrays moved to the device, and back.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.sent = self.fetched = 0
        self._kept: dict[int, tuple[weakref.ref[NDArray[Any]], Tensor]] = {}

    @property
    def at_once(self) -> int:
        """Samples to evaluate in one pass."""
        return AT_ONCE if self.device.type == "cpu" else AT_ONCE_ON_GPU

    @property
    def random_devices(self) -> list[torch.device]:
        """Devices with random states of their own."""
        return [self.device] if self.device.type == "cuda" else []

    def send(self, array: NDArray[Any]) -> Tensor:
        """Return an array on the device."""
        self.sent += 1
        return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(self.device)

    def fetch(self, values: Tensor) -> NDArray[Any]:
        """Return values of the device as an array."""
        self.fetched += 1
        return values.cpu().numpy()

    def keep(self, array: NDArray[Any]) -> Tensor:
        """Return an array on the device, where it stays as long as the array is in use."""
        name = id(array)
        known = self._kept.get(name)
        if known is not None and known[0]() is array:
            return known[1]
        forget = weakref.ref(array, lambda _: self._kept.pop(name, None))
        values = self.send(array)
        if self.device.type == "cpu":  # shared memory would keep the array in use
            values = values.clone()
        self._kept[name] = forget, values
        return values

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_kept": {}}


def place_named(name: str | None) -> Place | None:
    """Return the place of that name: cpu, cuda, cuda:N, mps, or auto for the best there is.

    None stays where NumPy is, without a move.
    """
    if name is None:
        return None
    try:
        device = torch.device(_best() if name == AUTO else name)
    except (RuntimeError, TypeError):
        got = f"{name!r:.40}; try auto"
        raise InputError(f"device must be cpu, cuda, cuda:1, mps or auto, got {got}") from None
    there = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not there.get(device.type, False):
        raise InputError(
            f"device must be there, got '{name}', which PyTorch {torch.__version__} does not see; "
            "install PyTorch for it, or give auto"
        )
    return Place(device)


def _best() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
