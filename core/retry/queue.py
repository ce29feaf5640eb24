"""
The entries of the retry queue, by minion, the jobs that they share, and which of these may be replayed now: those without a
window, and those whose window is open. It has no calendar: ``find_opening`` tells when a window opens next.

It does not decide when something is published. It must never let an entry come, go or move without marking it to be stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from saltext.jobs.core import lines
from saltext.jobs.core.delivery.known import Step
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import ENDED, UNDER_WAY, Counts, Entry, Job, Key, Kind, Limits, State
from saltext.jobs.core.retry.waiting import Timers
from saltext.jobs.core.windows import Period, next_opening

if TYPE_CHECKING:
    from saltext.jobs.core.options.engines import RetrySettings

log = lines.logger(__name__)

#: Seconds until ``find_opening`` is asked again if it failed.
_TROUBLED = 60.0
#: A text as core/windows.py reads it, and a time zone, which may be empty.
Hours = tuple[str, str]
#: Seconds for which the answer "I run nothing" counts, and for which a minion counts as there after a sign of life.
BELIEVED, _THERE = 600.0, 30.0


def hours_of(limits: Limits, settings: RetrySettings) -> Hours | None:
    """Return a job's window: its own, else that of the options; None if it may be sent at any time."""
    window = settings.window if limits.window is None else limits.window
    return (window, settings.timezone if limits.timezone is None else limits.timezone) if window else None


@dataclass(slots=True, eq=False)
class Backlog:
    """What one minion is owed, and what is known of the minion itself. Times are Unix time in seconds, 0 for never."""

    entries: dict[str, Entry] = field(default_factory=dict)
    replay: Entry | None = None  # the one whose replay is under way
    since: float = 0.0  # when that began
    seen: float = 0.0  # its last sign of life
    started: float = 0.0  # its last start, when it forgot which jids it had seen
    free_at: float = 0.0  # when it was asked, if its last answer was "I run nothing"
    false_signs: int = 0  # signs of life in a row after which it did not answer
    not_before: float = 0.0  # no new replay earlier


class Queue:
    """What is owed, and what all parts share. It sets the timers ``("end", jid)`` and ``("opening", window, timezone)``."""

    def __init__(self, settings: RetrySettings) -> None:
        self.settings, self.timers = settings, Timers()
        self.now = 0.0
        self.find_opening = next_opening
        self._openings: dict[Hours, Period | None] = {}  # by window: when it is open next; None if that is not known
        self.jobs: dict[str, Job] = {}
        self.backlogs: dict[str, Backlog] = {}
        self.republished: dict[str, float] = {}  # jid of one of the jobs -> when others last published it
        self.total = self.kilobytes = 0  # entries, and the loads of their jobs
        self._members: dict[str, dict[str, None]] = {}  # jid -> minions that are owed it; a set takes more memory
        self.awake: dict[str, None] = {}  # the minions with a replay, and those that were there not long ago
        self._quiet = lines.Quiet(log)
        self.changed: dict[Key, None] = {}  # what is to be stored, as it is by then, or removed; the shell empties it
        self.done: dict[Key, dict[str, Any]] = {}  # records of entries that are over, until they are stored
        self._wanted: list[facts.Effect] = []  # in the present step

    def entry(self, minion: str, jid: str) -> Entry | None:
        backlog = self.backlogs.get(minion)
        return backlog.entries.get(jid) if backlog else None

    def entries(self) -> Iterator[Entry]:
        for backlog in self.backlogs.values():
            yield from backlog.entries.values()

    def minions_of(self, jid: str) -> list[str]:
        return sorted(self._members.get(jid, ()))

    def gather(self, entry: Entry) -> float:
        """Return for how many seconds a minion waits for others that are owed its job; 0 if none of them is there."""
        found, gone = False, []
        few, many = sorted((self._members[entry.jid], self.awake), key=len)  # most of a fleet may be away
        for minion in few:
            if minion in many and minion != entry.minion:
                other = self.backlogs[minion]
                found = other.replay is not None or other.seen > self.now - _THERE
                if found:
                    break
                gone.append(minion)
        for minion in gone:
            del self.awake[minion]
        return self.settings.gather if found else 0.0

    def of(self, minion: str | None, jid: str | None) -> list[Entry]:
        """Return the entries of a minion, of a job, or of a minion for a job; one of the two is given."""
        if jid is not None:
            return list(self.at(jid, self.minions_of(jid) if minion is None else [minion]))
        backlog = self.backlogs.get(minion or "")
        return list(backlog.entries.values()) if backlog else []

    def at(self, jid: str, minions: Iterable[str], *steps: Step) -> Iterator[Entry]:
        """Yield the entries of a job whose replays are at one of these steps, or all, ordered by minion."""
        for minion in sorted(minions):
            entry = self.entry(minion, jid)
            if entry is not None and (not steps or entry.step in steps):
                yield entry

    def has_answered(self, entry: Entry) -> bool:
        """Tell whether an earlier answer covers a job: the minion ran nothing, and was never sent the job from here."""
        backlog, job = self.backlogs[entry.minion], self.jobs[entry.jid]
        newest = max(entry.queued, backlog.started, self.republished.get(entry.jid, 0.0))
        is_told = newest < backlog.free_at and self.now < backlog.free_at + BELIEVED
        return is_told and entry.state is State.PENDING and entry.sent_at is None and (job.by_id or entry.named)

    # -- entries come and go ------------------------------------------------------------------------------------------

    def add(self, job: Job, minion: str, reason: str, expires_at: float) -> Entry | None:
        """Queue a job for a minion that has no entry for it, and return the new one; None if there is no room."""
        full = sum(entry.state not in ENDED for entry in self.of(minion, None)) >= self.settings.max_queue_per_minion
        load = 0 if job.jid in self.jobs else job.kilobytes
        if full or self.total + self.kilobytes + load >= self.settings.max_queue:
            self._refuse(minion, job, "max_queue_per_minion" if full else "max_queue", reason)
            return None
        entry = Entry(minion, job.jid, self.now, expires_at, reason)
        self.put(job, entry)
        own = Key(Kind.ENTRY, job.jid, minion), Key(Kind.DONE, job.jid, minion)  # there was no room for it before
        self.changed |= dict.fromkeys((Key(Kind.JOB, job.jid), *own))
        self.tell(entry, "queued")
        return entry

    def put(self, job: Job, entry: Entry) -> None:
        """Take up an entry, and its job if it is new."""
        if job.jid not in self.jobs:
            self.jobs[job.jid] = job
            self.kilobytes += job.kilobytes
            self._members[job.jid] = {}
            hours = hours_of(job.limits, self.settings)
            if hours is not None and hours not in self._openings:
                self._openings[hours] = None
                self.timers.set(("opening", *hours), self.now)
        self._members[job.jid][entry.minion] = None
        backlog = self.backlogs.get(entry.minion)
        if backlog is None:
            backlog = self.backlogs[entry.minion] = Backlog()
        backlog.entries[entry.jid] = entry
        self.total += 1
        self.timers.no_later(("end", entry.jid), self.end_of(entry))

    def _refuse(self, minion: str, job: Job, option: str, why: str) -> None:
        reason = f"the queue is full: {option}"
        entry = Entry(minion, job.jid, self.now, self.now, why)
        entry.move(State.DEAD, self.now, reason)
        self._record(entry, job)
        self.want(facts.Announce(minion, job.jid, "dead", ",".join(job.funs), 0, reason))
        limit = getattr(self.settings, option)
        self._quiet.warning(option, "Job %s is not kept for %s: %s (%s)", job.jid, minion, reason, limit)

    def superseded_by(self, entry: Entry) -> list[Entry]:
        """Return the older entries of the minion that a new one replaces."""
        job, globs = self.jobs[entry.jid], self.settings.supersede
        if not globs or not all(matches(fun, globs) for fun in job.funs):
            return []
        others = [(other, self.jobs[other.jid]) for other in self.of(entry.minion, None) if other is not entry]
        older = [other for other, its in others if its.digest == job.digest and its.published_at <= job.published_at]
        return [other for other in older if other.state is State.PENDING]

    def remove(self, entry: Entry) -> None:
        minion, jid = entry.minion, entry.jid
        if entry.state is State.DONE:
            self._record(entry, self.jobs[jid])
        backlog, members = self.backlogs[minion], self._members[jid]
        del backlog.entries[jid], members[minion]
        self.total -= 1
        self.changed[Key(Kind.ENTRY, jid, minion)] = None
        if not backlog.entries:
            del self.backlogs[minion]
            self.awake.pop(minion, None)
            self.timers.cancel(("minion", minion))
        if not members:
            self.kilobytes -= self.jobs.pop(jid).kilobytes
            del self._members[jid]
            self.republished.pop(jid, None)
            self.timers.cancel(("end", jid))
            self.changed[Key(Kind.JOB, jid)] = None

    def _record(self, entry: Entry, job: Job) -> None:
        key = Key(Kind.DONE, job.jid, entry.minion)
        shown = {"minion": key.minion, "jid": key.jid, "fun": ",".join(job.funs), "attempts": entry.counts.attempts}
        self.done[key], self.changed[key] = {**entry.as_record(), **shown, "queued_at": entry.queued}, None

    # -- entries change -----------------------------------------------------------------------------------------------

    def touch(self, entry: Entry) -> None:
        """Note that an entry is to be stored, and set the timer for its end."""
        self.changed[Key(Kind.ENTRY, entry.jid, entry.minion)] = None
        self.timers.no_later(("end", entry.jid), self.end_of(entry))

    def end_of(self, entry: Entry) -> float:
        """Return when an entry expires or is forgotten, if it stays in its state; infinity if a replay decides that."""
        if entry.state in ENDED:
            return entry.since + self.settings.keep
        return math.inf if entry.state in UNDER_WAY else entry.expires_at

    def move(self, entry: Entry, to: State, reason: str) -> None:
        entry.move(to, self.now, reason)
        self.touch(entry)

    def tell(self, entry: Entry, kind: str) -> None:
        """Tell the bus what has become of an entry."""
        fun = ",".join(self.jobs[entry.jid].funs)
        self.want(facts.Announce(entry.minion, entry.jid, kind, fun, entry.counts.attempts, entry.reason))

    def renew(self, entry: Entry, expires_at: float, reason: str) -> None:
        """Make an entry pending again, as if it had never been tried."""
        entry.counts, entry.next_at, entry.known.begun_at = Counts(), 0.0, 0.0
        entry.expires_at = max(entry.expires_at, expires_at)
        self.move(entry, State.PENDING, reason)
        self.tell(entry, "queued")

    # -- effects ------------------------------------------------------------------------------------------------------

    def want(self, *effects: facts.Effect) -> None:
        self._wanted += effects

    def take_wanted(self) -> list[facts.Effect]:
        """Return the effects wanted since the last call."""
        wanted, self._wanted = self._wanted, []
        return wanted

    # -- what holds for a job -----------------------------------------------------------------------------------------

    def is_open(self, job: Job) -> bool:
        """Tell whether a job has no window, or an open one. While it is not known when a window opens, it counts as shut."""
        hours = hours_of(job.limits, self.settings) if self._openings else None  # usually no job has a window
        if hours is None:
            return True
        found = self._openings.get(hours)
        return found is not None and found.opens <= self.now and (found.closes is None or self.now < found.closes)

    def opening_due(self, window: str, timezone: str) -> list[str]:
        """Find when a window opens and closes next. Returns the jobs for which it is open now."""
        hours = window, timezone
        jobs = [job for job in self.jobs.values() if hours_of(job.limits, self.settings) == hours]
        del self._openings[hours]
        if not jobs:
            return []
        self._openings[hours] = None
        try:
            found = self._openings[hours] = self.find_opening(None, *hours, self.now)
        except ValueError as exc:
            self.timers.set(("opening", *hours), self.now + _TROUBLED)
            log.warning("Jobs with the window %r wait, since it is not known when it opens: %s", window, exc)
            return []
        is_open = self.is_open(jobs[0])
        change = found.closes if is_open else found.opens
        if change is not None:
            self.timers.set(("opening", *hours), max(change, self.now + 1.0))
        return [job.jid for job in jobs] if is_open else []

    def ttl_of(self, job: Job) -> float:
        """Return for how many seconds a job is owed."""
        return self.settings.ttl if job.limits.ttl is None else job.limits.ttl

    def end_of_job(self, job: Job) -> float:
        """Return the Unix time until which a job is owed to those that missed it."""
        return job.published_at + self.ttl_of(job)


class Waiting:
    """Tells operators for which window an entry waits, and when that opens. It must never differ from the machine."""

    def __init__(self, settings: RetrySettings, now: float) -> None:
        self._settings, self._now = settings, now
        self._opens: dict[Hours, float | None] = {}

    def of(self, entry: Entry, job: Job) -> tuple[str | None, float | None]:
        """Return (what an entry waits for besides its minion, Unix time at which that comes); each None if there is none."""
        hours = hours_of(job.limits, self._settings)
        if hours is None or entry.state is not State.PENDING or entry.is_urged(self._now):
            return None, None
        if hours not in self._opens:
            try:
                self._opens[hours] = next_opening(None, *hours, self._now).opens
            except ValueError:
                self._opens[hours] = None
        opens = self._opens[hours]
        if opens is not None and opens <= self._now:
            return None, None
        zone = f" ({hours[1]})" if hours[1] else ""
        when = ", which opens at no known time" if opens is None else ", which opens after it expires"
        return f"its window {hours[0]}{zone}{when if opens is None or opens >= entry.expires_at else ''}", opens


def matches(fun: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(fun, glob) for glob in globs)
