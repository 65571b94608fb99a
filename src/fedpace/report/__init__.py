"""What a reader sees: tables and figures."""
