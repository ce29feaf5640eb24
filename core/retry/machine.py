"""
The retry machine: facts in, effects out, time as an argument. Which part takes which fact is told at the end of this file.
The parts, which are as pure, return what follows; this file passes it on:

    capture.py  who is owed a job                      queue.py    what is owed, until when, and what is stored
    entry.py    the states of an entry                 backlog.py  what one minion is owed
    turns.py    when a replay begins                   replay.py   looks, questions, and what follows from them
    publishing.py  from the turn to send to a receipt  ends.py     how a replay ends
    steps.py    the steps of a replay                  verdict.py  what is concluded where no return comes
    looks.py    looks at the job cache that are shared outbox.py   what is published, how fast
    timers.py   what is due when                   openings.py  which jobs may be replayed now

Pure: stdlib only, no clock, no I/O. It must never send a job to a minion while that minion has another one of its queue
under way, nor one of which it is known that it was begun, unless ``retry_interrupted`` asks for that.

One minion has one replay at most; minions that are owed the same job get it together, in one publish. When no receipt shows,
and whenever it is in doubt what has become of a job that was published (the minion or this engine restarted, events were
lost, a sweep), the job cache is looked at and the minion is asked again: then the answer decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from saltext.jobs.core.retry.backlog import Backlog
from saltext.jobs.core.retry.capture import AGAIN, Capture, Outcome, Owed, Survey
from saltext.jobs.core.retry.ends import Ends
from saltext.jobs.core.retry.entry import ENDED, UNDER_WAY, Entry, Job, State
from saltext.jobs.core.retry.facts import (
    TRIGGERED_BY,
    Acknowledged,
    Adopted,
    Answer,
    Asked,
    CancelRequested,
    CheckKeys,
    Claimed,
    Effect,
    EnqueueRequested,
    Fact,
    Gap,
    Inquire,
    JobRead,
    KeysRead,
    Kill,
    LookedUp,
    OpeningFound,
    PauseRequested,
    Ping,
    Published,
    PurgeRequested,
    Refused,
    ReplayRequested,
    Restored,
    ResumeRequested,
    RetryRequested,
    ReturnHeard,
    SendFailed,
    Sent,
    Sign,
    SignOfLife,
    Surveyed,
    Tick,
    Unreadable,
    Warn,
)
from saltext.jobs.core.retry.looks import Hearsay
from saltext.jobs.core.retry.notes import Note
from saltext.jobs.core.retry.openings import Openings
from saltext.jobs.core.retry.outbox import Kind, Outbox
from saltext.jobs.core.retry.publishing import Publishing
from saltext.jobs.core.retry.queue import Queue
from saltext.jobs.core.retry.replay import Replays
from saltext.jobs.core.retry.timers import Timers
from saltext.jobs.core.retry.turns import Turns

if TYPE_CHECKING:
    from saltext.jobs.core.settings import RetrySettings

#: Seconds for which it is remembered that a minion started.
_JUST_STARTED = 60.0
#: Seconds for which jobs are gathered into one survey.
_GATHER = 0.5
#: Seconds before keys that were not found are looked for again.
_KEYS_AGAIN = 30.0


class Retry:
    """
    The retry queue of one master.

    :param settings: the options under ``job_retry``.
    :param patience: seconds after which a job that was published should have been returned or be running.
    :param paused: whether replays begin paused.
    :param acks: whether minions say when they begin a job.
    """

    def __init__(self, settings: RetrySettings, patience: float, paused: bool = False, acks: bool = True) -> None:
        self.settings = settings
        self._timers = Timers()
        self.openings = Openings(settings, self._timers)
        self.queue = Queue(settings, self._timers, self.openings, acks)
        self.outbox = Outbox(settings.rate, self._timers)
        heard = Hearsay(self._timers)
        self.turns = Turns(settings, self.queue, self._timers, self.openings, paused)
        self.ends = Ends(settings, self.queue, self.outbox, self._timers, self.turns, heard)
        self.publishing = Publishing(self.queue, self._timers, self.turns, self.ends, acks)
        self.replays = Replays(
            settings, self.queue, self.outbox, self._timers, self.turns, self.ends, self.publishing, heard
        )
        self.capture = Capture(settings, patience, self._timers)
        self._out: list[Effect] = []  # of the present step
        self._started: dict[str, float] = {}  # minion -> when it started, since ``_generation``
        self._started_before: dict[str, float] = {}  # likewise, in the time before that
        self._generation = 0.0
        self._keyless: set[str] = set()  # minions whose key was not found when the keys were last read

    # -- what the shell asks ------------------------------------------------------------------------------------------

    @property
    def next_due(self) -> float | None:
        """When a Tick is next due, in Unix time."""
        return self._timers.next()

    @property
    def jobs(self) -> dict[str, Job]:
        """The jobs that somebody is owed, by jid."""
        return self.queue.jobs

    @property
    def backlogs(self) -> dict[str, Backlog]:
        """What is owed, by minion."""
        return self.queue.backlogs

    @property
    def total(self) -> int:
        """The number of entries."""
        return self.queue.total

    @property
    def publishes(self) -> int:
        """The number of publishes so far."""
        return self.outbox.publishes

    def entry(self, minion: str, jid: str) -> Entry | None:
        """Return an entry of the queue."""
        return self.queue.entry(minion, jid)

    def entries(self) -> Iterator[Entry]:
        """Yield all entries."""
        return self.queue.entries()

    def minions_of(self, jid: str) -> list[str]:
        """Return the minions that are owed a job."""
        return self.queue.minions_of(jid)

    def claims_of(self, jid: str) -> dict[str, float]:
        """Return ``{minion: when it was claimed}`` of the entries of a job that are under way."""
        return self.queue.claims_of(jid)

    def knows(self, jid: str) -> bool:
        """Tell whether the load of a job is still needed."""
        return jid in self.jobs or jid in self.capture.open

    def note(self, jid: str) -> Note | None:
        """Return the note about a job."""
        return self.capture.notes.get(jid)

    # -- the main path ------------------------------------------------------------------------------------------------

    def step(self, fact: Fact, now: float) -> list[Effect]:
        """
        Take a fact that has become known at ``now``, and return what is to be done.

        Effects are begun in this order; an Answer waits for the Saves before it, nothing else waits.
        """
        self.queue.now = max(now, self.queue.now)
        self._out = []
        _HANDLERS[type(fact)](self, fact)
        for key in self._timers.due(self.queue.now):
            _TIMERS[key[0]](self, *key[1:])
        self._release()
        return [*self.queue.take_due(), *self._out]

    def _release(self) -> None:
        """Publish what may be published by now."""
        for turn in self.outbox.release(self.queue.now):
            if turn.kind is Kind.JOB:
                self._out += self.publishing.claim(turn.jid, turn.minions)
            elif turn.kind is Kind.PING:
                self._out.append(Ping(turn.minions))
            elif turn.kind is Kind.SURVEY:
                number, minions = self.capture.survey()
                if minions:
                    self._out.append(Inquire(number, minions))
            else:
                self._out.append(self.replays.ask(turn.jid, turn.minions))

    # -- facts from the bus, and what it does not tell ----------------------------------------------------------------

    def _published(self, fact: Published) -> None:
        self.capture.published(fact, self.queue.now)

    def _job_read(self, fact: JobRead) -> None:
        self._follow(self.capture.read(fact, self.queue.minions_of(fact.jid), self.queue.now))

    def _surveyed(self, fact: Surveyed) -> None:
        self._follow(self.capture.surveyed(fact, self.queue.now))

    def _open_due(self, jid: str) -> None:
        self._follow(self.capture.due(jid))

    def _note_due(self, jid: str) -> None:
        self._follow(self.capture.note_due(jid))

    def _follow(self, outcomes: Iterable[Outcome]) -> None:
        """Do what follows from what has become of a published job."""
        for outcome in outcomes:
            if isinstance(outcome, Survey):
                self._timers.no_later(("survey",), self.queue.now + _GATHER)
            elif isinstance(outcome, Owed):
                self._owe(outcome)
            elif isinstance(outcome, Kill):
                self._killed(outcome)
            else:
                self._out.append(outcome)

    def _owe(self, owed: Owed) -> None:
        job, state, reason = owed.job, owed.state, owed.reason
        if job.obstacle and state is State.PENDING:
            state, reason = State.DEAD, job.obstacle
        self._add(job, owed.minions, reason, job.published_at + self.capture.ttl_of(job), state)
        for minion in owed.minions:
            # It may have started while it was asked.
            if owed.alive or self._has_just_started(minion):
                self.turns.alive(minion)

    def _killed(self, kill: Kill) -> None:
        for minion in sorted(kill.minions):
            for entry in self.queue.of(minion, kill.jid or None):
                if entry.state in UNDER_WAY or (kill.jid and entry.state not in ENDED):
                    self.ends.end(entry, State.CANCELLED, f"killed by {kill.user}")

    def _add(
        self, job: Job, minions: Iterable[str], reason: str, expires_at: float, state: State = State.PENDING
    ) -> list[Entry]:
        """Queue a job for minions, and return its new entries."""
        queued = self.queue.add(job, minions, reason, expires_at)
        for entry in queued:
            if state is State.RUNNING:
                self.queue.move(entry, state, reason)
            elif state is not State.PENDING:
                self.ends.end(entry, state, reason)
            for older in self.queue.superseded_by(entry):
                self.ends.end(older, State.CANCELLED, f"the same job was published again: {job.jid}")
        return queued

    def _acknowledged(self, fact: Acknowledged) -> None:
        if self.queue.has(fact.minion, fact.jid):
            self.replays.acknowledged(fact)
        else:
            self.capture.begun(fact.jid, fact.minion)

    def _sign_of_life(self, fact: SignOfLife) -> None:
        if TRIGGERED_BY[fact.sign].isdisjoint(self.settings.triggers):
            return
        start = fact.sign is Sign.START
        if start:
            self._remember_start(fact.minions)
        for minion in fact.minions:
            self.turns.alive(minion, start, settled=fact.sign is Sign.ANSWER)

    def _remember_start(self, minions: Iterable[str]) -> None:
        """Remember for a while that minions have started. Two generations, so that none has to be looked through."""
        if self.queue.now > self._generation + _JUST_STARTED:
            self._started_before, self._started, self._generation = self._started, {}, self.queue.now
        self._started.update(dict.fromkeys(minions, self.queue.now))

    def _has_just_started(self, minion: str) -> bool:
        at = self._started.get(minion) or self._started_before.get(minion, 0.0)
        return at > self.queue.now - _JUST_STARTED

    def _gap(self, _fact: Gap) -> None:
        for jid in list(self.queue.jobs):
            self._out.append(self.replays.look_for_returns(jid, self.queue.minions_of(jid)))
        for minion, backlog in self.queue.backlogs.items():
            if backlog.replay is not None:
                self.replays.doubt(minion)
            elif any(entry.state in UNDER_WAY for entry in backlog.entries.values()):
                self.turns.wake(minion, self.queue.now)
        self._ping_all()

    def _sweep(self) -> None:
        self._timers.set(("sweep",), self.queue.now + self.settings.sweep)
        self.capture.recheck(self.queue.now)
        if self.queue.backlogs:
            self._out.append(CheckKeys(tuple(self.queue.backlogs)))
            self._gap(Gap())

    def _ping_all(self) -> None:
        self._ping(minion for minion, backlog in self.queue.backlogs.items() if backlog.replay is None)

    def _ping(self, minions: Iterable[str]) -> None:
        """Find out who of these is there, as far as anything could be sent to them now."""
        self.outbox.ping(minion for minion in minions if self.turns.first(self.queue.backlogs[minion]) is not None)

    def _opening_due(self, window: str, timezone: str) -> None:
        self._out.append(self.openings.due(window, timezone, self.queue.now))

    def _opening_found(self, fact: OpeningFound) -> None:
        is_open, jids = self.openings.found(fact, self.queue.now)
        for jid in jids:
            if is_open:
                self._ping(m for m in self.queue.minions_of(jid) if self.queue.backlogs[m].replay is None)
            else:
                self.ends.shut(jid)

    def _claimed(self, fact: Claimed) -> None:
        self._out += self.publishing.claimed(fact)

    def _company_due(self, jid: str) -> None:
        self._out += self.replays.company_due(jid)

    def _look_due(self, jid: str) -> None:
        self._out += self.replays.look_due(jid)

    def _unreadable(self, fact: Unreadable) -> None:
        self._follow(self.capture.unreadable(fact, self.queue.now))
        self.replays.unreadable(fact)

    def _keys_read(self, fact: KeysRead) -> None:
        """A key is gone when it is not found twice; that all are gone at once says that they could not be read."""
        known = self.queue.backlogs.keys()
        gone = fact.gone & known
        if len(known) > 1 and gone == known:
            self._out.append(Warn(f"None of the {len(known)} minions with a queue has a key: that is not believed"))
            return
        suspects, self._keyless = self._keyless, set(gone)
        for minion in sorted(gone & suspects):
            for entry in self.queue.of(minion, None):
                if entry.state not in ENDED:
                    self.ends.end(entry, State.CANCELLED, "the minion's key was deleted")
                self._remove(entry)
        if self._keyless - suspects:
            self._timers.set(("keys",), self.queue.now + _KEYS_AGAIN)

    def _check_keys(self) -> None:
        if self._keyless:
            self._out.append(CheckKeys(tuple(self.queue.backlogs)))

    def _remove(self, entry: Entry) -> None:
        """Forget an entry that was not returned: it must not be queued again when its job is looked at."""
        job = self.queue.jobs[entry.jid]
        self.ends.remove(entry)
        if self.queue.now < job.published_at + self.capture.ttl_of(job):
            self._follow(self.capture.settled(job, entry.minion))

    def _refused(self, fact: Refused) -> None:
        """What cannot be stored cannot be claimed either, and so is never published."""
        for minion in self.queue.minions_of(fact.jid):
            entry = self.queue.entry(minion, fact.jid)
            if entry is not None and entry.state not in ENDED:
                self.ends.end(entry, State.DEAD, fact.reason)

    # -- facts from the store and from operators ----------------------------------------------------------------------

    def _restored(self, fact: Restored) -> None:
        self._take_up(fact)
        self.capture.restore(fact.notes, self.queue.now)
        # What was read needs no writing.
        self.queue.take_changes()

    def _adopted(self, fact: Adopted) -> None:
        self._out.append(Answer(self._take_up(fact)))

    def _take_up(self, fact: Restored | Adopted) -> int:
        jobs = {job.jid: job for job in fact.jobs}
        new = [e for e in fact.entries if not self.queue.has(e.minion, e.jid) and e.jid in jobs]
        for entry in new:
            self.queue.put(jobs[entry.jid], entry)
            if entry.state in UNDER_WAY:
                self.turns.wake(entry.minion, self.queue.now)
        self._timers.set(("sweep",), self.queue.now)
        return len(new)

    def _enqueue(self, fact: EnqueueRequested) -> None:
        ttl = self.capture.ttl_of(fact.job)
        job = self.queue.jobs.get(fact.job.jid, fact.job)
        minions = list(dict.fromkeys(fact.minions))
        again = [entry for minion in minions if (entry := self.queue.entry(minion, job.jid)) and entry.state in ENDED]
        for entry in again:
            self.queue.renew(entry, self.queue.now + ttl, fact.reason)
        new = [minion for minion in minions if not self.queue.has(minion, job.jid)]
        queued = self._add(job, new, fact.reason, self.queue.now + ttl)
        for entry in (*again, *queued):
            entry.named, entry.asker = fact.named, fact.asker
        self._ping(minion for minion in minions if minion in self.queue.backlogs)
        self._out.append(Answer(len(queued) + len(again)))

    def _replay(self, fact: ReplayRequested) -> None:
        pending = [entry for entry in self.queue.of(fact.minion, None) if entry.state is State.PENDING]
        for entry in pending:
            entry.next_at = 0.0
        if pending:
            backlog = self.queue.backlogs[fact.minion]
            backlog.not_before, backlog.urged = 0.0, self.queue.now
            backlog.at_any_time.update(entry.jid for entry in pending)
            self.turns.wake(fact.minion, self.queue.now)
        self._out.append(Answer(len(pending)))

    def _retry(self, fact: RetryRequested) -> None:
        found = [entry for entry in self.queue.of(fact.minion, fact.jid) if entry.state in (State.HELD, State.DEAD)]
        for entry in found:
            ttl = self.capture.ttl_of(self.queue.jobs[entry.jid])
            entry.asker = fact.asker or entry.asker
            self.queue.renew(entry, self.queue.now + ttl, "an operator wants it tried again")
        self._ping(entry.minion for entry in found)
        self._out.append(Answer(len(found)))

    def _cancel(self, fact: CancelRequested) -> None:
        found = [entry for entry in self.queue.of(fact.minion, fact.jid) if entry.state not in ENDED]
        for entry in found:
            late = "; it may have been delivered" if entry.state in UNDER_WAY else ""
            self.ends.end(entry, State.CANCELLED, f"by an operator{late}")
        self._out.append(Answer(len(found)))

    def _purge(self, fact: PurgeRequested) -> None:
        found = [entry for entry in self.queue.of(None, None) if entry.state.value in fact.states]
        for entry in found:
            self._remove(entry)
        self._out.append(Answer(len(found)))

    def _pause(self, _fact: PauseRequested) -> None:
        self._out.append(Answer(not self.turns.paused))
        self.ends.pause()

    def _resume(self, _fact: ResumeRequested) -> None:
        self._out.append(Answer(self.turns.paused))
        self.turns.paused = False
        self._ping_all()

    def _tick(self, _fact: Tick) -> None:
        pass  # what is due is done after every fact

    def _end_due(self, minion: str, jid: str) -> None:
        entry = self.queue.entry(minion, jid)
        if entry is None or entry.state in UNDER_WAY:
            return
        if entry.state in ENDED:
            self._remove(entry)
            return
        # It expires if the job cache has no return of it, once that can be read.
        self._out.append(self.replays.look_for_returns(jid, (minion,)))
        self._timers.set(("end", minion, jid), self.queue.now + AGAIN)


_HANDLERS: dict[type, Callable[[Retry, Any], None]] = {
    Published: Retry._published,
    ReturnHeard: lambda self, fact: self.replays.return_heard(fact),
    Acknowledged: Retry._acknowledged,
    SignOfLife: Retry._sign_of_life,
    Gap: Retry._gap,
    JobRead: Retry._job_read,
    LookedUp: lambda self, fact: self.replays.looked_up(fact),
    Asked: lambda self, fact: self.replays.asked(fact),
    Surveyed: Retry._surveyed,
    Claimed: Retry._claimed,
    Sent: lambda self, fact: self.publishing.sent(fact),
    SendFailed: lambda self, fact: self.publishing.send_failed(fact),
    Unreadable: Retry._unreadable,
    KeysRead: Retry._keys_read,
    Refused: Retry._refused,
    OpeningFound: Retry._opening_found,
    Restored: Retry._restored,
    Adopted: Retry._adopted,
    EnqueueRequested: Retry._enqueue,
    ReplayRequested: Retry._replay,
    RetryRequested: Retry._retry,
    CancelRequested: Retry._cancel,
    PurgeRequested: Retry._purge,
    PauseRequested: Retry._pause,
    ResumeRequested: Retry._resume,
    Tick: Retry._tick,
}

_TIMERS: dict[str, Callable[..., None]] = {
    "open": Retry._open_due,
    "note": Retry._note_due,
    "keys": Retry._check_keys,
    "opening": Retry._opening_due,
    "end": Retry._end_due,
    "minion": lambda self, minion: self.replays.begin(minion),
    "company": Retry._company_due,
    "look": Retry._look_due,
    "heard": lambda self, minion, jid: self.replays.heard_due(minion, jid),
    "replay": lambda self, minion: self.replays.doubt(minion),
    "sweep": Retry._sweep,
    "survey": lambda self: self.outbox.survey(),
    "rate": lambda self: None,
}
