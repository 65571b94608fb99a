"""Devices on a network: each keeps its data, and trains when asked. See README.md."""
