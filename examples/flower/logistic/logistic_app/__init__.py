"""Logistic regression in NumPy, over Flower."""
