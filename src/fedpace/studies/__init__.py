"""Setup × schemes × seeds, from TOML."""
