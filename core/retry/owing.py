"""
How entries come, end and go: because of what became of their jobs, or because an operator asks for it.

It must never let a job be owed again to a minion whose entry an operator has removed. Nor must it send anything: what an
operator asks for goes through all looks and questions of a replay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping

from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import ENDED, TRANSITIONS, UNDER_WAY, Asker, Entry, Job, State
from saltext.jobs.core.retry.notes import Notes
from saltext.jobs.core.retry.policy import LONGEST_BACKOFF
from saltext.jobs.core.retry.queue import Queue
from saltext.jobs.core.retry.replay import Replays
from saltext.jobs.core.retry.turns import Turns

#: Seconds before keys that were not found are looked for again: as a rule, and if one of those minions seems to be there.
_KEYS_AGAIN, _KEYS_SOON = 30.0, 0.5
#: States in which something may still happen by itself.
_OPEN = frozenset(State) - ENDED


class Owing:
    """The timer ``("keys",)`` is set here."""

    def __init__(self, queue: Queue, notes: Notes, turns: Turns, replays: Replays) -> None:
        self._queue, self._notes, self._turns, self._replays = queue, notes, turns, replays
        # Minions without a key at the last look, and when jobs were published to each since, by jid.
        self.keyless: dict[str, dict[str, float]] = {}

    # -- entries come -------------------------------------------------------------------------------------------------

    def owe(self, job: Job, minion: str, state: State, reason: str, alive: bool = False) -> None:
        """Queue a job for a minion that has missed it. ``alive``: it is known to be there."""
        if job.obstacle and state is State.PENDING:
            state, reason = State.DEAD, job.obstacle
        self._add(job, minion, reason, self._queue.end_of_job(job), state)
        # The minion may have started while the question was under way.
        if alive or self._turns.has_just_started(minion):
            self._turns.alive(minion)

    def _add(self, job: Job, minion: str, reason: str, expires_at: float, state: State = State.PENDING) -> Entry | None:
        """Queue a job for a minion, and return its new entry, if any."""
        entry = self._queue.add(job, minion, reason, expires_at)
        if entry is None:
            return None
        if state is State.RUNNING:
            self._queue.move(entry, state, reason)
        elif state is not State.PENDING:
            self._replays.end(entry, state, reason)
        for older in self._queue.superseded_by(entry) if entry.state not in ENDED else ():
            self._replays.end(older, State.CANCELLED, f"the same job was published again: {job.jid}")
        return entry

    def take_up(self, jobs: Mapping[str, Job], entries: Iterable[Entry]) -> None:
        """Put stored entries of these jobs into the queue."""
        for entry in entries:
            # The clock may have been set back. Then whatever kill comes counts as later than the request.
            if entry.wanted_at > self._queue.now:
                entry.wanted_at = 0.0
            entry.next_at = min(entry.next_at, self._queue.now + LONGEST_BACKOFF)
            self._queue.put(jobs[entry.jid], entry)
            if entry.state in UNDER_WAY:
                self._turns.wake(entry.minion, self._queue.now)

    # -- entries end, and go ------------------------------------------------------------------------------------------

    def killed(self, kill: facts.Kill) -> None:
        """Cancel what an operator has killed on these minions, except what was asked for by hand since."""
        there = [entry for minion in sorted(kill.minions) for entry in self._queue.of(minion, kill.jid or None)]
        self._each(there, _OPEN, lambda entry: self._cancel_killed(kill, entry))

    def _cancel_killed(self, kill: facts.Kill, entry: Entry) -> None:
        # A job that the queue has not sent runs from the operator's own publish.
        sent_at = entry.sent_at or self._queue.jobs[entry.jid].published_at
        is_there = entry.state in UNDER_WAY or (entry.state is State.PENDING and entry.begun_at > 0.0)
        is_sent = is_there and sent_at <= kill.at
        if entry.wanted_at <= kill.at if kill.jid else is_sent:
            self._replays.end(entry, State.CANCELLED, f"killed by {kill.user}")

    def remove(self, entry: Entry) -> None:
        """
        Forget an entry without a return. Neither a later look at its job nor what the store still has of it must queue it
        again.
        """
        until = max(self._queue.end_of_job(self._queue.jobs[entry.jid]), entry.expires_at)
        self._replays.remove(entry)
        # Even if its time is over: the job cache may have a newer record, by which the job is owed for longer.
        self._notes.add(entry.jid, until, settled=(entry.minion,))

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
                self.remove(entry)
        if self.keyless.keys() - suspects:
            self._queue.timers.no_later(("keys",), self._queue.now + _KEYS_AGAIN)

    # -- what operators ask for ---------------------------------------------------------------------------------------

    def enqueue(
        self,
        job: Job,
        minions: Iterable[str],
        reason: str,
        named: bool,
        asker: Asker | None,
        wanted_at: float = math.inf,
    ) -> int:
        """
        Queue a job for minions. An entry that has ended becomes pending again. Returns how many entries are new, or pending
        again.

        :param named: whether the operator named the minions, so that they need not match the job's target.
        :param asker: the operator, whose rights count as well as those of the job's publisher.
        :param wanted_at: Unix time since when the operator wants it. Later kills cancel it.
        """
        ttl, count = self._queue.ttl_of(job), 0
        job = self._queue.jobs.get(job.jid, job)
        for minion in dict.fromkeys(minions):
            entry = self._queue.entry(minion, job.jid)
            if self._was_killed(minion, job.jid, wanted_at):
                entry = None
            elif entry is None:
                entry = self._add(job, minion, reason, self._queue.now + ttl)
            elif entry.state in ENDED:
                self._queue.renew(entry, self._queue.now + ttl, reason)
            else:
                # Kills from before the request may be taken later.
                entry.wanted_at = max(entry.wanted_at, min(wanted_at, self._queue.now))
                self._queue.touch(entry)
                entry = None
            if entry is not None:
                entry.named, entry.asker, entry.wanted_at = named, asker, min(wanted_at, self._queue.now)
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
        asker: Asker | None = None,
        wanted_at: float = math.inf,
    ) -> int:
        """Make held and dead entries pending again. ``wanted_at`` as above. Returns how many."""

        def try_again(entry: Entry) -> None:
            ttl = self._queue.ttl_of(self._queue.jobs[entry.jid])
            entry.asker, entry.wanted_at = asker or entry.asker, min(wanted_at, self._queue.now)
            self._queue.renew(entry, self._queue.now + ttl, "an operator wants it tried again")
            self._turns.ping((entry.minion,))

        there = self._queue.of(minion, jid)
        there = [entry for entry in there if not self._was_killed(entry.minion, entry.jid, wanted_at)]
        return self._each(there, {State.HELD, State.DEAD}, try_again)

    def _was_killed(self, minion: str, jid: str, wanted_at: float) -> bool:
        """Tell whether a job was killed on a minion after an operator wanted it there; then its entry is cancelled."""
        note, entry = self._notes.get(jid), self._queue.entry(minion, jid)
        if not note.was_killed(minion, wanted_at):
            return False
        if entry is not None and State.CANCELLED in TRANSITIONS[entry.state]:
            self._replays.end(entry, State.CANCELLED, f"killed by {note.killed[minion][0]}")
        return True

    def _each(self, entries: Iterable[Entry], states: Collection[str], change: Callable[[Entry], object]) -> int:
        """Change the entries that are in some states. Returns how many."""
        count = 0
        for entry in entries:
            # Some may have gone meanwhile.
            if entry.state in states and self._queue.entry(entry.minion, entry.jid) is entry:
                change(entry)
                count += 1
        return count

    def cancel(self, minion: str | None = None, jid: str | None = None, minions: Collection[str] | None = None) -> int:
        """Cancel entries that have not ended; if ``minions`` are given, only theirs. Returns how many."""

        def end(entry: Entry) -> None:
            late = "; it may have been delivered" if entry.state in UNDER_WAY else ""
            self._replays.end(entry, State.CANCELLED, f"by an operator{late}")

        chosen = [entry for entry in self._queue.of(minion, jid) if minions is None or entry.minion in minions]
        return self._each(chosen, _OPEN, end)

    def purge(self, states: Collection[str]) -> int:
        """Forget the entries in some states. Returns how many."""
        return self._each(self._queue.of(None, None), states, self.remove)

    def pause(self) -> bool:
        """Pause replays. Returns False if they were paused already."""
        is_new, self._turns.paused = not self._turns.paused, True
        self._replays.shut(self._queue.backlogs)
        return is_new

    def resume(self) -> bool:
        """Let replays go on, and ping minions so that they begin. Returns False if replays were not paused."""
        is_new, self._turns.paused = self._turns.paused, False
        for minion in list(self._queue.backlogs):
            if minion in self._queue.backlogs:
                self._turns.ping_without_replay((minion,))
        return is_new
