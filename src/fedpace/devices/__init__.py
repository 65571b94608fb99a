"""HOW FAST clients are."""
