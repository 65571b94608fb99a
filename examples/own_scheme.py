"""A sampler of your own: it draws more of the clients that still have much to teach.

    fedpace run simulation-1 --schemes uniform,examples/own_scheme.py:Curious --seeds 2 --out own

The same name works in `fedpace lab run`, and in Flower:
`AdaptiveSampling(k=10, scheme="examples/own_scheme.py:Curious")`, or the class itself.
"""

import numpy as np

from fedpace import WithReplacement
from fedpace.conformance import check_sampler


class Curious:
    """Draw client i with q_i ∝ p_i (½ + norm_i / mean norm), with norms as seen lately.

    Whatever q is, weights p_i / (K q_i) keep the model unbiased: the design sees to it.
    """

    def __init__(self, k: int, memory: float = 0.7) -> None:
        self.k, self.memory = k, memory

    def init(self, n: int) -> dict:
        """Return the state before the first round: one number per client, NaN for "not seen"."""
        return {"norms": np.full(n, np.nan)}

    def design(self, state: dict, known) -> WithReplacement:
        """Return what to draw from now."""
        norms = _as_long(state["norms"], known.n)
        usual = 1.0 if np.isnan(norms).all() else np.nanmean(norms)
        q = known.weights * (0.5 + np.nan_to_num(norms, nan=usual) / usual)
        return WithReplacement(q / q.sum(), self.k, known.weights)

    def observe(self, state: dict, row) -> dict:
        """Learn from a round: a running mean of what each client reported."""
        fine = np.isfinite(row.grad_norms) & (row.grad_norms > 0)
        clients, latest = row.clients[fine], row.grad_norms[fine]
        norms = _as_long(state["norms"], clients.max(initial=-1) + 1)
        before = np.where(np.isnan(norms[clients]), latest, norms[clients])
        norms[clients] = self.memory * before + (1 - self.memory) * latest
        return {"norms": norms}


def _as_long(norms: np.ndarray, n: int) -> np.ndarray:
    """Clients may join later: nothing is known of them yet."""
    return np.append(norms, np.full(max(n - norms.size, 0), np.nan))


if __name__ == "__main__":
    check_sampler(lambda: Curious(k=3))
    print("Curious keeps to the rules of a sampler.")
