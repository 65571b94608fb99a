"""The devices of a lab: how they are started, and how their rates are kept."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.lab import launch
from fedpace.lab.calibration import shape
from fedpace.lab.cpu import limit, pin
from fedpace.lab.register import Lab

CERTIFICATES, SHARDS, LOGS = "certs", "shards", "logs"
# Seconds for devices to be there after they were started: each imports NumPy, and computes.
PATIENCE, PATIENCE_EACH = 60.0, 3.0
LOOK_AGAIN = 0.5
# Looks at which a device is missing before it is gone: one that just starts cannot be seen.
GONE = 4


@dataclass(frozen=True)
class Limits:
    """What devices may compute with: these cores in turn, and a share of one; None for all."""

    cores: Sequence[int] | None = None
    share: float | None = None


@dataclass(frozen=True)
class EmulatedDevices:
    """Start the devices of a lab that is written down in a folder, and set their rates."""

    lab: Lab
    folder: Path
    limits: Limits

    def start(self, rates: FloatArray) -> None:
        """Start every device; those that keep their rates themselves are told."""
        for part in (SHARDS, LOGS):
            (self.folder / part).mkdir(exist_ok=True)
        for number, device in enumerate(self.lab.device_names):
            command = self._command(number, device, float(rates[number]))
            log = self.log(device)
            pid = launch.start(command, lab=self.lab.name, device=device, log=log)
            if self.limits.cores:
                pin(pid, self.limits.cores[number % len(self.limits.cores)])
            if self.limits.share is not None:
                limit(self.lab.names, number, pid, self.limits.share)

    def set_rates(self, rates: FloatArray) -> None:
        """Set the rates of all links, or start the devices anew with theirs."""
        if self.lab.how == "namespaces":
            shape(self.lab.names, rates.tolist(), self.lab.packet)
            return
        launch.stop(self.lab.name)
        self.start(rates)

    def wait(self, ready: Callable[[], Sequence[int]], say: Callable[[str], None]) -> None:
        """Wait until every device is among those ready, or say whose log to look at."""
        end = time.monotonic() + PATIENCE + PATIENCE_EACH * self.lab.devices
        shown, gone = 0, Counter[str]()
        while len(there := ready()) < self.lab.devices:
            living = launch.running(self.lab.name)
            for number, device in enumerate(self.lab.device_names):
                gone[device] = 0 if device in living else gone[device] + 1
                late = number not in there and time.monotonic() > end
                if late or gone[device] >= GONE:
                    self._missing(device)
            if len(there) > shown:
                shown = len(there)
                say(f"{shown} of {self.lab.devices} devices are there")
            time.sleep(LOOK_AGAIN)

    def log(self, device: str) -> Path:
        """Return where a device writes what it has to say."""
        return self.folder / LOGS / f"{device}.log"

    def _missing(self, device: str) -> None:
        try:
            lines = self.log(device).read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        raise InputError(
            f"{device} must join the lab, got: {lines[-1] if lines else 'no word from it'}; "
            f"see {self.log(device)}"
        )

    def _command(self, number: int, device: str, rate: float) -> list[str]:
        join = [
            *(sys.executable, "-m", "fedpace", "lab", "join", f"{self.lab.host}:{self.lab.port}"),
            *("--name", device, "--certs", str(self.folder / CERTIFICATES)),
            *("--shards", str(self.folder / SHARDS)),
        ]
        if self.lab.how == "namespaces":
            return ["ip", "netns", "exec", self.lab.names.namespace(number), *join]
        return [*join, "--pace", f"{rate:.1f}"]
