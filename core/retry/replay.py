"""
The way of a replay from a look at the job cache to the minion's receipt, and what is concluded where no return comes.
Part of the retry machine, and as pure as it; the way itself is told in retry.py.

It must never publish what is not durably claimed, nor what the minion was not asked about first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from saltext.jobs.core.retry.capture import AGAIN, GRACE
from saltext.jobs.core.retry.entry import UNDER_WAY, Entry, State
from saltext.jobs.core.retry.facts import (
    Acknowledged,
    Ask,
    Asked,
    Claim,
    Claimed,
    Effect,
    LookedUp,
    Ping,
    Publish,
    SendFailed,
    Sent,
)
from saltext.jobs.core.retry.flights import Flights
from saltext.jobs.core.retry.line import Flight, Step
from saltext.jobs.core.retry.outbox import Outbox
from saltext.jobs.core.retry.queue import Queue
from saltext.jobs.core.retry.timers import Timers

if TYPE_CHECKING:
    from saltext.jobs.core.settings import RetrySettings

#: Seconds after a publish at which a minion that has shown no receipt is asked; where minions do not say that they begin, it
#: is asked before as well.
RECEIPT, EARLY = 4.0, 1.0
#: Longest wait between two tries, in seconds.
LONGEST_BACKOFF = 3600.0
#: Restarts right after a publish, without a sign of receipt, that count as caused by the job.
_RESTARTS = 2
#: Seconds for which a ``new`` event of a job that was replayed is taken for our own.
_OWN_PUBLISH = 60.0
_BEGUN = "the minion says that it has begun"
#: Steps of a flight in which the job may be on its way to the minion, or there.
_DELIVERING = (Step.WAIT, Step.LOOKING, Step.TO_ASK, Step.ASKING, Step.SENDING, Step.SENT, Step.RUNNING)


class Replays:
    """
    :param settings: the options under ``job_retry``.
    :param queue: what is owed.
    :param flights: which replays are under way.
    :param outbox: what waits for its turn to be published.
    :param timers: the machine's; the keys ``("flight", minion)`` are set here.
    :param emit: takes an effect.
    :param acks: whether minions say when they begin a job.
    """

    def __init__(
        self,
        settings: RetrySettings,
        queue: Queue,
        flights: Flights,
        outbox: Outbox,
        timers: Timers,
        emit: Callable[[Effect], None],
        acks: bool,
    ) -> None:
        self._settings, self._queue, self._flights, self._outbox = settings, queue, flights, outbox
        self._timers, self._emit, self._acks = timers, emit, acks
        self._own: dict[str, float] = {}  # jid -> until when its ``new`` event is our own

    # -- from a look to a question ------------------------------------------------------------------------------------

    def looked_up(self, fact: LookedUp) -> None:
        """Take what the job cache, the keys and the access lists say."""
        for minion in fact.minions:
            entry = self._queue.entry(minion, fact.jid)
            if entry is None:
                continue
            if minion in fact.returned:
                self._queue.end(entry, State.DONE, "the job cache has its return")
                continue
            self._flights.still_unheard(entry)
            pair = self._flights.find(minion, fact.jid, Step.LOOKING)
            if pair:
                self._not_returned(*pair, minion in fact.barred, fact.denied.get(minion, ""))

    def _not_returned(self, entry: Entry, flight: Flight, barred: bool, denied: str) -> None:
        if not flight.before:
            if flight.idle:
                self._vanished(entry, flight)
            else:
                self._flights.ask(entry, flight)
        elif denied:
            self._queue.end(entry, State.DEAD, denied)
        elif barred:
            entry.next_at = self._queue.now + self._settings.backoff
            self._flights.back(entry, flight, alive=False)
        elif flight.asked:
            flight.step = Step.TO_SEND
            self._outbox.send(entry.jid, entry.minion)
        else:
            self._flights.ask(entry, flight)

    def asked(self, fact: Asked) -> None:
        """Take what minions say about a job."""
        for entry, flight in self._flights.find_all(fact.jid, fact.unasked, Step.ASKING):
            flight.step = Step.WAIT
            self._flights.look(entry.jid, entry.minion, AGAIN)
        for entry, _ in self._flights.find_all(fact.jid, fact.ran, Step.ASKING):
            self._queue.end(entry, State.DONE, "the minion had run it; its return was fetched")
        for entry, flight in self._flights.find_all(fact.jid, fact.running, Step.ASKING):
            self._received(entry, flight, "the minion says that it runs it")
        for entry, flight in self._flights.find_all(fact.jid, fact.idle, Step.ASKING):
            self._idle(entry, flight)
        for entry, flight in self._flights.find_all(fact.jid, fact.silent, Step.ASKING):
            self._silent(entry, flight)

    # -- what an answer means -----------------------------------------------------------------------------------------

    def _received(self, entry: Entry, flight: Flight, reason: str) -> None:
        flight.step, flight.before, flight.restarted = Step.RUNNING, False, False
        self._timers.cancel(("flight", entry.minion))
        if entry.state is State.RUNNING:
            return
        if entry.state is State.PENDING:
            entry.attempts += 1
        entry.tries = entry.restarts = 0
        self._queue.move(entry, State.RUNNING, reason)

    def acknowledged(self, fact: Acknowledged) -> None:
        """Take it that a minion says that it has begun a job, however late."""
        entry = self._queue.entry(fact.minion, fact.jid)
        if entry is None or entry.sent_at is None or entry.state not in {State.PENDING, *UNDER_WAY}:
            return
        entry.acknowledged = True
        self._queue.touch(entry)
        pair = self._flights.find(fact.minion, fact.jid, *_DELIVERING)
        if pair is None or entry.state in (State.PENDING, State.RUNNING):
            return  # it counts before the job is sent again
        if pair[1].step in (Step.SENDING, Step.SENT):
            self._received(*pair, _BEGUN)
        else:
            # The minion is being asked just now: whether or not it answers, this stays.
            entry.tries = entry.restarts = 0
            self._queue.move(entry, State.RUNNING, _BEGUN)

    def _idle(self, entry: Entry, flight: Flight) -> None:
        flight.step = Step.WAIT
        if flight.before:
            # What it ran before it answered has been returned by now: look again.
            flight.asked = True
            self._flights.look(entry.jid, entry.minion, 0.0)
        elif flight.early:
            # Perhaps it is just about to begin.
            flight.step, flight.early = Step.SENT, False
            self._timers.set(("flight", entry.minion), self._queue.now + RECEIPT - EARLY)
        else:
            # Its return may be on the way.
            flight.idle = True
            self._flights.look(entry.jid, entry.minion, GRACE)

    def _silent(self, entry: Entry, flight: Flight) -> None:
        if entry.state is State.PENDING:
            self._flights.back(entry, flight, alive=False)
        elif entry.state is not State.RUNNING:
            self._not_received(entry, flight, False, "no sign of receipt, and it does not answer")
        elif entry.expires_at <= self._queue.now:
            self._queue.end(entry, State.EXPIRED, "it was begun, but nothing more was heard of it in its time to live")
        else:
            flight.step = Step.RUNNING

    def _vanished(self, entry: Entry, flight: Flight) -> None:
        """The minion is there, does not run the job, and has not returned it."""
        if entry.state is State.RUNNING or entry.acknowledged:
            if entry.state is State.PENDING:
                self._received(entry, flight, _BEGUN)
            self._interrupted(entry, flight)
            return
        if flight.restarted:
            entry.restarts += 1
            if entry.restarts >= _RESTARTS:
                self._hold(entry, "each time it was sent, the minion started anew at once")
                return
        self._not_received(entry, flight, True, "no sign of receipt; the minion does not run it")

    def _interrupted(self, entry: Entry, flight: Flight) -> None:
        limits = self._queue.jobs[entry.jid].limits
        again = self._settings.retry_interrupted if limits.retry_interrupted is None else limits.retry_interrupted
        if not again:
            self._hold(entry, "it was begun and ended without a return")
        elif entry.attempts >= self._max_attempts(entry):
            self._queue.end(entry, State.DEAD, f"it was begun {entry.attempts} times and never returned")
        else:
            entry.acknowledged = False
            self._queue.move(entry, State.PENDING, "it was begun and ended without a return; it will be run again")
            entry.next_at = self._queue.now + self._settings.backoff
            self._flights.back(entry, flight, alive=True)

    def _max_attempts(self, entry: Entry) -> int:
        own = self._queue.jobs[entry.jid].limits.max_attempts
        return self._settings.max_attempts if own is None else own

    def _hold(self, entry: Entry, reason: str) -> None:
        self._queue.end(entry, State.HELD, reason)

    def _not_received(self, entry: Entry, flight: Flight, alive: bool, reason: str) -> None:
        entry.attempts -= 1
        entry.tries += 1
        backoff = self._settings.backoff * 2 ** min(entry.tries - 1, 20)
        entry.next_at = self._queue.now + min(backoff, LONGEST_BACKOFF)
        self._queue.move(entry, State.PENDING, reason)
        self._flights.back(entry, flight, alive)

    # -- publishing ---------------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Publish what may be published by now."""
        self._outbox.release(self._queue.now, self._claim, self._ping, self._ask)

    def _ping(self, minions: Iterable[str]) -> bool:
        known = tuple(minion for minion in minions if minion in self._queue.lines)
        if known:
            self._emit(Ping(known))
        return bool(known)

    def _ask(self, jid: str, minions: Iterable[str]) -> bool:
        wanted = tuple(minions)
        for _entry, flight in self._flights.find_all(jid, wanted, Step.TO_ASK):
            flight.step = Step.ASKING
        if wanted:
            self._emit(Ask(jid, wanted))
        return bool(wanted)

    def _claim(self, jid: str, minions: Iterable[str]) -> bool:
        claimed = []
        for entry, flight in list(self._flights.find_all(jid, minions, Step.TO_SEND)):
            if entry.acknowledged:
                # It was begun after all: what has become of it must be found out.
                flight.before = False
                self._flights.ask(entry, flight)
                continue
            flight.step = Step.CLAIMING
            entry.claim(self._queue.now)
            self._queue.touch(entry)
            claimed.append(entry.minion)
        if claimed:
            self._emit(Claim(jid, tuple(claimed)))
        return bool(claimed)

    def claimed(self, fact: Claimed) -> None:
        """Publish what is durably claimed."""
        ready = []
        for entry, flight in self._flights.find_all(fact.jid, fact.minions, Step.CLAIMING):
            flight.step = Step.SENDING
            ready.append(entry.minion)
            self._queue.tell(entry, "sent")
        if ready:
            self._own[fact.jid] = self._queue.now + _OWN_PUBLISH
            self._emit(Publish(fact.jid, tuple(ready)))

    def sent(self, fact: Sent) -> None:
        """Wait for a sign of receipt."""
        for entry, flight in list(self._flights.find_all(fact.jid, fact.minions, Step.SENDING)):
            if entry.minion in fact.missed:
                self._not_received(entry, flight, False, "the master does not know the minion")
            else:
                self._await_receipt(entry, flight, "published")

    def send_failed(self, fact: SendFailed) -> None:
        """Try again where nothing can have been received; otherwise wait for a sign of receipt."""
        for entry, flight in list(self._flights.find_all(fact.jid, fact.minions, Step.SENDING)):
            if fact.certain:
                self._not_received(entry, flight, True, f"the publish was refused: {fact.reason}")
            else:
                self._await_receipt(entry, flight, f"the publish was not confirmed: {fact.reason}")

    def _await_receipt(self, entry: Entry, flight: Flight, reason: str) -> None:
        flight.step, flight.before = Step.SENT, False
        self._queue.move(entry, State.SENT, reason)
        if entry.acknowledged:
            self._received(entry, flight, _BEGUN)
        else:
            flight.early = not self._acks
            self._timers.set(("flight", entry.minion), self._queue.now + (EARLY if flight.early else RECEIPT))

    def is_own(self, jid: str) -> bool:
        """Tell whether a ``new`` event of a job is likely that of a replay."""
        return self._own.get(jid, 0.0) > self._queue.now

    def forget_own(self) -> None:
        """Forget replays whose ``new`` event has long come."""
        self._own = {jid: until for jid, until in self._own.items() if until > self._queue.now}
