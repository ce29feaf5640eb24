"""
What an engine has beside its loop: the clock for its deadlines, the timer that wakes it at the next one, and a thread for
calls that may block.

A wait must never depend on the system's clock: setting that clock must neither end nor prolong it.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from saltext.jobs.core import compat

T = TypeVar("T")


class Clock:
    """
    Unix time that is read once, and from then on follows a clock that cannot be set. ``unix``: the time to begin with; now
    by default. ``steady`` returns seconds that only rise; ``offset`` is added to them.
    """

    def __init__(self, unix: float | None = None, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        self.offset = (time.time() if unix is None else unix) - steady()

    def now(self) -> float:
        """Return the time in Unix seconds."""
        return self.offset + self._steady()


class Alarm:
    """A deadline on a loop. ``ring`` is called there, never before the deadline, once for each that was set."""

    def __init__(self, loop: Any, clock: Clock, ring: Callable[[], object]) -> None:
        self._loop, self._clock, self._ring = loop, clock, ring
        self._timer: Any = None
        self.due: float | None = None  # the deadline in Unix seconds

    def set(self, due: float | None) -> None:
        """Replace the deadline; None for none. The same deadline again costs nothing."""
        if due == self.due:
            return
        if self._timer is not None:
            self._loop.remove_timeout(self._timer)
            self._timer = None
        self.due = due
        if due is not None:
            self._wait(due)

    def _wait(self, due: float) -> None:
        self._timer = self._loop.call_later(max(0.0, due - self._clock.now()), self._wake, due)

    def _wake(self, due: float) -> None:
        if due > self._clock.now():  # the loop may call a moment early
            self._wait(due)
            return
        self._timer = self.due = None
        self._ring()


class Worker:
    """
    One thread, for the job cache, and all else that waits for a disk or a server; results return to ``loop``. Calls need no
    lock and keep their order. They must never touch the engine's state.
    """

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._executor = concurrent.futures.ThreadPoolExecutor(max_workers=1)

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run ``function(*args)`` in the thread, after all earlier calls, and return or raise what it does."""
        done, running = compat.Future(), self._executor.submit(function, *args)
        running.add_done_callback(lambda _: self._loop.add_callback(done.set_result, None))
        await done
        return running.result()

    def close(self, patience: float = 1.0) -> None:
        """Drop calls that have not begun, and wait for a running one, for at most ``patience`` seconds."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        waiting = threading.Thread(target=self._executor.shutdown, daemon=True)
        waiting.start()
        waiting.join(patience)
