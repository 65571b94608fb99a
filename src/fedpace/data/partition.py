"""Partition a pool of samples among clients, or draw Synthetic(α, β) for them.

`dirichlet` and `classes_per_client` take the classes of M samples, integers, and return one array
per client: its rows of the pool, in random order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace.checks import FloatArray, IntArray, refuse_first
from fedpace.data.shards import Split, hold_out
from fedpace.errors import InputError


def power_law_sizes(
    n: int, total: int, rng: np.random.Generator, *, exponent: float = 1.5, smallest: int = 1
) -> IntArray:
    """Draw N sizes from a power law that sum to `total` exactly, none below `smallest`.

    >>> sizes = power_law_sizes(10, 1000, np.random.default_rng(0), smallest=5)
    >>> int(sizes.sum()), bool(sizes.min() >= 5)
    (1000, True)
    """
    if n < 1:
        raise InputError(f"n must be at least 1, got {n}; give the number of clients")
    if smallest < 1:
        raise InputError(
            f"smallest must be at least 1, got {smallest}; every client needs a sample"
        )
    spare = total - n * smallest
    if spare < 0:
        raise InputError(
            f"total must be at least n × smallest = {n * smallest}, got {total}; "
            "give more samples or fewer clients"
        )
    shares = rng.pareto(exponent, n) if 0 < exponent < np.inf else np.zeros(n)
    if not 0 < shares.sum() < np.inf:
        raise InputError(
            f"exponent must be positive and of a size that can be computed, got {exponent}; "
            "1.5 is usual"
        )
    exact = spare * (shares / shares.sum())
    sizes: IntArray = np.floor(exact).astype(np.int64)
    # The largest remainders get what rounding down left over.
    short = spare - int(sizes.sum())
    sizes[np.argsort(sizes - exact, kind="stable")[:short]] += 1
    return sizes + smallest


def dirichlet(
    labels: ArrayLike, n: int, rng: np.random.Generator, *, concentration: float
) -> list[IntArray]:
    """Divide the pool equally among N clients, with classes that differ between clients.

    Client i's label proportions are π_i ~ Dir(α C s), with α > 0 the `concentration` and s the
    pool's proportions of its C classes: Dir(α, …, α) if classes are equally frequent. A small α
    gives clients with hardly more than one class, a large one clients like the pool. When a class
    is used up, clients that want more of it draw again among the others. Every row is used once,
    so N is at most M.

    >>> parts = dirichlet([0, 0, 1, 1], 2, np.random.default_rng(0), concentration=0.5)
    >>> sorted(np.concatenate(parts).tolist())
    [0, 1, 2, 3]

    References
    ----------
    Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification, 2019.
    """
    if not 0 < concentration < np.inf:
        raise InputError(
            f"concentration must be positive and finite, got {concentration}; "
            "0.1 gives clients of few classes, 100 clients alike"
        )
    classes = _checked_labels(labels)
    if np.ndim(n) != 0:
        raise InputError(f"n must be one number, got {n!r}; give the number of clients")
    sizes = _checked_sizes(n, classes.size)
    counts = np.bincount(classes)
    wishes = rng.dirichlet(concentration * counts.size * counts / classes.size, sizes.size)
    seats = rng.permutation(np.repeat(np.arange(sizes.size), sizes))
    return fill_seats(seats, draw_classes(wishes[seats], rng), wishes, classes, rng)


def classes_per_client(
    labels: ArrayLike, sizes: ArrayLike, rng: np.random.Generator, *, fewest: int, most: int
) -> list[IntArray]:
    """Give each client a few classes, and `sizes` samples spread evenly over them.

    The number of a client's classes is drawn between `fewest` and `most`, but not above its size,
    and then the classes. If a class is too small for all clients that drew it, smaller clients
    exchange it for another or get more classes, up to `most`, and beyond only if clients need
    nearly the complete pool. No sample is used twice before all are used once.

    >>> labels = np.repeat([0, 1, 2], 10)
    >>> parts = classes_per_client(labels, [6, 4], np.random.default_rng(0), fewest=2, most=2)
    >>> [np.bincount(labels[part], minlength=3).tolist() for part in parts]
    [[0, 3, 3], [2, 0, 2]]
    """
    classes = _checked_labels(labels)
    kinds = int(classes.max()) + 1
    if not 1 <= fewest <= most <= kinds:
        raise InputError(
            f"fewest and most must rise from 1 to the {kinds} classes of labels, got {fewest} "
            f"and {most}; give for example 1 and {kinds}"
        )
    if np.ndim(sizes) != 1:
        raise InputError(f"sizes must be a vector, got {sizes!r:.60}; give one size per client")
    amounts = _checked_sizes(sizes, classes.size)
    few = f"be at least fewest = {fewest}"
    refuse_first("sizes", amounts, amounts < fewest, few, "lower fewest")
    wanted = []
    for size in amounts.tolist():
        # Drawn before it is cut to the size, so that it does not depend on the size otherwise.
        count = min(int(rng.integers(fewest, most, endpoint=True)), size)
        wanted.append(np.resize(rng.choice(kinds, count, replace=False), size))
    make_room(wanted, np.bincount(classes), most, rng)
    wishes = np.zeros((amounts.size, kinds))
    for i, own in enumerate(wanted):
        wishes[i, own] = 1
    order = rng.permutation(int(amounts.sum()))
    seats = np.repeat(np.arange(amounts.size), amounts)[order]
    return fill_seats(seats, np.concatenate(wanted)[order], wishes, classes, rng)


def by_column(values: ArrayLike) -> list[IntArray]:
    """Make one client for each value of a column, such as a user, in the order of the values.

    >>> by_column(["b", "a", "b"])
    [array([1]), array([0, 2])]
    """
    column = np.asarray(values)
    if column.ndim != 1 or column.size == 0:
        got = f"shape {column.shape}; give one value per row"
        raise InputError(f"values must be a column, got {got}")
    _, clients = np.unique(column, return_inverse=True)
    order = np.argsort(clients, kind="stable")
    return np.split(order, np.cumsum(np.bincount(clients))[:-1])


def check_test_share(test_share: float) -> None:
    """Refuse a share that leaves nothing to train or to test on."""
    if not 0 < test_share < 1:
        raise InputError(f"test_share must lie between 0 and 1, got {test_share}; 0.1 is usual")


def _checked_labels(labels: ArrayLike) -> IntArray:
    """Return the classes, numbered from 0 without gaps."""
    array = np.asarray(labels)
    if array.ndim != 1 or array.size == 0 or not np.issubdtype(array.dtype, np.integer):
        raise InputError(
            f"labels must be a vector of integers, got {array.dtype} of shape {array.shape}; "
            "give one class per sample of the pool"
        )
    return np.unique(array, return_inverse=True)[1].astype(np.int64)


def _checked_sizes(sizes_or_n: ArrayLike, total: int) -> IntArray:
    """Return one positive size per client; for a number of clients, sizes that differ by ≤ 1."""
    array = np.asarray(sizes_or_n)
    if not np.issubdtype(array.dtype, np.integer) or array.ndim > 1 or array.size == 0:
        raise InputError(
            f"sizes must be integers, got {sizes_or_n!r:.60}; give the number of clients, "
            "or one size per client"
        )
    if array.ndim == 0:
        n = int(array)
        if not 1 <= n <= total:
            raise InputError(
                f"n must lie between 1 and {total}, the samples in the pool, got {n}; "
                "every client needs a sample"
            )
        return total // n + (np.arange(n) < total % n)
    refuse_first("sizes", array, array < 1, "be at least 1", "drop clients without samples")
    return array.astype(np.int64)


def make_room(
    wanted: list[IntArray], counts: IntArray, most: int, rng: np.random.Generator
) -> None:
    """Exchange classes that are too small for all who want them; large clients choose first."""
    if (np.bincount(np.concatenate(wanted), minlength=counts.size) <= counts).all():
        return
    left = counts.copy()
    for i in sorted(range(len(wanted)), key=lambda i: -wanted[i].size):
        wants = np.bincount(wanted[i], minlength=counts.size)
        if (wants > left).any():
            own = _with_room(np.flatnonzero(wants), wanted[i].size, left, most, rng)
            if own is None:
                continue  # more than is left: it draws other classes when these are used up
            wanted[i] = np.repeat(own, _even_shares(wanted[i].size, left[own]))
            wants = np.bincount(wanted[i], minlength=counts.size)
        left -= wants


def _with_room(
    own: IntArray, size: int, left: IntArray, most: int, rng: np.random.Generator
) -> IntArray | None:
    """Return classes for `size` samples, with as few changes as possible."""
    for count in range(own.size, min(most, size) + 1):
        roomy = left >= -(-size // count)
        kept = own[roomy[own]]
        others = np.setdiff1d(np.flatnonzero(roomy), kept)
        if kept.size + others.size >= count:
            return np.append(kept, rng.choice(others, count - kept.size, replace=False))
    # Unequal shares.
    fullest = np.argsort(-left, kind="stable")[: min(most, size)]
    return fullest if left[fullest].sum() >= size else None


def _even_shares(size: int, room: IntArray) -> IntArray:
    """Divide `size` as evenly as `room` allows.

    >>> _even_shares(10, np.array([9, 2, 9]))
    array([4, 2, 4])
    """
    shares = np.zeros_like(room)
    for place, entry in enumerate(np.argsort(room, kind="stable")):
        shares[entry] = min(room[entry], (size - shares.sum()) // (room.size - place))
    return shares


def fill_seats(
    seats: IntArray,
    wanted: IntArray,
    wishes: FloatArray,
    classes: IntArray,
    rng: np.random.Generator,
) -> list[IntArray]:
    """Give every seat a sample, of the class it wants if possible.

    `seats` are clients, in random order. Seats without a sample draw again, by their client's
    `wishes` among the remaining classes; each pass but the last uses up a class.
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
            left = counts.copy()  # more is wanted than the pool has: use it once more
        for i in np.unique(seats[waiting]):
            if not wishes[i, left > 0].any():
                wishes[i, rng.choice(counts.size, p=left / left.sum())] = 1
        wanted = draw_classes(wishes[seats[waiting]] * (left > 0), rng)


def draw_classes(chances: FloatArray, rng: np.random.Generator) -> IntArray:
    """Draw a class for each row of chances, which need not sum to 1."""
    heights = np.cumsum(chances, axis=1)
    # A share of the last entry, so that rounding cannot exceed it; classes without a chance have
    # no height and are never drawn.
    below = heights <= rng.random((len(chances), 1)) * heights[:, -1:]
    return np.asarray(below.sum(axis=1))


def _place_among_equals(values: IntArray) -> IntArray:
    """Return the number of equal entries before each.

    >>> _place_among_equals(np.array([5, 7, 5, 5]))
    array([0, 0, 1, 2])
    """
    order = np.argsort(values, kind="stable")
    _, starts, repeats = np.unique(values[order], return_index=True, return_counts=True)
    place = np.empty(values.size, dtype=np.int64)
    place[order] = np.arange(values.size) - np.repeat(starts, repeats)
    return place


# Client sizes of the paper's first simulation; they sum to 20,509.
PAPER_SIZES = (
    236, 56, 512, 69, 51, 161, 931, 57, 46, 125, 54, 77, 88, 84, 147, 191, 94, 69, 52, 192, 46,
    47, 87, 382, 236, 192, 125, 46, 361, 57, 90, 213, 58, 76, 79, 136, 73, 252, 53, 442, 1622, 52,
    102, 808, 146, 60, 2012, 322, 61, 47, 423, 92, 243, 116, 93, 92, 559, 46, 282, 72, 82, 51, 47,
    55, 55, 50, 234, 60, 65, 95, 51, 107, 650, 107, 235, 98, 114, 176, 199, 81, 1134, 61, 112, 49,
    78, 118, 128, 68, 606, 96, 54, 144, 339, 253, 330, 59, 61, 63, 372, 179,
)  # fmt: skip


def synthetic(
    sizes: NDArray[np.int64],
    rng: np.random.Generator,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    features: int = 60,
    classes: int = 10,
    test_share: float = 0.1,
) -> Split:
    """Draw Synthetic(α, β) data for clients that train on `sizes` samples each.

    Client i has its own model W_i ~ N(u_i, 1), b_i ~ N(u_i, 1), u_i ~ N(0, α), and its own inputs
    x ~ N(v_i, Σ), v_i ~ N(B_i, 1), B_i ~ N(0, β), Σ diagonal with entries j^−1.2; the class is
    the largest entry of W_i x + b_i. α and β are variances. α changes no label, because u_i shifts
    all scores alike. `sizes` are 1 − test_share of a client's samples; the others are held back.

    References
    ----------
    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks,
    MLSys 2020, appendix C.1.
    """
    held_out = np.maximum(np.rint(sizes * test_share / (1 - test_share)), 1).astype(np.int64)
    scales = np.arange(1, features + 1) ** -0.6  # standard deviations: √(j^−1.2)
    xs, ys = [], []
    for count in sizes + held_out:
        shift = rng.normal(0, np.sqrt(alpha))
        centre = rng.normal(rng.normal(0, np.sqrt(beta)), 1, size=features)
        weights = rng.normal(shift, 1, size=(features, classes))
        bias = rng.normal(shift, 1, size=classes)
        x = rng.normal(centre, scales, size=(count, features))
        xs.append(x)
        ys.append(np.argmax(x @ weights + bias, axis=1))
    return hold_out(xs, ys, sizes)
