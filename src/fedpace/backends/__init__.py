"""Backends: where local training happens."""
