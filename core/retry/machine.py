"""
The retry machine: facts in, effects out, time as an argument. Which part takes which fact is told at the end of this file.
The parts, which are as pure, return what follows; this file passes it on:

    capture.py     who has missed a job                open_job.py  a job of which that is not known yet
    notes.py       what is known without an entry
    owing.py       entries come, end and go            requests.py  what operators ask for
    queue.py       what is owed, and what is stored    entry.py     the states of an entry
    backlog.py     what one minion is owed             presence.py  signs of life, and pings
    turns.py       when a replay begins                openings.py  which jobs may be replayed now
    knowledge.py   what is known of minion and job     decision.py  what is done about it
    replay.py      takes the one, carries out the other
    steps.py       the steps of a replay               looks.py     looks at the job cache that are shared
    outbox.py      what is published, how fast         timers.py    what is due when

Pure: stdlib only, no clock, no I/O. It must never send a job to a minion while that minion has another one of its queue
under way, nor one of which it is known that it was begun, unless ``retry_interrupted`` asks for that.

One minion has one replay at most; minions that are owed the same job get it together, in one publish. When no receipt shows,
and whenever it is in doubt what has become of a job that was published (the minion or this engine restarted, events were
lost, a sweep), the job cache is looked at and the minion is asked again: then the answer decides.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from saltext.jobs.core.retry.backlog import Backlog
from saltext.jobs.core.retry.capture import AGAIN, Capture, Outcome, Owed, Survey
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
    SignOfLife,
    Surveyed,
    Tick,
    Unreadable,
    Vetted,
)
from saltext.jobs.core.retry.note import Note
from saltext.jobs.core.retry.openings import Openings
from saltext.jobs.core.retry.outbox import Kind, Outbox
from saltext.jobs.core.retry.owing import Owing
from saltext.jobs.core.retry.presence import Presence
from saltext.jobs.core.retry.queue import Queue
from saltext.jobs.core.retry.replay import GATHERINGS, Replays
from saltext.jobs.core.retry.requests import Requests
from saltext.jobs.core.retry.timers import Timers
from saltext.jobs.core.retry.turns import Turns

if TYPE_CHECKING:
    from saltext.jobs.core.settings import RetrySettings

#: Seconds for which jobs are gathered into one survey.
_GATHER = 0.5
#: Seconds from a replay to its record in the job cache, at most; seconds by which the time of such a record may be wrong.
_RECORDED, _SLACK = 10.0, 1.0


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
        self.turns = Turns(settings, self.queue, self._timers, self.openings, paused)
        self.replays = Replays(settings, self.queue, self.outbox, self._timers, self.turns)
        self.capture = Capture(settings, patience, self._timers)
        self.presence = Presence(settings, self.queue, self.turns, self.outbox)
        self.owing = Owing(self.queue, self.capture, self._timers, self.turns, self.replays, self.presence)
        self.requests = Requests(self.queue, self.capture, self.turns, self.replays, self.owing, self.presence)
        self._out: list[Effect] = []  # of the present step

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

    def wants_start(self, minion: str, now: float) -> bool:
        """
        Tell whether it matters now that a minion says that it has started. Anybody can say so of any id, again and again:
        where nothing is owed that costs as good as nothing.
        """
        if minion in self.queue.backlogs:
            return True
        if self.capture.open:
            self.presence.started(minion, now)
        return False

    def receipt_awaited_since(self, minion: str, jid: str) -> float | None:
        """Return when a job was published to a minion of which nothing has been heard since; None where that is not so."""
        entry = self.queue.entry(minion, jid)
        if entry is None or entry.state is not State.SENT or self.replays.is_hearsay(minion, jid):
            return None
        return entry.sent_at

    def note(self, jid: str) -> Note | None:
        """Return the note about a job."""
        return self.capture.notes.by_jid.get(jid)

    # -- the main path ------------------------------------------------------------------------------------------------

    def step(self, fact: Fact, now: float) -> list[Effect]:
        """
        Take a fact that has become known at ``now``, and return what is to be done.

        Effects are begun in this order; an Answer waits for the Saves before it, nothing else waits.
        """
        self.queue.now = max(now, self.queue.now)
        self._out = []
        HANDLERS[type(fact)](self, fact)
        for key in self._timers.due(self.queue.now):
            _TIMERS[key[0]](self, *key[1:])
        self._release()
        return [*self.queue.take_due(), *self._out]

    def _release(self) -> None:
        """Publish what may be published by now."""
        for turn in self.outbox.release(self.queue.now):
            if turn.kind is Kind.JOB:
                self._out += self.replays.claim(turn.jid, turn.minions)
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
        # What is found in the job cache may be a replay; where another publish is hidden by one, minions know the jid again.
        is_replay = not fact.fun and fact.at <= self.queue.replayed.get(fact.jid, 0.0) + _RECORDED
        if fact.jid in self.queue.jobs and not is_replay:
            self.queue.republished[fact.jid] = fact.at + _SLACK
        self.capture.published(fact, self.queue.now)

    def _job_read(self, fact: JobRead) -> None:
        self._follow(self.capture.read(fact, self.queue.minions_of(fact.jid), self.queue.now))

    def _sent(self, fact: Sent) -> None:
        self.capture.replayed(fact.jid, self.queue.now)
        self.replays.sent(fact)

    def _send_failed(self, fact: SendFailed) -> None:
        if not fact.certain:
            self.capture.replayed(fact.jid, self.queue.now)
        self.replays.send_failed(fact)

    def _surveyed(self, fact: Surveyed) -> None:
        for minion, jids in fact.running.items():
            for jid in jids:  # also of jobs that it was not asked about, and has missed as it seemed
                self.replays.acknowledged(Acknowledged(minion, jid), proven=True)
        self._follow(self.capture.surveyed(fact, self.queue.now))

    def _open_due(self, jid: str) -> None:
        self._follow(self.capture.due(jid))

    def _note_due(self, jid: str) -> None:
        self._follow(self.capture.notes.due(jid))

    def _follow(self, outcomes: Iterable[Outcome]) -> None:
        """Do what follows from what has become of a published job."""
        for outcome in outcomes:
            if isinstance(outcome, Survey):
                self._timers.no_later(("survey",), self.queue.now + _GATHER)
            elif isinstance(outcome, Owed):
                self.owing.owe(outcome)
            elif isinstance(outcome, Kill):
                self.owing.killed(outcome)
            else:
                self._out.append(outcome)

    def _acknowledged(self, fact: Acknowledged) -> None:
        if self.queue.has(fact.minion, fact.jid):
            self.replays.acknowledged(fact)
        else:
            self._follow(self.capture.begun(fact.jid, fact.minion))

    def _return_heard(self, fact: ReturnHeard) -> None:
        # Where the master cannot store it now (a full disk), that it was heard is all that tells that the job has begun.
        self._acknowledged(Acknowledged(fact.minion, fact.jid))
        self.replays.return_heard(fact)

    def _sign_of_life(self, fact: SignOfLife) -> None:
        self.presence.sign_of_life(fact)
        self.owing.alive(fact.minions)

    def _gap(self, _fact: Gap) -> None:
        self.capture.gap(self.queue.now)
        self._look_again()

    def _look_again(self) -> None:
        """Look at everything that waits for an event that may have been missed."""
        for jid in list(self.queue.jobs):
            self._out.append(self.replays.look_for_returns(jid, self.queue.minions_of(jid)))
        for minion, backlog in self.queue.backlogs.items():
            backlog.free_at = 0.0  # it may have started anew since
            if backlog.replay is not None:
                self.replays.doubt(minion)
            elif any(entry.state in UNDER_WAY for entry in backlog.entries.values()):
                self.turns.wake(minion, self.queue.now)
        self.presence.ping_without_replay(self.queue.backlogs)

    def _sweep(self) -> None:
        self._timers.set(("sweep",), self.queue.now + self.settings.sweep)
        self.capture.recheck(self.queue.now)
        if self.queue.backlogs:
            self._out.append(CheckKeys(tuple(self.queue.backlogs)))
            self._look_again()

    def _opening_due(self, window: str, timezone: str) -> None:
        self._out.append(self.openings.due(window, timezone, self.queue.now))

    def _opening_found(self, fact: OpeningFound) -> None:
        is_open, jids = self.openings.found(fact, self.queue.now)
        for jid in jids:
            if is_open:
                self.presence.ping_without_replay(self.queue.minions_of(jid))
            else:
                self.replays.shut(jid)

    def _claimed(self, fact: Claimed) -> None:
        self._out += self.replays.claimed(fact)

    def _gathered(self, jid: str, gathering: str) -> None:
        self._out += self.replays.due(gathering, jid)

    def _unreadable(self, fact: Unreadable) -> None:
        if fact.minions:
            self.replays.unreadable(fact)
        else:
            self._follow(self.capture.unreadable(fact, self.queue.now))

    def _keys_read(self, fact: KeysRead) -> None:
        self._follow(self.owing.keys_read(fact))

    def _check_keys(self) -> None:
        if self.owing.keyless:
            self._out.append(CheckKeys(tuple(self.queue.backlogs)))

    # -- facts from the store and from operators ----------------------------------------------------------------------

    def _restored(self, fact: Restored) -> None:
        self.owing.take_up(fact)
        self._timers.set(("sweep",), self.queue.now)
        self.capture.restore(fact.notes, self.queue.now)
        # What was read needs no writing.
        self.queue.take_changes()

    def _adopted(self, fact: Adopted) -> None:
        self._answer(self.owing.take_up(fact))
        self._timers.set(("sweep",), self.queue.now)

    def _purge(self, fact: PurgeRequested) -> None:
        count, outcomes = self.requests.purge(fact)
        self._follow(outcomes)
        self._answer(count)

    def _answer(self, value: int | bool) -> None:
        self._out.append(Answer(value))

    def _tick(self, _fact: Tick) -> None:
        pass  # what is due is done after every fact

    def _end_due(self, minion: str, jid: str) -> None:
        entry = self.queue.entry(minion, jid)
        if entry is None or entry.state in UNDER_WAY:
            return
        if entry.state in ENDED:
            self._follow(self.owing.remove(entry))
            return
        # It expires if the job cache has no return of it, once that can be read.
        self._out.append(self.replays.look_for_returns(jid, (minion,)))
        self._timers.set(("end", minion, jid), self.queue.now + AGAIN)


HANDLERS: dict[type, Callable[[Retry, Any], None]] = {
    Published: Retry._published,
    ReturnHeard: Retry._return_heard,
    Acknowledged: Retry._acknowledged,
    SignOfLife: Retry._sign_of_life,
    Gap: Retry._gap,
    JobRead: Retry._job_read,
    LookedUp: lambda self, fact: self.replays.looked_up(fact),
    Asked: lambda self, fact: self.replays.asked(fact),
    Surveyed: Retry._surveyed,
    Claimed: Retry._claimed,
    Sent: Retry._sent,
    SendFailed: Retry._send_failed,
    Unreadable: Retry._unreadable,
    KeysRead: Retry._keys_read,
    Vetted: lambda self, fact: self.capture.vetted(fact),
    Refused: lambda self, fact: self.owing.refused(fact),
    OpeningFound: Retry._opening_found,
    Restored: Retry._restored,
    Adopted: Retry._adopted,
    EnqueueRequested: lambda self, fact: self._answer(self.requests.enqueue(fact)),
    ReplayRequested: lambda self, fact: self._answer(self.requests.replay(fact)),
    RetryRequested: lambda self, fact: self._answer(self.requests.retry(fact)),
    CancelRequested: lambda self, fact: self._answer(self.requests.cancel(fact)),
    PurgeRequested: Retry._purge,
    PauseRequested: lambda self, _fact: self._answer(self.requests.pause()),
    ResumeRequested: lambda self, _fact: self._answer(self.requests.resume()),
    Tick: Retry._tick,
}

_TIMERS: dict[str, Callable[..., None]] = {
    "open": Retry._open_due,
    "note": Retry._note_due,
    "keys": Retry._check_keys,
    "opening": Retry._opening_due,
    "end": Retry._end_due,
    "minion": lambda self, minion: self.replays.begin(minion),
    **{name: functools.partial(Retry._gathered, gathering=name) for name in GATHERINGS},
    "heard": lambda self, minion, jid: self.replays.heard_due(minion, jid),
    "replay": lambda self, minion: self.replays.overdue(minion),
    "sweep": Retry._sweep,
    "survey": lambda self: self.outbox.survey(),
    "rate": lambda self: None,
}
