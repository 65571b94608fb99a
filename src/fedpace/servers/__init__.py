"""Servers: what becomes of the replies."""
