"""THE loop: draw, run, aggregate, record."""
