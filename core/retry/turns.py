"""
Which minions are there, and when the next replay to a minion may begin, with which of its entries.

It must never let a newer job overtake an older one, let forged signs of life delay a replay, or ping a minion to which
nothing may be sent now.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from saltext.jobs.core.delivery.steps import RESTING
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import UNDER_WAY, Entry, State
from saltext.jobs.core.retry.openings import Openings
from saltext.jobs.core.retry.outbox import Outbox, Purpose
from saltext.jobs.core.retry.policy import IN_VAIN
from saltext.jobs.core.retry.queue import Backlog, Queue

#: Seconds for which a minion that has just started is left alone.
SETTLE = 1.0
#: Seconds for which starts are remembered, and for how many minions: ids can be made up.
_JUST_STARTED, _MOST_STARTED = 60.0, 100_000
_LONGEST_ID = 255


class Turns:
    """The timers ``("minion", id)`` and ``("replay", id)`` are set here. If ``paused``, no replay begins."""

    def __init__(self, queue: Queue, openings: Openings, outbox: Outbox, paused: bool) -> None:
        self._queue, self._openings, self._outbox, self.paused = queue, openings, outbox, paused
        #: Seconds between a sign of life and the replay; up to as much again is added, different for each minion.
        self.settle = SETTLE
        self._started: dict[str, float] = {}  # minion -> when it started, the earliest first

    def alive(self, minion: str, start: bool = False, settled: bool = False) -> None:
        """
        A minion is there: begin its next replay soon.

        :param start: whether it has just started.
        :param settled: whether it has answered a question, so that it needs no time to settle.
        """
        backlog = self._queue.backlogs.get(minion)
        if backlog is None:
            return
        backlog.seen = self._queue.now
        if start:
            for entry in backlog.entries.values():
                entry.next_at, entry.started_at = 0.0, self._queue.now
        if backlog.replay is None:
            # The jitter spreads a fleet that starts at once. It is the same each time for the same minion.
            spread = 0.0 if settled else 1.0 + zlib.crc32(minion.encode()) / 2**32
            self.wake(minion, self._queue.now + self.settle * spread)
        elif start and backlog.replay.step in RESTING:
            self._queue.timers.set(("replay", minion), self._queue.now + self.settle)

    def wake(self, minion: str, at: float) -> None:
        """Begin the next replay to a minion at ``at``, or as soon after that as it may begin."""
        backlog = self._queue.backlogs.get(minion)
        if backlog is None or backlog.replay is not None or self.paused:
            return
        first = self.first(backlog)
        if first is not None:
            at_once = first.state in UNDER_WAY or self.holds_up(first)
            at = max(at, backlog.not_before, 0.0 if at_once else first.next_at)
            self._queue.timers.no_later(("minion", minion), at)

    def first(self, backlog: Backlog) -> Entry | None:
        """
        Return what a minion gets first: a job that it may already have, else the job that was published first.

        A job whose window is shut holds up no other.
        """
        first, least = None, None
        for entry in backlog.entries.values():
            under_way = entry.state in UNDER_WAY
            if under_way or (entry.state is State.PENDING and self.may_be_sent(entry)):
                turn = not under_way, self._queue.jobs[entry.jid].published_at, entry.jid
                if least is None or turn < least:
                    first, least = entry, turn
        return first

    def is_waited_for(self, entry: Entry) -> bool:
        """Tell whether another job of the minion may be sent now and waits for this one."""
        others = self._queue.backlogs[entry.minion].entries.values()
        return any(other.state is State.PENDING and other is not entry and self.may_be_sent(other) for other in others)

    def holds_up(self, entry: Entry) -> bool:
        """Tell whether an entry that its minion ignored several times keeps others waiting."""
        return entry.counts.vain >= IN_VAIN and entry.state is State.PENDING and self.is_waited_for(entry)

    def may_be_sent(self, entry: Entry) -> bool:
        """Tell whether windows let an entry be sent: its window is open, or an operator wants it now."""
        if entry.jid in self._queue.backlogs[entry.minion].at_any_time:
            return True
        return self._openings.may_be_sent(self._queue.jobs[entry.jid], self._queue.now)

    # -- who is there -------------------------------------------------------------------------------------------------

    def sign_of_life(self, fact: facts.SignOfLife) -> None:
        """Begin replays to the minions soon."""
        start = fact.sign is facts.Sign.START
        for minion in fact.minions:
            if start and minion in self._queue.backlogs:
                self._queue.backlogs[minion].started = self._queue.now
            if start:
                self.started(minion, self._queue.now)
            self.alive(minion, start, settled=fact.sign is facts.Sign.ANSWER)

    def started(self, minion: str, now: float) -> None:
        """Note the start of a minion, with entries or without. It may miss a survey that is under way."""
        if len(minion) > _LONGEST_ID:
            return
        self._started.pop(minion, None)
        self._started[minion] = now
        first = next(iter(self._started))
        if len(self._started) > _MOST_STARTED or self._started[first] < now - _JUST_STARTED:
            del self._started[first]

    def has_just_started(self, minion: str) -> bool:
        """Tell whether a minion started in the last minute."""
        return self._started.get(minion, 0.0) > self._queue.now - _JUST_STARTED

    def ping(self, minions: Iterable[str]) -> None:
        """Ping those of these minions to which something may be sent now."""
        backlogs = self._queue.backlogs
        there = (minion for minion in minions if self.first(backlogs[minion]) is not None)
        self._outbox.line_up(Purpose.PING, minions=there)

    def ping_without_replay(self, minions: Iterable[str]) -> None:
        """Ping those of these minions that have no replay under way."""
        self.ping(minion for minion in minions if self._queue.backlogs[minion].replay is None)
