"""
The retry machine: facts in, effects out, time as an argument. A table says which part takes which fact. The parts are just
as pure, and the queue gathers the effects that they want:

    capture.py  who has missed a job, or begun it        replay.py  when a replay begins, and what becomes of it
    owing.py    what operators ask for                   policy.py  what is decided about that
    queue.py    what is owed, what may be replayed now   entry.py   what is stored, and the states of an entry
    waiting.py  what is due when, and what is published

Pure: stdlib only, no clock, no I/O. It must never send a job to a minion while another job of its queue is under way there,
nor a job that is known to have begun, unless ``max_attempts`` or an operator asks for that.

Minions that are owed the same job get it together, in one publish. If no receipt comes, or if it is in doubt what became of
a publish (the minion or this engine has restarted, events were lost), the job cache is read and the minion is asked.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from saltext.jobs.core.delivery.known import Evidence
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.capture import Capture
from saltext.jobs.core.retry.entry import ENDED, UNDER_WAY, Entry, Job
from saltext.jobs.core.retry.owing import Owing
from saltext.jobs.core.retry.policy import LONGEST_BACKOFF
from saltext.jobs.core.retry.queue import Queue
from saltext.jobs.core.retry.replay import GATHERINGS, Replays, Turns
from saltext.jobs.core.retry.waiting import AGAIN, Outbox, Purpose

if TYPE_CHECKING:
    from saltext.jobs.core.options.engines import RetrySettings

#: Seconds by which the time of a publish may be wrong.
_SLACK = 1.0
#: Seconds that all minions need to connect again to a restarted master. They do not announce it.
_CONNECTED = 120.0
#: Seconds for which events about keys, which may be forged, are gathered into one look at the keys.
_KEYS_CHANGED = 1.0


class Retry:
    """
    The retry queue of one master. ``patience``: seconds after which a published job should have been returned or be running.
    ``paused``: whether replays begin paused. ``acks``: whether minions say when they begin a job.
    """

    def __init__(self, settings: RetrySettings, patience: float, paused: bool = False, acks: bool = True) -> None:
        self.settings, self.queue = settings, Queue(settings)
        self._timers = self.queue.timers
        self._outbox = Outbox(settings.rate, self._timers)
        self.turns = Turns(self.queue, self._outbox, paused)
        replays = self._replays = Replays(self.queue, self._outbox, self.turns, acks)
        capture = self.capture = Capture(self.queue, self.turns, replays, patience)
        owing = Owing(self.queue, self.turns, replays, capture)
        # What the shell asks.
        self.jobs, self.backlogs, self.watched = self.queue.jobs, self.queue.backlogs, capture.jobs
        self.entry, self.entries, self.minions_of = self.queue.entry, self.queue.entries, self.queue.minions_of

        self.handlers: Mapping[type, Callable[[Any], object]] = {
            facts.Published: self._published,
            facts.Returned: replays.returned,
            facts.Kill: capture.kill,
            facts.Acknowledged: lambda fact: self._begun(fact.minion, fact.jid),
            facts.SignOfLife: lambda fact: self.turns.sign_of_life(fact.minions, fact.started),
            facts.KeysChanged: lambda _: self._timers.no_later(("keys",), self.now + _KEYS_CHANGED),
            facts.Gap: lambda fact: self._look_again(fact.returns),
            facts.Done: lambda fact: self._done[type(fact.effect)](fact.effect, fact.found),
            facts.Failed: lambda fact: self._failed[type(fact.effect)](fact),
            facts.Restored: self._restored,
            facts.Requested: lambda fact: self.queue.want(facts.Answer(getattr(owing, fact.request["do"])(fact))),
            facts.Tick: lambda _: None,  # what is due is done after every fact
        }
        self._done: Mapping[type, Callable[[Any, Any], object]] = {
            facts.Read: capture.read,
            facts.LookUp: replays.looked_up,
            facts.FindReturns: replays.found,
            facts.Ask: replays.asked,
            facts.Inquire: self._surveyed,
            facts.Claim: lambda effect, _: replays.claimed(effect),
            facts.Publish: replays.sent,
            facts.Ping: lambda *_: None,  # who has answered is told meanwhile
            facts.CheckKeys: lambda _, keys: owing.keys_read(*keys),
        }
        self._failed: Mapping[type, Callable[[facts.Failed], object]] = {
            facts.Read: capture.failed,
            facts.LookUp: replays.failed,
            facts.FindReturns: lambda _: None,  # they are looked for again in any case
            facts.Ask: replays.failed,
            facts.Inquire: capture.failed,
            facts.Publish: replays.failed,
            facts.Ping: lambda _: self._timers.no_later(("sweep",), self.now + AGAIN),
            facts.CheckKeys: lambda _: self._timers.no_later(("keys",), self.now + AGAIN),
        }
        self._timed: Mapping[str, Callable[..., object]] = {
            **{name: functools.partial(replays.due, name) for name in GATHERINGS},
            "job": capture.due,
            "keys": self._check_keys,
            "opening": self._opening_due,
            "end": self._end_due,
            "minion": replays.begin,
            "connected": self._ping_silent,
            "replay": functools.partial(replays.doubt, Evidence.DUE),
            "sweep": self._sweep,
            "survey": lambda: self._outbox.line_up(Purpose.SURVEY),
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
    def now(self) -> float:
        """The time of the last step."""
        return self.queue.now

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

    def wants_start(self, minion: str) -> bool:
        """Tell whether a minion's start matters now. It can be forged for any id, so others cost next to nothing."""
        self.capture.started(minion)
        return minion in self.backlogs

    # -- the main path ------------------------------------------------------------------------------------------------

    def step(self, fact: facts.Fact, now: float) -> list[facts.Effect]:
        """Take a fact that has become known at ``now``, and return what is to be done, in this order."""
        self.queue.now = max(now, self.now)
        self.handlers[type(fact)](fact)
        for key in self._timers.due(self.now):
            self._timed[key[0]](*key[1:])
        for purpose, jid, minions in self._outbox.release(self.now):
            self._released[purpose](jid, minions)
        return self.queue.take_wanted()

    # -- facts from the bus, and what makes up for lost events --------------------------------------------------------

    def _published(self, fact: facts.Published) -> None:
        if fact.jid in self.jobs:
            self.queue.republished[fact.jid] = fact.at + _SLACK
        self.capture.published(fact)

    def _surveyed(self, survey: facts.Inquire, running: Mapping[str, frozenset[str]]) -> None:
        for minion, jids in running.items():
            for jid in jids:  # also of jobs about which the minion was not asked, or that are queued for it as missed
                self._begun(minion, jid, proven=True)
        self.capture.surveyed(survey, running)

    def _begun(self, minion: str, jid: str, proven: bool = False) -> None:
        entry = self.entry(minion, jid)
        if entry is not None:
            self._replays.acknowledged(entry, proven)
        else:
            self.capture.begun(jid, minion, proven)

    def _look_again(self, returns: bool = True) -> None:
        """Look at all that waits for an event, since events may have been missed."""
        for jid in self.jobs if returns else ():
            self.queue.want(facts.FindReturns(jid, tuple(self.minions_of(jid))))
        for minion, backlog in list(self.backlogs.items()):
            backlog.free_at = 0.0  # it may have restarted
            if backlog.replay is not None:
                self._replays.doubt(Evidence.GAP, minion)
            elif any(entry.state in UNDER_WAY for entry in backlog.entries.values()):
                self.turns.wake(minion, self.now)
        self.turns.ping(self.backlogs)

    def _ping_silent(self) -> None:
        """Ping those that have not been heard since the start: the first ping came before they were connected again."""
        silent = (minion for minion, backlog in self.backlogs.items() if backlog.seen < self.now - _CONNECTED)
        self.turns.ping(silent)

    def _sweep(self) -> None:
        self._timers.set(("sweep",), self.now + self.settings.sweep)
        self.capture.recheck()
        self._check_keys()
        self._look_again(returns=False)

    def _opening_due(self, *hours: str) -> None:
        for jid in self.queue.opening_due(*hours):
            self.turns.ping(self.minions_of(jid))

    def _check_keys(self) -> None:
        if self.backlogs:
            self.queue.want(facts.CheckKeys())

    # -- facts from the store and from operators ----------------------------------------------------------------------

    def take_up(self, owed: Iterable[tuple[Entry, Job]], now: float) -> None:
        """Take up a part of what the store holds. This comes before Restored, and has no effects."""
        now = self.queue.now = max(now, self.now)
        for entry, job in owed:
            # The clock may have been set back. Then whatever kill comes counts as later than the request.
            if entry.wanted_at > now:
                entry.wanted_at = 0.0
            entry.next_at = min(entry.next_at, now + max(LONGEST_BACKOFF, self.settings.backoff))
            self.queue.put(job, entry)

    def _restored(self, fact: facts.Restored) -> None:
        self._timers.set(("sweep",), self.now)
        self._timers.set(("connected",), self.now + _CONNECTED)
        self.capture.restore(fact.watched)
        # A record that was recovered may be of an entry that an operator has removed since.
        for jid, watched in fact.watched.items():
            for entry in self.queue.at(jid, watched.settled):
                self._replays.remove(entry)

    def _end_due(self, jid: str) -> None:
        """Remove the entries of a job that were kept long enough, and find out from the job cache which others expire."""
        over, following = list[str](), math.inf
        for entry in self.queue.at(jid, self.minions_of(jid)):
            end, is_ended = self.queue.end_of(entry), entry.state in ENDED
            if end > self.now:
                following = min(following, max(end, self.now + AGAIN) if is_ended else end)
            elif is_ended:
                self.capture.remove(entry)
            else:
                over.append(entry.minion)
                following = min(following, self.now + AGAIN)
        if over:
            self.queue.want(facts.FindReturns(jid, tuple(over)))
        if jid in self.jobs:
            self._timers.no_later(("end", jid), following)
