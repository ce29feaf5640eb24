"""
What waits to be published for the retry queue, at most ``rate`` publishes a second.

Jobs go first, then pings, surveys and questions. Minions that wait for the same job go together, in one publish.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from saltext.jobs.core.retry.timers import Timers

#: Error of the sum of tokens through rounding, in publishes.
_EPSILON = 1e-6


class Kind(enum.Enum):
    """What is published."""

    JOB = "job"
    PING = "ping"
    SURVEY = "survey"  # its minions are found when its turn comes
    QUESTION = "question"


@dataclass(frozen=True)
class Turn:
    """One publish whose turn has come. A ping and a survey have no jid, and a survey has no minions."""

    kind: Kind
    jid: str
    minions: tuple[str, ...]


class Outbox:
    """``rate``: publishes per second. The timer ``("rate",)`` is set here."""

    def __init__(self, rate: float, timers: Timers) -> None:
        self._rate, self._timers = rate, timers
        self._tokens, self._filled = max(1.0, rate), 0.0
        self._waiting: dict[Kind, dict[str, dict[str, None]]] = {kind: {} for kind in Kind}  # kind -> jid -> minions

    def line_up(self, kind: Kind, jid: str = "", minions: Iterable[str] = ()) -> None:
        """Line up a publish to minions. A job and a question have a jid; a survey has no minions."""
        wanted = dict.fromkeys(minions)
        if wanted or kind is Kind.SURVEY:
            self._waiting[kind].setdefault(jid, {}).update(wanted)

    def withdraw(self, minion: str, jid: str = "") -> None:
        """Let a minion wait no more: for a job or a question with this jid, or, without one, for a ping."""
        for waiting in self._waiting.values():
            if minion in waiting.get(jid, ()):
                del waiting[jid][minion]
                if not waiting[jid]:
                    del waiting[jid]

    def release(self, now: float) -> Iterator[Turn]:
        """Yield what may be published by now."""
        gained = (now - self._filled) * self._rate
        self._tokens, self._filled = min(max(1.0, self._rate), self._tokens + gained), now
        while any(self._waiting.values()):
            if self._tokens < 1 - _EPSILON:
                self._timers.set(("rate",), now + (1 - self._tokens) / self._rate)
                return
            self._tokens -= 1
            yield self._next()
        self._timers.cancel(("rate",))

    def _next(self) -> Turn:
        kind = next(kind for kind in Kind if self._waiting[kind])
        jid = next(iter(self._waiting[kind]))
        return Turn(kind, jid, tuple(self._waiting[kind].pop(jid)))
