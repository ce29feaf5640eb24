"""
The retry machine: facts in, effects out, time as an argument. Which part takes which fact is told
at the end of this file. The parts, which are as pure:

    retry/capture.py  who is owed a job                  retry/queue.py   what is owed, until when, and what is stored
    retry/entry.py    the states of an entry             retry/flights.py which replays are under way
    retry/outbox.py   what is published, how fast        retry/replay.py  the steps of a replay, and what an answer means

Pure: stdlib only, no clock, no I/O. It must never send a job to a minion while that minion has another one of its queue
under way, nor one of which it is known that it was begun, unless ``retry_interrupted`` asks for that.

A replay is a flight. One minion has at most one; minions that are owed the same job fly together:

    WAIT      gathers company for ``window`` seconds        LOOKING   the job cache, key and access are looked up
    TO_ASK    waits for its turn to be published             ASKING    the minion is asked whether it runs or has run it;
                                                             then LOOKING once more
    TO_SEND   waits for its turn to be published             CLAIMING  the claim is being made durable
    SENDING   is being published                             SENT      waits for a sign of receipt
    RUNNING   the minion has it

When no receipt shows, and whenever there is a doubt about a job that is under way (a restart of the minion, of this engine,
a gap in the events, a sweep), the same way from WAIT to ASKING is flown again with ``before`` unset: then the answer decides
what has become of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from saltext.jobs.core.retry.capture import Capture
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
    Published,
    PurgeRequested,
    ReplayRequested,
    Restored,
    ResumeRequested,
    RetryRequested,
    ReturnHeard,
    SendFailed,
    Sent,
    SignOfLife,
    Tick,
    Unreadable,
)
from saltext.jobs.core.retry.flights import Flights
from saltext.jobs.core.retry.line import Line, Step
from saltext.jobs.core.retry.outbox import Outbox
from saltext.jobs.core.retry.queue import Queue
from saltext.jobs.core.retry.replay import Replays
from saltext.jobs.core.retry.timers import Timers

if TYPE_CHECKING:
    from saltext.jobs.core.settings import RetrySettings

#: Seconds for which it is remembered that a minion started, and how many are before old ones are forgotten.
_JUST_STARTED, _MANY = 60.0, 20_000


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
        self._out: list[Effect] = []
        emit, timers = self._emit, self._timers
        self.queue = Queue(
            settings,
            timers,
            emit,
            lambda entry: self.flights.land(entry),
            lambda entry: self.flights.forget_heard(entry),
        )
        self.outbox = Outbox(settings.rate, timers)
        self.flights = Flights(settings, self.queue, self.outbox, timers, emit, paused)
        self.replays = Replays(settings, self.queue, self.flights, self.outbox, timers, emit, acks)
        self.capture = Capture(
            settings, patience, timers, emit, self.outbox.ask, self.queue.minions_of, self._owed_by_capture
        )
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
    def lines(self) -> dict[str, Line]:
        """What is owed, by minion."""
        return self.queue.lines

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
        self.replays.release()
        out, self._out = self._out, []
        changes = self.queue.take_changes()
        return [changes, *out] if changes else out

    def _emit(self, effect: Effect) -> None:
        self._out.append(effect)

    # -- facts from the bus, and what it does not tell ----------------------------------------------------------------

    def _published(self, fact: Published) -> None:
        if not self.replays.is_own(fact.jid):
            self.capture.published(fact)

    def _owed_by_capture(self, job: Job, minions: list[str], reason: str, alive: bool) -> None:
        ttl = self.queue.ttl_of(job)
        self.queue.add(job, minions, reason, job.published_at + ttl)
        for minion in minions:
            # It may have started while it was asked.
            if alive or self._started.get(minion, 0.0) > self.queue.now - _JUST_STARTED:
                self.flights.alive(minion)

    def _sign_of_life(self, fact: SignOfLife) -> None:
        if fact.start:
            self._started.update(dict.fromkeys(fact.minions, self.queue.now))
            if len(self._started) > _MANY:
                self._started = {m: at for m, at in self._started.items() if at > self.queue.now - _JUST_STARTED}
        for minion in fact.minions:
            self.flights.alive(minion, fact.start)

    def _gap(self, _fact: Gap) -> None:
        for minion in list(self.queue.lines):
            self.flights.doubt(minion)
        self._ping_all()

    def _sweep(self) -> None:
        self._timers.set(("sweep",), self.queue.now + self.settings.sweep)
        self.replays.forget_own()
        if self.queue.lines:
            self._emit(CheckKeys(tuple(self.queue.lines)))
            self._gap(Gap())

    def _ping_all(self) -> None:
        self._ping(minion for minion, line in self.queue.lines.items() if line.flight is None)

    def _ping(self, minions: Iterable[str]) -> None:
        self.outbox.ping(minion for minion in minions if self.queue.lines[minion].waiting)

    def _asked(self, fact: Asked) -> None:
        self.capture.asked(fact, self.queue.now)
        self.replays.asked(fact)

    def _unreadable(self, fact: Unreadable) -> None:
        self.capture.unreadable(fact, self.queue.now)
        self.flights.unreadable(fact)

    def _keys_gone(self, fact: KeysGone) -> None:
        for minion in fact.minions:
            for entry in self.queue.of(minion, None):
                if entry.state not in ENDED:
                    self.queue.end(entry, State.CANCELLED, "the minion's key was deleted")
                self.queue.remove(entry)

    # -- facts from the store and from operators ----------------------------------------------------------------------

    def _restored(self, fact: Restored) -> None:
        self._take_up(fact)
        # What was read needs no writing.
        self.queue.take_changes()

    def _adopted(self, fact: Adopted) -> None:
        self._emit(Answer(self._take_up(fact)))

    def _take_up(self, fact: Restored | Adopted) -> int:
        jobs = {job.jid: job for job in fact.jobs}
        new = [e for e in fact.entries if not self.queue.has(e.minion, e.jid) and e.jid in jobs]
        for entry in new:
            self.queue.put(jobs[entry.jid], entry)
            if entry.state in UNDER_WAY:
                self.flights.wake(entry.minion, self.queue.now)
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
        queued = self.queue.add(job, new, fact.reason, self.queue.now + ttl)
        self._ping(minion for minion in minions if minion in self.queue.lines)
        self._emit(Answer(queued + len(again)))

    def _replay(self, fact: ReplayRequested) -> None:
        pending = [entry for entry in self.queue.of(fact.minion, None) if entry.state is State.PENDING]
        for entry in pending:
            entry.next_at = 0.0
        if pending:
            line = self.queue.lines[fact.minion]
            line.not_before = 0.0
            if line.flight is not None:
                line.flight.urgent = True
            self.flights.wake(fact.minion, self.queue.now)
        self._emit(Answer(len(pending)))

    def _retry(self, fact: RetryRequested) -> None:
        found = [entry for entry in self.queue.of(fact.minion, fact.jid) if entry.state in (State.HELD, State.DEAD)]
        for entry in found:
            ttl = self.queue.ttl_of(self.queue.jobs[entry.jid])
            self.queue.renew(entry, self.queue.now + ttl, "an operator wants it tried again")
        self._ping(entry.minion for entry in found)
        self._emit(Answer(len(found)))

    def _cancel(self, fact: CancelRequested) -> None:
        found = [entry for entry in self.queue.of(fact.minion, fact.jid) if entry.state not in ENDED]
        for entry in found:
            late = "; it may have been delivered" if entry.state in UNDER_WAY else ""
            self.queue.end(entry, State.CANCELLED, f"by an operator{late}")
        self._emit(Answer(len(found)))

    def _purge(self, fact: PurgeRequested) -> None:
        found = [entry for entry in self.queue.of(None, None) if entry.state.value in fact.states]
        for entry in found:
            self.queue.remove(entry)
        self._emit(Answer(len(found)))

    def _pause(self, _fact: PauseRequested) -> None:
        self._emit(Answer(not self.flights.paused))
        self.flights.paused = True
        for jid, minions in self.outbox.take_sends().items():
            for entry, _ in list(self.flights.find_all(jid, minions, Step.TO_SEND)):
                self.flights.land(entry)

    def _resume(self, _fact: ResumeRequested) -> None:
        self._emit(Answer(self.flights.paused))
        self.flights.paused = False
        self._ping_all()

    def _tick(self, _fact: Tick) -> None:
        pass


_HANDLERS: dict[type, Callable[[Retry, Any], None]] = {
    Published: Retry._published,
    ReturnHeard: lambda self, fact: self.flights.return_heard(fact),
    Acknowledged: lambda self, fact: self.replays.acknowledged(fact),
    SignOfLife: Retry._sign_of_life,
    Gap: Retry._gap,
    JobRead: lambda self, fact: self.capture.read(fact, self.queue.now),
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
    "open": lambda self, jid: self.capture.due(jid),
    "end": lambda self, minion, jid: self.queue.due(minion, jid),
    "minion": lambda self, minion: self.flights.begin(minion),
    "company": lambda self, jid: self.flights.company_due(jid),
    "look": lambda self, jid: self.flights.look_due(jid),
    "heard": lambda self, minion, jid: self.flights.heard_due(minion, jid),
    "flight": lambda self, minion: self.flights.doubt(minion),
    "sweep": Retry._sweep,
    "rate": lambda self: None,
}
