"""
From a published job to the minions that missed it. Part of the retry machine, and as pure as it.

A job's way: it is left alone until its deadline, then read in the job cache. The minions without a return are asked which
jobs they run, in one question about all jobs whose deadline has come. Those that say nothing are owed the job. Those that
are there but do not run it get a moment for a return that is on its way; if none is there then, they are owed it too, unless
they are known to have begun it: then it was interrupted. What an operator kills is cancelled.

It must never conclude from a bus event who is owed a job or who is not: an accepted minion can forge those. That there is a
new publish, and until when it is left alone, the job cache says.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from saltext.jobs.core.retry.entry import Job, State
from saltext.jobs.core.retry.facts import (
    JobRead,
    Kill,
    Published,
    Read,
    SaveNote,
    Surveyed,
    Unreadable,
    Vet,
    Vetted,
    Warn,
)
from saltext.jobs.core.retry.note import Note
from saltext.jobs.core.retry.notes import Notes
from saltext.jobs.core.retry.open_job import OpenJob, Stage
from saltext.jobs.core.retry.timers import Timers

if TYPE_CHECKING:
    from saltext.jobs.core.settings import RetrySettings

#: Signals to another job: what they end is not delivered any more.
KILLS = frozenset(
    {
        "saltutil.kill_job",
        "saltutil.term_job",
        "saltutil.signal_job",
        "saltutil.kill_all_jobs",
        "saltutil.term_all_jobs",
    }
)
#: Questions about another job, which mean nothing later on. A waiting ``salt`` command publishes the first one every few
#: seconds.
NEVER = KILLS | {"saltutil.find_job", "saltutil.find_cached_job", "saltutil.is_running", "saltutil.running"}
#: Seconds for a return that is on its way.
GRACE = 3.0
#: Seconds before something that could not be read or asked is tried again.
AGAIN = 10.0
#: Seconds from the event of a signal to its being in the job cache; seconds before one that could not be read is tried
#: again, which must be sooner than a replay.
_KILL_DELAY, _KILL_AGAIN = 0.5, 1.0
#: Seconds by which an event of a publish usually precedes its record in the job cache at most.
_SLACK = 1.0
#: Seconds for which a record is waited for where the master is slower than that, also one of before a kill, and for how many
#: jobs: events are forged.
LATEST, MOST_LATE = 100.0, 1000


@dataclass(frozen=True)
class Owed:
    """
    These minions get an entry, in this state and with this reason. ``alive`` tells whether they are known to be there.
    """

    job: Job
    minions: tuple[str, ...]
    state: State
    reason: str
    alive: bool = False


@dataclass(frozen=True)
class Survey:
    """Minions are to be asked which jobs they run, once it is their turn."""


#: What follows from a fact. A Kill is for the entries that the queue has.
Outcome = Read | SaveNote | Vet | Warn | Survey | Owed | Kill


class Capture:
    """
    The jobs whose outcome is not known yet, and what is known of minions without an entry.

    :param settings: the options under ``job_retry``.
    :param patience: seconds from a publish to its deadline.
    :param timers: the machine's; the keys ``("open", jid)`` are used here.
    """

    def __init__(self, settings: RetrySettings, patience: float, timers: Timers) -> None:
        self._settings, self._patience, self._timers = settings, patience, timers
        self.open: dict[str, OpenJob] = {}
        self.closed: dict[str, float] = {}  # jid -> the newest publish that has been settled
        self.notes = Notes(timers)
        self.replays: dict[str, float] = {}  # jid -> when it was replayed last
        # Open jobs that were read, and of which another record may follow.
        self._late: set[str] = set()
        self._surveys = 0
        self._forgotten = 0.0  # what is recorded as older than this was settled
        self._unheard = -LATEST  # when events were missed last, or might have been

    # -- what needs no second look ------------------------------------------------------------------------------------

    def checkpoint(self, now: float) -> float:
        """Return the time such that every job published before it is settled."""
        return min((job.published_at for job in self.open.values()), default=now)

    def closed_since(self, at: float) -> dict[str, float]:
        """Return ``{jid: its newest publish}`` of the jobs that are settled although they were published since ``at``."""
        return {jid: time for jid, time in self.closed.items() if time >= at}

    def forget_closed(self, before: float) -> None:
        """Forget jobs that were settled or replayed, now that nothing from before ``before`` is looked for any more."""
        self._forgotten = before
        self.closed = {jid: time for jid, time in self.closed.items() if time >= before}
        self.replays = {jid: time for jid, time in self.replays.items() if time >= before}

    def needs_look(self, jid: str, last: float, at: float) -> bool:
        """
        Tell whether a job must be looked at.

        :param last: Unix time of its newest publish, by the clock of its record.
        :param at: the same by this machine's clock.
        """
        job = self.open.get(jid)
        # One that a forged event has opened only now must not be taken for newer than it is: the checkpoint goes by that.
        is_newer = job is None or job.published_at > at + _SLACK or job.heard < at - _SLACK
        return last > self.closed.get(jid, 0.0) and is_newer

    def wants(self, job: Job) -> bool:
        """Tell whether a job is kept for absent minions."""
        if job.limits.off or job.kept_out or not job.funs or NEVER.intersection(job.funs):
            return False
        if job.limits.given:
            return True
        included = all(matches(fun, self._settings.include) for fun in job.funs)
        return included and not any(matches(fun, self._settings.exclude) for fun in job.funs)

    # -- minions without an entry -------------------------------------------------------------------------------------

    def restore(self, notes: Mapping[str, Note], now: float) -> None:
        """Take up what the store holds. What became of a kill may not have been found out yet."""
        self._unheard = now
        for jid, note in notes.items():
            self.notes.restore(jid, note)
            if note.killed:
                self._look_at_killed(jid, now)

    def begun(self, jid: str, minion: str) -> list[Outcome]:
        """Believe a minion without an entry that says that it begins a job whose outcome is not known yet."""
        job = self.open.get(jid)
        if job is None:
            return []
        job.begun.add(minion)
        # Anybody can say so in any name: those that are no minions are found out when there are many.
        return [Vet(jid, tuple(job.begun))] if job.is_to_vet() else []

    def vetted(self, fact: Vetted) -> None:
        """Forget those that said that they begin a job and are no minions of this master."""
        if fact.jid in self.open:
            self.open[fact.jid].forget(fact.strangers)

    def settled(self, job: Job, minion: str) -> list[Outcome]:
        """Note that a minion is not owed a job any more: its entry is removed, and no return will come."""
        return [*self.notes.add(job.jid, self._end_of(job), settled=(minion,))]

    def recheck(self, now: float) -> None:
        """Look again at the jobs that minions had begun: what has become of them?"""
        for jid, note in self.notes.by_jid.items():
            if note.begun:
                self._look_now(jid, now)

    def gap(self, now: float) -> None:
        """Note that publishes may have been missed on the bus."""
        self._unheard = now

    def _look_now(self, jid: str, now: float) -> OpenJob:
        """Look at a job, though nothing says that it was published again."""
        job = self.open.get(jid)
        if job is None:
            job = self.open[jid] = OpenJob(now)
            job.heard = job.first = 0.0  # no publish was
        job.anew = True
        if job.stage is Stage.WAITING:
            self._timers.no_later(("open", jid), now)
        return job

    def _look_at_killed(self, jid: str, now: float, named: bool = True) -> None:
        """
        Look at a job that has been killed, and once more when all that was published before that is recorded.

        :param named: the kill names it. One of everything lets a job that was killed before be looked at no later, unless
            there is news of it.
        """
        job = self._look_now(jid, now)
        if named or now >= job.sure_at or job.sure_at - LATEST < max(job.heard, self._unheard):
            job.sure_at = now + LATEST

    def ttl_of(self, job: Job) -> float:
        """Return for how many seconds a job is owed."""
        return self._settings.ttl if job.limits.ttl is None else job.limits.ttl

    def _end_of(self, job: Job) -> float:
        """Return the Unix time until which a job is owed."""
        return job.published_at + self.ttl_of(job)

    # -- a job's way --------------------------------------------------------------------------------------------------

    def published(self, fact: Published, now: float) -> None:
        """Open a job. Where the bus has not said what it runs, the job cache is asked at once."""
        funs = set(fact.fun.split(","))
        if funs <= NEVER - KILLS:
            return
        at = min(fact.at, now)  # the clock may have been set back since
        job = self.open.get(fact.jid)
        if job is None:
            job = self.open[fact.jid] = OpenJob(at)
            job.signal = not KILLS.isdisjoint(funs)
        else:
            job.several = True
            job.published_at, job.heard = min(job.published_at, at), max(job.heard, at)
        # What is found in the job cache is recorded, be it a replay.
        job.several = job.several or (bool(fact.fun) and at < self.replays.get(fact.jid, 0.0) + LATEST)
        if job.stage is Stage.WAITING:
            wait = _KILL_DELAY if job.signal else 0.0 if not fact.fun else self._patience
            self._timers.no_later(("open", fact.jid), max(now, at + wait))

    def due(self, jid: str) -> list[Outcome]:
        """Read a job whose time has come."""
        job = self.open.get(jid)
        if job is None:
            return []
        job.stage = Stage.READING
        return [Read(jid)]

    def replayed(self, jid: str, now: float) -> None:
        """Note that a job was replayed, which is recorded like any publish of it, and may be as late."""
        self.replays[jid] = now
        if jid in self.open:
            self.open[jid].several = True

    def read(self, fact: JobRead, known: Iterable[str], now: float) -> list[Outcome]:
        """Go on with what the job cache knows; ``known`` are the minions for which the queue has an entry of the job."""
        job = self.open.get(fact.jid)
        if job is None or job.stage is not Stage.READING:
            return []
        job.last, job.recorded, job.read_at = fact.last, now - fact.age, now
        job.told = fact.minions if now < self._unheard + LATEST else frozenset()
        self._late.discard(fact.jid)
        is_new = fact.last > self.closed.get(fact.jid, -1.0)
        if fact.kills:
            is_new = is_new and job.recorded >= self._forgotten  # an old one, of which somebody tells again, is settled
            job.signal = True
            self._settle(fact.jid, now)
            outcomes: list[Outcome] = [*self.notes.drop(fact.jid)]  # of those who have killed the kill
            # Where an event may have been missed, nobody knows which of two publishes came first.
            at = math.inf if now < self._unheard + LATEST else job.heard or job.recorded
            for kill in fact.kills if is_new else ():
                outcomes += self._kill(dataclasses.replace(kill, at=at), now)
            return outcomes
        if not fact.recorded and self._wait_for_record(fact.jid, job, now):
            return []
        job.signal = False  # whatever the event said
        if fact.job is None or not self.wants(fact.job):
            return self._drop(fact.jid)
        # The bus heard it then; the record's time is that of another process, whose clock may have been set.
        job.job = dataclasses.replace(fact.job, published_at=min(fact.job.published_at, job.published_at))
        if now >= self._end_of(job.job):
            return self._drop(fact.jid)
        outcomes = self._pardon(job, fact, now)
        if not is_new and not job.anew:
            self._settle(fact.jid, now)
            return outcomes
        if self._wait_for(job, fact, now):
            return outcomes
        return outcomes + self._judge(job, fact, known, now)

    def _wait_for_record(self, jid: str, job: OpenJob, now: float) -> bool:
        """Leave a job alone whose publish has been heard, while the master has not stored it yet."""
        newest = max(job.published_at, job.heard)
        since = now - newest
        is_urgent = job.signal and since < 4 * _KILL_DELAY
        if since >= LATEST or (len(self._late) >= MOST_LATE and not is_urgent):
            return False
        if now >= job.published_at + LATEST:
            job.published_at = newest  # what was heard of before has been forged, and must not hold the checkpoint back
        self._late.add(jid)
        self._later(jid, now + self._pause(job, since))
        return True

    def _wait_for(self, job: OpenJob, fact: JobRead, now: float) -> bool:
        """Leave a job alone until the deadline of its newest publish."""
        wait = min(self._patience - fact.age, self._patience)
        if fact.last == job.waited_for or wait < _SLACK:
            return False
        job.waited_for = fact.last
        job.surveyed, job.idle = set(), set()
        self._later(fact.jid, now + wait)
        return True

    def _judge(self, job: OpenJob, fact: JobRead, known: Iterable[str], now: float) -> list[Outcome]:
        assert job.job is not None
        note = self.notes.get(fact.jid)
        missing = fact.missing.difference(known, note.settled)
        # One that is neither may have a key that is not accepted now, and be missing again when it is.
        outcomes: list[Outcome] = [*self.notes.strike(fact.jid, fact.returned.union(known))]
        if unasked := missing - job.surveyed:  # also one of a further publish whose deadline has passed unseen
            outcomes += self.notes.add(fact.jid, self._end_of(job.job), job.begun & unasked)
            job.stage, job.asking = Stage.TO_ASK, set(unasked)
            return [*outcomes, Survey()]
        # Some may have said so only after they were asked, in answer to another question. They are asked about it before it
        # is held: what was heard can be forged, and one that keeps records knows whether it has begun.
        there, begun = missing & job.idle, missing & job.idle & (note.begun | job.begun)
        outcomes += self._explain(job, begun, State.RUNNING, "it has begun the job, and no longer runs it", alive=True)
        reason = "it is there, but has neither run nor returned the job"
        outcomes += self._explain(job, there - begun, State.PENDING, reason, alive=True)
        outcomes += self.notes.strike(fact.jid, there)
        self._settle(fact.jid, now)
        return outcomes

    def _pardon(self, job: OpenJob, fact: JobRead, now: float) -> list[Outcome]:
        """
        Strike off who was never meant, once all that was published before the kill is recorded: a kill that named all
        minions says nothing of a publish to others long after it. Where there are too many to wait for, it is done at once.
        """
        if now < job.sure_at and len(self._late) < MOST_LATE:
            return []
        return [*self.notes.strike(fact.jid, self.notes.get(fact.jid).killed.keys() - fact.minions)]

    def _explain(
        self, job: OpenJob, minions: Iterable[str], state: State, reason: str, alive: bool = False
    ) -> list[Outcome]:
        """Return who is owed the job: minions on which an operator has killed it get a cancelled entry, in his name."""
        assert job.job is not None
        note = self.notes.get(job.job.jid)
        outcomes: list[Outcome] = []
        left = sorted(set(minions) - note.killed.keys())
        for minion in sorted(set(minions) & note.killed.keys()):
            reason_of_kill = f"killed by {note.killed[minion]}"
            outcomes.append(Owed(job.job, (minion,), State.CANCELLED, reason_of_kill))
        if left:
            outcomes.append(Owed(job.job, tuple(left), state, reason, alive))
        return outcomes

    def _kill(self, kill: Kill, now: float) -> list[Outcome]:
        """Cancel a job that an operator has killed: in the queue at once, for others once it is known what they do."""
        jids = [kill.jid]
        if not kill.jid:
            waiting = {jid for jid, job in self.open.items() if not job.signal and job.first <= kill.at}
            jids = sorted(waiting.union(jid for jid, note in self.notes.by_jid.items() if note.begun))
        outcomes: list[Outcome] = [kill]
        for jid in jids:
            # This is stored before the signal counts as settled; the look sorts out those who have returned the job.
            outcomes += self.notes.kill(jid, now + self._settings.ttl, kill.minions, kill.user)
            self._look_at_killed(jid, now, bool(kill.jid))
        return outcomes

    # -- surveys ------------------------------------------------------------------------------------------------------

    def survey(self) -> tuple[int, tuple[str, ...]]:
        """Begin a survey for all jobs that wait for one. Returns its number, and whom to ask."""
        self._surveys += 1
        minions: set[str] = set()
        for job in self.open.values():
            if job.stage is Stage.TO_ASK:
                job.stage, job.survey = Stage.ASKING, self._surveys
                minions |= job.asking
        return self._surveys, tuple(sorted(minions))

    def surveyed(self, fact: Surveyed, now: float) -> list[Outcome]:
        """Queue the jobs for those that say nothing."""
        outcomes: list[Outcome] = []
        for minion, jids in fact.running.items():
            for jid in jids:
                outcomes += self.begun(jid, minion)  # whether or not it was asked about that one
        asking = [jid for jid, job in self.open.items() if job.stage is Stage.ASKING and job.survey == fact.number]
        return [*outcomes, *(outcome for jid in asking for outcome in self._surveyed(jid, fact, now))]

    def _surveyed(self, jid: str, fact: Surveyed, now: float) -> list[Outcome]:
        job = self.open[jid]
        assert job.job is not None
        if job.asking & fact.unasked:
            self._later(jid, now + AGAIN)
            return []
        asked, job.asking = job.asking, set()
        job.surveyed |= asked
        running = {minion for minion in asked if jid in fact.running.get(minion, ())}
        silent = asked - fact.running.keys()
        job.idle |= asked - running - silent
        outcomes: list[Outcome] = [*self.notes.add(jid, self._end_of(job.job), running)]
        begun = silent & (self.notes.get(jid).begun | job.begun)
        reason = "it did not return the job and does not answer"
        outcomes += self._explain(job, silent - begun, State.PENDING, reason)
        outcomes += self._explain(job, begun, State.RUNNING, "it has begun the job, and does not answer")
        outcomes += self.notes.strike(jid, silent)
        if job.idle:
            self._later(jid, now + GRACE)
        else:
            self._settle(jid, now)
        return outcomes

    def unreadable(self, fact: Unreadable, now: float) -> list[Outcome]:
        """Try again later, as long as anybody can be owed the job."""
        job = self.open.get(fact.jid)
        if job is None or job.stage is not Stage.READING:
            return []
        if now > job.published_at + self._settings.ttl:
            self._close(fact.jid)
            return [
                Warn(f"Who missed job {fact.jid} is not known: the job cache could not be read in its time to live")
            ]
        self._later(fact.jid, now + (_KILL_AGAIN if job.signal else AGAIN))
        return []

    def _later(self, jid: str, at: float) -> None:
        self.open[jid].stage = Stage.WAITING
        self._timers.set(("open", jid), at)

    def _drop(self, jid: str) -> list[Outcome]:
        """Close a job that nobody can be owed."""
        self._close(jid)
        return [*self.notes.drop(jid)]

    def _settle(self, jid: str, now: float) -> None:
        """Close a job, unless a publish of it may follow in the job cache, or a kill of it counts for others until later."""
        job, since = self.open[jid], now - self.open[jid].heard
        self._close(jid)
        # Who has begun it must not be forgotten either while a publish to him may follow that nobody has heard of.
        if now < self._unheard + LATEST and not job.sure_at and job.begun - job.told:
            job.sure_at = self._unheard + LATEST
        sure_at = job.sure_at
        if job.several or job.heard > job.recorded + (0.0 if job.signal else _SLACK):
            sure_at = max(sure_at, job.heard + LATEST)
        if now >= sure_at or len(self._late) >= MOST_LATE:
            return
        # Only this look waits, since the event may be forged: whoever is owed the job has an entry already.
        again = self.open[jid] = OpenJob(max(job.published_at, job.heard, job.read_at))
        again.heard, again.first = job.heard, job.first
        again.signal, again.last, again.several, again.sure_at = job.signal, job.last, job.several, job.sure_at
        again.begun = job.begun  # among them some to whom it was published then
        self._late.add(jid)
        self._timers.set(("open", jid), min(now + self._pause(job, since), sure_at))

    def _pause(self, job: OpenJob, since: float) -> float:
        """Return for how long a record is not looked for again; ``since`` the event. A signal cannot wait."""
        return max(_KILL_DELAY, since / 4) if job.signal else max(self._patience - since, since)

    def _close(self, jid: str) -> None:
        job = self.open.pop(jid)
        self._late.discard(jid)
        self.closed[jid] = max(job.last, self.closed.get(jid, 0.0))


def matches(fun: str, globs: Iterable[str]) -> bool:
    """Tell whether a function's name matches one of the globs."""
    return any(fnmatchcase(fun, glob) for glob in globs)
