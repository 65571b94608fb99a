"""WHAT clients hold."""
