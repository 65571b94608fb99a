"""Synthetic(α, β): logistic data whose model and inputs differ between clients."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedpace.data.shards import Split, hold_out

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
