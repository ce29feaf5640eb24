"""
The retry machine: facts in, effects out, time as an argument. All policy about replays is here and in its two pure parts,
retry_capture.py (who is owed a job) and retry_entry.py (the states of an entry).

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

import enum
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from saltext.jobs.core.retry_capture import AGAIN, GRACE, Capture, matches
from saltext.jobs.core.retry_entry import ENDED, UNDER_WAY, Entry, Job, State
from saltext.jobs.core.retry_facts import (
    Acknowledged,
    Adopted,
    Announce,
    Answer,
    Ask,
    Asked,
    CancelRequested,
    CheckKeys,
    Claim,
    Claimed,
    Effect,
    EnqueueRequested,
    Fact,
    Gap,
    JobRead,
    KeysGone,
    LookedUp,
    LookUp,
    PauseRequested,
    Ping,
    Publish,
    Published,
    PurgeRequested,
    ReplayRequested,
    Restored,
    ResumeRequested,
    RetryRequested,
    ReturnHeard,
    Save,
    SendFailed,
    Sent,
    SignOfLife,
    Tick,
    Unreadable,
    Vetted,
    Warn,
)
from saltext.jobs.core.retry_timers import Timers

if TYPE_CHECKING:
    from saltext.jobs.core.settings import RetrySettings

#: Seconds after a publish at which a minion that has shown no receipt is asked.
RECEIPT = 4.0
#: Seconds for which returns that were heard are gathered into one look at the job cache, which gets them a moment later.
HEARD = 0.3
#: How often a return that was heard is looked for before it counts as not genuine.
_HEARD_LOOKS = 5
#: Longest wait between two tries, in seconds.
LONGEST_BACKOFF = 3600.0
#: Restarts right after a publish, without a sign of receipt, that count as caused by the job.
_RESTARTS = 2
#: Seconds for which it is remembered that a minion started, and how many are before old ones are forgotten.
_JUST_STARTED, _MANY = 60.0, 20_000
#: Seconds for which a ``new`` event of a job that was replayed is taken for our own.
_OWN_PUBLISH = 60.0


class Step(enum.Enum):
    """Where a flight stands; see this module's docstring."""

    WAIT = enum.auto()
    LOOKING = enum.auto()
    TO_ASK = enum.auto()
    ASKING = enum.auto()
    TO_SEND = enum.auto()
    CLAIMING = enum.auto()
    SENDING = enum.auto()
    SENT = enum.auto()
    RUNNING = enum.auto()


class Flight:
    """The replay that a minion has under way."""

    __slots__ = ("asked", "before", "began", "idle", "jid", "restarted", "step")

    def __init__(self, jid: str, before: bool, began: float) -> None:
        self.jid, self.before, self.began = jid, before, began
        self.step = Step.WAIT
        self.asked = False  # before it is sent: it said that it knows nothing of the job
        self.idle = False  # afterwards: it said that it does not run the job
        self.restarted = False  # it started anew since the job was sent


class Line:
    """What one minion is owed."""

    __slots__ = ("entries", "flight", "not_before", "seen")

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.flight: Flight | None = None
        self.not_before = 0.0  # no new flight earlier
        self.seen = 0.0  # when it last showed a sign of life


class Retry:
    """
    The retry queue of one master.

    :param settings: the options under ``job_retry``.
    :param patience: seconds after which a job that was published should have been returned or be running.
    :param paused: whether replays begin paused.
    """

    def __init__(self, settings: RetrySettings, patience: float, paused: bool = False) -> None:
        self.settings = settings
        self.paused = paused
        self.jobs: dict[str, Job] = {}
        self.lines: dict[str, Line] = {}
        self.total = 0  # entries
        self.publishes = 0
        self.now = 0.0
        self._members: dict[str, set[str]] = {}  # jid -> minions that are owed it
        self._timers = Timers()
        self.capture = Capture(
            settings, patience, self._timers, self._emit, self._to_ask, self._has_entry, self._owed_by_capture
        )
        self._company: dict[str, dict[str, None]] = {}  # jid -> minions that gather for it
        self._looks: dict[str, dict[str, None]] = {}  # jid -> minions to look up
        self._asks: dict[str, dict[str, None]] = {}  # jid -> minions to ask
        self._sends: dict[str, dict[str, None]] = {}  # jid -> minions to publish to
        self._pings: dict[str, None] = {}
        self._started: dict[str, float] = {}  # minion -> when it started, for a while
        self._heard: dict[tuple[str, str], int] = {}  # returns that were heard -> looks
        self._own: dict[str, float] = {}  # jid -> until when its ``new`` event is our own
        self._tokens, self._filled = max(1.0, settings.rate), 0.0
        self._warned = 0.0
        self._out: list[Effect] = []
        self._dirty: dict[tuple[str, str], None] = {}
        self._dirty_jobs: dict[str, None] = {}

    # -- what the shell asks ------------------------------------------------------------------------------------------

    @property
    def next_due(self) -> float | None:
        """When a Tick is next due, in Unix time."""
        return self._timers.next()

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

    def knows(self, jid: str) -> bool:
        """Tell whether the load of a job is still needed."""
        return jid in self.jobs or jid in self.capture.open

    def checkpoint(self, now: float) -> float:
        """Return the time such that the store holds what is owed of every job published before it."""
        return self.capture.checkpoint(now)

    def closed_since(self, at: float) -> dict[str, float]:
        """Return ``{jid: when it was published}`` of the jobs since ``at`` that need not be looked at again."""
        return self.capture.closed_since(at)

    def step(self, fact: Fact, now: float) -> list[Effect]:
        """
        Take a fact that has become known at ``now``, and return what is to be done.

        Effects are begun in this order; an Answer waits for the Saves before it, nothing else waits.
        """
        self.now = max(now, self.now)
        self._out = []
        _HANDLERS[type(fact)](self, fact)
        for key in self._timers.due(self.now):
            _TIMERS[key[0]](self, *key[1:])
        self._release()
        out, self._out = self._out, []
        if self._dirty or self._dirty_jobs:
            out.insert(0, Save(tuple(self._dirty), tuple(self._dirty_jobs)))
            self._dirty, self._dirty_jobs = {}, {}
        return out

    # -- entries ------------------------------------------------------------------------------------------------------

    def _emit(self, effect: Effect) -> None:
        self._out.append(effect)

    def _has_entry(self, minion: str, jid: str) -> bool:
        return self.entry(minion, jid) is not None

    def _owed_by_capture(self, job: Job, minions: list[str], reason: str, alive: bool) -> None:
        ttl = self.settings.ttl if job.limits.ttl is None else job.limits.ttl
        self._queue(job, minions, reason, job.published_at + ttl)
        for minion in minions:
            # It may have started while it was asked.
            if alive or self._started.get(minion, 0.0) > self.now - _JUST_STARTED:
                self._alive(minion)

    def _queue(self, job: Job, minions: Iterable[str], reason: str, expires_at: float) -> int:
        queued = 0
        for minion in minions:
            line = self.lines.get(minion)
            full = line is not None and len(line.entries) >= self.settings.max_queue_per_minion
            if full or self.total >= self.settings.max_queue:
                self._refuse(minion, job, "max_queue_per_minion" if full else "max_queue")
                continue
            entry = Entry(minion, job.jid, self.now, expires_at, reason)
            self._supersede(minion, job)
            self._put(job, entry)
            self._tell(entry, "queued")
            queued += 1
        return queued

    def _put(self, job: Job, entry: Entry) -> None:
        self.jobs.setdefault(job.jid, job)
        self._dirty_jobs[job.jid] = None
        self._members.setdefault(job.jid, set()).add(entry.minion)
        self.lines.setdefault(entry.minion, Line()).entries[entry.jid] = entry
        self.total += 1
        self._touch(entry)

    def _refuse(self, minion: str, job: Job, option: str) -> None:
        reason = f"the queue is full: {option}"
        self._emit(Announce(minion, job.jid, "dead", ",".join(job.funs), 0, reason))
        if self.now - self._warned > 60:
            self._warned = self.now
            self._emit(Warn(f"Job {job.jid} is not kept for {minion}: {reason} ({getattr(self.settings, option)})"))

    def _supersede(self, minion: str, job: Job) -> None:
        globs = self.settings.supersede
        line = self.lines.get(minion)
        if not line or not globs or not all(matches(fun, globs) for fun in job.funs):
            return
        for entry in list(line.entries.values()):
            older = self.jobs[entry.jid]
            same = older.digest == job.digest and older.published_at <= job.published_at
            if same and entry.jid != job.jid and entry.state is State.PENDING:
                self._end(entry, State.CANCELLED, f"the same job was published again: {job.jid}")

    def _touch(self, entry: Entry) -> None:
        """Store an entry, and let its end come at its time."""
        self._dirty[entry.minion, entry.jid] = None
        key = ("end", entry.minion, entry.jid)
        if entry.state in ENDED:
            self._timers.set(key, entry.since + self.settings.keep)
        elif entry.state in UNDER_WAY:
            self._timers.cancel(key)
        else:
            self._timers.set(key, entry.expires_at)

    def _move(self, entry: Entry, to: State, reason: str) -> None:
        entry.move(to, self.now, reason)
        self._touch(entry)

    def _tell(self, entry: Entry, kind: str) -> None:
        fun = ",".join(self.jobs[entry.jid].funs)
        self._emit(Announce(entry.minion, entry.jid, kind, fun, entry.attempts, entry.reason))

    def _end(self, entry: Entry, state: State, reason: str) -> None:
        """Bring an entry to a state in which nothing more happens of itself."""
        self._move(entry, state, reason)
        self._land(entry)
        self._tell(entry, state.value)
        if state is State.DONE:
            self._remove(entry)

    def _remove(self, entry: Entry) -> None:
        self._land(entry)
        self._timers.cancel(("end", entry.minion, entry.jid))
        self._forget_heard(entry)
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

    def _end_due(self, minion: str, jid: str) -> None:
        entry = self.entry(minion, jid)
        if entry is None or entry.state in UNDER_WAY:
            return
        if entry.state in ENDED:
            self._remove(entry)
        else:
            self._end(entry, State.EXPIRED, "its time to live has passed")

    # -- signs of life ------------------------------------------------------------------------------------------------

    def _alive(self, minion: str, start: bool = False) -> None:
        line = self.lines.get(minion)
        if line is None:
            return
        line.seen = self.now
        if start:
            for entry in line.entries.values():
                entry.next_at = 0.0
        flight = line.flight
        if flight is None:
            # The jitter spreads a fleet that starts at once; it is the same for a minion each time.
            spread = 1.0 + zlib.crc32(minion.encode()) / 2**32
            self._wake(minion, self.now + self.settings.settle * spread, anew=start)
        elif start and (flight.step in (Step.SENT, Step.RUNNING) or not flight.before):
            flight.restarted = True
            if flight.step in (Step.SENT, Step.RUNNING):
                self._timers.set(("flight", minion), self.now + self.settings.settle)

    def _wake(self, minion: str, at: float, anew: bool = False) -> None:
        """Let the next flight of a minion begin at ``at``, or as soon after as it may."""
        line = self.lines.get(minion)
        if line is None or line.flight is not None or self.paused:
            return
        times = [0.0 if e.state in UNDER_WAY else e.next_at for e in line.entries.values() if _waits(e)]
        if times:
            at = max(at, line.not_before, min(times))
            (self._timers.set if anew else self._timers.no_later)(("minion", minion), at)

    def _begin(self, minion: str) -> None:
        """Begin the flight of what a minion is owed first: the job that was published first, unless that must wait."""
        line = self.lines.get(minion)
        if line is None or line.flight is not None or self.paused:
            return
        ready = [e for e in line.entries.values() if _waits(e) and (e.state in UNDER_WAY or e.next_at <= self.now)]
        if not ready:
            return
        entry = min(ready, key=self._turn)
        before = entry.state is State.PENDING
        line.flight = Flight(entry.jid, before, self.now)
        if before:
            self._company.setdefault(entry.jid, {})[minion] = None
            self._timers.no_later(("company", entry.jid), self.now + self.settings.window)
        else:
            self._look(entry.jid, minion, HEARD)

    def _turn(self, entry: Entry) -> tuple[bool, float, str]:
        return entry.state is State.PENDING, self.jobs[entry.jid].published_at, entry.jid

    # -- flights ------------------------------------------------------------------------------------------------------

    def _flight(self, minion: str, jid: str, *steps: Step) -> tuple[Entry, Flight] | None:
        line = self.lines.get(minion)
        if line is None or line.flight is None or line.flight.jid != jid or line.flight.step not in steps:
            return None
        return line.entries[jid], line.flight

    def _flights(self, jid: str, minions: Iterable[str], *steps: Step) -> Iterator[tuple[Entry, Flight]]:
        for minion in minions:
            pair = self._flight(minion, jid, *steps)
            if pair:
                yield pair

    def _land(self, entry: Entry) -> None:
        """End the flight of an entry, if it has one."""
        line = self.lines[entry.minion]
        if line.flight is None or line.flight.jid != entry.jid:
            return
        line.flight = None
        self._timers.cancel(("flight", entry.minion))
        for waiting in (self._asks, self._sends):
            waiting.get(entry.jid, {}).pop(entry.minion, None)
        self._wake(entry.minion, self.now)

    def _back(self, entry: Entry, flight: Flight, alive: bool) -> None:
        """End a flight without a return: the entry waits for the next sign of life."""
        line = self.lines[entry.minion]
        line.not_before = self.now + self.settings.cooldown
        line.flight = None
        self._timers.cancel(("flight", entry.minion))
        if entry.state is State.PENDING and entry.expires_at <= self.now:
            self._timers.set(("end", entry.minion, entry.jid), self.now)
        if flight.restarted or line.seen > flight.began:
            alive = True
        if flight.restarted:
            entry.next_at = 0.0
        if alive:
            self._wake(entry.minion, self.now + self.settings.settle)
        elif len(line.entries) > 1:
            # Nothing speaks for this minion; still, what is behind must not wait for ever once it does.
            self._timers.cancel(("minion", entry.minion))

    def _look(self, jid: str, minion: str, wait: float) -> None:
        self._looks.setdefault(jid, {})[minion] = None
        self._timers.no_later(("look", jid), self.now + wait)

    def _company_due(self, jid: str) -> None:
        self._look_for(jid, self._company.pop(jid, {}))

    def _look_due(self, jid: str) -> None:
        self._look_for(jid, self._looks.pop(jid, {}))

    def _look_for(self, jid: str, wanted: Iterable[str]) -> None:
        minions = [minion for minion in wanted if self._has_entry(minion, jid)]
        for _entry, flight in self._flights(jid, minions, Step.WAIT):
            flight.step = Step.LOOKING
        if minions:
            self._emit(LookUp(jid, tuple(minions)))

    def _looked_up(self, fact: LookedUp) -> None:
        for minion in fact.minions:
            entry = self.entry(minion, fact.jid)
            if entry is None:
                continue
            if minion in fact.returned:
                self._end(entry, State.DONE, "the job cache has its return")
                continue
            self._still_unheard(entry)
            pair = self._flight(minion, fact.jid, Step.LOOKING)
            if pair:
                self._not_returned(*pair, minion in fact.barred, fact.denied.get(minion, ""))

    def _not_returned(self, entry: Entry, flight: Flight, barred: bool, denied: str) -> None:
        if not flight.before:
            if flight.idle:
                self._vanished(entry, flight)
            else:
                self._ask_flight(entry, flight)
        elif denied:
            self._end(entry, State.DEAD, denied)
        elif barred:
            entry.next_at = self.now + self.settings.backoff
            self._back(entry, flight, alive=False)
        elif flight.asked:
            flight.step = Step.TO_SEND
            self._sends.setdefault(entry.jid, {})[entry.minion] = None
        else:
            self._ask_flight(entry, flight)

    def _unreadable(self, fact: Unreadable) -> None:
        self.capture.unreadable(fact, self.now)
        for entry, flight in self._flights(fact.jid, fact.minions, Step.LOOKING):
            flight.step = Step.WAIT
            self._look(entry.jid, entry.minion, AGAIN)
        for minion in fact.minions:
            if (minion, fact.jid) in self._heard:
                self._timers.set(("heard", minion, fact.jid), self.now + AGAIN)

    def _ask_flight(self, entry: Entry, flight: Flight) -> None:
        flight.step = Step.TO_ASK
        self._to_ask(entry.jid, (entry.minion,))

    def _to_ask(self, jid: str, minions: Iterable[str]) -> None:
        self._asks.setdefault(jid, {}).update(dict.fromkeys(minions))

    def _asked(self, fact: Asked) -> None:
        self.capture.asked(fact, self.now)
        for entry, flight in self._flights(fact.jid, fact.unasked, Step.ASKING):
            flight.step = Step.WAIT
            self._look(entry.jid, entry.minion, AGAIN)
        for entry, _ in self._flights(fact.jid, fact.ran, Step.ASKING):
            self._end(entry, State.DONE, "the minion had run it; its return was fetched")
        for entry, flight in self._flights(fact.jid, fact.running, Step.ASKING):
            self._received(entry, flight, "the minion says that it runs it")
        for entry, flight in self._flights(fact.jid, fact.idle, Step.ASKING):
            self._idle(entry, flight)
        for entry, flight in self._flights(fact.jid, fact.silent, Step.ASKING):
            self._silent(entry, flight)

    def _received(self, entry: Entry, flight: Flight, reason: str) -> None:
        flight.step, flight.before, flight.restarted = Step.RUNNING, False, False
        self._timers.cancel(("flight", entry.minion))
        if entry.state is State.RUNNING:
            return
        if entry.state is State.PENDING:
            entry.attempts += 1
        entry.tries = entry.restarts = 0
        self._move(entry, State.RUNNING, reason)

    def _idle(self, entry: Entry, flight: Flight) -> None:
        flight.step = Step.WAIT
        if flight.before:
            # What it ran before it answered has been returned by now: look again.
            flight.asked = True
            self._look(entry.jid, entry.minion, 0.0)
        else:
            # Its return may be on the way.
            flight.idle = True
            self._look(entry.jid, entry.minion, GRACE)

    def _silent(self, entry: Entry, flight: Flight) -> None:
        if entry.state is State.PENDING:
            self._back(entry, flight, alive=False)
        elif entry.state is not State.RUNNING:
            self._not_received(entry, flight, False, "no sign of receipt, and it does not answer")
        elif entry.expires_at <= self.now:
            self._end(entry, State.EXPIRED, "it was begun, but nothing more was heard of it in its time to live")
        else:
            flight.step = Step.RUNNING

    def _vanished(self, entry: Entry, flight: Flight) -> None:
        """The minion is there, does not run the job, and has not returned it."""
        if entry.state is State.RUNNING or entry.acknowledged:
            self._interrupted(entry, flight)
            return
        if flight.restarted:
            entry.restarts += 1
            if entry.restarts >= _RESTARTS:
                self._hold(entry, "each time it was sent, the minion started anew at once")
                return
        self._not_received(entry, flight, True, "no sign of receipt; the minion does not run it")

    def _interrupted(self, entry: Entry, flight: Flight) -> None:
        limits = self.jobs[entry.jid].limits
        again = self.settings.retry_interrupted if limits.retry_interrupted is None else limits.retry_interrupted
        if not again:
            self._hold(entry, "it was begun and ended without a return")
        elif entry.attempts >= self._max_attempts(entry):
            self._end(entry, State.DEAD, f"it was begun {entry.attempts} times and never returned")
        else:
            entry.acknowledged = False
            self._move(entry, State.PENDING, "it was begun and ended without a return; it will be run again")
            entry.next_at = self.now + self.settings.backoff
            self._back(entry, flight, alive=True)

    def _max_attempts(self, entry: Entry) -> int:
        own = self.jobs[entry.jid].limits.max_attempts
        return self.settings.max_attempts if own is None else own

    def _hold(self, entry: Entry, reason: str) -> None:
        self._end(entry, State.HELD, reason)

    def _not_received(self, entry: Entry, flight: Flight, alive: bool, reason: str) -> None:
        entry.attempts -= 1
        entry.tries += 1
        backoff = self.settings.backoff * 2 ** min(entry.tries - 1, 20)
        entry.next_at = self.now + min(backoff, LONGEST_BACKOFF)
        self._move(entry, State.PENDING, reason)
        self._back(entry, flight, alive)

    # -- publishing ---------------------------------------------------------------------------------------------------

    def _release(self) -> None:
        """Let go what is published, no faster than ``rate``: what has been prepared first, then pings, then questions."""
        gained = (self.now - self._filled) * self.settings.rate
        self._tokens, self._filled = min(max(1.0, self.settings.rate), self._tokens + gained), self.now
        while self._sends or self._pings or self._asks:
            if self._tokens < 1:
                self._timers.set(("rate",), self.now + (1 - self._tokens) / self.settings.rate)
                return
            if self._release_one():
                self._tokens -= 1
        self._timers.cancel(("rate",))

    def _release_one(self) -> bool:
        if self._sends:
            return self._claim(next(iter(self._sends)))
        if self._pings:
            minions, self._pings = tuple(minion for minion in self._pings if minion in self.lines), {}
            self.publishes += bool(minions)
            if minions:
                self._emit(Ping(minions))
            return bool(minions)
        jid = next(iter(self._asks))
        wanted = self._asks.pop(jid)
        for _entry, flight in self._flights(jid, wanted, Step.TO_ASK):
            flight.step = Step.ASKING
        if wanted:
            self.publishes += 1
            self._emit(Ask(jid, tuple(wanted)))
        return bool(wanted)

    def _claim(self, jid: str) -> bool:
        claimed = []
        for entry, flight in list(self._flights(jid, self._sends.pop(jid), Step.TO_SEND)):
            flight.step = Step.CLAIMING
            entry.claim(self.now)
            self._touch(entry)
            claimed.append(entry.minion)
        if claimed:
            self.publishes += 1
            self._emit(Claim(jid, tuple(claimed)))
        return bool(claimed)

    def _claimed(self, fact: Claimed) -> None:
        ready = []
        for entry, flight in self._flights(fact.jid, fact.minions, Step.CLAIMING):
            flight.step = Step.SENDING
            ready.append(entry.minion)
            self._tell(entry, "sent")
        if ready:
            self._own[fact.jid] = self.now + _OWN_PUBLISH
            self._emit(Publish(fact.jid, tuple(ready)))

    def _sent(self, fact: Sent) -> None:
        for entry, flight in list(self._flights(fact.jid, fact.minions, Step.SENDING)):
            if entry.minion in fact.missed:
                self._not_received(entry, flight, False, "the master does not know the minion")
            else:
                self._await_receipt(entry, flight, "published")

    def _send_failed(self, fact: SendFailed) -> None:
        for entry, flight in list(self._flights(fact.jid, fact.minions, Step.SENDING)):
            if fact.certain:
                self._not_received(entry, flight, True, f"the publish was refused: {fact.reason}")
            else:
                self._await_receipt(entry, flight, f"the publish was not confirmed: {fact.reason}")

    def _await_receipt(self, entry: Entry, flight: Flight, reason: str) -> None:
        flight.step, flight.before = Step.SENT, False
        self._move(entry, State.SENT, reason)
        self._timers.set(("flight", entry.minion), self.now + RECEIPT)

    def _doubt(self, minion: str) -> None:
        """Find out what has become of a job that is under way."""
        line = self.lines.get(minion)
        flight = line.flight if line else None
        if flight is not None and flight.step in (Step.SENT, Step.RUNNING):
            flight.step, flight.before, flight.idle = Step.WAIT, False, False
            self._timers.cancel(("flight", minion))
            self._look(flight.jid, minion, HEARD)

    # -- facts from the bus -------------------------------------------------------------------------------------------

    def _published(self, fact: Published) -> None:
        if self._own.get(fact.jid, 0.0) <= self.now:
            self.capture.published(fact)

    def _return_heard(self, fact: ReturnHeard) -> None:
        if self._has_entry(fact.minion, fact.jid):
            self._heard[fact.minion, fact.jid] = 0
            self._look(fact.jid, fact.minion, HEARD)

    def _still_unheard(self, entry: Entry) -> None:
        key = (entry.minion, entry.jid)
        looks = self._heard.get(key)
        if looks is None:
            return
        if looks + 1 >= _HEARD_LOOKS:
            del self._heard[key]
            return
        self._heard[key] = looks + 1
        self._timers.set(("heard", *key), self.now + 2.0**looks)

    def _heard_due(self, minion: str, jid: str) -> None:
        if (minion, jid) in self._heard:
            self._look(jid, minion, HEARD)

    def _forget_heard(self, entry: Entry) -> None:
        if self._heard.pop((entry.minion, entry.jid), None) is not None:
            self._timers.cancel(("heard", entry.minion, entry.jid))

    def _acknowledged(self, fact: Acknowledged) -> None:
        pair = self._flight(fact.minion, fact.jid, *_DELIVERING)
        if pair and pair[0].state in UNDER_WAY:
            pair[0].acknowledged = True
            if pair[1].step in (Step.SENDING, Step.SENT):
                self._received(*pair, "the minion says that it has begun")
            else:
                self._touch(pair[0])

    def _sign_of_life(self, fact: SignOfLife) -> None:
        if fact.start:
            self._started.update(dict.fromkeys(fact.minions, self.now))
            if len(self._started) > _MANY:
                self._started = {m: at for m, at in self._started.items() if at > self.now - _JUST_STARTED}
        for minion in fact.minions:
            self._alive(minion, fact.start)

    def _gap(self, _fact: Gap) -> None:
        for minion in list(self.lines):
            self._doubt(minion)
        self._ping_all()

    def _sweep(self) -> None:
        self._timers.set(("sweep",), self.now + self.settings.sweep)
        self._own = {jid: until for jid, until in self._own.items() if until > self.now}
        if self.lines:
            self._emit(CheckKeys(tuple(self.lines)))
            self._gap(Gap())

    def _ping_all(self) -> None:
        self._ping(minion for minion, line in self.lines.items() if line.flight is None)

    def _ping(self, minions: Iterable[str]) -> None:
        self._pings.update((m, None) for m in minions if any(_waits(e) for e in self.lines[m].entries.values()))

    def _keys_gone(self, fact: KeysGone) -> None:
        for minion in fact.minions:
            for entry in self._of(minion, None):
                if entry.state not in ENDED:
                    self._end(entry, State.CANCELLED, "the minion's key was deleted")
                self._remove(entry)

    # -- facts from the store and from operators ----------------------------------------------------------------------

    def _restored(self, fact: Restored) -> None:
        self._take_up(fact)
        # What was read needs no writing.
        self._dirty, self._dirty_jobs = {}, {}

    def _adopted(self, fact: Adopted) -> None:
        self._emit(Answer(self._take_up(fact)))

    def _take_up(self, fact: Restored | Adopted) -> int:
        jobs = {job.jid: job for job in fact.jobs}
        new = [e for e in fact.entries if not self._has_entry(e.minion, e.jid) and e.jid in jobs]
        for entry in new:
            self._put(jobs[entry.jid], entry)
            if entry.state in UNDER_WAY:
                self._wake(entry.minion, self.now)
        self._timers.set(("sweep",), self.now)
        return len(new)

    def _enqueue(self, fact: EnqueueRequested) -> None:
        ttl = self.settings.ttl if fact.job.limits.ttl is None else fact.job.limits.ttl
        job = self.jobs.get(fact.job.jid, fact.job)
        minions = list(dict.fromkeys(fact.minions))
        again = [entry for minion in minions if (entry := self.entry(minion, job.jid)) and entry.state in ENDED]
        for entry in again:
            self._renew(entry, self.now + ttl, fact.reason)
        new = [minion for minion in minions if not self._has_entry(minion, job.jid)]
        queued = self._queue(job, new, fact.reason, self.now + ttl)
        self._ping(minion for minion in minions if minion in self.lines)
        self._emit(Answer(queued + len(again)))

    def _renew(self, entry: Entry, expires_at: float, reason: str) -> None:
        entry.attempts = entry.tries = entry.restarts = 0
        entry.next_at, entry.acknowledged = 0.0, False
        entry.expires_at = max(entry.expires_at, expires_at)
        self._move(entry, State.PENDING, reason)
        self._tell(entry, "queued")

    def _replay(self, fact: ReplayRequested) -> None:
        pending = [entry for entry in self._of(fact.minion, None) if entry.state is State.PENDING]
        for entry in pending:
            entry.next_at = 0.0
        if pending:
            self.lines[fact.minion].not_before = 0.0
            self._wake(fact.minion, self.now)
        self._emit(Answer(len(pending)))

    def _retry(self, fact: RetryRequested) -> None:
        found = [entry for entry in self._of(fact.minion, fact.jid) if entry.state in (State.HELD, State.DEAD)]
        for entry in found:
            ttl = self.jobs[entry.jid].limits.ttl
            self._renew(
                entry, self.now + (self.settings.ttl if ttl is None else ttl), "an operator wants it tried again"
            )
        self._ping(entry.minion for entry in found)
        self._emit(Answer(len(found)))

    def _cancel(self, fact: CancelRequested) -> None:
        found = [entry for entry in self._of(fact.minion, fact.jid) if entry.state not in ENDED]
        for entry in found:
            late = "; it may have been delivered" if entry.state in UNDER_WAY else ""
            self._end(entry, State.CANCELLED, f"by an operator{late}")
        self._emit(Answer(len(found)))

    def _purge(self, fact: PurgeRequested) -> None:
        found = [entry for entry in self._of(None, None) if entry.state.value in fact.states]
        for entry in found:
            self._remove(entry)
        self._emit(Answer(len(found)))

    def _of(self, minion: str | None, jid: str | None) -> list[Entry]:
        if minion is not None:
            line = self.lines.get(minion)
            found: Iterable[Entry] = line.entries.values() if line else ()
        else:
            found = self.entries()
        return [entry for entry in found if jid is None or entry.jid == jid]

    def _pause(self, _fact: PauseRequested) -> None:
        self._emit(Answer(not self.paused))
        self.paused = True
        for jid in list(self._sends):
            for entry, _ in list(self._flights(jid, self._sends.pop(jid), Step.TO_SEND)):
                self._land(entry)

    def _resume(self, _fact: ResumeRequested) -> None:
        self._emit(Answer(self.paused))
        self.paused = False
        self._ping_all()

    def _tick(self, _fact: Tick) -> None:
        pass


#: Steps of a flight in which the job may be on its way to the minion, or there.
_DELIVERING = (Step.WAIT, Step.LOOKING, Step.TO_ASK, Step.ASKING, Step.SENDING, Step.SENT, Step.RUNNING)


def _waits(entry: Entry) -> bool:
    return entry.state is State.PENDING or entry.state in UNDER_WAY


_HANDLERS: dict[type, Callable[[Retry, Any], None]] = {
    Published: Retry._published,
    ReturnHeard: Retry._return_heard,
    Acknowledged: Retry._acknowledged,
    SignOfLife: Retry._sign_of_life,
    Gap: Retry._gap,
    JobRead: lambda self, fact: self.capture.read(fact, self.now),
    Vetted: lambda self, fact: self.capture.vetted(fact, self.now),
    LookedUp: Retry._looked_up,
    Asked: Retry._asked,
    Claimed: Retry._claimed,
    Sent: Retry._sent,
    SendFailed: Retry._send_failed,
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
    "end": Retry._end_due,
    "minion": Retry._begin,
    "company": Retry._company_due,
    "look": Retry._look_due,
    "heard": Retry._heard_due,
    "flight": Retry._doubt,
    "sweep": Retry._sweep,
    "rate": lambda self: None,
}
