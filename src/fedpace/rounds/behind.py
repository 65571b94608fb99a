"""Do the newest of several jobs in the background."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")
# After work that took a second the thread rests this many: others get most of the machine.
REST = 4


class Behind(Generic[Item]):
    """Call a function with the newest item in a thread of its own; older ones are passed over.

    The thread ends whenever nothing is left to do, and the process does not end before it.

    Parameters
    ----------
    work : function of an item
        Called with one item at a time, the last that was submitted among them unless it fails.

    Examples
    --------
    >>> done = []
    >>> behind = Behind(done.append)
    >>> for item in range(1000):
    ...     behind.submit(item)
    >>> behind.wait()
    >>> done[-1], done == sorted(done)
    (999, True)
    """

    def __init__(self, work: Callable[[Item], object]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._newest: list[Item] = []  # one or none
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._hurry = threading.Event()

    def submit(self, item: Item) -> None:
        """Have the item worked on, unless a newer one comes first; raise what went wrong before."""
        with self._lock:
            self._newest = [item]
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fedpace-behind")
                self._thread.start()
        self._raise()

    def wait(self) -> None:
        """Return when the newest item is done, or raise what went wrong."""
        thread = self._thread
        if thread is not None:
            self._hurry.set()
            thread.join()
            self._hurry.clear()
        self._raise()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._newest:
                    self._thread = None
                    return
                item = self._newest.pop()
            begin = time.monotonic()
            try:
                self._work(item)
            except Exception as error:  # whatever it is, the caller gets it
                self._error = error
            self._hurry.wait(REST * (time.monotonic() - begin))

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
