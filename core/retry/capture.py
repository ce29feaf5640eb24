"""
From a published job to the minions that missed it.

A job's way: it is left alone until its deadline, then read in the job cache. The minions without a return are asked which
jobs they run, in one question about all jobs whose deadline has come. Those that say nothing are owed the job. Those that
are there but do not run it get a moment for a return that is on its way; if none is there then, they are owed it too, unless
they are known to have begun it: then it was interrupted. What an operator kills is cancelled.

Publishes and kills come in the order in which the master made them: a kill is for what was published before it. Those that
a search of the job cache finds count in the order in which they are found.

It must never conclude from a bus event who is owed a job or who is not: an accepted minion can forge those. The job cache
says it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from saltext.jobs.core.functions import KILLS
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import Job, Key, State
from saltext.jobs.core.retry.notes import Note, Notes
from saltext.jobs.core.retry.open_job import MOST_BEGUN, OpenJob, Stage
from saltext.jobs.core.retry.timers import Timers

if TYPE_CHECKING:
    from saltext.jobs.core.settings import RetrySettings

#: Questions about another job, which mean nothing later on. A waiting ``salt`` command publishes the first one every few
#: seconds.
NEVER = KILLS | {"saltutil.find_job", "saltutil.find_cached_job", "saltutil.is_running", "saltutil.running"}
#: Seconds for which jobs are gathered into one survey.
_GATHER = 0.5
#: Seconds for a return that is on its way.
GRACE = 3.0
#: Seconds before something that could not be read or asked is tried again.
AGAIN = 10.0
#: Seconds before a signal is read, and before one that could not be is tried again: sooner than a replay.
_KILL_DELAY, _KILL_AGAIN = 0.5, 1.0
#: Seconds by which a deadline may be missed.
_SLACK = 1.0
#: Seconds for which the job cache may lack a job that was published.
LATEST = 100.0


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


#: What follows from a fact. A Kill is for the entries that the queue has.
Outcome = facts.Read | facts.Warn | Owed | facts.Kill


class Capture:
    """
    The jobs whose outcome is not known yet, and what is known of minions without an entry.

    :param settings: the options under ``job_retry``.
    :param patience: seconds from a publish to its deadline.
    :param timers: the machine's; the keys ``("open", jid)``, ``("survey",)``, when minions are to be asked which jobs they
        run, and ``("vet",)``, when ``claimed`` is to be told from minions, are set here.
    :param changed: as for Notes.
    """

    def __init__(self, settings: RetrySettings, patience: float, timers: Timers, changed: dict[Key, None]) -> None:
        self._settings, self._patience, self._timers = settings, patience, timers
        self.open: dict[str, OpenJob] = {}
        self.notes = Notes(timers, changed)
        self._surveys = 0
        self._place = 1  # of the newest publish among all that this engine has come to know

    def wants(self, job: Job) -> bool:
        """Tell whether a job is kept for absent minions."""
        if job.limits.off or job.kept_out or not job.funs or NEVER.intersection(job.funs):
            return False
        if job.limits.given:
            return True
        included = all(matches(fun, self._settings.include) for fun in job.funs)
        return included and not any(matches(fun, self._settings.exclude) for fun in job.funs)

    # -- minions without an entry -------------------------------------------------------------------------------------

    def restore(self, notes: Mapping[str, Note], open_jobs: Mapping[str, OpenJob], now: float) -> None:
        """Take up what is stored. What became of a kill may not have been found out yet."""
        for jid, job in open_jobs.items():
            self.open[jid] = job
            self._later(jid, max(now, min(job.at, now) + (0.0 if job.signal else self._patience)))
        for jid, note in notes.items():
            self.notes.restore(jid, note)
            if note.killed:
                self._look_now(jid, now)

    def begun(self, jid: str, minion: str, now: float) -> None:
        """Believe a minion without an entry that says that it begins a job whose outcome is not known yet."""
        job = self.open.get(jid)
        if job is not None:
            job.begun.add(minion)
            # Anybody can say so in any name: those that are no minions are found out when there are many.
            if job.is_to_vet():
                self._timers.no_later(("vet",), now)

    def claimed(self) -> set[str]:
        """Return who has said to begin a job whose outcome is not known yet, where these are many."""
        return {minion for job in self.open.values() if len(job.begun) > MOST_BEGUN for minion in job.begun}

    def forget(self, strangers: Iterable[str]) -> None:
        """Forget those among ``claimed`` that are no minions of this master."""
        for job in self.open.values():
            if len(job.begun) > MOST_BEGUN:
                job.forget(strangers)

    def settled(self, job: Job, minion: str) -> None:
        """Note that a minion is not owed a job any more: its entry is removed, and no return will come."""
        self.notes.add(job.jid, self._end_of(job), settled=(minion,))

    def recheck(self, now: float) -> None:
        """Look again at the jobs that minions had begun: what has become of them?"""
        for jid, note in self.notes.by_jid.items():
            if note.begun:
                self._look_now(jid, now)

    def _look_now(self, jid: str, now: float) -> None:
        """Look at a job, though nothing says that it was published again. An open one is looked at when it is time."""
        if jid not in self.open:
            self.open[jid] = OpenJob(-math.inf, now, self._place)
            self._later(jid, now)

    def ttl_of(self, job: Job) -> float:
        """Return for how many seconds a job is owed."""
        return self._settings.ttl if job.limits.ttl is None else job.limits.ttl

    def _end_of(self, job: Job) -> float:
        """Return the Unix time until which a job is owed."""
        return job.published_at + self.ttl_of(job)

    # -- a job's way --------------------------------------------------------------------------------------------------

    def published(self, fact: facts.Published, now: float) -> None:
        """Open a job, or leave an open one alone until the deadline of this publish as well."""
        self._place += 1
        at = min(fact.at, now)  # the clock may have been set back since
        job = self.open.get(fact.jid)
        if job is None:
            job = self.open[fact.jid] = OpenJob(at, now, self._place)
            job.signal = fact.signal
        job.known_since = now
        if fact.minions is not None:
            job.publishes.append((self._place, fact.work, fact.minions))
        job.published(at)
        job.is_overtaken = job.stage is Stage.READING
        wait = _KILL_DELAY if job.signal else 0.0 if fact.found else self._patience
        if job.stage is Stage.WAITING and (job.signal or fact.found):
            self._timers.no_later(("open", fact.jid), max(now, at + wait))
        elif not job.is_overtaken and not job.signal:
            self._later(fact.jid, max(now, at + wait))

    def due(self, jid: str) -> list[Outcome]:
        """Read a job whose time has come."""
        job = self.open.get(jid)
        if job is None:
            return []
        job.stage, job.is_overtaken = Stage.READING, False
        return [facts.Read(jid, tuple((work, minions) for _, work, minions in job.publishes))]

    def read(self, fact: facts.JobRead, known: Iterable[str], now: float) -> list[Outcome]:
        """Go on with what the job cache knows; ``known`` are the minions for which the queue has an entry of the job."""
        job = self.open.get(fact.jid)
        if job is None or job.stage is not Stage.READING:
            return []
        if job.is_overtaken:
            self._later(fact.jid, now)
            return []
        if fact.kills:
            return self._carry_out(job, fact, now)
        waited = now - job.known_since
        if not fact.recorded and waited < LATEST:
            wait = max(_KILL_DELAY, waited / 4) if job.signal else max(self._patience - waited, waited)
            self._later(fact.jid, now + wait)
            return []
        job.signal = False
        if fact.job is None or not self.wants(fact.job):
            self._drop(fact.jid)
            return []
        # The record's time is that of another process, whose clock may have been set.
        job.job = dataclasses.replace(fact.job, published_at=min(fact.job.published_at, job.since))
        if now >= self._end_of(job.job):
            self._drop(fact.jid)
            return []
        self.notes.spare(fact.jid, job.spared(fact.job.digest))
        if now < job.at + self._patience - _SLACK:
            self._later(fact.jid, job.at + self._patience)
            return []
        return self._judge(job, fact, known, now)

    def _carry_out(self, job: OpenJob, fact: facts.JobRead, now: float) -> list[Outcome]:
        """Kill what a signal is for. One that is only looked at since it was itself killed was carried out long ago."""
        self._drop(fact.jid)  # with the note of those who have killed the kill
        kills = fact.kills if job.at > -math.inf else ()
        found = [self.kill(dataclasses.replace(kill, at=job.since), now, job.place) for kill in kills]
        return [outcome for outcomes in found for outcome in outcomes]

    def _judge(self, job: OpenJob, fact: facts.JobRead, known: Iterable[str], now: float) -> list[Outcome]:
        assert job.job is not None
        note = self.notes.get(fact.jid)
        missing = fact.missing.difference(known, note.settled)
        # One that is neither may have a key that is not accepted now, and be missing again when it is.
        self.notes.strike(fact.jid, fact.returned.union(known))
        if unasked := missing - job.surveyed:  # also one of a further publish whose deadline has passed unseen
            self.notes.add(fact.jid, self._end_of(job.job), job.begun & unasked)
            job.stage, job.asking = Stage.TO_ASK, set(unasked)
            self._timers.no_later(("survey",), now + _GATHER)
            return []
        # Some may have said so only after they were asked, in answer to another question. They are asked about it before it
        # is held: what was heard can be forged, and one that keeps records knows whether it has begun.
        there, begun = missing & job.idle, missing & job.idle & (note.begun | job.begun)
        outcomes = self._explain(job, begun, State.RUNNING, "it has begun the job, and no longer runs it", alive=True)
        reason = "it is there, but has neither run nor returned the job"
        outcomes += self._explain(job, there - begun, State.PENDING, reason, alive=True)
        self.notes.strike(fact.jid, there)
        self._close(fact.jid)
        return outcomes

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

    def kill(self, kill: facts.Kill, now: float, place: int | None = None) -> list[Outcome]:
        """
        Cancel a job that an operator has killed: in the queue at once, for others once it is known what they do.

        :param place: that of the kill among all publishes; None for the end of them.
        """
        place = self._place if place is None else place
        jids = [kill.jid]
        if not kill.jid:
            waiting = {jid for jid, job in self.open.items() if not job.signal and job.place <= place}
            jids = sorted(waiting.union(jid for jid, note in self.notes.by_jid.items() if note.begun))
        outcomes: list[Outcome] = [kill]
        for jid in jids:
            # This is stored before the signal counts as settled; the look sorts out those who have returned the job.
            killed = dict.fromkeys(sorted(kill.minions), kill.user)
            self.notes.add(jid, now + self._settings.ttl, killed=killed)
            if jid in self.open:  # a search may find again what the log has told of
                self.open[jid].killed_at = max(place, self.open[jid].killed_at)
            self._look_now(jid, now)
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

    def surveyed(self, fact: facts.Surveyed, now: float) -> list[Outcome]:
        """Queue the jobs for those that say nothing."""
        for minion, jids in fact.running.items():
            for jid in jids:
                self.begun(jid, minion, now)  # whether or not it was asked about that one
        asking = [jid for jid, job in self.open.items() if job.stage is Stage.ASKING and job.survey == fact.number]
        return [outcome for jid in asking for outcome in self._surveyed(jid, fact, now)]

    def _surveyed(self, jid: str, fact: facts.Surveyed, now: float) -> list[Outcome]:
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
        self.notes.add(jid, self._end_of(job.job), running)
        begun = silent & (self.notes.get(jid).begun | job.begun)
        reason = "it did not return the job and does not answer"
        outcomes = self._explain(job, silent - begun, State.PENDING, reason)
        outcomes += self._explain(job, begun, State.RUNNING, "it has begun the job, and does not answer")
        self.notes.strike(jid, silent)
        if job.idle:
            self._later(jid, now + GRACE)
        else:
            self._close(jid)
        return outcomes

    def unreadable(self, fact: facts.Unreadable, now: float) -> list[Outcome]:
        """Try again later, as long as anybody can be owed the job."""
        job = self.open.get(fact.jid)
        if job is None or job.stage is not Stage.READING:
            return []
        if now > job.since + self._settings.ttl:
            self._close(fact.jid)
            return [
                facts.Warn(
                    f"Who missed job {fact.jid} is not known: the job cache could not be read in its time to live"
                )
            ]
        self._later(fact.jid, now + (_KILL_AGAIN if job.signal else AGAIN))
        return []

    def _later(self, jid: str, at: float) -> None:
        self.open[jid].stage = Stage.WAITING
        self._timers.set(("open", jid), at)

    def _drop(self, jid: str) -> None:
        """Close a job that nobody can be owed."""
        self._close(jid)
        self.notes.drop(jid)

    def _close(self, jid: str) -> None:
        del self.open[jid]
        self._timers.cancel(("open", jid))


def matches(fun: str, globs: Iterable[str]) -> bool:
    """Tell whether a function's name matches one of the globs."""
    return any(fnmatchcase(fun, glob) for glob in globs)
