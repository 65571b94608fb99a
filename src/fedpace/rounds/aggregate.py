"""The one line that every scheme shares."""

from fedpace.checks import FloatArray


def aggregate(parameters: FloatArray, weights: FloatArray, updates: FloatArray) -> FloatArray:
    """Return w + Σ_i weights_i (w_i − w) [Luo22, Lemma 1].

    Never renormalised: that the weights sum to 1 only on average is what keeps it unbiased.
    """
    return parameters + weights @ updates
