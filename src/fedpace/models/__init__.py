"""WHAT clients train."""
