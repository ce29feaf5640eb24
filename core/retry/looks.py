"""
Shared looks at the job cache: minions that are owed the same job wait for each other and are looked up together.

It decides nothing: replay.py knows what a look is for.
"""

from __future__ import annotations

import math

from saltext.jobs.core.retry.timers import Timers

#: Seconds for which minions that may have the job already are gathered.
DOUBTED = 0.3
#: Minions wait for each other for this share of the time since the first came in, and for this many seconds at most.
_SHARE, LONGEST = 0.5, 15.0
#: A gap of this many seconds starts a new wave. Minions that have waited for one job come in together for the next one. So
#: the gap is longer than the longest wait.
_PAUSE = 2 * LONGEST


class Gathering:
    """Minions, by job, that wait for the same thing and get it together. The timers ``(name, jid)`` are set here."""

    def __init__(self, name: str, timers: Timers) -> None:
        self._name, self._timers = name, timers
        self._minions: dict[str, dict[str, float]] = {}  # by job: the minions, and when each is due at the earliest
        self._latest: dict[str, float] = {}  # by job: when its minions are due at the latest

    def put_off(self, jid: str, minion: str, at: float, latest: float) -> None:
        """
        Add a minion to those of a job, and put off all of them to ``at``, but no later than the ``latest`` of the
        first one.
        """
        self._minions.setdefault(jid, {})[minion] = 0.0
        self._timers.set((self._name, jid), min(at, self._latest.setdefault(jid, latest)))

    def add(self, jid: str, minion: str, at: float, no_sooner: bool = False) -> None:
        """
        Add a minion to those of a job. All of them are due at ``at``, unless they were due earlier already.

        :param no_sooner: whether this minion is not due before ``at``, even if the others are.
        """
        waiting = self._minions.setdefault(jid, {})
        waiting[minion] = max(waiting.get(minion, 0.0), at if no_sooner else 0.0)
        self._timers.no_later((self._name, jid), at)

    def hasten(self, jid: str, at: float) -> None:
        """Make the minions of a job, if there are any, due no later than ``at``."""
        if jid in self._minions:
            self._timers.no_later((self._name, jid), at)

    def take(self, jid: str, now: float = math.inf) -> list[str]:
        """Return the minions of a job that are due, and forget them."""
        self._latest.pop(jid, None)
        waiting = self._minions.pop(jid, {})
        later = {minion: at for minion, at in waiting.items() if at > now}
        if later:
            self._minions[jid] = later
            self._timers.set((self._name, jid), min(later.values()))
        return [minion for minion in waiting if minion not in later]


class Inflow:
    """
    How long minions that come in for a job wait for each other.

    Each publish has a price: every minion decrypts it, and the master's workers spend time on it. Two seconds gather most of
    a fleet that comes back at once. They gather few minions if the master is slow to forward what minions send, or if the
    fleet comes back over minutes. So the longer a wave lasts, the longer its minions wait, until no more come.

    :param least: seconds that they may wait in any case.
    """

    def __init__(self, least: float) -> None:
        self._least = least
        # By job: when its first minion came in, and when its last one did. The jobs are in the order of the last ones.
        self.waves: dict[str, tuple[float, float]] = {}

    def wait(self, jid: str, now: float) -> float:
        """Take note that a minion comes in for a job. Returns for how many seconds it may wait, if no other waits yet."""
        while self.waves and now > next(iter(self.waves.values()))[1] + _PAUSE:
            del self.waves[next(iter(self.waves))]
        first, _ = self.waves.pop(jid, (now, now))
        self.waves[jid] = first, now
        return max(self._least, min(LONGEST, _SHARE * (now - first)))
