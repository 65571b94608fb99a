"""Deal the samples of a pool out to clients who want certain classes."""

from __future__ import annotations

import numpy as np

from fedpace.checks import FloatArray, IntArray


def make_room(
    wanted: list[IntArray], counts: IntArray, most: int, rng: np.random.Generator
) -> None:
    """Exchange classes of which more is wanted than there is; the largest clients choose first."""
    if (np.bincount(np.concatenate(wanted), minlength=counts.size) <= counts).all():
        return
    left = counts.copy()
    for i in sorted(range(len(wanted)), key=lambda i: -wanted[i].size):
        wants = np.bincount(wanted[i], minlength=counts.size)
        if (wants > left).any():
            own = _with_room(np.flatnonzero(wants), wanted[i].size, left, most, rng)
            if own is None:
                continue  # more than is left: it will draw more classes when these have run out
            wanted[i] = np.repeat(own, _even_shares(wanted[i].size, left[own]))
            wants = np.bincount(wanted[i], minlength=counts.size)
        left -= wants


def _with_room(
    own: IntArray, size: int, left: IntArray, most: int, rng: np.random.Generator
) -> IntArray | None:
    """Return classes for `size` samples: no more of them, and no others, than it takes."""
    for count in range(own.size, min(most, size) + 1):
        roomy = left >= -(-size // count)
        kept = own[roomy[own]]
        others = np.setdiff1d(np.flatnonzero(roomy), kept)
        if kept.size + others.size >= count:
            return np.append(kept, rng.choice(others, count - kept.size, replace=False))
    # Not in equal shares, then.
    fullest = np.argsort(-left, kind="stable")[: min(most, size)]
    return fullest if left[fullest].sum() >= size else None


def _even_shares(size: int, room: IntArray) -> IntArray:
    """Share `size` out as evenly as there is room.

    >>> _even_shares(10, np.array([9, 2, 9]))
    array([4, 2, 4])
    """
    shares = np.zeros_like(room)
    for place, entry in enumerate(np.argsort(room, kind="stable")):
        shares[entry] = min(room[entry], (size - shares.sum()) // (room.size - place))
    return shares


def filled(
    seats: IntArray,
    wanted: IntArray,
    wishes: FloatArray,
    classes: IntArray,
    rng: np.random.Generator,
) -> list[IntArray]:
    """Give every seat a sample, of the class it wants as far as there are any.

    `seats` says whose each is, in random order. Seats that get nothing draw again, by their
    client's `wishes` among the classes that are left; each pass but the last uses up a class.
    """
    wishes = wishes.copy()
    shuffled = rng.permutation(classes.size)
    pool = shuffled[np.argsort(classes[shuffled], kind="stable")]
    counts = np.bincount(classes)
    first, left = np.cumsum(counts) - counts, counts.copy()
    rows = np.full(seats.size, -1)
    waiting = np.arange(seats.size)
    while True:
        place = _place_among_equals(wanted)
        served = place < left[wanted]
        taken = wanted[served]
        rows[waiting[served]] = pool[(first + counts - left)[taken] + place[served]]
        left -= np.bincount(taken, minlength=counts.size)
        waiting = waiting[~served]
        if waiting.size == 0:
            return [rows[seats == i] for i in range(len(wishes))]
        if not left.any():
            left = counts.copy()  # more is asked for than there is: deal the pool out once more
        for i in np.unique(seats[waiting]):
            if not wishes[i, left > 0].any():
                wishes[i, rng.choice(counts.size, p=left / left.sum())] = 1
        wanted = drawn(wishes[seats[waiting]] * (left > 0), rng)


def drawn(chances: FloatArray, rng: np.random.Generator) -> IntArray:
    """Draw a class for each row of chances, which need not sum to 1."""
    heights = np.cumsum(chances, axis=1)
    # A share of the last entry: rounding cannot lead past it. A class without a chance has no
    # height of its own and is never reached, for the draw lies strictly below the last.
    below = heights <= rng.random((len(chances), 1)) * heights[:, -1:]
    return np.asarray(below.sum(axis=1))


def _place_among_equals(values: IntArray) -> IntArray:
    """Return how many equal entries come before each.

    >>> _place_among_equals(np.array([5, 7, 5, 5]))
    array([0, 0, 1, 2])
    """
    order = np.argsort(values, kind="stable")
    _, starts, repeats = np.unique(values[order], return_index=True, return_counts=True)
    place = np.empty(values.size, dtype=np.int64)
    place[order] = np.arange(values.size) - np.repeat(starts, repeats)
    return place
