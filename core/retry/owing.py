"""
What operators ask for, and what is no longer owed because a minion's key was deleted.

It must never send anything: what an operator asks for goes through all looks and questions of a replay.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.capture import Capture
from saltext.jobs.core.retry.entry import ENDED, TRANSITIONS, UNDER_WAY, Job, State
from saltext.jobs.core.retry.queue import Queue
from saltext.jobs.core.retry.replay import Replays
from saltext.jobs.core.retry.turns import Turns
from saltext.jobs.core.users import Identity

#: Seconds before keys that were not found are looked for again: as a rule, and if one of those minions seems to be there.
_KEYS_AGAIN, _KEYS_SOON = 30.0, 0.5
#: Seconds by which the clock of a runner may be ahead.
_AHEAD = 1.0


class Owing:
    """
    Operators ask for its public functions by name (``facts.Requested``), down to ``resume``. The timer ``("keys",)`` is set
    here.
    """

    def __init__(self, queue: Queue, turns: Turns, replays: Replays, capture: Capture) -> None:
        self._queue, self._turns, self._replays, self._capture = queue, turns, replays, capture
        # Minions without a key at the last look, and when jobs were published to each since, by jid.
        self.keyless: dict[str, dict[str, float]] = {}

    def enqueue(
        self,
        job: Job,
        minions: Iterable[str],
        reason: str,
        named: bool,
        asker: Identity | None,
        wanted_at: float = math.inf,
    ) -> int:
        """
        Queue a job for minions. An entry that has ended becomes pending again. Returns how many entries are new, or pending
        again.

        :param named: whether the operator named the minions, so that they need not match the job's target.
        :param asker: the operator, whose rights count as well as those of the job's publisher.
        :param wanted_at: Unix time since when the operator wants it. Later kills cancel it.
        """
        wanted_at, count = self._dated(wanted_at), 0
        ends_at = self._queue.now + self._queue.ttl_of(job)
        job = self._queue.jobs.get(job.jid, job)
        for minion in dict.fromkeys(minions):
            entry = self._queue.entry(minion, job.jid)
            if self._was_killed(minion, job.jid, wanted_at):
                entry = None
            elif entry is None:
                entry = self._capture.add(job, minion, reason, ends_at)
            elif entry.state in ENDED:
                self._queue.renew(entry, ends_at, reason)
            else:
                # Kills from before the request may be taken later.
                entry.wanted_at = max(entry.wanted_at, wanted_at)
                self._queue.touch(entry)
                entry = None
            if entry is not None:
                entry.named, entry.asker, entry.wanted_at = named, asker, wanted_at
                count += 1
            if minion in self._queue.backlogs:
                self._turns.ping((minion,))
        return count

    def replay(self, minion: str) -> int:
        """Deliver now what a minion is owed, whatever its windows and waits. Returns how many entries that is."""
        pending = [entry for entry in self._queue.of(minion, None) if entry.state is State.PENDING]
        for entry in pending:
            entry.next_at = 0.0
        if pending:
            backlog = self._queue.backlogs[minion]
            backlog.not_before, backlog.urged = 0.0, self._queue.now
            backlog.at_any_time |= {entry.jid for entry in pending}
            self._turns.wake(minion, self._queue.now)
        return len(pending)

    def retry(
        self,
        minion: str | None = None,
        jid: str | None = None,
        asker: Identity | None = None,
        wanted_at: float = math.inf,
    ) -> int:
        """Make held and dead entries pending again. ``wanted_at`` as above. Returns how many."""
        wanted_at = self._dated(wanted_at)
        there = [entry for entry in self._queue.of(minion, jid) if entry.state in (State.HELD, State.DEAD)]
        there = [entry for entry in there if not self._was_killed(entry.minion, entry.jid, wanted_at)]
        for entry in there:
            ends_at = self._queue.now + self._queue.ttl_of(self._queue.jobs[entry.jid])
            entry.asker, entry.wanted_at = asker or entry.asker, wanted_at
            self._queue.renew(entry, ends_at, "an operator wants it tried again")
            self._turns.ping((entry.minion,))
        return len(there)

    def _dated(self, wanted_at: float) -> float:
        """
        Return when an operator wanted something; infinity stands for now. If the clock was set back since, that is not
        known, and each kill counts as later.
        """
        now = self._queue.now
        return min(wanted_at, now) if wanted_at <= now + _AHEAD or wanted_at == math.inf else 0.0

    def _was_killed(self, minion: str, jid: str, wanted_at: float) -> bool:
        """Tell whether a job was killed on a minion after an operator wanted it there; then its entry is cancelled."""
        job, entry = self._capture.jobs.get(jid), self._queue.entry(minion, jid)
        if job is None or not job.was_killed(minion, wanted_at):
            return False
        if entry is not None and State.CANCELLED in TRANSITIONS[entry.state]:
            self._replays.end(entry, State.CANCELLED, f"killed by {job.killed[minion][0]}")
        return True

    def cancel(self, minion: str | None = None, jid: str | None = None, minions: Collection[str] | None = None) -> int:
        """Cancel entries that have not ended; if ``minions`` are given, only theirs. Returns how many."""
        there = [entry for entry in self._queue.of(minion, jid) if minions is None or entry.minion in minions]
        there = [entry for entry in there if entry.state not in ENDED]
        for entry in there:
            late = "; it may have been delivered" if entry.state in UNDER_WAY else ""
            self._replays.end(entry, State.CANCELLED, f"by an operator{late}")
        return len(there)

    def purge(self, states: Collection[str]) -> int:
        """Forget the entries in some states. Returns how many."""
        there = [entry for entry in self._queue.entries() if entry.state in states]
        for entry in there:
            self._capture.remove(entry)
        return len(there)

    def pause(self) -> bool:
        """Pause replays. Returns False if they were paused already."""
        is_new, self._turns.paused = not self._turns.paused, True
        self._replays.shut(self._queue.backlogs)
        return is_new

    def resume(self) -> bool:
        """Let replays go on, and ping minions so that they begin. Returns False if replays were not paused."""
        is_new, self._turns.paused = self._turns.paused, False
        self._turns.ping(self._queue.backlogs, idle=True)
        return is_new

    # -- keys ---------------------------------------------------------------------------------------------------------

    def alive(self, minions: Iterable[str]) -> None:
        """Minions seem to be there. One whose key was not found may have a new key, so the keys are read soon."""
        if self.keyless and not self.keyless.keys().isdisjoint(minions):
            self._queue.timers.no_later(("keys",), self._queue.now + _KEYS_SOON)

    def published(self, jid: str, minions: Iterable[str], at: float) -> None:
        """A job was published to these minions, perhaps long after others got it."""
        for minion in self.keyless.keys() & minions:
            self.keyless[minion][jid] = at

    def keys_read(self, fact: facts.KeysRead) -> None:
        """
        Cancel what is owed to minions whose keys are gone. A key is gone if two looks did not find it, or if the second look
        finds a new key. A new key is that of another machine: what was published since is for that machine. If no minion has
        a key, the keys could not be read.
        """
        known = self._queue.backlogs.keys()
        gone = fact.gone & known
        if fact.none and len(known) > 1 and gone == known:
            told = f"None of the {len(known)} minions with a queue has a key: that is not believed"
            self._queue.want(facts.Warn(told))
            return
        suspects, self.keyless = self.keyless, {minion: self.keyless.get(minion, {}) for minion in gone}
        for minion in sorted((gone | fact.renewed.keys()) & suspects.keys() & known):
            made_at, published = fact.renewed.get(minion, math.inf), suspects[minion]
            for entry in self._queue.of(minion, None):
                published_at = published.get(entry.jid, self._queue.jobs[entry.jid].published_at)
                if max(published_at, entry.wanted_at) >= made_at:
                    continue
                if entry.state not in ENDED:
                    self._replays.end(entry, State.CANCELLED, "the minion's key was deleted")
                self._capture.remove(entry)
        if self.keyless.keys() - suspects:
            self._queue.timers.no_later(("keys",), self._queue.now + _KEYS_AGAIN)
