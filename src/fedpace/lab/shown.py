"""What is shown of a lab: tables and lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from rich import box
from rich.table import Table

from fedpace.errors import listed
from fedpace.lab.calibration import Calibrated, errors
from fedpace.lab.launch import memory
from fedpace.lab.register import Lab

# Above this median error a lab does not do what was asked for.
MEDIAN_ERROR = 0.1
UNKNOWN = "–"


def calibration_table(lab: Lab, found: Calibrated) -> Table:
    """Show for each device what was asked and what was measured."""
    computing = [f"{each:.4f}" for each in found.measured.computing]
    return _table({**_times(lab), "computing\nseconds": computing})


def calibration_line(lab: Lab, found: Calibrated) -> str:
    """Say that a lab is up, and how near its times are to those asked for."""
    off = errors(np.array(lab.wanted), found.measured.seconds)
    compared = "no device answered"
    if off.size:
        compared = f"median error {100 * np.median(off):.1f} %, largest {100 * off.max():.1f} %"
    how = "tc in namespaces" if lab.how == "namespaces" else "pacing inside the devices"
    return (
        f"Lab '{lab.name}' is up: {lab.devices} devices, {how}, {_place(lab)}. "
        f"Asked against measured: {compared}."
    )


def calibration_warnings(lab: Lab, found: Calibrated) -> Iterator[str]:
    """Say which times cannot be met."""
    names = np.array(lab.device_names)
    if slow := names[found.measured.computing >= lab.wanted].tolist():
        yield (
            f"these devices compute for longer than their whole time: {listed(slow)}; "
            "give a larger --time-scale"
        )
    if silent := names[np.isnan(lab.measured)].tolist():
        yield f"these devices did not answer: {listed(silent)}; see the logs in the lab's folder"
    off = errors(np.array(lab.wanted), found.measured.seconds)
    if off.size and np.median(off) > MEDIAN_ERROR:
        yield "the times differ by more than 10 %: is the machine busy with something else?"


def status_table(lab: Lab, living: Mapping[str, int]) -> Table:
    """Show for each device its times, its process and its memory."""
    numbers = [living.get(device) for device in lab.device_names]
    held = [UNKNOWN if pid is None else f"{memory(pid) / 1e6:.0f}" for pid in numbers]
    processes = ["gone" if pid is None else str(pid) for pid in numbers]
    return _table({**_times(lab), "process": processes, "memory\nMB": held})


def status_line(lab: Lab, living: Mapping[str, int]) -> str:
    """Say how many devices of a lab live."""
    alive = f"{len(living)} of {lab.devices} devices live"
    return f"Lab '{lab.name}': {alive}, {lab.how}, {_place(lab)}"


def _place(lab: Lab) -> str:
    return f"server {lab.host}:{lab.port}, time scale {lab.time_scale:g}"


def _times(lab: Lab) -> dict[str, list[str]]:
    """Return the columns of what was asked of each device and what was measured."""
    unknown = [UNKNOWN] * lab.devices
    pairs = zip(lab.measured, lab.wanted, strict=False)
    return {
        "device": lab.device_names,
        "asked\nseconds": [f"{seconds:.4f}" for seconds in lab.wanted],
        "measured\nseconds": [f"{seconds:.4f}" for seconds in lab.measured] or unknown,
        "error\n%": [f"{100 * (took / asked - 1):+.1f}" for took, asked in pairs] or unknown,
        "rate\nkB/s": [f"{rate / 1000:.1f}" for rate in lab.rates] or unknown,
    }


def _table(columns: Mapping[str, list[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for title in columns:
        table.add_column(title, justify="left" if title == "device" else "right")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table
