"""
Since when minions have been coming in for a job, one soon after the other. Part of the retry machine, and as pure as it.

Each publish is decrypted by every minion, and costs the master's workers time. Where a fleet comes back at once, two seconds
gather most of it. Where its master is slow to hand on what minions send, or they start over minutes, two seconds gather few.
So the longer they have been coming in, the longer they wait for each other. It decides nothing but for how long; nobody
waits on once no more come.
"""

from __future__ import annotations

#: Share of the time for which minions have been coming in for which they wait for each other, and most seconds of that: more
#: would be felt by minions that come back while others do.
_SHARE, LONGEST = 0.5, 15.0
#: Seconds without one after which the next one is the first again. Those that have waited for one job come in together for
#: the next, so this is longer than the longest wait.
_PAUSE = 2 * LONGEST


class Inflow:
    """:param least: seconds for which those that come in may wait in any case."""

    def __init__(self, least: float) -> None:
        self._least = least
        self._since: dict[str, float] = {}
        self._last: dict[str, float] = {}  # in the order of these times

    def __len__(self) -> int:
        """Return of how many jobs something is kept."""
        return len(self._last)

    def wait(self, jid: str, now: float) -> float:
        """One more comes in for a job. Returns the seconds for which it may wait for others, if it is the first to wait."""
        if now > self._last.pop(jid, now) + _PAUSE:
            self._since.pop(jid)
        self._forget(now)
        self._last[jid] = now
        age = now - self._since.setdefault(jid, now)
        return max(self._least, min(LONGEST, _SHARE * age))

    def _forget(self, now: float) -> None:
        while self._last:
            jid = next(iter(self._last))
            if now <= self._last[jid] + _PAUSE:
                return
            del self._last[jid], self._since[jid]
