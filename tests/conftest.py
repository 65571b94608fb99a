"""The same examples on every run, and one thread per process."""

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")

# Before anything imports numpy: on vectors of twenty entries the threads of BLAS only wait for
# each other, and with two workers on two cores that costs a factor of forty.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
