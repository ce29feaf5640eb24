"""
Tells whether the master has a backlog of minions' messages, from the messages that it forwards to an engine.

A busy master forwards messages roughly in order. While it still forwards replies to a question, or to an earlier
question or job, more answers to that question may be queued there: a minion without an answer is not silent yet. A
reply to something newer shows that the master has got further.

Pure: stdlib only, the time is an argument. Waiting is bounded: minions can send things late on purpose.
"""

from __future__ import annotations

import math

#: After so many seconds without such an early message all of them have been forwarded; a busy master may pause for some
#: seconds. It is the time of a question, within these limits.
LEAST_QUIET, QUIET = 2.0, 10.0
#: A question may take so many times its regular time.
LONGEST = 6.0
#: Publish times are rounded to so many seconds: receipts of one publish differ by less.
_STEP = 0.1


class HandedOn:
    """What the master has forwarded to an engine lately. All times are seconds of one clock that only rises."""

    def __init__(self) -> None:
        self._most = 100
        #: For each (rounded) time of a publish, when minions were last heard about it.
        self._last: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._last)

    def note(self, cause: float, now: float) -> None:
        """A message about something that was published at ``cause`` has come ``now``."""
        self._last[_step_of(cause)] = now
        if len(self._last) > self._most:
            self._last = {step: last for step, last in self._last.items() if last > now - QUIET}
            self._most = 2 * len(self._last) + 100

    def end_of(self, published: float, earliest: float, timeout: float) -> float:
        """
        Return when the minions that have not answered a question count as silent, as known now.

        :param published: when the question was published.
        :param earliest: when its time is over if there is no backlog.
        :param timeout: the seconds until then.
        """
        latest = _step_of(published)
        last = max((last for step, last in self._last.items() if step <= latest), default=-math.inf)
        return min(max(earliest, last + max(LEAST_QUIET, min(timeout, QUIET))), earliest + (LONGEST - 1.0) * timeout)


def _step_of(cause: float) -> int:
    return math.floor(cause / _STEP)
