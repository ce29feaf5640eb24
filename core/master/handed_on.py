"""
Whether a master is behind with what minions have sent, as an engine can tell by what is handed on to it.

A busy master hands things on about in the order in which they were sent. As long as that is what minions sent because of a
question, of an older one, or of a job that was published before it, the answers to that question may still be waiting there:
a minion without one is not silent yet. What was sent because of something newer says that the master has got further.

Pure: stdlib only, the time is an argument. Nobody waits without end: minions can send things late on purpose.
"""

from __future__ import annotations

import math

#: Seconds without anything that was sent so early after which all of that has been handed on: a busy master may stand still
#: for some. As many as the time of a question, within these limits.
LEAST_QUIET, QUIET = 2.0, 10.0
#: How many times its time a question may take.
LONGEST = 6.0
#: Seconds by which causes are told apart: each receipt of a publish has a slightly different one.
_STEP = 0.1


class HandedOn:
    """What the master has handed on to an engine lately. All times are seconds by one clock that only rises."""

    def __init__(self) -> None:
        self._most = 100
        #: By the step in which minions were asked or sent something, when they were last heard of it.
        self._last: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._last)

    def note(self, cause: float, now: float) -> None:
        """A minion is heard ``now`` about something that was published at ``cause``."""
        self._last[_step_of(cause)] = now
        if len(self._last) > self._most:
            self._last = {step: last for step, last in self._last.items() if last > now - QUIET}
            self._most = 2 * len(self._last) + 100

    def end_of(self, published: float, earliest: float, timeout: float) -> float:
        """
        Return when the minions that have not answered a question count as silent, as far as is known now.

        :param published: when the question was published.
        :param earliest: when its time is over where the master is not behind.
        :param timeout: seconds that it has for that.
        """
        latest = _step_of(published)
        last = max((last for step, last in self._last.items() if step <= latest), default=-math.inf)
        return min(max(earliest, last + max(LEAST_QUIET, min(timeout, QUIET))), earliest + (LONGEST - 1.0) * timeout)


def _step_of(cause: float) -> int:
    return math.floor(cause / _STEP)
