"""
Which minions are there, and when the next replay to a minion may begin, with which of its entries.

It must never let a newer job overtake an older one, let forged signs of life delay a replay, or ping a minion to which
nothing may be sent now.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from saltext.jobs.core.delivery.known import RESTING
from saltext.jobs.core.retry.entry import UNDER_WAY, Entry, State
from saltext.jobs.core.retry.queue import Backlog, Queue
from saltext.jobs.core.retry.waiting import Outbox, Purpose

#: Seconds for which a minion that has just started is left alone.
SETTLE = 1.0


class Turns:
    """The timers ``("minion", id)`` and ``("replay", id)`` are set here. If ``paused``, no replay begins."""

    def __init__(self, queue: Queue, outbox: Outbox, paused: bool) -> None:
        self._queue, self._outbox, self.paused = queue, outbox, paused
        #: Seconds between a sign of life and the replay; up to as much again is added, different for each minion.
        self.settle = SETTLE

    def wake(self, minion: str, at: float) -> None:
        """Begin the next replay to a minion at ``at``, or as soon after that as it may begin."""
        backlog = self._queue.backlogs.get(minion)
        if backlog is None or backlog.replay is not None or self.paused:
            return
        first = self.first(backlog)
        if first is not None:
            at = max(at, backlog.not_before, 0.0 if first.state in UNDER_WAY else first.next_at)
            self._queue.timers.no_later(("minion", minion), at)

    def first(self, backlog: Backlog) -> Entry | None:
        """Return the entry that it may already have, else the one published first. A shut window holds up no other entry."""
        return min(filter(self._may_go, backlog.entries.values()), key=self._turn, default=None)

    def _may_go(self, entry: Entry) -> bool:
        return entry.state in UNDER_WAY or (entry.state is State.PENDING and self.may_be_sent(entry))

    def _turn(self, entry: Entry) -> tuple[bool, float, str]:
        return entry.state not in UNDER_WAY, self._queue.jobs[entry.jid].published_at, entry.jid

    def may_be_sent(self, entry: Entry) -> bool:
        """Tell whether windows let an entry be sent: its window is open, or an operator wants it now."""
        if entry.jid in self._queue.backlogs[entry.minion].at_any_time:
            return True
        return self._queue.openings.may_be_sent(self._queue.jobs[entry.jid], self._queue.now)

    # -- who is there -------------------------------------------------------------------------------------------------

    def sign_of_life(self, minions: Iterable[str], started: bool = False) -> None:
        """Minions are there: begin their next replays once they have settled."""
        now, timers = self._queue.now, self._queue.timers
        for minion in minions:
            backlog = self._queue.backlogs.get(minion)
            if backlog is None:
                continue
            backlog.seen = now
            self._queue.awake[minion] = None
            if started:
                backlog.started = now
                for entry in backlog.entries.values():
                    entry.next_at = 0.0
                    if entry.delivery is not None:
                        entry.delivery.starts(now)
            if backlog.replay is None:
                # The jitter spreads a fleet that starts at once. It is the same each time for the same minion.
                self.wake(minion, now + self.settle * (1.0 + zlib.crc32(minion.encode()) / 2**32))
            elif started and backlog.replay.step in RESTING:
                timers.set(("replay", minion), now + self.settle)

    def ping(self, minions: Iterable[str]) -> None:
        """Ping those of these minions to which a replay may begin now."""
        backlogs = ((minion, self._queue.backlogs[minion]) for minion in minions if not self.paused)
        there = (minion for minion, backlog in backlogs if backlog.replay is None and self.first(backlog))
        self._outbox.line_up(Purpose.PING, minions=there)
