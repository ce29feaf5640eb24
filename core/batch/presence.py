"""
Which pending minions have shown a sign of life, and when those that have not are asked again.

A minion that is not known to be there is not sent to. It is pinged ``probe_attempts`` times; whoever answers, starts or
returns anything meanwhile is there. Pure: stdlib only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from saltext.jobs.core.batch.kept import Kept, kept
from saltext.jobs.core.batch.spec import Spec


@dataclasses.dataclass(slots=True)
class Presence(Kept):
    """
    :param spec: what was asked for.
    """

    spec: Spec
    unseen: dict[str, int] = kept(dict, dict, dict)  # {minion: pings without an answer} of those not known to be there
    there: set[str] = kept(set, sorted, set)  # with ``presence=none``, those that are known to be there all the same
    gathering: bool = kept(bool)  # the first ping is not over: nothing is sent before
    pinging: bool = kept(bool)  # a ping is under way
    ping_at: float = kept(float)  # no ping before, in Unix time
    hinted: set[str] = kept(set, sorted, set)  # those of whom the bus has told a sign of life since the last ping
    heeded: set[str] = kept(set, sorted, set)  # those that were pinged once more for that
    settled_at: float = kept(float)  # nobody is given up before: the master is young, and minions are still connecting

    def doubt(self, minions: Iterable[str]) -> None:
        """Wait for a sign of life of pending minions."""
        self.unseen.update(dict.fromkeys(minions, 0))

    def seen(self, minions: Iterable[str]) -> list[str]:
        """Minions have shown a sign of life: return those that were waited for."""
        found = [minion for minion in minions if self.unseen.pop(minion, None) is not None]
        if self.spec.presence == "none":
            self.there.update(found)
        return found

    def wants_hint(self, minion: str) -> bool:
        """Tell whether it changes anything that the bus tells of a sign of life of a minion: during its last ping, once."""
        last = self.pinging and self.unseen.get(minion, -1) + 1 >= self.spec.probe_attempts
        return last and minion in self.unseen and minion not in self.hinted and minion not in self.heeded

    def was_there(self, minion: str) -> bool:
        """Tell whether a minion that was sent to is known to have been there: silence is no absence then."""
        return self.spec.presence == "ping" or minion in self.there

    def may_ping(self, now: float) -> bool:
        """Tell whether the minions that are waited for are to be pinged now."""
        return bool(self.unseen) and not self.pinging and now >= self.ping_at

    def ping(self) -> tuple[str, ...]:
        """Begin a ping: return the minions to ask, none for the whole target."""
        self.pinging = True
        self.hinted.clear()
        return () if self.gathering else tuple(self.unseen)

    def ping_over(self, now: float) -> list[str]:
        """A ping is over, and its answers are taken: return the minions that are asked no more, and are not there."""
        self.pinging = self.gathering = False
        for minion in self.unseen:
            self.unseen[minion] += 1
        if now < self.settled_at:
            self.ping_at = now + self.spec.gather_job_timeout
            return []
        self.ping_at = now
        silent = [minion for minion, asked in self.unseen.items() if asked >= self.spec.probe_attempts]
        given_up = [minion for minion in silent if minion not in self.hinted or minion in self.heeded]
        self.heeded.update(self.hinted.intersection(silent))
        for minion in given_up:
            del self.unseen[minion]
        return given_up

    def recover(self, now: float) -> None:
        """A ping that was under way has no end. What is known suffices to go on."""
        self.pinging, self.ping_at = False, now
        self.settled_at = 0.0

    def next_due(self) -> float | None:
        """Return when a ping is due, or None."""
        return self.ping_at if self.unseen and not self.pinging else None
