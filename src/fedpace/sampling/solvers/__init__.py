"""Solvers: probabilities that minimise a predicted time, with a certificate."""
