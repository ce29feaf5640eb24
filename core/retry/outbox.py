"""
What waits to be published for the retry queue, at most ``rate`` publishes a second.

Jobs go first, then pings, surveys and questions. Minions that wait for the same job go together, in one publish.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

from saltext.jobs.core.retry.timers import Timers

#: Tolerance for rounding errors in the sum of tokens, in publishes.
_EPSILON = 1e-6


class Purpose(enum.Enum):
    """What is published."""

    JOB = "job"
    PING = "ping"
    SURVEY = "survey"  # its minions are found when its turn comes
    QUESTION = "question"


class Outbox:
    """``rate``: publishes per second. The timer ``("rate",)`` is set here."""

    def __init__(self, rate: float, timers: Timers) -> None:
        self._rate, self._timers = rate, timers
        self._tokens, self._filled = max(1.0, rate), 0.0
        # By purpose and jid: the minions.
        self._waiting: dict[Purpose, dict[str, dict[str, None]]] = {purpose: {} for purpose in Purpose}

    def line_up(self, purpose: Purpose, jid: str = "", minions: Iterable[str] = ()) -> None:
        """Line up a publish to minions. A ping and a survey have no jid, and a survey has no minions."""
        wanted = dict.fromkeys(minions)
        if wanted or purpose is Purpose.SURVEY:
            self._waiting[purpose].setdefault(jid, {}).update(wanted)

    def withdraw(self, minion: str, jid: str = "") -> None:
        """Take back what waits for a minion: the job or question with this jid; without a jid, its ping."""
        for waiting in self._waiting.values():
            if minion in waiting.get(jid, ()):
                del waiting[jid][minion]
                if not waiting[jid]:
                    del waiting[jid]

    def release(self, now: float) -> Iterator[tuple[Purpose, str, tuple[str, ...]]]:
        """Yield purpose, jid and minions of what may be published by now."""
        gained = (now - self._filled) * self._rate
        self._tokens, self._filled = min(max(1.0, self._rate), self._tokens + gained), now
        while any(self._waiting.values()):
            if self._tokens < 1 - _EPSILON:
                self._timers.set(("rate",), now + (1 - self._tokens) / self._rate)
                return
            self._tokens -= 1
            purpose = next(purpose for purpose in Purpose if self._waiting[purpose])
            jid = next(iter(self._waiting[purpose]))
            yield purpose, jid, tuple(self._waiting[purpose].pop(jid))
        self._timers.cancel(("rate",))
