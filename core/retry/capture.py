"""
From a published job to the minions that missed it. Part of the retry machine, and as pure as it.

A job's way: it is left alone until its deadline, then read in the job cache; the minions without a return are asked. Those
that say nothing are owed the job. Those that are there but neither run it nor have run it get a moment for a return that is
on its way; if none is there then, they are owed it too.

It must never conclude from a bus event who is owed a job or who is not: an accepted minion can forge those.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from saltext.jobs.core.retry.entry import Job
from saltext.jobs.core.retry.facts import Asked, JobRead, Published, Read, Unreadable
from saltext.jobs.core.retry.timers import Timers

if TYPE_CHECKING:
    from saltext.jobs.core.settings import RetrySettings

#: Questions and signals about another job, which mean nothing later on. A waiting ``salt`` command publishes the first
#: one every few seconds.
NEVER = frozenset(
    {
        "saltutil.find_job",
        "saltutil.find_cached_job",
        "saltutil.is_running",
        "saltutil.running",
        "saltutil.kill_job",
        "saltutil.term_job",
        "saltutil.signal_job",
    }
)
#: Seconds for a return that is on its way.
GRACE = 3.0
#: Seconds before something that could not be read or asked is tried again.
AGAIN = 10.0


@dataclass(frozen=True)
class ToAsk:
    """These minions are to be asked about a job."""

    jid: str
    minions: tuple[str, ...]


@dataclass(frozen=True)
class Owed:
    """These minions are owed a job; ``alive`` tells whether they are there."""

    job: Job
    minions: tuple[str, ...]
    reason: str
    alive: bool


#: What follows from a fact.
Outcome = Read | ToAsk | Owed


class Stage(enum.Enum):
    """Where an open job stands."""

    WAITING = "waiting"  # for its deadline
    READING = "reading"  # in the job cache
    ASKING = "asking"  # the missing ones, whether they run it


class _Open:
    __slots__ = ("again", "asking", "idle", "job", "known", "published_at", "stage")

    def __init__(self, published_at: float, known: Iterable[str]) -> None:
        self.published_at = published_at
        self.known = frozenset(known)  # minions with an entry, whatever becomes of it meanwhile
        self.stage = Stage.WAITING
        self.job: Job | None = None
        self.asking: set[str] = set()
        self.idle: set[str] | None = None  # minions that are there, but do not run it
        self.again = False  # it was published again meanwhile


class Capture:
    """
    The jobs whose outcome is not known yet.

    :param settings: the options under ``job_retry``.
    :param patience: seconds from a publish to its deadline.
    :param timers: the machine's; the keys ``("open", jid)`` are used here.
    """

    def __init__(self, settings: RetrySettings, patience: float, timers: Timers) -> None:
        self._settings, self._patience, self._timers = settings, patience, timers
        self.open: dict[str, _Open] = {}
        self.closed: dict[str, float] = {}  # when the jobs that were closed last were published

    def checkpoint(self, now: float) -> float:
        """Return the time such that every job published before it is settled."""
        return min((entry.published_at for entry in self.open.values()), default=now)

    def closed_since(self, at: float) -> dict[str, float]:
        """Return the jobs that are closed although they were published at or after ``at``, and forget the others."""
        self.closed = {jid: time for jid, time in self.closed.items() if time >= at}
        return dict(self.closed)

    def wants(self, job: Job) -> bool:
        """Tell whether a job is kept for absent minions."""
        if job.limits.off or job.kept_out or not job.funs or NEVER.intersection(job.funs):
            return False
        if job.limits.given:
            return True
        included = all(matches(fun, self._settings.include) for fun in job.funs)
        return included and not any(matches(fun, self._settings.exclude) for fun in job.funs)

    def published(self, fact: Published, known: Iterable[str]) -> None:
        """Open a job, or give it more time; ``known`` are the minions for which the queue has an entry of it."""
        if fact.fun in NEVER:
            return
        job = self.open.get(fact.jid)
        if job is None:
            job = self.open[fact.jid] = _Open(fact.at, known)
        if job.stage is Stage.WAITING:
            self._timers.set(("open", fact.jid), fact.at + self._patience)
        else:
            job.again = True

    def due(self, jid: str) -> list[Outcome]:
        """Read a job whose deadline has come."""
        job = self.open.get(jid)
        if job is None:
            return []
        job.stage = Stage.READING
        return [Read(jid)]

    def read(self, fact: JobRead, known: Iterable[str], now: float) -> list[Outcome]:
        """Go on with what the job cache knows; ``known`` as in ``published``."""
        job = self.open.get(fact.jid)
        if job is None or job.stage is not Stage.READING:
            return []
        if fact.job is None or not self.wants(fact.job):
            self._close(fact.jid, now)
            return []
        job.job = fact.job
        missing = sorted(fact.missing.difference(job.known, known))
        if job.idle is None and missing:
            job.stage = Stage.ASKING
            job.asking = set(missing)
            return [ToAsk(fact.jid, tuple(missing))]
        late = tuple(minion for minion in missing if minion in (job.idle or ()))
        self._close(fact.jid, now)
        return [Owed(fact.job, late, "it is there, but has neither run nor returned the job", True)] if late else []

    def asked(self, fact: Asked, now: float) -> list[Outcome]:
        """Queue the job for those that say nothing."""
        job = self.open.get(fact.jid)
        if job is None or job.job is None or job.stage is not Stage.ASKING:
            return []
        if job.asking & fact.unasked:
            self._later(fact.jid, now + AGAIN)
            return []
        asking, job.asking = job.asking, set()
        silent = tuple(sorted(asking & fact.silent))
        idle = asking & fact.idle
        if idle:
            job.idle = idle
            self._later(fact.jid, now + GRACE)
        else:
            self._close(fact.jid, now)
        return [Owed(job.job, silent, "it did not return the job and does not answer", False)] if silent else []

    def unreadable(self, fact: Unreadable, now: float) -> None:
        """Try again later, as long as anybody can be owed the job."""
        job = self.open.get(fact.jid)
        if job is None or job.stage is not Stage.READING:
            return
        if now > job.published_at + self._settings.ttl:
            self._close(fact.jid, now)
        else:
            self._later(fact.jid, now + AGAIN)

    def _later(self, jid: str, at: float) -> None:
        self.open[jid].stage = Stage.WAITING
        self._timers.set(("open", jid), at)

    def _close(self, jid: str, now: float) -> None:
        job = self.open.pop(jid)
        self.closed[jid] = job.published_at
        if job.again:
            self.published(Published(jid, "", now), job.known)


def matches(fun: str, globs: Iterable[str]) -> bool:
    """Tell whether a function's name matches one of the globs."""
    return any(fnmatchcase(fun, glob) for glob in globs)
