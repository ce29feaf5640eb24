"""
The entries of the retry queue, and the jobs that they share: how they come, are kept, and go. Part of the retry machine,
and as pure as it.

It holds no policy about when something is published. It must never let an entry come, go
or move without noting that it is to be stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from saltext.jobs.core.retry.capture import matches
from saltext.jobs.core.retry.entry import ENDED, UNDER_WAY, Entry, Job, State
from saltext.jobs.core.retry.facts import Announce, Effect, Save, Warn
from saltext.jobs.core.retry.line import Line
from saltext.jobs.core.retry.timers import Timers

if TYPE_CHECKING:
    from saltext.jobs.core.settings import RetrySettings


class Queue:
    """
    What is owed. ``now`` is the time of the machine's present step.

    :param settings: the options under ``job_retry``.
    :param timers: the machine's; the keys ``("end", minion, jid)`` are set here.
    :param emit: takes an effect.
    :param land: ends the flight of an entry, if it has one.
    :param forget: drops what else is known of an entry that goes.
    """

    def __init__(
        self,
        settings: RetrySettings,
        timers: Timers,
        emit: Callable[[Effect], None],
        land: Callable[[Entry], None],
        forget: Callable[[Entry], None],
    ) -> None:
        self._settings, self._timers, self._emit = settings, timers, emit
        self._land, self._forget = land, forget
        self.now = 0.0
        self.jobs: dict[str, Job] = {}
        self.lines: dict[str, Line] = {}
        self.total = 0  # entries
        self._members: dict[str, set[str]] = {}  # jid -> minions that are owed it
        self._warned = 0.0
        self._dirty: dict[tuple[str, str], None] = {}
        self._dirty_jobs: dict[str, None] = {}

    def entry(self, minion: str, jid: str) -> Entry | None:
        """Return an entry of the queue."""
        line = self.lines.get(minion)
        return line.entries.get(jid) if line else None

    def entries(self) -> Iterator[Entry]:
        """Yield all entries."""
        for line in self.lines.values():
            yield from line.entries.values()

    def minions_of(self, jid: str) -> list[str]:
        """Return the minions that are owed a job."""
        return sorted(self._members.get(jid, ()))

    def claims_of(self, jid: str) -> dict[str, float]:
        """Return ``{minion: when it was claimed}`` of the entries of a job that are under way."""
        entries = [self.lines[minion].entries[jid] for minion in self._members.get(jid, ())]
        return {entry.minion: entry.sent_at or 0.0 for entry in entries if entry.state in UNDER_WAY}

    def has(self, minion: str, jid: str) -> bool:
        """Tell whether a minion is owed a job."""
        return self.entry(minion, jid) is not None

    def of(self, minion: str | None, jid: str | None) -> list[Entry]:
        """Return the entries of a minion, or of all; of a job, or of all."""
        if minion is not None:
            line = self.lines.get(minion)
            found: Iterable[Entry] = line.entries.values() if line else ()
        else:
            found = self.entries()
        return [entry for entry in found if jid is None or entry.jid == jid]

    # -- entries come and go ------------------------------------------------------------------------------------------

    def add(self, job: Job, minions: Iterable[str], reason: str, expires_at: float) -> int:
        """Queue a job for minions, as far as there is room, and return for how many."""
        queued = 0
        for minion in minions:
            line = self.lines.get(minion)
            full = line is not None and len(line.entries) >= self._settings.max_queue_per_minion
            if full or self.total >= self._settings.max_queue:
                self._refuse(minion, job, "max_queue_per_minion" if full else "max_queue")
                continue
            entry = Entry(minion, job.jid, self.now, expires_at, reason)
            self._supersede(minion, job)
            self.put(job, entry)
            self.tell(entry, "queued")
            queued += 1
        return queued

    def put(self, job: Job, entry: Entry) -> None:
        """Take an entry up."""
        self.jobs.setdefault(job.jid, job)
        self._dirty_jobs[job.jid] = None
        self._members.setdefault(job.jid, set()).add(entry.minion)
        self.lines.setdefault(entry.minion, Line()).entries[entry.jid] = entry
        self.total += 1
        self.touch(entry)

    def _refuse(self, minion: str, job: Job, option: str) -> None:
        reason = f"the queue is full: {option}"
        self._emit(Announce(minion, job.jid, "dead", ",".join(job.funs), 0, reason))
        if self.now - self._warned > 60:
            self._warned = self.now
            self._emit(Warn(f"Job {job.jid} is not kept for {minion}: {reason} ({getattr(self._settings, option)})"))

    def _supersede(self, minion: str, job: Job) -> None:
        globs = self._settings.supersede
        line = self.lines.get(minion)
        if not line or not globs or not all(matches(fun, globs) for fun in job.funs):
            return
        for entry in list(line.entries.values()):
            older = self.jobs[entry.jid]
            same = older.digest == job.digest and older.published_at <= job.published_at
            if same and entry.jid != job.jid and entry.state is State.PENDING:
                self.end(entry, State.CANCELLED, f"the same job was published again: {job.jid}")

    def remove(self, entry: Entry) -> None:
        """Forget an entry."""
        self._land(entry)
        self._timers.cancel(("end", entry.minion, entry.jid))
        self._forget(entry)
        line = self.lines[entry.minion]
        del line.entries[entry.jid]
        self.total -= 1
        self._dirty[entry.minion, entry.jid] = None
        if not line.entries:
            del self.lines[entry.minion]
            self._timers.cancel(("minion", entry.minion))
        members = self._members[entry.jid]
        members.discard(entry.minion)
        if not members:
            del self._members[entry.jid], self.jobs[entry.jid]
            self._dirty_jobs[entry.jid] = None

    # -- an entry's way -----------------------------------------------------------------------------------------------

    def touch(self, entry: Entry) -> None:
        """Store an entry, and let its end come at its time."""
        self._dirty[entry.minion, entry.jid] = None
        key = ("end", entry.minion, entry.jid)
        if entry.state in ENDED:
            self._timers.set(key, entry.since + self._settings.keep)
        elif entry.state in UNDER_WAY:
            self._timers.cancel(key)
        else:
            self._timers.set(key, entry.expires_at)

    def move(self, entry: Entry, to: State, reason: str) -> None:
        """Bring an entry to another state."""
        entry.move(to, self.now, reason)
        self.touch(entry)

    def tell(self, entry: Entry, kind: str) -> None:
        """Tell the bus what has become of an entry."""
        fun = ",".join(self.jobs[entry.jid].funs)
        self._emit(Announce(entry.minion, entry.jid, kind, fun, entry.attempts, entry.reason))

    def end(self, entry: Entry, state: State, reason: str) -> None:
        """Bring an entry to a state in which nothing more happens of itself."""
        self.move(entry, state, reason)
        self._land(entry)
        self.tell(entry, state.value)
        if state is State.DONE:
            self.remove(entry)

    def due(self, minion: str, jid: str) -> None:
        """End an entry whose time has come, or forget one that has ended."""
        entry = self.entry(minion, jid)
        if entry is None or entry.state in UNDER_WAY:
            return
        if entry.state in ENDED:
            self.remove(entry)
        else:
            self.end(entry, State.EXPIRED, "its time to live has passed")

    def renew(self, entry: Entry, expires_at: float, reason: str) -> None:
        """Let an entry be tried anew, as if it had never been tried."""
        entry.attempts = entry.tries = entry.restarts = 0
        entry.next_at, entry.acknowledged = 0.0, False
        entry.expires_at = max(entry.expires_at, expires_at)
        self.move(entry, State.PENDING, reason)
        self.tell(entry, "queued")

    # -- what is to be stored -----------------------------------------------------------------------------------------

    def take_changes(self) -> Save | None:
        """Return what is to be stored of the changes since the last call, if there are any."""
        if not self._dirty and not self._dirty_jobs:
            return None
        changes = Save(tuple(self._dirty), tuple(self._dirty_jobs))
        self._dirty, self._dirty_jobs = {}, {}
        return changes

    def ttl_of(self, job: Job) -> float:
        """Return for how many seconds a job is owed."""
        return self._settings.ttl if job.limits.ttl is None else job.limits.ttl
