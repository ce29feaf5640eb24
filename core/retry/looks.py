"""
Looks at the job cache that minions share: those that are owed the same job are looked up together, and wait for each other.

It decides nothing: what a look means for a replay is told in replay.py.
"""

from __future__ import annotations

import math

from saltext.jobs.core.retry.timers import Timers

#: Seconds for which minions are gathered whose job may be with them already.
DOUBTED = 0.3
#: Share of the time for which minions have been coming in for which they wait for each other, and most seconds of that: more
#: would be felt by minions that come back while others do.
_SHARE, LONGEST = 0.5, 15.0
#: Seconds without one after which the next one is the first again. Those that have waited for one job come in together for
#: the next, so this is longer than the longest wait.
_PAUSE = 2 * LONGEST


class Gathering:
    """
    Minions, by job, for all of which the same thing is to be done at once.

    :param name: the timers' key is ``(name, jid)``.
    :param timers: the machine's.
    """

    def __init__(self, name: str, timers: Timers) -> None:
        self._name, self._timers = name, timers
        self._minions: dict[str, dict[str, float]] = {}  # by job, and when each is due at the soonest
        self._latest: dict[str, float] = {}  # when those of a job are due at the latest, which are put off

    def put_off(self, jid: str, minion: str, at: float, latest: float) -> None:
        """
        Add a minion to those of a job, all of which are due at ``at`` now, though they were due earlier: but not later than
        the first of them allowed by ``latest``.
        """
        self._minions.setdefault(jid, {})[minion] = 0.0
        self._timers.set((self._name, jid), min(at, self._latest.setdefault(jid, latest)))

    def add(self, jid: str, minion: str, at: float, no_sooner: bool = False) -> None:
        """
        Add a minion to those of a job, all of which are due at ``at``, or earlier if they were due earlier already.

        :param no_sooner: whether this one is not due before, even if the others are.
        """
        waiting = self._minions.setdefault(jid, {})
        waiting[minion] = max(waiting.get(minion, 0.0), at if no_sooner else 0.0)
        self._timers.no_later((self._name, jid), at)

    def hasten(self, jid: str, at: float) -> None:
        """Let the minions that have gathered for a job, if there are any, be due at ``at``, or earlier."""
        if jid in self._minions:
            self._timers.no_later((self._name, jid), at)

    def take(self, jid: str, now: float = math.inf) -> list[str]:
        """Return the minions that have gathered for a job and are due, and forget them."""
        self._latest.pop(jid, None)
        waiting = self._minions.pop(jid, {})
        later = {minion: at for minion, at in waiting.items() if at > now}
        if later:
            self._minions[jid] = later
            self._timers.set((self._name, jid), min(later.values()))
        return [minion for minion in waiting if minion not in later]


class Inflow:
    """
    Since when minions have been coming in for a job, one soon after the other.

    Each publish is decrypted by every minion, and costs the master's workers time. Where a fleet comes back at once, two
    seconds gather most of it. Where its master is slow to hand on what minions send, or they start over minutes, two seconds
    gather few. So the longer they have been coming in, the longer they wait for each other, until no more come.

    :param least: seconds for which those that come in may wait in any case.
    """

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
