"""
Whether minions are there: the signs of life that they show, and pings to those of which that is not known. Part of the
retry machine, and as pure as it.

It must never ping a minion that could not be sent anything now.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from saltext.jobs.core.retry.facts import TRIGGERED_BY, Sign, SignOfLife
from saltext.jobs.core.retry.outbox import Outbox
from saltext.jobs.core.retry.queue import Queue
from saltext.jobs.core.retry.turns import Turns

if TYPE_CHECKING:
    from saltext.jobs.core.settings import RetrySettings

#: Seconds for which it is remembered that a minion started, and how many are remembered at least: ids can be made up.
_JUST_STARTED, _MOST_STARTED = 60.0, 100_000
_LONGEST_ID = 255


class Presence:
    """
    :param settings: the options under ``job_retry``.
    :param queue: what is owed.
    :param turns: when the next replay begins.
    :param outbox: what waits for its turn to be published.
    """

    def __init__(self, settings: RetrySettings, queue: Queue, turns: Turns, outbox: Outbox) -> None:
        self._settings, self._queue, self._turns, self._outbox = settings, queue, turns, outbox
        self._started: dict[str, float] = {}  # minion -> when it started, since ``_generation``
        self._started_before: dict[str, float] = {}  # likewise, in the time before that
        self._generation = 0.0

    def sign_of_life(self, fact: SignOfLife) -> None:
        """Send minions soon what they are owed, if the operator wants such a sign to count. A start is noted in any case."""
        start, counts = fact.sign is Sign.START, self._counts(fact.sign)
        for minion in fact.minions:
            if start:
                self._turns.started(minion)
            if not counts:
                continue
            if start:
                self._remember_start(minion, self._queue.now)
            self._turns.alive(minion, start, settled=fact.sign is Sign.ANSWER)

    def _counts(self, sign: Sign) -> bool:
        return not TRIGGERED_BY[sign].isdisjoint(self._settings.triggers)

    def started(self, minion: str, now: float) -> None:
        """A minion that is owed nothing says that it has started. It may be asked about a job just now, and miss that."""
        if len(minion) <= _LONGEST_ID and self._counts(Sign.START):
            self._remember_start(minion, now)

    def _remember_start(self, minion: str, now: float) -> None:
        # Two generations, so that none has to be looked through.
        if now > self._generation + _JUST_STARTED or len(self._started) >= _MOST_STARTED:
            self._started_before, self._started, self._generation = self._started, {}, now
        self._started[minion] = now

    def has_just_started(self, minion: str) -> bool:
        """Tell whether a minion started not long ago, whether or not it was owed anything then."""
        at = self._started.get(minion) or self._started_before.get(minion, 0.0)
        return at > self._queue.now - _JUST_STARTED

    def ping(self, minions: Iterable[str]) -> None:
        """Find out which of these is there, as far as anything could be sent to them now."""
        backlogs = self._queue.backlogs
        self._outbox.ping(minion for minion in minions if self._turns.first(backlogs[minion]) is not None)

    def ping_without_replay(self, minions: Iterable[str]) -> None:
        """Likewise, but leave out those that have a replay."""
        self.ping(minion for minion in minions if self._queue.backlogs[minion].replay is None)
