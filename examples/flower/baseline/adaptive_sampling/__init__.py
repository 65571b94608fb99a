"""Adaptive client sampling for federated learning: Synthetic(1, 1), logistic regression."""
