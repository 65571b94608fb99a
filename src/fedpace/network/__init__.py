"""The same loop over a network: devices that keep their data, or a cluster."""
