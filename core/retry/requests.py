"""
What operators ask of the retry queue. Each request is answered with what has come of it; ``facts.py`` says with what. Part
of the retry machine, and as pure as it.

It must never send anything: what an operator asks for goes the way of all replays, with every look and question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from saltext.jobs.core.retry.capture import Outcome
from saltext.jobs.core.retry.entry import ENDED, UNDER_WAY, State
from saltext.jobs.core.retry.facts import (
    CancelRequested,
    EnqueueRequested,
    PurgeRequested,
    ReplayRequested,
    RetryRequested,
)

if TYPE_CHECKING:
    from saltext.jobs.core.retry.capture import Capture
    from saltext.jobs.core.retry.owing import Owing
    from saltext.jobs.core.retry.queue import Queue
    from saltext.jobs.core.retry.replay import Replays
    from saltext.jobs.core.retry.turns import Presence, Turns


class Requests:
    """
    :param queue: what is owed.
    :param capture: for how long jobs are owed.
    :param turns: when the next replay begins.
    :param replays: what is under way.
    :param owing: adds entries, and removes them.
    :param presence: whether minions are there.
    """

    def __init__(
        self, queue: Queue, capture: Capture, turns: Turns, replays: Replays, owing: Owing, presence: Presence
    ) -> None:
        self._queue, self._capture, self._turns = queue, capture, turns
        self._replays, self._owing, self._presence = replays, owing, presence

    def enqueue(self, fact: EnqueueRequested) -> int:
        """Queue a job for minions; those whose entry has ended get it anew."""
        ttl = self._capture.ttl_of(fact.job)
        job = self._queue.jobs.get(fact.job.jid, fact.job)
        minions = list(dict.fromkeys(fact.minions))
        again = [entry for minion in minions if (entry := self._queue.entry(minion, job.jid)) and entry.state in ENDED]
        for entry in again:
            self._queue.renew(entry, self._queue.now + ttl, fact.reason)
        new = [minion for minion in minions if not self._queue.has(minion, job.jid)]
        queued = self._owing.add(job, new, fact.reason, self._queue.now + ttl)
        for entry in (*again, *queued):
            entry.named, entry.asker = fact.named, fact.asker
        self._presence.ping(minion for minion in minions if minion in self._queue.backlogs)
        return len(queued) + len(again)

    def replay(self, fact: ReplayRequested) -> int:
        """Let a minion have what it is owed now, whatever window or wait there is."""
        pending = [entry for entry in self._queue.of(fact.minion, None) if entry.state is State.PENDING]
        for entry in pending:
            entry.next_at = 0.0
        if pending:
            backlog = self._queue.backlogs[fact.minion]
            backlog.not_before, backlog.urged = 0.0, self._queue.now
            backlog.at_any_time.update(entry.jid for entry in pending)
            self._turns.wake(fact.minion, self._queue.now)
        return len(pending)

    def retry(self, fact: RetryRequested) -> int:
        """Make entries pending again that are held or were given up."""
        found = [entry for entry in self._queue.of(fact.minion, fact.jid) if entry.state in (State.HELD, State.DEAD)]
        for entry in found:
            ttl = self._capture.ttl_of(self._queue.jobs[entry.jid])
            entry.asker = fact.asker or entry.asker
            self._queue.renew(entry, self._queue.now + ttl, "an operator wants it tried again")
        self._presence.ping(entry.minion for entry in found)
        return len(found)

    def cancel(self, fact: CancelRequested) -> int:
        """Cancel entries that have not ended."""
        found = [entry for entry in self._queue.of(fact.minion, fact.jid) if entry.state not in ENDED]
        for entry in found:
            late = "; it may have been delivered" if entry.state in UNDER_WAY else ""
            self._replays.end(entry, State.CANCELLED, f"by an operator{late}")
        return len(found)

    def purge(self, fact: PurgeRequested) -> tuple[int, list[Outcome]]:
        """Forget entries of some states. Returns also what is to be noted of them."""
        found = [entry for entry in self._queue.of(None, None) if entry.state.value in fact.states]
        return len(found), [outcome for entry in found for outcome in self._owing.remove(entry)]

    def pause(self) -> bool:
        """Let nothing be replayed for now."""
        is_new = not self._turns.paused
        self._replays.pause()
        return is_new

    def resume(self) -> bool:
        """Let replays go on, and find out who is there for them."""
        is_new, self._turns.paused = self._turns.paused, False
        self._presence.ping_without_replay(self._queue.backlogs)
        return is_new
