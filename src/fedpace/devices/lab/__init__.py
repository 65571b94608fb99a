"""A lab: devices emulated on one machine, each behind a link of its own."""
