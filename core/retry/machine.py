"""
The retry machine: facts in, effects out, time as an argument. A table says which part takes which fact. The parts are just
as pure, and the queue gathers the effects that they want:

    capture.py     who has missed a job                open_job.py  a job whose outcome is not known yet
    notes.py       what is known without an entry
    owing.py       how entries come, end and go
    queue.py       what is owed, and what is stored    entry.py     the states of an entry
    turns.py       who is there, when a replay begins  openings.py  which jobs may be replayed now
    policy.py   what is done about it                  replay.py    brings facts to entries, and carries out decisions
    looks.py    shared looks at the job cache
    outbox.py      what is published, and how fast     timers.py    what is due when

Pure: stdlib only, no clock, no I/O. It must never send a job to a minion while another job of its queue is under way there,
nor a job that is known to have begun, unless ``max_attempts`` or an operator asks for that.

A minion has one replay at most. Minions that are owed the same job get it together, in one publish. If no receipt comes, or
if it is in doubt what became of a publish, the job cache is read and the minion is asked. Doubts come with a restart of the
minion or of this engine, with lost events, and with each sweep.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from saltext.jobs.core.delivery.known import Evidence
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.capture import Capture
from saltext.jobs.core.retry.entry import ENDED, UNDER_WAY, Entry, Job, State
from saltext.jobs.core.retry.notes import Notes
from saltext.jobs.core.retry.openings import Openings
from saltext.jobs.core.retry.outbox import Outbox, Purpose
from saltext.jobs.core.retry.owing import Owing
from saltext.jobs.core.retry.queue import Queue
from saltext.jobs.core.retry.replay import GATHERINGS, Replays
from saltext.jobs.core.retry.timers import AGAIN, Timers
from saltext.jobs.core.retry.turns import Turns

if TYPE_CHECKING:
    from saltext.jobs.core.options.engines import RetrySettings

#: Seconds by which the time of a publish may be wrong.
_SLACK = 1.0
#: Seconds for which events about keys, which may be forged, are gathered into one look at the keys.
_KEYS_CHANGED = 1.0


class Retry:
    """
    The retry queue of one master.

    :param patience: seconds after which a published job should have been returned or be running.
    :param paused: whether replays begin paused.
    :param acks: whether minions say when they begin a job.
    """

    def __init__(self, settings: RetrySettings, patience: float, paused: bool = False, acks: bool = True) -> None:
        self.settings = settings
        self._timers = Timers()
        self.openings = Openings(settings, self._timers)
        self.queue = Queue(settings, self._timers, self.openings, acks)
        self.outbox = Outbox(settings.rate, self._timers)
        self.turns = Turns(self.queue, self.openings, self.outbox, paused)
        self.replays = Replays(self.queue, self.outbox, self.turns)
        self._notes = Notes(self._timers, self.queue.changed)
        self.owing = Owing(self.queue, self._notes, self.turns, self.replays)
        self.capture = Capture(self.queue, self._notes, self.owing, patience)
        self._over = dict[str, list[str]]()  # by jid: minions whose time for that job is over
        # What the shell asks.
        self.jobs, self.backlogs = self.queue.jobs, self.queue.backlogs
        self.entry, self.entries, self.minions_of = self.queue.entry, self.queue.entries, self.queue.minions_of
        self.notes = self._notes.by_jid

        replays, capture = self.replays, self.capture
        self.handlers: Mapping[type, Callable[[Any], object]] = {
            facts.Published: self._published,
            facts.Returned: replays.returned,
            facts.Kill: capture.kill,
            facts.Acknowledged: self._acknowledged,
            facts.SignOfLife: self._sign_of_life,
            facts.KeysChanged: self._keys_changed,
            facts.Gap: lambda fact: self._look_again(fact.returns),
            facts.JobRead: capture.read,
            facts.LookedUp: replays.looked_up,
            facts.Asked: replays.asked,
            facts.Surveyed: self._surveyed,
            facts.Claimed: replays.claimed,
            facts.Sent: replays.sent,
            facts.Unreadable: self._unreadable,
            facts.KeysRead: self.owing.keys_read,
            facts.Restored: self._restored,
            facts.Requested: self._requested,
            facts.Tick: lambda _fact: None,  # what is due is done after every fact
        }
        self._timed: Mapping[str, Callable[..., object]] = {
            **{name: functools.partial(replays.due, name) for name in GATHERINGS},
            "open": capture.due,
            "note": capture.note_due,
            "keys": self._check_keys,
            "opening": self._opening_due,
            "end": self._end_due,
            "minion": replays.begin,
            "replay": functools.partial(replays.doubt, Evidence.DUE),
            "sweep": self._sweep,
            "survey": lambda: self.outbox.line_up(Purpose.SURVEY),
            "rate": lambda: None,  # what may be published is published after every fact
        }
        self._released: Mapping[Purpose, Callable[[str, tuple[str, ...]], object]] = {
            Purpose.JOB: replays.claim,
            Purpose.PING: lambda _, minions: self.queue.want(facts.Ping(minions)),
            Purpose.QUESTION: replays.ask,
            Purpose.SURVEY: lambda *_: capture.survey(),
        }

    # -- what the shell asks ------------------------------------------------------------------------------------------

    @property
    def next_due(self) -> float | None:
        """When a Tick is next due, in Unix time."""
        return self._timers.next()

    @property
    def total(self) -> int:
        return self.queue.total

    def knows(self, jid: str) -> bool:
        """Tell whether the load of a job is still needed."""
        return jid in self.jobs or jid in self.capture.open

    def wants_start(self, minion: str, now: float) -> bool:
        """
        Tell whether the start of a minion matters now. Starts can be forged for any id, so the start of a minion that
        is owed nothing costs next to nothing.
        """
        if minion in self.queue.backlogs:
            return True
        if self.capture.open:
            self.turns.started(minion, now)
        return False

    def receipt_awaited_since(self, minion: str, jid: str) -> float | None:
        """Return when a job was published whose receipt has not come yet; None if none is awaited."""
        entry = self.queue.entry(minion, jid)
        return entry.sent_at if entry is not None and entry.state is State.SENT else None

    # -- the main path ------------------------------------------------------------------------------------------------

    def step(self, fact: facts.Fact, now: float) -> list[facts.Effect]:
        """
        Take a fact that has become known at ``now``, and return what is to be done.

        Effects are begun in this order. Only an Answer waits, for the Saves before it.
        """
        self.queue.now = max(now, self.queue.now)
        self.handlers[type(fact)](fact)
        for key in self._timers.due(self.queue.now):
            self._timed[key[0]](*key[1:])
        for jid in list(self._over):
            self.queue.want(facts.FindReturns(jid, tuple(self._over.pop(jid))))
        for purpose, jid, minions in self.outbox.release(self.queue.now):
            self._released[purpose](jid, minions)
        return self.queue.take_due()

    # -- facts from the bus, and what makes up for lost events --------------------------------------------------------

    def _published(self, fact: facts.Published) -> None:
        if fact.jid in self.queue.jobs:
            self.queue.republished[fact.jid] = fact.at + _SLACK
        self.owing.published(fact.jid, fact.minions, min(fact.at, self.queue.now))
        self.capture.published(fact)

    def _surveyed(self, fact: facts.Surveyed) -> None:
        for minion, jids in fact.running.items():
            for jid in jids:  # perhaps jobs that it seemed to have missed
                self.replays.acknowledged(facts.Acknowledged(minion, jid), proven=True)
        self.capture.surveyed(fact)

    def _acknowledged(self, fact: facts.Acknowledged) -> None:
        if self.queue.has(fact.minion, fact.jid):
            self.replays.acknowledged(fact)
        else:
            self.capture.begun(fact.jid, fact.minion)

    def _sign_of_life(self, fact: facts.SignOfLife) -> None:
        self.turns.sign_of_life(fact)
        self.owing.alive(fact.minions)

    def _look_again(self, returns: bool = True) -> None:
        """Look at all that waits for an event, since events may have been missed."""
        for jid in self.queue.jobs if returns else ():
            self.queue.want(facts.FindReturns(jid, tuple(self.queue.minions_of(jid))))
        for minion, backlog in list(self.queue.backlogs.items()):
            backlog.free_at = 0.0  # it may have restarted
            if backlog.replay is not None:
                self.replays.doubt(Evidence.GAP, minion)
            elif any(entry.state in UNDER_WAY for entry in backlog.entries.values()):
                self.turns.wake(minion, self.queue.now)
        self.turns.ping_without_replay(self.queue.backlogs)

    def _sweep(self) -> None:
        self._timers.set(("sweep",), self.queue.now + self.settings.sweep)
        self.capture.recheck()
        if self.queue.backlogs:
            self._check_keys()
            self._look_again(returns=False)

    def _opening_due(self, *hours: str) -> None:
        opened, shut, told = self.openings.due((hours[0], hours[1]), self.queue.now)
        self.queue.want(*told)
        for jid in opened:
            self.turns.ping_without_replay(self.queue.minions_of(jid))
        for jid in shut:
            self.replays.shut(self.queue.minions_of(jid))

    def _unreadable(self, fact: facts.Unreadable) -> None:
        if fact.minions:
            self.replays.unreadable(fact)
        else:
            self.capture.unreadable(fact.jid)

    def _keys_changed(self, _fact: facts.KeysChanged) -> None:
        if self.queue.backlogs:
            self._timers.no_later(("keys",), self.queue.now + _KEYS_CHANGED)

    def _check_keys(self) -> None:
        """Find out which minions with entries have no key."""
        self.queue.want(facts.CheckKeys(tuple(self.queue.backlogs)))

    # -- facts from the store and from operators ----------------------------------------------------------------------

    def _requested(self, fact: facts.Requested) -> None:
        """Do what an operator requests, and answer."""
        try:
            answer = facts.Answer(getattr(self.owing, fact.do)(**fact.given))
        except Exception as exc:
            answer = facts.Answer(failed=exc)
        self.queue.want(answer)

    def take_up(self, jobs: Mapping[str, Job], entries: Iterable[Entry], now: float) -> None:
        """Take up a part of what the store holds. This comes before Restored, and has no effects."""
        self.queue.now = max(now, self.queue.now)
        self.owing.take_up(jobs, entries)
        # The store has it already.
        self.queue.changed.clear()

    def _restored(self, fact: facts.Restored) -> None:
        self._timers.set(("sweep",), self.queue.now)
        self.capture.restore(fact.notes, fact.open)

    def _end_due(self, minion: str) -> None:
        following = math.inf
        for entry in self.queue.of(minion, None):
            end = self.queue.end_of(entry)
            if end > self.queue.now:
                following = min(following, end)
            elif entry.state in ENDED:
                self.owing.remove(entry)
            else:
                # It expires once a look finds no return: the log may lack one that the job cache has.
                self._over.setdefault(entry.jid, []).append(minion)
                following = min(following, self.queue.now + AGAIN)
        if minion in self.queue.backlogs:
            self._timers.no_later(("end", minion), following)
