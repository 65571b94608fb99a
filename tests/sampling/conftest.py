"""A solver that does not end is a failure, not a reason to wait."""

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

# Of CPU time. No test of this folder takes a tenth of it; and again and again, while an example
# is shrunk.
MOST_SECONDS = 60.0


def _stop(signum: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"not done after {MOST_SECONDS:g} s")


@pytest.fixture(autouse=True)
def _nothing_hangs() -> Iterator[None]:
    previous = signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS, MOST_SECONDS)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, previous)
