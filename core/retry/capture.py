"""
From a published job to the minions that missed it, and to their entries.

A job is left alone until its deadline, then read in the log. Minions without a return are asked which jobs they run, in one
question about all jobs that are due. Those that do not run it, or do not answer, get a moment more, since returns may be on
their way; without a return by then they are owed it, and if they are known to have begun it, it was interrupted. Publishes
and kills come in the master's order: a kill concerns what was published before.

It must never conclude from a bus event who is owed a job: any accepted minion can forge events. Nor must it let a job be
owed again to a minion whose entry an operator has removed, or change what is known of a job without marking it to be stored.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

from saltext.jobs.core import lines
from saltext.jobs.core.display.text import some
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import ENDED, UNDER_WAY, Entry, Job, Key, Killed, Kind, State, Watched
from saltext.jobs.core.retry.queue import Queue, matches
from saltext.jobs.core.retry.replay import Replays, Turns
from saltext.jobs.core.retry.waiting import AGAIN, GRACE

log = lines.logger(__name__)

#: Seconds for which jobs are gathered into one survey.
_GATHER = 0.5


class Capture:
    """The jobs that are watched. Sets the timers ``("job", jid)``, ``("survey",)``. ``patience``: seconds to a deadline."""

    def __init__(self, queue: Queue, turns: Turns, replays: Replays, patience: float) -> None:
        self._queue, self._timers, self._patience = queue, queue.timers, patience
        self._turns, self._replays = turns, replays
        self.jobs: dict[str, Watched] = {}
        self.open: dict[str, Watched] = {}  # those whose outcome is not known yet

    def restore(self, jobs: Mapping[str, Watched]) -> None:
        """Take up what is stored. A killed job is looked at again: what became of it may not be known yet."""
        for jid, job in jobs.items():
            self.jobs[jid] = job
            if job.at > -math.inf:
                self.open[jid] = job
                self._later(jid, max(self._queue.now, job.at + self._patience))
            elif job.killed:
                self.look(jid)
            else:
                self._timers.set(("job", jid), job.until)

    # -- what is remembered -------------------------------------------------------------------------------------------

    def _noted(self, jid: str, until: float) -> Watched:
        """Return what is known of a job, to be changed and remembered for at least as long as the job can be owed."""
        job = self.jobs.setdefault(jid, Watched())
        job.until = max(job.until, until)
        self._changed(jid)
        if jid not in self.open:
            self._timers.set(("job", jid), job.until)
        return job

    def _strike(self, jid: str, minions: Iterable[str]) -> None:
        """Forget that minions have begun a job: they returned it, or have an entry. Kills stay: a return may get lost."""
        job = self.jobs[jid]
        job.claims.difference_update(minions)
        job.begun.difference_update(minions)
        self._changed(jid)

    def begun(self, jid: str, minion: str, proven: bool) -> None:
        """Note a claim that a minion has begun a job. The minion has no entry for the job."""
        job = self.open.get(jid)
        # It was not sent to others, as far as is known: their claims are forged, but not their answers.
        if job is not None and (proven or minion in job.named):
            job.claims.add(minion)

    def started(self, minion: str) -> None:
        """Note the start of a minion: it may miss the survey."""
        for job in self.open.values():
            if minion in job.named:
                job.started.add(minion)

    def recheck(self) -> None:
        """Look again at the jobs that minions without an entry have begun."""
        for jid, job in list(self.jobs.items()):
            if job.begun:
                self.look(jid)

    def look(self, jid: str) -> None:
        """Look at a job now, unless it is open: an open job is looked at when it is due."""
        if jid not in self.open:
            self.due(jid)

    def _changed(self, jid: str) -> None:
        self._queue.changed[Key(Kind.WATCHED, jid)] = None

    # -- a job's way --------------------------------------------------------------------------------------------------

    def published(self, fact: facts.Published) -> None:
        """Open a job. An open one gets a new deadline: what is being read or asked now does not count for this publish."""
        now, jid = self._queue.now, fact.jid
        at = min(fact.at, now)  # the clock may have been set back since
        job = self.open[jid] = self.jobs.setdefault(jid, Watched())
        job.named.update(fact.minions)
        job.killed |= {name: job.killed[name]._replace(again=True) for name in job.killed.keys() & set(fact.minions)}
        if at > job.at:  # what was said before does not count for this publish
            job.at, job.answers = at, {}
        self._changed(jid)
        self._later(jid, max(now, at + self._patience))

    def due(self, jid: str) -> None:
        """Read a job at its deadline, or when the note about it ends: it may be owed for longer than the note says."""
        job = self.open[jid] = self.jobs.setdefault(jid, Watched())
        job.awaits = facts.Read(jid)
        self._queue.want(job.awaits)

    def read(self, effect: facts.Read, fact: facts.JobRead) -> None:
        """Go on with what the log has of a job."""
        jid, now, read, job = effect.jid, self._queue.now, fact.job, self.open.get(effect.jid)
        if job is None or job.awaits is not effect:
            return
        job.awaits = None
        self._strike(jid, fact.returned)
        if read is None or not self.wants(read) or now >= self._queue.end_of_job(read):
            self._close(jid)
        else:
            job.named |= fact.minions.keys()
            # Order and times must show that it was published since: the clock may have been set back.
            back = {name for name, kill in job.killed.items() if kill.again and kill.at < fact.minions.get(name, 0.0)}
            job.killed = {name: kill for name, kill in job.killed.items() if name not in back}
            self._judge(job, read, fact)

    def wants(self, job: Job) -> bool:
        """Tell whether a job is kept for absent minions."""
        if job.limits.off or job.kept_out or not job.funs:
            return False
        settings = self._queue.settings
        included = all(matches(fun, settings.include) for fun in job.funs)
        return job.limits.given or (included and not any(matches(fun, settings.exclude) for fun in job.funs))

    def _judge(self, watched: Watched, job: Job, fact: facts.JobRead) -> None:
        """Have those asked that have not returned the job; once they are, queue it for those that do not run it."""
        ended = self._queue.done.items()  # that is not stored yet
        done = (key.minion for key, record in ended if (key.jid, record["state"]) == (job.jid, State.DONE.value))
        known = [*self._queue.minions_of(job.jid), *done]
        missing = fact.missing.difference(known, watched.settled, self._queue.settings.syndics)
        # Claims of minions whose keys are not accepted now count too: the job may be found again once they are accepted.
        begun = watched.claims.difference(known, watched.settled)
        self._noted(job.jid, self._queue.end_of_job(job)).begun |= begun
        if unasked := missing - watched.answers.keys():
            watched.asking = unasked
            self._timers.no_later(("survey",), self._queue.now + _GATHER)
            return
        # Entries of minions that report only later that they have begun the job count as under way, so these are asked
        # before it is held: claims can be forged, and a minion with records knows better.
        for minion in sorted(missing):
            if watched.answers[minion] is not True:
                self._owe(watched, job, minion)
        self._strike(job.jid, self._queue.minions_of(job.jid))  # not those for which there was no room
        self._close(job.jid)

    def failed(self, fact: facts.Failed) -> None:
        """A job could not be read, or those of a survey not be asked about: try again later."""
        for jid in self._awaiting(fact.effect):
            self._later(jid, self._queue.now + AGAIN)

    def _awaiting(self, effect: facts.Effect) -> list[str]:
        return [jid for jid, job in self.open.items() if job.awaits is effect]

    def _later(self, jid: str, at: float) -> None:
        job = self.open[jid]
        job.awaits, job.asking = None, frozenset()
        self._timers.set(("job", jid), at)

    def _close(self, jid: str) -> None:
        """Stop watching a job, and keep only what must be remembered of it, as long as it can be owed."""
        del self.open[jid]
        job = self.jobs[jid] = self.jobs[jid].closed()
        is_over = self._queue.now >= job.until
        if is_over and job.begun:
            told = some(sorted(job.begun), 5)
            log.warning("Job %s was begun, and not returned in its time to live: %s", jid, told)
        if (job.begun or job.settled or job.killed) and not is_over:
            self._timers.set(("job", jid), job.until)
        else:
            self._timers.cancel(("job", jid))
            del self.jobs[jid]
        self._changed(jid)

    # -- surveys ------------------------------------------------------------------------------------------------------

    def survey(self) -> None:
        """Begin a survey for all jobs that wait for one."""
        waiting = [job for job in self.open.values() if job.asking and job.awaits is None]
        if waiting:
            survey = facts.Inquire(tuple(sorted(frozenset().union(*(job.asking for job in waiting)))))
            for job in waiting:
                job.awaits = survey
            self._queue.want(survey)

    def surveyed(self, survey: facts.Inquire, running: Mapping[str, frozenset[str]]) -> None:
        """Read the jobs of a survey again soon: returns of minions that do not run them may be on the way."""
        for jid in self._awaiting(survey):
            job = self.open[jid]
            told = ((minion, running.get(minion)) for minion in job.asking)
            job.answers.update((minion, None if jids is None else jid in jids) for minion, jids in told)
            self._later(jid, self._queue.now + GRACE)

    # -- entries come, and go -----------------------------------------------------------------------------------------

    def _owe(self, watched: Watched, job: Job, minion: str) -> None:
        """Queue a job for a minion that has missed it."""
        is_there = watched.answers[minion] is not None
        state, reason = State.PENDING, "it did not return the job and does not answer"
        if minion in watched.killed:
            state, reason = State.CANCELLED, f"killed by {watched.killed[minion].user}"
        elif minion in watched.begun:
            state = State.RUNNING
            reason = f"it has begun the job, and {'no longer runs it' if is_there else 'does not answer'}"
        elif job.obstacle:
            state, reason = State.DEAD, job.obstacle
        elif is_there:
            reason = "it is there, does not run the job and has not returned it"
        self.add(job, minion, reason, self._queue.end_of_job(job), state)
        if is_there or minion in watched.started:  # it may have started while the question was under way
            self._turns.sign_of_life((minion,))

    def add(self, job: Job, minion: str, reason: str, expires_at: float, state: State = State.PENDING) -> Entry | None:
        """Queue a job for a minion that has no entry for it, and return the new one, if there is room."""
        entry = self._queue.add(job, minion, reason, expires_at)
        if entry is None:
            return None
        if (watched := self.jobs.get(job.jid)) is not None and minion in watched.settled:
            watched.settled.discard(minion)  # else the next engine would take the entry for one that was removed
            self._changed(job.jid)
        if state is State.RUNNING:
            self._queue.move(entry, state, reason)
        elif state is not State.PENDING:
            self._replays.end(entry, state, reason)
        for older in self._queue.superseded_by(entry) if entry.state not in ENDED else ():
            self._replays.end(older, State.CANCELLED, f"the same job was published again: {job.jid}")
        return entry

    def remove(self, entry: Entry) -> None:
        """Forget an entry without a return. Neither a later look nor what is still stored must queue it again."""
        until = max(self._queue.end_of_job(self._queue.jobs[entry.jid]), entry.expires_at)
        self._replays.remove(entry)
        # Even if its time is over: the job cache may have a newer record, by which the job is owed for longer.
        self._noted(entry.jid, until).settled.add(entry.minion)

    def kill(self, kill: facts.Kill) -> None:
        """Cancel what is killed, but not what was asked for by hand since: entries at once, else once the job is read."""
        kill, jids = dataclasses.replace(kill, at=min(kill.at, self._queue.now)), [kill.jid]
        if not kill.jid:
            waiting = {jid for jid, job in self.open.items() if job.at <= kill.at}
            jids = sorted(waiting.union(jid for jid, job in self.jobs.items() if job.begun))
        for jid in jids:
            # This is stored before the signal counts as settled. The look strikes off minions that returned the job.
            job = self._noted(jid, self._queue.now + self._queue.settings.ttl)
            # After a gap, the job cache tells of earlier kills than the log has told of.
            for minion in sorted(kill.minions):
                if minion not in job.killed or min(job.killed[minion].at, self._queue.now) <= kill.at:
                    job.killed[minion] = Killed(kill.user, kill.at)
            self.look(jid)
        for entry in [entry for minion in sorted(kill.minions) for entry in self._queue.of(minion, kill.jid or None)]:
            # A job that the queue has not sent runs from the operator's own publish.
            sent_at = entry.sent_at or self._queue.jobs[entry.jid].published_at
            is_there = entry.state in UNDER_WAY or (entry.state is State.PENDING and entry.begun_at > 0.0)
            is_meant = entry.wanted_at <= kill.at if kill.jid else is_there and sent_at <= kill.at
            if is_meant and entry.state not in ENDED:
                self._replays.end(entry, State.CANCELLED, f"killed by {kill.user}")
