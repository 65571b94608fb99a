"""A lab of devices on one machine, and what devices and their server run anywhere."""
