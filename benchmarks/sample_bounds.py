"""Whom would another bound on sample counts bind, and what would it allow a liar?

A count that only its client says weighs for at most so many times the mean of all who hold less
(`fedpace.backends.remote.roster`). Other bounds are tried here on the sizes of the paper's setups:
on the draw that each setup fixes, and on others. Printed are the fleets that have an honest client
bound, the most that one loses, and how many times the mean a liar may claim among the forty of
`liars.py`.

    python benchmarks/sample_bounds.py
    OPENBLAS_NUM_THREADS=1 python benchmarks/liars.py --lies honest,samples --first-seed 100 \
        --seeds 20 --most-samples 10
"""

from __future__ import annotations

import math
from argparse import ArgumentParser
from collections.abc import Callable

import numpy as np
from liars import SETTINGS
from numpy.typing import NDArray
from tables import print_table

from fedpace.data.partition import PAPER_SIZES, power_law_sizes
from fedpace.seeds import Seeds
from fedpace.studies.study import ImagesSection, SyntheticSection, load_study

SETUPS = ("simulation-1", "prototype-simulated", "simulation-2")
# The most that a count may be, by the mean and by the largest of those below it.
Bound = Callable[[float, float], float]
BOUNDS: dict[str, Bound] = {
    "12 × mean (now)": lambda mean, _: 12 * mean,
    "10 × mean": lambda mean, _: 10 * mean,
    "9 × mean": lambda mean, _: 9 * mean,
    "2 × next, within 8 and 12 × mean": lambda m, n: min(12 * m, max(8 * m, 2 * n)),
    "1.75 × next, within 9 and 12 × mean": lambda m, n: min(12 * m, max(9 * m, 1.75 * n)),
    "2.5 × next, at least 8 × mean": lambda m, n: max(8 * m, 2.5 * n),
}


def sizes(setup: str, seed: int | None, settings: tuple[str, ...] = ()) -> NDArray[np.int64]:
    """Return the sizes of a setup's clients in one draw of the data; None: in the setup's own."""
    section = load_study(setup, settings).data
    assert isinstance(section, SyntheticSection | ImagesSection)
    if isinstance(section, SyntheticSection) and section.sizes == "paper":
        return np.array(PAPER_SIZES)
    own = section.seed or 0
    law = section.model_dump(include={"exponent", "smallest"})
    rng = Seeds(own if seed is None else seed).stream("data")
    return power_law_sizes(section.clients, section.samples, rng, **law)


def lost(counts: NDArray[np.int64], bound: Bound) -> float:
    """Return the largest share of its count that a client loses by a bound."""
    below: list[float] = []
    most = 0.0
    for count in np.sort(counts).tolist():
        limit = bound(float(np.mean(below)), below[-1]) if below else math.inf
        below.append(min(count, limit))
        most = max(most, 1 - below[-1] / count)
    return most


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--draws", type=int, default=21, help="draws of the data, from 0 on")
    draws = parser.parse_args().draws
    liars = np.sort(sizes("simulation-1", None, SETTINGS))
    rows = []
    for name, bound in BOUNDS.items():
        own = [f"{100 * lost(sizes(setup, None), bound):.0f} %" for setup in SETUPS]
        row = [name, *own]
        for setup in SETUPS[1:]:
            each = np.array([lost(sizes(setup, seed), bound) for seed in range(draws)])
            row.append(f"{np.count_nonzero(each)} of {draws}, up to {100 * each.max():.0f} %")
        rows.append((*row, f"{bound(liars.mean(), liars[-1]) / liars.mean():.1f}"))
    columns = [f"{setup}, its own draw" for setup in SETUPS]
    others = [f"{setup}, draws 0 to {draws - 1}" for setup in SETUPS[1:]]
    print_table(("bound", *columns, *others, "a liar's multiple"), rows)


if __name__ == "__main__":
    main()
