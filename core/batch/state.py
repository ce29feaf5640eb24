"""
The state of a batch, with queries, and with the changes that several parts make; and its rows (``core/ledger/batches.py``):
one of the batch, and one for each minion that was once sent to or has ended. What no row holds is found out again.

It must never decide what to do: that is in ``machine.py`` and the parts named there. Pure: stdlib only.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.facts import Effect, Fact
from saltext.jobs.core.batch.gates import (
    SCHEDULED,
    Checks,
    Pause,
    PausedBy,
    Rights,
    Room,
    Schedule,
    read_code,
    read_pause,
    write_code,
    write_pause,
)
from saltext.jobs.core.batch.inflight import Flight, InFlight
from saltext.jobs.core.batch.kept import Kept, kept, made, nothing
from saltext.jobs.core.batch.outcomes import Ended, Outcome, Outcomes
from saltext.jobs.core.batch.pace import Pace, PublishWindow
from saltext.jobs.core.batch.pending import Pending, Presence
from saltext.jobs.core.batch.plan import Membership
from saltext.jobs.core.batch.spec import Spec

#: The parts of a batch that keep something in its row.
PARTS = ("pace", "presence", "publish_window", "room", "schedule", "rights", "checks")


S = TypeVar("S", bound="BatchState")


@dataclasses.dataclass(slots=True, init=False, eq=False, repr=False)
class BatchState(Kept):
    """
    :param spec: what was asked for.
    :param now: Unix time in seconds.
    """

    spec: Spec
    inflight: InFlight
    record: Outcomes
    pace: Pace
    presence: Presence
    publish_window: PublishWindow
    room: Room
    schedule: Schedule
    rights: Rights
    checks: Checks
    membership: Membership
    touched: set[str] = made(set)  # minions whose rows have changed since they were written
    waiting: Pending = made(Pending)
    maybe_received: set[str] = made(set)  # they are pending again
    resends: Counter[str] = made(Counter)
    to_hand_over: dict[str, None] = made(dict)  # to the retry queue
    created: float = kept(float)
    started: float | None = kept(nothing)  # when the start was announced
    last_progress: float = kept(float)
    finished: float | None = kept(nothing)
    closed: bool = kept(bool)
    halted: str | None = kept(nothing)  # why nothing more is published
    paused: Pause | None = kept(nothing, write_pause, read_pause)  # until an operator resumes it
    #: The announced pause that ends by itself.
    announced: PausedBy | None = kept(nothing, write_code, read_code)
    killing: bool = kept(bool)
    stopped_by: str = kept(str)
    stepped_at: float = kept(float)  # when the last fact became known
    catching_up: set[str] = made(set)  # minions whose returns from before this engine are looked for

    def __init__(self, spec: Spec, now: float) -> None:
        for field in dataclasses.fields(self):
            if field.default_factory is not dataclasses.MISSING:
                setattr(self, field.name, field.default_factory())
        self.spec, self.created, self.last_progress = spec, now, now
        self.membership = Membership(spec.minions, [count for _, count in spec.groups])
        self.inflight, self.record = InFlight(spec, self.touched), Outcomes(spec, self.membership, self.touched)
        self.pace, self.presence, self.room = Pace(spec), Presence(spec), Room(spec)
        self.publish_window = PublishWindow(spec.publish_window, spec.batch_wait)
        self.schedule, self.rights, self.checks = Schedule(spec), Rights(spec), Checks(spec)
        self.pace.not_before = now
        self.waiting = Pending(spec.minions if spec.presence == "none" else (), self.membership)
        if spec.presence == "ping":
            self.presence.first_ping = True
            self.presence.doubt(spec.minions)

    # -- rows -----------------------------------------------------------------------------------------------------------

    def row(self) -> dict[str, Any]:
        """Return the row of the batch as plain values. The spec is beside it."""
        return {**self.values(), **{name: getattr(self, name).values() for name in PARTS}}

    def part(self, minion: str) -> list[Any]:
        """Return the row of a minion as plain values."""
        flight, ended = self.flights.get(minion), self.outcomes.get(minion)
        return [
            flight and flight.as_list(),
            ended and [ended[0].value, *ended[1:]],
            minion in self.record.begun,
            minion in self.maybe_received,
            self.resends[minion],
            minion in self.to_hand_over,
        ]

    @classmethod
    def of_rows(cls: type[S], spec: Spec, row: Mapping[str, Any], parts: Mapping[str, Any]) -> S:
        """
        Return the batch of rows. Its pending minions are in the order of the target, those first that were sent to before.

        :raises ValueError, KeyError, TypeError: if they are not rows of a batch.
        """
        batch = cls(spec, row["created"])
        batch.load(row)
        for name in PARTS:
            getattr(batch, name).load(row[name])
        flights = {}
        for minion, (flight, ended, begun, may_have_it, resends, is_away) in parts.items():
            if flight:
                flights[minion] = Flight.from_list(flight)
            if ended:
                outcome, since, retcode, started = ended
                retcode = None if retcode is None else int(retcode)
                batch.record.settle(minion, Outcome(outcome), since, retcode, started)
            if begun:
                batch.record.begun.add(minion)
            if may_have_it:
                batch.maybe_received.add(minion)
            if is_away:
                batch.to_hand_over[minion] = None
            batch.resends.update({minion: resends} if resends else {})
        batch.inflight.load(flights)
        pending = [minion for minion in spec.minions if not (minion in flights or minion in batch.outcomes)]
        pending.sort(key=lambda minion: minion not in batch.maybe_received)
        batch.waiting = Pending(pending, batch.membership, batch.pace.group)
        batch.presence.unseen.clear()
        batch.touched.clear()
        return batch

    # -- queries ------------------------------------------------------------------------------------------------------

    @property
    def flights(self) -> Mapping[str, Flight]:
        """The minions in flight."""
        return self.inflight.flights

    @property
    def outcomes(self) -> Mapping[str, Ended]:
        """``{minion: (outcome, since, retcode, started)}`` of the minions that have ended."""
        return self.record.ended

    @property
    def counts(self) -> Mapping[Outcome, int]:
        """How many minions have ended in which way."""
        return self.record.counts

    @property
    def state(self) -> str:
        """running, paused, stopping, complete or halted."""
        if self.halted:
            return "halted" if self.finished else "stopping"
        if self.finished:
            return "complete"
        return "paused" if self.waits_for() else "running"

    def waits_for(self) -> Pause | None:
        """Return why nothing is published although minions are pending; None if nothing holds the batch."""
        if self.paused or self.halted or self.finished or not self.has_more():
            return self.paused
        if self.checks.under_way and self.checks.by_hand:
            return Pause(PausedBy.APPROVAL)
        if self.schedule.bounded and not self.schedule.open:
            return self.schedule.pause()
        return Pause(PausedBy.RIGHTS, self.rights.trouble) if self.rights.trouble else None

    def waits_for_room(self) -> str:
        """Return a sentence about how other batches hold it up; empty if they do not, or if it would not send anyway."""
        if self.halted or self.finished or not self.has_more() or self.waits_for():
            return ""
        return self.room.why(len(self.flights))

    def opens_at(self) -> float | None:
        """Return when the batch goes on by itself, in Unix time; None if it does not, or if that is not known."""
        pause = self.waits_for()
        return self.schedule.opens if pause and pause.by in SCHEDULED else None

    @property
    def success(self) -> bool | None:
        """
        Whether it has succeeded: at least one minion ran, and all completed or were left out by ``offline=skip``.

        None while that is open.
        """
        if not self.finished:
            return None
        left_out = self.counts[Outcome.OFFLINE] if self.spec.offline == "skip" else 0
        completed = self.counts[Outcome.COMPLETED]
        return not self.halted and completed > 0 and completed + left_out == len(self.spec.minions)

    @property
    def next_due(self) -> float | None:
        """When the next Tick is due, in Unix time; None while only another fact can change anything."""
        if self.started is None:
            return self.created
        due = (*self._sending_due(), self.checks.due, self.inflight.next_due())
        return min((time for time in due if time is not None), default=None)

    def _sending_due(self) -> Iterator[float | None]:
        """
        Yield the times at which the batch may go on, in the order of ``machine._go_on``, up to the first gate that is
        shut. A time behind that gate would change nothing, and once passed it would stay due for ever.
        """
        if self.halted or self.paused:
            return
        if self.has_more():
            yield self.schedule.next_due()
            if self.schedule.bounded and not self.schedule.open:
                return
            yield self.rights.next_due()
            if self.rights.waits:
                return
        ping_at = self.presence.next_due()
        yield None if ping_at is None else max(ping_at, self.pace.not_before)
        yield None if self.room.wanted else self.pace.publish_at  # then ``live.py`` allots minions
        yield self.pace.cooling[0] if self.pace.cooling and self.waiting else None

    def pending(self) -> list[str]:
        """The minions still to be sent to, in order."""
        return [*self.waiting, *self.presence.unseen]

    def count_pending(self) -> int:
        """Return how many minions are still to be sent to."""
        return len(self.waiting) + len(self.presence.unseen)

    def unsettled(self) -> list[str]:
        """Return the minions whose return would change something."""
        to_be_sent_again = (minion for minion in self.pending() if minion in self.maybe_received)
        return [*self.flights, *filter(self.record.is_guess, self.outcomes), *to_be_sent_again]

    def rely_on_memory(self, minions: Iterable[str]) -> dict[str, float]:
        """
        Return ``{minion: when it was sent to}`` of those among ``minions`` that are to be sent the job again and may have
        received it. Sending it again is safe while their processes remember the jid.
        """
        flights = {minion: self.flights[minion] for minion in minions if minion in self.flights}
        idle = {minion: flight for minion, flight in flights.items() if self.inflight.is_idle(flight)}
        return {minion: flight.since for minion, flight in idle.items() if not (flight.seen or flight.restarted)}

    def wants_return(self, minion: str) -> bool:
        """Whether a return of ``minion`` changes anything."""
        return minion in self.inflight or minion in self.maybe_received or self.record.is_guess(minion)

    def wants_start(self, minion: str) -> bool:
        """Whether a start of the process of ``minion`` changes anything."""
        return self.inflight.relies_on_hearing(minion)

    def wants_acknowledgement(self, minion: str) -> bool:
        """
        Whether the event that ``minion`` has begun the job changes anything.

        Such starts are unauthenticated, and a forger can fire any number of them. So a start is believed only of a minion
        that is not known to have begun.
        """
        if self.finished:
            return False
        if minion in self.inflight:
            return self.inflight.awaits_begin(minion)
        is_guess = self.record.is_guess(minion) and minion not in self.record.begun
        return is_guess or minion in self.maybe_received

    def accepts(self, fact: Fact) -> bool:
        """Whether a request changes anything."""
        if self.finished:
            return False
        if isinstance(fact, facts.StopRequested):
            return not self.halted or (fact.kill and not self.killing and bool(self.flights))
        if isinstance(fact, facts.PauseRequested):
            return not self.halted and not self.paused
        if isinstance(fact, facts.Approved):
            return not self.halted and self.checks.by_hand and self.checks.stage == fact.stage
        return isinstance(fact, facts.ResumeRequested) and bool(self.paused)

    def is_publishing(self) -> bool:
        """Whether a publish is under way: it may still reach minions though the batch is paused or halted."""
        return self.inflight.publishing is not None

    def holds_publish(self, wall: float) -> str:
        """
        Return why a publish that the machine has decided on must not go out after all; empty if it may.

        :param wall: the time of the wall clock.
        """
        if self.halted:
            return "stopped"
        pause = self.paused or (None if self.schedule.look(wall) else self.schedule.pause())
        return pause.reason if pause else ""

    def has_more(self) -> bool:
        """Whether there are minions to publish to, as far as known."""
        return bool(self.waiting or self.presence.unseen)

    def is_over(self) -> bool:
        """Whether nothing is under way, and no minion is to be sent to any more."""
        busy = self.flights or self.is_publishing()
        return not busy and (bool(self.halted) or not (self.has_more() or self.to_hand_over))

    # -- changes ------------------------------------------------------------------------------------------------------

    def settle(self, minion: str, outcome: Outcome, now: float, retcode: int | None) -> None:
        """Note how a minion ended, and free its slot if it has one."""
        flight = self.flights.get(minion)
        started = None if flight is None else flight.began or flight.since
        if flight is not None and self.inflight.remove(minion):
            self.pace.cool(now)
            self.pace.publish_at = None  # it depends on the free slots
            self.publish_window.freed(now)
            if retcode is not None:
                self.publish_window.ran(now - flight.began)
        self.record.settle(minion, outcome, now, retcode, started)
        self.to_hand_over.pop(minion, None)
        self.last_progress = now

    def put_back(self, minions: list[str]) -> None:
        """Make minions pending again, before all others."""
        for minion in minions:
            self.inflight.remove(minion)  # this notes that they have changed
        self.waiting.put_first(minions)
        self.maybe_received.update(minions)
        self.pace.charge(-len(minions))

    def order_pending(self) -> None:
        """Restore the order of the target, whichever minion answered first."""
        present = [minion for minion in self.spec.minions if minion in self.waiting]
        self.waiting = Pending(present, self.membership, self.pace.group)

    def await_signs(self) -> None:
        """Send to no pending minion before it has shown a sign of life."""
        self.presence.doubt(self.waiting)
        self.waiting = Pending((), self.membership, self.pace.group)

    def check_budget(self) -> list[Effect]:
        """Halt if the failures exceed the budget."""
        if self.halted or self.finished:
            return []
        reason = self.record.overdrawn()
        return self.halt(reason) if reason else []

    def halt(self, reason: str) -> list[Effect]:
        """Send to no minion any more, for this reason."""
        self.halted = reason
        self.checks.end()
        self.paused = self.pace.publish_at = None
        return [facts.Announce("halted")]

    def pause(self, by: PausedBy, detail: str) -> list[Effect]:
        """Send to no minion until an operator resumes the batch."""
        if self.halted:
            return []
        self.paused, self.announced, self.pace.publish_at = Pause(by, detail), None, None
        return [facts.Announce("paused", self.paused.payload())]

    def failed_again(self, reason: str, now: float) -> list[Effect]:
        """A publish or ping has failed: wait longer each time, and pause in the end."""
        if self.pace.publish_failed(now):
            return []
        return self.pause(PausedBy.PUBLISH, f"{self.pace.failures} publishes failed in a row, the last one: {reason}")
