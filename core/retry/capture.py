"""
From a published job to the minions that missed it.

A job is left alone until its deadline, then read in the job cache. The minions without a return are asked which jobs they
run, in one question about all jobs whose deadlines have come. Minions that do not answer are owed the job. Minions that
answer and do not run it get a moment more, since their returns may be on the way; without a return by then they are owed it
as well. If such a minion is known to have begun the job, the job was interrupted. Where an operator has killed the job, the
entry is cancelled.

Publishes and kills come in the order in which the master made them: a kill concerns what was published before it.

It must never conclude from a bus event which minion is owed a job and which is not: any accepted minion can forge events.
The job cache and the log tell that.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

from saltext.jobs.core.functions import NEVER_OWED
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import Job, Key, Kind, State
from saltext.jobs.core.retry.notes import Note, Notes
from saltext.jobs.core.retry.open_job import OpenJob, Stage
from saltext.jobs.core.retry.owing import Owing
from saltext.jobs.core.retry.queue import Queue, matches
from saltext.jobs.core.retry.timers import AGAIN, GRACE

#: Seconds for which jobs are gathered into one survey.
_GATHER = 0.5
#: Seconds before a signal is read, and seconds before another try if it could not be read.
_KILL_DELAY, _KILL_AGAIN = 0.5, 1.0
#: A job may be judged this many seconds before its deadline.
_SLACK = 1.0


class Capture:
    """
    The jobs whose outcome is not known yet.

    These timers are set here: ``("open", jid)``; and ``("survey",)``, when minions are to be asked which jobs they run.

    :param patience: seconds from a publish to its deadline.
    """

    def __init__(self, queue: Queue, notes: Notes, owing: Owing, patience: float) -> None:
        self._queue, self._timers, self._patience = queue, queue.timers, patience
        self._notes, self._owing = notes, owing
        self.open: dict[str, OpenJob] = {}
        self._surveys = 0

    def _wants(self, job: Job) -> bool:
        """Tell whether a job is kept for absent minions."""
        if job.limits.off or job.kept_out or not job.funs or NEVER_OWED.intersection(job.funs):
            return False
        if job.limits.given:
            return True
        settings = self._queue.settings
        included = all(matches(fun, settings.include) for fun in job.funs)
        return included and not any(matches(fun, settings.exclude) for fun in job.funs)

    def restore(self, notes: Mapping[str, Note], open_jobs: Mapping[str, OpenJob]) -> None:
        """Take up what is stored. A killed job is looked at again: what became of it may not be known yet."""
        now = self._queue.now
        for jid, job in open_jobs.items():
            self.open[jid] = job
            self._later(jid, max(now, min(job.at, now) + (0.0 if job.signal else self._patience)))
        for jid, note in notes.items():
            self._notes.restore(jid, note)
            if note.killed:
                self._look_now(jid)

    # -- who has begun a job ------------------------------------------------------------------------------------------

    def begun(self, jid: str, minion: str) -> None:
        """Note a claim that a minion has begun a job. The minion has no entry for the job."""
        job = self.open.get(jid)
        if job is not None and minion in job.named:  # others are made up
            job.begun.add(minion)

    def recheck(self) -> None:
        """Look again at the jobs that minions without an entry have begun."""
        for jid, note in self._notes.by_jid.items():
            if note.begun:
                self._look_now(jid)

    def note_due(self, jid: str) -> None:
        """Look at a job whose note is due: a note from before the job was read may end while the job is still owed."""
        self._look_now(jid)

    def _look_now(self, jid: str) -> None:
        """Look at a job now, unless it is open: an open job is looked at when it is due."""
        if jid not in self.open:
            self.open[jid] = OpenJob(-math.inf)
            self._changed(jid)
            self._later(jid, self._queue.now)

    # -- a job's way --------------------------------------------------------------------------------------------------

    def published(self, fact: facts.Published) -> None:
        """Open a job. An open one gets a new deadline."""
        now = self._queue.now
        at = min(fact.at, now)  # the clock may have been set back since
        job = self.open.get(fact.jid)
        if job is None:
            job = self.open[fact.jid] = OpenJob(at)
            job.signal = fact.signal
        self._notes.published(fact.jid, fact.work, fact.minions, at)
        job.published(at, fact.minions)
        self._changed(fact.jid)
        job.is_overtaken = job.stage is Stage.READING
        wait = _KILL_DELAY if job.signal else self._patience
        if job.stage is Stage.WAITING and job.signal:
            self._timers.no_later(("open", fact.jid), max(now, at + wait))
        elif not job.is_overtaken and not job.signal:
            self._later(fact.jid, max(now, at + wait))

    def due(self, jid: str) -> None:
        """Read a job whose time has come."""
        if job := self.open.get(jid):
            job.stage, job.is_overtaken = Stage.READING, False
            self._queue.want(facts.Read(jid))

    def read(self, fact: facts.JobRead) -> None:
        """Go on with what the job cache has of a job."""
        job, now = self.open.get(fact.jid), self._queue.now
        if job is None or job.stage is not Stage.READING:
            return
        if job.is_overtaken:
            self._later(fact.jid, now)
        elif fact.kills:
            self._drop(fact.jid)  # with the note about a kill of the signal itself
            if job.at > -math.inf:  # else the signal was killed itself, and was carried out before
                for kill in fact.kills:
                    self.kill(kill)
        elif fact.job is not None and self._wants(fact.job):
            self._read(job, fact, fact.job)
        elif self._notes.get(fact.jid).killed:
            self._close(fact.jid)  # a batch may have asked for the job before it was killed
        else:
            self._drop(fact.jid)

    def _read(self, job: OpenJob, fact: facts.JobRead, read: Job) -> None:
        now = self._queue.now
        if job.signal:
            job.signal = False
            self._changed(fact.jid)
        job.job = read
        if now >= self._queue.end_of_job(read):
            self._notes.strike(fact.jid, fact.returned, ())
            self._drop(fact.jid, is_over=True)
            return
        job.named |= fact.minions
        self._notes.republished(fact.jid, read.digest)
        if now < job.at + self._patience - _SLACK:
            self._later(fact.jid, job.at + self._patience)
        else:
            self._judge(job, read, fact)

    def _judge(self, open_job: OpenJob, job: Job, fact: facts.JobRead) -> None:
        note, known = self._notes.get(job.jid), self._queue.minions_of(job.jid)
        missing = fact.missing.difference(known, note.settled, self._queue.settings.syndics)
        # The note keeps minions that are neither missing nor struck off here: their keys may be accepted later.
        self._notes.strike(job.jid, fact.returned, known)
        open_job.begun -= fact.returned
        unasked = missing - open_job.surveyed
        # Claims of minions whose keys are not accepted now count too: the job may be found again once they are accepted.
        claims = open_job.begun.difference(known, note.settled)
        self._notes.add(job.jid, self._queue.end_of_job(job), claims)
        if unasked:
            open_job.stage, open_job.asking = Stage.TO_ASK, set(unasked)
            self._timers.no_later(("survey",), self._queue.now + _GATHER)
            return
        # Some minions report only after the survey, in reply to another question, that they have begun the job. Their
        # entries count as under way, so they are asked before the job is held: claims can be forged, and a minion with
        # records knows better.
        there = missing & open_job.idle
        begun = "it has begun the job, and no longer runs it"
        self._owe(open_job, job, there, begun, "it is there, but has neither run nor returned the job", alive=True)
        if open_job.is_overtaken:
            self._later(job.jid, self._queue.now)
        else:
            self._close(job.jid)

    def _owe(
        self, open_job: OpenJob, job: Job, minions: Iterable[str], begun: str, missed: str, alive: bool = False
    ) -> None:
        """
        Queue a job for minions. Where an operator has killed it, the entry is cancelled in that operator's name.

        :param begun: the reason for minions that have begun it. ``missed``: the reason for others.
        """
        for minion in sorted(minions):
            note = self._notes.get(job.jid)  # it may change from one minion to the next
            if minion in note.settled:
                continue
            if minion in note.killed:
                self._owing.owe(job, minion, State.CANCELLED, f"killed by {note.killed[minion][0]}")
            elif minion in note.begun or minion in open_job.begun:
                self._notes.add(job.jid, self._queue.end_of_job(job), (minion,))  # there may be no room for an entry
                self._owing.owe(job, minion, State.RUNNING, begun, alive)
            else:
                self._owing.owe(job, minion, State.PENDING, missed, alive)
        self._notes.strike(job.jid, (), self._queue.minions_of(job.jid))  # not those for which there was no room

    def kill(self, kill: facts.Kill) -> None:
        """Cancel what an operator has killed: at once where there are entries, elsewhere once the job is read."""
        kill, jids = dataclasses.replace(kill, at=min(kill.at, self._queue.now)), [kill.jid]
        if not kill.jid:
            waiting = {jid for jid, job in self.open.items() if not job.signal and job.at <= kill.at}
            jids = sorted(waiting.union(jid for jid, note in self._notes.by_jid.items() if note.begun))
        killed = dict.fromkeys(sorted(kill.minions), (kill.user, kill.at))
        for jid in jids:
            # The note is stored before the signal counts as settled. The look strikes off minions that returned the job.
            self._notes.add(jid, self._queue.now + self._queue.settings.ttl, killed=killed)
            self._look_now(jid)
        self._owing.killed(kill)

    # -- surveys ------------------------------------------------------------------------------------------------------

    def survey(self) -> None:
        """Begin a survey for all jobs that wait for one."""
        self._surveys += 1
        minions: set[str] = set()
        for job in self.open.values():
            if job.stage is Stage.TO_ASK:
                job.stage, job.survey = Stage.ASKING, self._surveys
                minions |= job.asking
        if minions:
            self._queue.want(facts.Inquire(self._surveys, tuple(sorted(minions))))

    def surveyed(self, fact: facts.Surveyed) -> None:
        """Queue the jobs for the minions that did not answer."""
        for minion, jids in fact.running.items():
            for jid in jids:
                self.begun(jid, minion)  # even if the minion was not asked about that job
        for job in list(self.open.values()):
            if job.stage is Stage.ASKING and job.survey == fact.number and job.job is not None:
                self._surveyed(job, job.job, fact)

    def _surveyed(self, open_job: OpenJob, job: Job, fact: facts.Surveyed) -> None:
        jid = job.jid
        if open_job.asking & fact.unasked:
            self._later(jid, self._queue.now + AGAIN)
            return
        asked, open_job.asking = open_job.asking, set()
        open_job.surveyed |= asked
        # Including minions that were asked about other jobs only: a further part of this job may be recorded later.
        running = {minion for minion in open_job.begun if jid in fact.running.get(minion, ())}
        silent = asked - fact.running.keys()
        open_job.idle |= asked - running - silent
        # Claims that came since the job was read, including those of minions whose keys are not accepted now.
        claims = open_job.begun.difference(self._queue.minions_of(jid), self._notes.get(jid).settled)
        self._notes.add(jid, self._queue.end_of_job(job), running | claims)
        begun = "it has begun the job, and does not answer"
        self._owe(open_job, job, silent, begun, "it did not return the job and does not answer")
        if open_job.stage is not Stage.ASKING:
            return  # it was published again meanwhile
        if open_job.idle:
            self._later(jid, self._queue.now + GRACE)
        else:
            self._close(jid)

    def unreadable(self, jid: str) -> None:
        """A job could not be read: try again later."""
        job = self.open.get(jid)
        if job is not None and job.stage is Stage.READING:
            self._later(jid, self._queue.now + (_KILL_AGAIN if job.signal else AGAIN))

    def _later(self, jid: str, at: float) -> None:
        self.open[jid].stage = Stage.WAITING
        self._timers.set(("open", jid), at)

    def _drop(self, jid: str, is_over: bool = False) -> None:
        """Close a job that no minion is owed, and report who has begun it if its time ``is_over``."""
        self._close(jid)
        note = self._notes.get(jid)
        if note.begun and (is_over or self._queue.now >= note.until):
            some = ", ".join(sorted(note.begun)[:5])
            begun = f"{len(note.begun)} minions have begun job {jid} and not returned it in its time to live: {some}"
            self._queue.want(facts.Warn(begun))
        self._notes.drop(jid)

    def _changed(self, jid: str) -> None:
        self._queue.changed[Key(Kind.OPEN, jid)] = None

    def _close(self, jid: str) -> None:
        del self.open[jid]
        self._changed(jid)
        self._timers.cancel(("open", jid))
