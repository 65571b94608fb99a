"""The training loop: draw, collect, apply, record."""
