"""
The time by which an engine's deadlines go, and the timer that wakes it for the next one.

It must never follow the system's clock: somebody who sets that clock must neither end a wait nor prolong it.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable
from typing import Any

#: It has what tells one run of this machine from another, on Linux.
_BOOT = pathlib.Path("/proc/sys/kernel/random/boot_id")


def boot() -> str:
    """Return what tells this run of the machine from others, of which each has a steady clock of its own; or nothing."""
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


class Clock:
    """
    Unix time as it was when this was made, carried on by a clock that nobody can set.

    :param unix: the Unix time to begin with, in seconds; by default the present.
    :param steady: returns seconds that only ever rise. ``offset`` is what is added to them.
    """

    def __init__(self, unix: float | None = None, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        self.offset = (time.time() if unix is None else unix) - steady()

    def now(self) -> float:
        """Return the time in Unix seconds."""
        return self.offset + self._steady()


class Alarm:
    """
    One pending deadline on an engine's loop.

    :param loop: the engine's tornado loop.
    :param clock: what the deadline is read by.
    :param ring: called on the loop, never before the deadline, and once for each deadline that was set.
    """

    def __init__(self, loop: Any, clock: Clock, ring: Callable[[], None]) -> None:
        self._loop, self._clock, self._ring = loop, clock, ring
        self._timer: Any = None
        self._due: float | None = None

    @property
    def due(self) -> float | None:
        """The deadline in Unix seconds, or None."""
        return self._due

    def set(self, due: float | None) -> None:
        """Replace the deadline; None for none. Costs nothing where it stays the same."""
        if due == self._due:
            return
        self._stop()
        self._due = due
        if due is not None:
            self._wait(due)

    def close(self) -> None:
        """Ring no more, unless a deadline is set anew."""
        self._stop()
        self._due = None

    def _wait(self, due: float) -> None:
        self._timer = self._loop.call_later(max(0.0, due - self._clock.now()), self._wake)

    def _wake(self) -> None:
        due, self._timer = self._due, None
        # A loop may wake a moment early.
        if due is not None and due > self._clock.now():
            self._wait(due)
            return
        self._due = None
        self._ring()

    def _stop(self) -> None:
        if self._timer is not None:
            self._loop.remove_timeout(self._timer)
            self._timer = None
