"""The account of privacy of a setup whose clients clip their updates and add noise."""

from __future__ import annotations

from fedpace.report.setups import Setup
from fedpace.rounds.privacy import told

UNCOVERED = (
    "That is for updates alone: sample counts, losses, evaluations and times are told as they are."
)


def privacy_notes(setup: Setup) -> list[str]:
    """Return what the updates of the client that was asked most often may tell; empty without."""
    privacy = setup.study.privacy
    if privacy is None:
        return []
    clip, noise, delta = privacy.clip, privacy.noise, privacy.delta
    lines = [
        f"Privacy: clients cut updates to length {clip:g} and add noise of standard deviation "
        f"{noise:g} × {clip:g} to each number. The server knows whom it drew, so no sampling "
        "amplifies this; updates of the same clients in several runs add up."
    ]
    for scheme in setup.schemes:
        rows = (run.history.rows for run in setup.of(scheme))
        lines.append(f"{scheme}: {told(noise, rows, delta)}.")
    return [*lines, UNCOVERED]
