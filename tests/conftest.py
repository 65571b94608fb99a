"""The same examples on every run, and one thread per process."""

import os
import signal
import threading

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")

# Before anything imports numpy: on vectors of twenty entries the threads of BLAS only wait for
# each other, and with two workers on two cores that costs a factor of forty.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A shell that runs this in the background lets it ignore Ctrl-C, and what it starts would inherit
# that; with a handler here they start with the usual behaviour.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
