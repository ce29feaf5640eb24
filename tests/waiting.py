"""
Waiting for a condition, for as long as a busy machine needs.

Seconds are those of a machine with a core for each runnable process. On a busier machine they pass more slowly: with
three runnable processes for each core, a deadline of 30 s is over after 90 s. If the tests run with ``nice``, a process
of others that is less nice counts as several. The load is read repeatedly during a wait, so a deadline also stretches with
load that begins meanwhile.
"""

from __future__ import annotations

import functools
import math
import os
import pathlib
import time
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from saltext.jobs.core import compat

T = TypeVar("T")

#: Seconds in which an effect must show.
SOON = 60.0
_POLL, _SELDOM, _RARELY = 0.05, 0.25, 1.0
_LOAD = pathlib.Path("/proc/loadavg")


def load() -> float:
    """Return how many processes of our niceness want each core, at least 1: now, or in the mean of the last minute."""
    try:
        now = float(_LOAD.read_text().split()[3].partition("/")[0])
    except OSError:  # not Linux
        now = 0.0
    want = max(now, os.getloadavg()[0]) / len(os.sched_getaffinity(0))
    return max(1.0, want * _heavier(int(time.monotonic())))


@functools.lru_cache(maxsize=1)
def _heavier(_second: int) -> float:
    """As ``weight`` of the processes that run now. It takes 10 ms, so it is done once a second, and only if it matters."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    return weight(own, running()) if own > 0 else 1.0


def weight(own: int, others: Collection[int]) -> float:
    """
    Return for how many processes of one's own niceness a process counts, in the mean of these and this one; at least 1.

    A process gets a core for 1.25 times as long as one that is nicer by one (sched(7)).

    :param others: the niceness of each of the others.
    """
    return max(1.0, (1 + sum(1.25 ** (own - other) for other in others)) / (1 + len(others)))


def running() -> list[int]:
    """Return the niceness of each other process that wants a core now."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_bytes().rpartition(b")")[2].split()  # proc(5), from the third on
        except OSError:  # it has ended
            continue
        if words[0] == b"R" and path.parent.name != str(os.getpid()):
            found.append(int(words[16]))
    return found


def stretched(seconds: float) -> int:
    """Return how many seconds, rounded up, a command needs on the machine as it is now."""
    return math.ceil(seconds * load())


def lasting(seconds: float) -> int:
    """
    Return the seconds for a time-out of Salt that is waited for again and again: enough for a machine that runs other tests
    too. It does not depend on the load of the moment: daemons that start together drive that up.
    """
    return math.ceil(2 * seconds)


class Deadline:
    """
    The end of so many seconds, which pass more slowly the busier the machine is. They begin now.

    :param load: how many processes want each core; it is asked each time that the deadline is looked at.
    """

    def __init__(
        self, seconds: float, load: Callable[[], float] = load, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._left, self._load, self._clock = seconds, load, clock
        self._seen = clock()

    def is_over(self) -> bool:
        now = self._clock()
        self._left -= (now - self._seen) / self._load()
        self._seen = now
        return self._left < 0


def wait_for(condition: Callable[[], T], seconds: float = SOON, what: str | Callable[[], str] = "") -> T:
    """
    Return what ``condition()`` returns as soon as that is true.

    A condition that raises AssertionError is not yet true. It is looked at once more when the time is over, since it may
    have come true while this process was waiting for a core. A condition that takes long, such as a command, is looked at
    less often, and so is one that was waited for long already, since what is waited for needs the machine too.

    :param what: what is waited for, for the failure message; or a function that returns it, called when the time is
        over.
    :raises AssertionError: when the time is over.
    """
    deadline, begun = Deadline(seconds), time.monotonic()
    while True:
        over, reason, asked = deadline.is_over(), None, time.monotonic()
        try:
            if value := condition():
                return value
        except AssertionError as exc:
            reason = exc
        if over:
            raise AssertionError(f"not within {seconds:g} s: {what() if callable(what) else what}") from reason
        took, waited = time.monotonic() - asked, asked - begun
        time.sleep(max(_POLL, min(waited / 10, _SELDOM), min(3 * took, _RARELY)))


def comes_true(loop: Any, condition: Callable[[], Any], seconds: float = SOON) -> bool:
    """Run a tornado loop until ``condition()`` is true or the time is over, and return whether it is."""
    deadline = Deadline(seconds)

    async def wait() -> bool:
        while not condition() and not deadline.is_over():
            await compat.sleep(_POLL / 5)
        return bool(condition())

    return bool(loop.run_sync(wait))


def run_until(loop: Any, condition: Callable[[], Any], seconds: float = SOON, what: str = "") -> None:
    """Run a tornado loop until ``condition()`` is true; raises AssertionError when the time is over."""
    assert comes_true(loop, condition, seconds), f"not within {seconds:g} s: {what}"


class Patience:
    """
    Seconds for pytest-salt-factories, which adds them to the time and compares the time with the sum until it is over:
    the sum is a deadline that stretches.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __radd__(self, now: float) -> _Sum:
        return _Sum(Deadline(self._seconds))


class _Sum:
    """What ``time.time() <= _Sum(deadline)`` needs."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline

    def __ge__(self, now: float) -> bool:
        return not self._deadline.is_over()

    def __lt__(self, now: float) -> bool:
        return self._deadline.is_over()
