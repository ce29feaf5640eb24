"""Other work that goes on during a test."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time

from tests.waiting import SOON, stretched


@contextlib.contextmanager
def writer(store):
    """A thread that stores small records as long as the block runs. Yields a list: for how many seconds each had to wait."""
    waited, begun, stop = [], threading.Event(), threading.Event()

    def write():
        for number in itertools.count():
            began = time.monotonic()
            store.store("other", str(number), number)
            waited.append(time.monotonic() - began)
            begun.set()
            if stop.wait(0.001):
                return

    thread = threading.Thread(target=write)
    thread.start()
    begun.wait(stretched(SOON))
    try:
        yield waited
    finally:
        stop.set()
        thread.join()
