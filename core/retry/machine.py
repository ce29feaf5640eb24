"""
The retry machine: facts in, effects out, time as an argument. Which part takes which fact is told at the end of this file.
The parts, which are as pure, return what follows; this file passes it on:

    capture.py  who is owed a job                      queue.py    what is owed, until when, and what is stored
    entry.py    the states of an entry                 backlog.py  what one minion is owed
    replay.py   the way of a replay                    steps.py    its steps
    looks.py    looks at the job cache that are shared verdict.py  what is concluded where no return comes
    outbox.py   what is published, how fast            timers.py   what is due when

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
from saltext.jobs.core.retry.capture import Capture, Outcome, Owed, ToAsk
from saltext.jobs.core.retry.entry import ENDED, UNDER_WAY, Entry, Job, State
from saltext.jobs.core.retry.facts import (
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
    JobRead,
    KeysGone,
    LookedUp,
    PauseRequested,
    Ping,
    Published,
    PurgeRequested,
    ReplayRequested,
    Restored,
    ResumeRequested,
    RetryRequested,
    ReturnHeard,
    SendFailed,
    Sent,
    Sign,
    SignOfLife,
    Tick,
    Unreadable,
)
from saltext.jobs.core.retry.outbox import Kind, Outbox
from saltext.jobs.core.retry.queue import Queue
from saltext.jobs.core.retry.replay import Replays
from saltext.jobs.core.retry.timers import Timers

if TYPE_CHECKING:
    from saltext.jobs.core.settings import RetrySettings

#: Seconds for which it is remembered that a minion started, and how many are before old ones are forgotten.
_JUST_STARTED, _MANY = 60.0, 20_000
#: Which of the option ``triggers`` make a sign of life count. An answer to a question of ours always does.
TRIGGERED_BY = {
    Sign.START: {"start", "any"},
    Sign.PRESENCE: {"presence", "any"},
    Sign.ACTIVITY: {"any"},
    Sign.ANSWER: {"start", "presence", "any"},
}


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
        self.queue = Queue(settings, self._timers)
        self.outbox = Outbox(settings.rate, self._timers)
        self.replays = Replays(settings, self.queue, self.outbox, self._timers, acks, paused)
        self.capture = Capture(settings, patience, self._timers)
        self._out: list[Effect] = []  # of the present step
        self._started: dict[str, float] = {}  # minion -> when it started, for a while

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

    def checkpoint(self, now: float) -> float:
        """Return the time such that the store holds what is owed of every job published before it."""
        return self.capture.checkpoint(now)

    def closed_since(self, at: float) -> dict[str, float]:
        """Return ``{jid: when it was published}`` of the jobs since ``at`` that need not be looked at again."""
        return self.capture.closed_since(at)

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
        return [*self.queue.take_due(), *self.replays.take_due(), *self._out]

    def _release(self) -> None:
        """Publish what may be published by now."""
        for turn in self.outbox.release(self.queue.now):
            if turn.kind is Kind.JOB:
                self.replays.claim(turn.jid, turn.minions)
            elif turn.kind is Kind.PING:
                self._out.append(Ping(turn.minions))
            else:
                self.replays.ask(turn.jid, turn.minions)

    # -- facts from the bus, and what it does not tell ----------------------------------------------------------------

    def _published(self, fact: Published) -> None:
        if not self.replays.is_own(fact.jid):
            self.capture.published(fact, self.queue.minions_of(fact.jid))

    def _job_read(self, fact: JobRead) -> None:
        self._follow(self.capture.read(fact, self.queue.minions_of(fact.jid), self.queue.now))

    def _open_due(self, jid: str) -> None:
        self._follow(self.capture.due(jid))

    def _follow(self, outcomes: Iterable[Outcome]) -> None:
        """Do what follows from what has become of a published job."""
        for outcome in outcomes:
            if isinstance(outcome, ToAsk):
                self.outbox.ask(outcome.jid, outcome.minions)
            elif isinstance(outcome, Owed):
                self._owe(outcome)
            else:
                self._out.append(outcome)

    def _owe(self, owed: Owed) -> None:
        self._add(owed.job, owed.minions, owed.reason, owed.job.published_at + self.queue.ttl_of(owed.job))
        for minion in owed.minions:
            # It may have started while it was asked.
            if owed.alive or self._started.get(minion, 0.0) > self.queue.now - _JUST_STARTED:
                self.replays.alive(minion)

    def _add(self, job: Job, minions: Iterable[str], reason: str, expires_at: float) -> int:
        """Queue a job, and return for how many minions."""
        queued = self.queue.add(job, minions, reason, expires_at)
        for entry in queued:
            for older in self.queue.superseded_by(entry):
                self.replays.end(older, State.CANCELLED, f"the same job was published again: {job.jid}")
        return len(queued)

    def _sign_of_life(self, fact: SignOfLife) -> None:
        if not TRIGGERED_BY[fact.sign] & set(self.settings.triggers):
            return
        start = fact.sign is Sign.START
        if start:
            self._started.update(dict.fromkeys(fact.minions, self.queue.now))
            if len(self._started) > _MANY:
                self._started = {m: at for m, at in self._started.items() if at > self.queue.now - _JUST_STARTED}
        for minion in fact.minions:
            self.replays.alive(minion, start)

    def _gap(self, _fact: Gap) -> None:
        for minion in list(self.queue.backlogs):
            self.replays.doubt(minion)
        self._ping_all()

    def _sweep(self) -> None:
        self._timers.set(("sweep",), self.queue.now + self.settings.sweep)
        self.replays.forget_own()
        if self.queue.backlogs:
            self._out.append(CheckKeys(tuple(self.queue.backlogs)))
            self._gap(Gap())

    def _ping_all(self) -> None:
        self._ping(minion for minion, backlog in self.queue.backlogs.items() if backlog.replay is None)

    def _ping(self, minions: Iterable[str]) -> None:
        self.outbox.ping(minion for minion in minions if self.queue.backlogs[minion].waiting)

    def _asked(self, fact: Asked) -> None:
        self._follow(self.capture.asked(fact, self.queue.now))
        self.replays.asked(fact)

    def _unreadable(self, fact: Unreadable) -> None:
        self.capture.unreadable(fact, self.queue.now)
        self.replays.unreadable(fact)

    def _keys_gone(self, fact: KeysGone) -> None:
        for minion in fact.minions:
            for entry in self.queue.of(minion, None):
                if entry.state not in ENDED:
                    self.replays.end(entry, State.CANCELLED, "the minion's key was deleted")
                self.replays.remove(entry)

    # -- facts from the store and from operators ----------------------------------------------------------------------

    def _restored(self, fact: Restored) -> None:
        self._take_up(fact)
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
                self.replays.wake(entry.minion, self.queue.now)
        self._timers.set(("sweep",), self.queue.now)
        return len(new)

    def _enqueue(self, fact: EnqueueRequested) -> None:
        ttl = self.queue.ttl_of(fact.job)
        job = self.queue.jobs.get(fact.job.jid, fact.job)
        minions = list(dict.fromkeys(fact.minions))
        again = [entry for minion in minions if (entry := self.queue.entry(minion, job.jid)) and entry.state in ENDED]
        for entry in again:
            self.queue.renew(entry, self.queue.now + ttl, fact.reason)
        new = [minion for minion in minions if not self.queue.has(minion, job.jid)]
        queued = self._add(job, new, fact.reason, self.queue.now + ttl)
        self._ping(minion for minion in minions if minion in self.queue.backlogs)
        self._out.append(Answer(queued + len(again)))

    def _replay(self, fact: ReplayRequested) -> None:
        pending = [entry for entry in self.queue.of(fact.minion, None) if entry.state is State.PENDING]
        for entry in pending:
            entry.next_at = 0.0
        if pending:
            backlog = self.queue.backlogs[fact.minion]
            backlog.not_before, backlog.urged = 0.0, self.queue.now
            self.replays.wake(fact.minion, self.queue.now)
        self._out.append(Answer(len(pending)))

    def _retry(self, fact: RetryRequested) -> None:
        found = [entry for entry in self.queue.of(fact.minion, fact.jid) if entry.state in (State.HELD, State.DEAD)]
        for entry in found:
            ttl = self.queue.ttl_of(self.queue.jobs[entry.jid])
            self.queue.renew(entry, self.queue.now + ttl, "an operator wants it tried again")
        self._ping(entry.minion for entry in found)
        self._out.append(Answer(len(found)))

    def _cancel(self, fact: CancelRequested) -> None:
        found = [entry for entry in self.queue.of(fact.minion, fact.jid) if entry.state not in ENDED]
        for entry in found:
            late = "; it may have been delivered" if entry.state in UNDER_WAY else ""
            self.replays.end(entry, State.CANCELLED, f"by an operator{late}")
        self._out.append(Answer(len(found)))

    def _purge(self, fact: PurgeRequested) -> None:
        found = [entry for entry in self.queue.of(None, None) if entry.state.value in fact.states]
        for entry in found:
            self.replays.remove(entry)
        self._out.append(Answer(len(found)))

    def _pause(self, _fact: PauseRequested) -> None:
        self._out.append(Answer(not self.replays.paused))
        self.replays.pause()

    def _resume(self, _fact: ResumeRequested) -> None:
        self._out.append(Answer(self.replays.paused))
        self.replays.paused = False
        self._ping_all()

    def _tick(self, _fact: Tick) -> None:
        pass  # what is due is done after every fact

    def _end_due(self, minion: str, jid: str) -> None:
        entry = self.queue.entry(minion, jid)
        if entry is None or entry.state in UNDER_WAY:
            return
        if entry.state in ENDED:
            self.replays.remove(entry)
        else:
            self.replays.end(entry, State.EXPIRED, "its time to live has passed")


_HANDLERS: dict[type, Callable[[Retry, Any], None]] = {
    Published: Retry._published,
    ReturnHeard: lambda self, fact: self.replays.return_heard(fact),
    Acknowledged: lambda self, fact: self.replays.acknowledged(fact),
    SignOfLife: Retry._sign_of_life,
    Gap: Retry._gap,
    JobRead: Retry._job_read,
    LookedUp: lambda self, fact: self.replays.looked_up(fact),
    Asked: Retry._asked,
    Claimed: lambda self, fact: self.replays.claimed(fact),
    Sent: lambda self, fact: self.replays.sent(fact),
    SendFailed: lambda self, fact: self.replays.send_failed(fact),
    Unreadable: Retry._unreadable,
    KeysGone: Retry._keys_gone,
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
    "end": Retry._end_due,
    "minion": lambda self, minion: self.replays.begin(minion),
    "company": lambda self, jid: self.replays.company_due(jid),
    "look": lambda self, jid: self.replays.look_due(jid),
    "heard": lambda self, minion, jid: self.replays.heard_due(minion, jid),
    "replay": lambda self, minion: self.replays.doubt(minion),
    "sweep": Retry._sweep,
    "rate": lambda self: None,
}
