"""
Which replays are under way: when one begins, that a minion has one at most, and the looks at the job cache that they share.
Part of the retry machine, and as pure as it.

What a look or an answer means is decided in retry/replay.py. It must never let a minion have two flights.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from saltext.jobs.core.retry.capture import AGAIN
from saltext.jobs.core.retry.entry import UNDER_WAY, Entry, State
from saltext.jobs.core.retry.facts import Effect, LookUp, ReturnHeard, Unreadable
from saltext.jobs.core.retry.line import Flight, Step
from saltext.jobs.core.retry.outbox import Outbox
from saltext.jobs.core.retry.queue import Queue
from saltext.jobs.core.retry.timers import Timers

if TYPE_CHECKING:
    from saltext.jobs.core.settings import RetrySettings

#: Seconds for which returns that were heard are gathered into one look at the job cache, which gets them a moment later.
HEARD = 0.3
#: How often a return that was heard is looked for before it counts as not genuine.
_HEARD_LOOKS = 5


class Flights:
    """
    :param settings: the options under ``job_retry``.
    :param queue: what is owed.
    :param outbox: what waits for its turn to be published.
    :param timers: the machine's; the keys ``minion``, ``company``, ``look``, ``heard``, ``flight`` and ``end`` are set here.
    :param emit: takes an effect.
    :param paused: whether no flight begins.
    """

    def __init__(
        self,
        settings: RetrySettings,
        queue: Queue,
        outbox: Outbox,
        timers: Timers,
        emit: Callable[[Effect], None],
        paused: bool,
    ) -> None:
        self._settings, self._queue, self._outbox, self._timers, self._emit = settings, queue, outbox, timers, emit
        self.paused = paused
        self._company: dict[str, dict[str, None]] = {}  # jid -> minions that gather for it
        self._looks: dict[str, dict[str, None]] = {}  # jid -> minions to look up
        self._heard: dict[tuple[str, str], int] = {}  # returns that were heard -> looks

    # -- when one begins ----------------------------------------------------------------------------------------------

    def alive(self, minion: str, start: bool = False) -> None:
        """Let what a minion is owed go to it soon; with ``start`` it has just started."""
        line = self._queue.lines.get(minion)
        if line is None:
            return
        line.seen = self._queue.now
        if start:
            for entry in line.entries.values():
                entry.next_at = 0.0
        flight = line.flight
        if flight is None:
            # The jitter spreads a fleet that starts at once; it is the same for a minion each time.
            spread = 1.0 + zlib.crc32(minion.encode()) / 2**32
            self.wake(minion, self._queue.now + self._settings.settle * spread, anew=start)
        elif start and (flight.step in (Step.SENT, Step.RUNNING) or not flight.before):
            flight.restarted = True
            if flight.step in (Step.SENT, Step.RUNNING):
                self._timers.set(("flight", minion), self._queue.now + self._settings.settle)

    def wake(self, minion: str, at: float, anew: bool = False) -> None:
        """Let the next flight of a minion begin at ``at``, or as soon after as it may."""
        line = self._queue.lines.get(minion)
        if line is None or line.flight is not None or self.paused:
            return
        times = [0.0 if e.state in UNDER_WAY else e.next_at for e in line.waiting]
        if times:
            at = max(at, line.not_before, min(times))
            (self._timers.set if anew else self._timers.no_later)(("minion", minion), at)

    def begin(self, minion: str) -> None:
        """Begin the flight of what a minion is owed first: the job that was published first, unless that must wait."""
        line = self._queue.lines.get(minion)
        if line is None or line.flight is not None or self.paused:
            return
        ready = [e for e in line.waiting if e.state in UNDER_WAY or e.next_at <= self._queue.now]
        if not ready:
            return
        entry = min(ready, key=self._turn)
        before = entry.state is State.PENDING
        line.flight = Flight(entry.jid, before, self._queue.now)
        if before:
            self._company.setdefault(entry.jid, {})[minion] = None
            self._timers.no_later(("company", entry.jid), self._queue.now + self._settings.window)
        else:
            self.look(entry.jid, minion, HEARD)

    def _turn(self, entry: Entry) -> tuple[bool, float, str]:
        return entry.state is State.PENDING, self._queue.jobs[entry.jid].published_at, entry.jid

    # -- where one stands, and its end --------------------------------------------------------------------------------

    def find(self, minion: str, jid: str, *steps: Step) -> tuple[Entry, Flight] | None:
        """Return the flight of a job to a minion with its entry, if it is at one of these steps."""
        line = self._queue.lines.get(minion)
        if line is None or line.flight is None or line.flight.jid != jid or line.flight.step not in steps:
            return None
        return line.entries[jid], line.flight

    def find_all(self, jid: str, minions: Iterable[str], *steps: Step) -> Iterator[tuple[Entry, Flight]]:
        """Yield those flights of a job to minions that are at one of these steps."""
        for minion in minions:
            pair = self.find(minion, jid, *steps)
            if pair:
                yield pair

    def land(self, entry: Entry) -> None:
        """End the flight of an entry, if it has one."""
        line = self._queue.lines[entry.minion]
        if line.flight is None or line.flight.jid != entry.jid:
            return
        line.flight = None
        self._timers.cancel(("flight", entry.minion))
        self._outbox.withdraw(entry.jid, entry.minion)
        self.wake(entry.minion, self._queue.now)

    def back(self, entry: Entry, flight: Flight, alive: bool) -> None:
        """End a flight without a return: the entry waits for the next sign of life."""
        line = self._queue.lines[entry.minion]
        line.not_before = self._queue.now + self._settings.cooldown
        line.flight = None
        self._timers.cancel(("flight", entry.minion))
        if entry.state is State.PENDING and entry.expires_at <= self._queue.now:
            self._timers.set(("end", entry.minion, entry.jid), self._queue.now)
        if flight.restarted or line.seen > flight.began:
            alive = True
        if flight.restarted:
            entry.next_at = 0.0
        if flight.urgent:
            entry.next_at = line.not_before = 0.0
            alive = True
        if alive:
            self.wake(entry.minion, self._queue.now + self._settings.settle)
        elif len(line.entries) > 1:
            # Nothing speaks for this minion; still, what is behind must not wait for ever once it does.
            self._timers.cancel(("minion", entry.minion))

    def ask(self, entry: Entry, flight: Flight) -> None:
        """Let the minion be asked about the job."""
        flight.step = Step.TO_ASK
        self._outbox.ask(entry.jid, (entry.minion,))

    def doubt(self, minion: str) -> None:
        """Find out what has become of a job that is under way."""
        line = self._queue.lines.get(minion)
        flight = line.flight if line else None
        if flight is not None and flight.step in (Step.SENT, Step.RUNNING):
            flight.step, flight.before, flight.idle = Step.WAIT, False, False
            self._timers.cancel(("flight", minion))
            self.look(flight.jid, minion, HEARD)

    # -- looks at the job cache ---------------------------------------------------------------------------------------

    def look(self, jid: str, minion: str, wait: float) -> None:
        """Look for a minion's return within ``wait`` seconds; looks for the same job go together."""
        self._looks.setdefault(jid, {})[minion] = None
        self._timers.no_later(("look", jid), self._queue.now + wait)

    def company_due(self, jid: str) -> None:
        """Look up the minions that have gathered for a job."""
        self._look_for(jid, self._company.pop(jid, {}))

    def look_due(self, jid: str) -> None:
        """Look up the minions that are to be looked up for a job."""
        self._look_for(jid, self._looks.pop(jid, {}))

    def _look_for(self, jid: str, wanted: Iterable[str]) -> None:
        minions = [minion for minion in wanted if self._queue.has(minion, jid)]
        for _entry, flight in self.find_all(jid, minions, Step.WAIT):
            flight.step = Step.LOOKING
        if minions:
            self._emit(LookUp(jid, tuple(minions)))

    def unreadable(self, fact: Unreadable) -> None:
        """Look again later."""
        for entry, flight in self.find_all(fact.jid, fact.minions, Step.LOOKING):
            flight.step = Step.WAIT
            self.look(entry.jid, entry.minion, AGAIN)
        for minion in fact.minions:
            if (minion, fact.jid) in self._heard:
                self._timers.set(("heard", minion, fact.jid), self._queue.now + AGAIN)

    # -- returns that were heard --------------------------------------------------------------------------------------

    def return_heard(self, fact: ReturnHeard) -> None:
        """Look whether the job cache has a return that the bus told of."""
        if self._queue.has(fact.minion, fact.jid):
            self._heard[fact.minion, fact.jid] = 0
            self.look(fact.jid, fact.minion, HEARD)

    def still_unheard(self, entry: Entry) -> None:
        """Look again, a few times, for a return that the bus told of and the job cache has not."""
        key = (entry.minion, entry.jid)
        looks = self._heard.get(key)
        if looks is None:
            return
        if looks + 1 >= _HEARD_LOOKS:
            del self._heard[key]
            return
        self._heard[key] = looks + 1
        self._timers.set(("heard", *key), self._queue.now + 2.0**looks)

    def heard_due(self, minion: str, jid: str) -> None:
        """Look again for a return that the bus told of."""
        if (minion, jid) in self._heard:
            self.look(jid, minion, HEARD)

    def forget_heard(self, entry: Entry) -> None:
        """Expect no return of an entry any more."""
        if self._heard.pop((entry.minion, entry.jid), None) is not None:
            self._timers.cancel(("heard", entry.minion, entry.jid))
