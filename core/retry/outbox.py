"""
What is to be published for the retry queue, let go no faster than ``rate``.

Jobs go first, then pings, surveys and questions. It must never hold a minion back for another job's sake: minions that
wait for the same job go together, in one publish.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from saltext.jobs.core.retry.timers import Timers

#: By how much of a publish the sum of tokens may fall short through rounding.
_EPSILON = 1e-6


class Kind(enum.Enum):
    """What is published."""

    JOB = "job"
    PING = "ping"
    SURVEY = "survey"  # whom to ask is found when its turn comes
    QUESTION = "question"


@dataclass(frozen=True)
class Turn:
    """One publish whose turn has come. A ping and a survey have no jid, and a survey has no minions."""

    kind: Kind
    jid: str
    minions: tuple[str, ...]


class Outbox:
    """
    :param rate: publishes per second.
    :param timers: the machine's; the key ``("rate",)`` is set here.
    """

    def __init__(self, rate: float, timers: Timers) -> None:
        self._rate, self._timers = rate, timers
        self.publishes = 0
        self._tokens, self._filled = max(1.0, rate), 0.0
        self._waiting: dict[Kind, dict[str, dict[str, None]]] = {kind: {} for kind in Kind}  # kind -> jid -> minions

    def ask(self, jid: str, minions: Iterable[str]) -> None:
        """Line up a question to minions about a job."""
        self._add(Kind.QUESTION, jid, minions)

    def send(self, jid: str, minion: str) -> None:
        """Line up a job that is to be published to a minion."""
        self._add(Kind.JOB, jid, (minion,))

    def ping(self, minions: Iterable[str]) -> None:
        """Line up a ping of minions."""
        self._add(Kind.PING, "", minions)

    def survey(self) -> None:
        """Line up a survey."""
        self._waiting[Kind.SURVEY].setdefault("", {})

    def withdraw(self, jid: str, minion: str) -> None:
        """Take a minion off the list for a job: it is neither asked about the job nor sent it."""
        for kind in (Kind.QUESTION, Kind.JOB):
            self._drop(kind, jid, minion)

    def withdraw_ping(self, minion: str) -> None:
        """Take a minion off the list of pings."""
        self._drop(Kind.PING, "", minion)

    def release(self, now: float) -> Iterator[Turn]:
        """Yield what may be published by now."""
        gained = (now - self._filled) * self._rate
        self._tokens, self._filled = min(max(1.0, self._rate), self._tokens + gained), now
        while any(self._waiting.values()):
            if self._tokens < 1 - _EPSILON:
                self._timers.set(("rate",), now + (1 - self._tokens) / self._rate)
                return
            self._tokens -= 1
            self.publishes += 1
            yield self._next()
        self._timers.cancel(("rate",))

    def _next(self) -> Turn:
        kind = next(kind for kind in Kind if self._waiting[kind])
        jid = next(iter(self._waiting[kind]))
        return Turn(kind, jid, tuple(self._waiting[kind].pop(jid)))

    def _add(self, kind: Kind, jid: str, minions: Iterable[str]) -> None:
        wanted = dict.fromkeys(minions)
        if wanted:
            self._waiting[kind].setdefault(jid, {}).update(wanted)

    def _drop(self, kind: Kind, jid: str, minion: str) -> None:
        waiting = self._waiting[kind].get(jid)
        if waiting is not None:
            waiting.pop(minion, None)
            if not waiting:
                del self._waiting[kind][jid]
