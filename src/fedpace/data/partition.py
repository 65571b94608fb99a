"""Who holds how much, and of what.

`iid`, `dirichlet` and `classes_per_client` deal out a pool of M samples whose classes are
`labels`, integers; `rng` decides who gets what. Each returns one array per client: its rows of
the pool, in random order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedpace.checks import IntArray, refuse_first
from fedpace.data.dealing import drawn, filled, make_room
from fedpace.data.shards import AnyFloats, Split, hold_out
from fedpace.errors import InputError


def power_law_sizes(
    n: int,
    total: int,
    rng: np.random.Generator,
    *,
    exponent: float = 1.5,
    smallest: int = 1,
) -> IntArray:
    """Draw N sizes from a power law that sum to `total` exactly, none below `smallest`.

    >>> sizes = power_law_sizes(10, 1000, np.random.default_rng(0), smallest=5)
    >>> int(sizes.sum()), bool(sizes.min() >= 5)
    (1000, True)
    """
    if n < 1:
        raise InputError(f"n must be at least 1, got {n}; give the number of clients")
    if smallest < 1:
        raise InputError(f"smallest must be at least 1, got {smallest}; give a sample to everyone")
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


def iid(labels: ArrayLike, sizes_or_n: ArrayLike, rng: np.random.Generator) -> list[IntArray]:
    """Deal the pool out at random, whatever the labels; no row twice.

    `sizes_or_n` are the samples of each client; or N, for clients that share the whole pool as
    equally as possible.

    >>> [part.size for part in iid(np.zeros(7, dtype=int), 3, np.random.default_rng(0))]
    [3, 2, 2]
    """
    total = _checked_labels(labels).size
    sizes = _checked_sizes(sizes_or_n, total)
    if sizes.sum() > total:
        raise InputError(
            f"sizes must sum to at most {total}, the samples in the pool, got {sizes.sum()}; "
            "ask for fewer"
        )
    return np.split(rng.permutation(total)[: sizes.sum()], np.cumsum(sizes)[:-1])


def dirichlet(
    labels: ArrayLike, n: int, rng: np.random.Generator, *, concentration: float
) -> list[IntArray]:
    """Deal out the whole pool, equally much to each of N clients, of classes that differ.

    Client i's label proportions are π_i ~ Dir(α C s), with α > 0 the `concentration` and s the
    pool's own proportions of its C classes: Dir(α, …, α) where classes are equally frequent. A
    small α gives clients with hardly more than one class, a large one clients like the pool.
    Where a class has been dealt out, clients that want more of it draw again among the others.
    Every row is dealt out once, so N is at most M.

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
    return filled(seats, drawn(wishes[seats], rng), wishes, classes, rng)


def classes_per_client(
    labels: ArrayLike,
    sizes: ArrayLike,
    rng: np.random.Generator,
    *,
    fewest: int,
    most: int,
) -> list[IntArray]:
    """Give each client a few classes, and `sizes` samples spread evenly over them.

    The number of a client's classes is drawn between `fewest` and `most`, independently of its
    size but no larger, and then which classes. Where more of a class is wanted than there is,
    smaller clients exchange it for one that has room, or get more classes, up to `most`. A client
    gets more than `most` only if that is not enough, because clients want nearly all of the pool.
    No sample is dealt out twice before all have been once.

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
    return filled(seats, np.concatenate(wanted)[order], wishes, classes, rng)


def by_column(values: ArrayLike) -> list[IntArray]:
    """Give the rows of each value of a column, such as a user's or a hospital's name, to a client.

    Clients come in the order of the values.

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


def split_pool(
    x: AnyFloats, labels: ArrayLike, parts: Sequence[IntArray], *, test_share: float = 0.1
) -> Split:
    """Give clients their `parts` of a pool; each holds back a share for testing.

    `x` are the pool's inputs, of shape (M, features). A client with two samples or more holds
    back at least one, and trains on at least one.

    >>> split = split_pool(np.eye(4), [0, 1, 0, 1], [np.array([3, 0]), np.array([1, 2])])
    >>> split.train.y, split.test.y
    (array([1, 1]), array([0, 0]))
    """
    check_test_share(test_share)
    lengths = np.array([part.size for part in parts])
    if lengths.size == 0 or lengths.min() < 1 or lengths.max() < 2:
        raise InputError(
            f"parts must hold a sample per client and two for one of them, got sizes "
            f"{lengths.tolist()!s:.60}; give more samples or fewer clients"
        )
    y = np.asarray(labels)
    held_out = np.clip(np.rint(test_share * lengths), 1, None).astype(np.int64)
    kept = np.maximum(lengths - held_out, 1)
    return hold_out([x[part] for part in parts], [y[part] for part in parts], kept)


def check_test_share(test_share: float) -> None:
    """Refuse a share that leaves nothing to train on, or nothing to test on."""
    if not 0 < test_share < 1:
        raise InputError(f"test_share must lie between 0 and 1, got {test_share}; 0.1 is usual")


def _checked_labels(labels: ArrayLike) -> IntArray:
    """Return the classes that occur, numbered from 0 without gaps."""
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
