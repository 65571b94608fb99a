"""History → Profile: what the server learns while it trains."""
