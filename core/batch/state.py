"""
The state of a batch and of all its minions, with queries, and with the changes that several parts make; and its rows
(``core/ledger/batches.py``). What no row holds is found out again.

What is known of a minion is in one place: it is ``Pending``, or a ``Member`` says it, or both, if it is to be sent the job
again. This file must never decide what to do: that is in ``machine.py`` and its parts. Pure: stdlib only.
"""

from __future__ import annotations

import bisect
import dataclasses
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.facts import Effect
from saltext.jobs.core.batch.member import Member, Outcome
from saltext.jobs.core.batch.pace import Pace, Part, Pause, PausedBy, Rights, Schedule
from saltext.jobs.core.delivery.known import AT_ANY_TIME, Step
from saltext.jobs.core.display.text import counted, local

if TYPE_CHECKING:
    from saltext.jobs.core.batch.spec import Spec

#: Seconds for which overdue minions are gathered, for one look-up and one question.
CHECK_WINDOW = 1.0
#: Most minions of the first ping (or two batch sizes, if that is more), and of any ping.
FIRST_PINGED, MOST_PINGED = 20, 500
#: The parts of a batch that keep something in its row.
PARTS = ("pace", "pending", "schedule", "rights")


class Flights(dict[str, Member]):
    """The members of a batch that are in flight, by minion, and when each is due."""

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[float, str]] = []  # due times and minions; some are out of date

    def at(self, minions: Iterable[str], *steps: Step) -> list[str]:
        """Return those of ``minions`` that are in flight and at one of these steps."""
        return [minion for minion in minions if minion in self and self[minion].step in steps]

    def set_due(self, minion: str, due: float | None) -> None:
        """Set when the next step of a minion is due, in Unix time; None for never."""
        self[minion].due = due
        if due is not None:
            heapq.heappush(self._heap, (due, minion))

    def next_overdue(self) -> float:
        """Return when minions are next overdue; infinite if none is."""
        while self._heap and self._is_stale(*self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] + CHECK_WINDOW if self._heap else math.inf

    def overdue(self, now: float) -> list[str]:
        """Return the minions that are overdue, each once: they are not overdue again before they get a new due time."""
        due = list[tuple[float, str]]()
        while self._heap and self._heap[0][0] <= now and (due or self.next_overdue() <= now):
            due.append(heapq.heappop(self._heap))
        return list(dict.fromkeys(minion for at, minion in due if not self._is_stale(at, minion)))

    def _is_stale(self, due: float, minion: str) -> bool:
        return minion not in self or self[minion].due != due


@dataclasses.dataclass(slots=True, eq=False)
class Pending(Part):
    """
    The minions that a batch still has to send to. The ``ready`` ones only wait for their group's turn. The others
    (``presence=ping``) must first answer one of ``probe_attempts`` pings, or show another sign of life that proves that they
    are there.
    """

    KEPT = ("first_ping", "awaited_until")

    spec: Spec
    ready: list[int] = field(default_factory=list)  # places of minions in the target, which is group by group
    unseen: dict[str, int] = field(default_factory=dict)  # {minion: pings without an answer}
    first_ping: bool = False  # the first ping is not over, and nothing is sent before it is
    pinged: tuple[str, ...] = ()  # the minions of the ping that is under way
    ping_at: float = 0.0  # no ping before this Unix time
    settled_at: float = 0.0  # no minion is given up before this time: the master is young, and minions still connect
    # Nothing is sent before a sign of life, or before this time; 0 if that does not hold it up.
    awaited_until: float = 0.0
    _places: dict[object, int] = field(init=False)
    _ends: list[int] = field(init=False)  # of groups

    def __post_init__(self) -> None:
        self._places = {minion: place for place, minion in enumerate(self.spec.minions)}
        self._ends = [*itertools.accumulate(self.spec.counts)]

    def __len__(self) -> int:
        return len(self.ready) + len(self.unseen)

    def __contains__(self, minion: object) -> bool:
        return minion in self.unseen or bool(self.ready[self._at(minion)])

    def in_order(self) -> list[str]:
        """Return all, in the order of the target."""
        unseen = (self._places[minion] for minion in self.unseen)
        return [self.spec.minions[place] for place in sorted((*self.ready, *unseen))]

    def group_of(self, minion: str) -> int:
        """Return the place of a minion's group; 0 in a batch without groups."""
        return bisect.bisect_right(self._ends, self._places.get(minion, 0))

    def available(self, group: int) -> int:
        """Return how many are ready in this group and those before it, which may be sent to as well."""
        return bisect.bisect_left(self.ready, self._ends[group])

    def awaits_signs(self, group: int) -> bool:
        """Tell whether minions of this group, or of an earlier one, have shown no sign of life yet."""
        return any(self._places[minion] < self._ends[group] for minion in self.unseen)

    def put(self, minions: Iterable[str]) -> None:
        for minion in minions:
            self.ready[self._at(minion)] = [self._places[minion]]

    def drop(self, minion: str) -> None:
        """Remove a minion, wherever it is."""
        self.unseen.pop(minion, None)
        del self.ready[self._at(minion)]

    def take(self, count: int) -> tuple[str, ...]:
        """Remove the first ``count`` that are ready and return them."""
        taken, self.ready = self.ready[:count], self.ready[count:]
        return tuple(self.spec.minions[place] for place in taken)

    def _at(self, minion: object) -> slice:
        """Return where a minion is among the ready ones; if it is not one of them, an empty slice where it would be."""
        place = self._places.get(minion, -1)
        return slice(bisect.bisect_left(self.ready, place), bisect.bisect_right(self.ready, place))

    # -- signs of life ------------------------------------------------------------------------------------------------

    def await_signs(self) -> None:
        """Send to no minion before it has shown a sign of life."""
        self.unseen, self.ready = dict.fromkeys(self.in_order(), 0), []

    def see(self, minions: Iterable[str]) -> None:
        self.put(minion for minion in minions if self.unseen.pop(minion, None) is not None)

    def given_up_by(self) -> float:
        """Return when all that are unseen will have been given up, if pings come through, in Unix time."""
        parts, attempts = -(-len(self.unseen) // MOST_PINGED), self.spec.probe_attempts
        pings = parts * attempts - min(attempts - 1, *self.unseen.values())
        return max(self.ping_at, self.settled_at) + pings * self.spec.gather_job_timeout

    def ping(self, size: int, now: float) -> tuple[str, ...]:
        """Return the minions of the next ping. The first one is small: the answers of all would swamp the master."""
        most, self.ping_at = max(FIRST_PINGED, 2 * size) if self.first_ping else MOST_PINGED, now
        self.pinged = tuple(itertools.islice(self.unseen, min(most, MOST_PINGED)))
        return self.pinged

    def ping_over(self, now: float) -> list[str]:
        """A ping is over: return the minions that have been pinged often enough and are not there."""
        for minion in self.pinged:
            if minion in self.unseen:
                self.unseen[minion] += 1
        self.pinged, self.first_ping = (), False
        if now < self.settled_at:
            self.ping_at = now + self.spec.gather_job_timeout
            return []
        given_up = [minion for minion, pings in self.unseen.items() if pings >= self.spec.probe_attempts]
        for minion in given_up:
            del self.unseen[minion]
        return given_up


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Batch(Part):
    """Built from a Spec and the Unix time at which it was asked for."""

    KEPT = (
        *("created", "last_progress", "finished", "closed", "halted", "paused", "announced", "killing", "stopped_by"),
        "stepped_at",
    )

    spec: Spec
    created: float = 0.0
    last_progress: float = field(init=False)
    finished: float | None = None
    closed: bool = False
    halted: str | None = None  # why nothing more is published
    paused: Pause | None = None  # until an operator resumes it
    announced: bool = False  # it is announced that it waits for its window or its start
    killing: bool = False
    stopped_by: str = ""
    stepped_at: float = 0.0  # when the last fact became known; 0 before the first one
    goes_on_at: float = math.inf  # when what keeps it from sending ends by itself, or may end
    catching_up: tuple[str, ...] = ()  # minions whose returns from before this engine are looked for
    members: dict[str, Member] = field(default_factory=dict)
    flights: Flights = field(default_factory=Flights)
    publishing: tuple[str, ...] = ()  # the minions of the publish that is under way: it may still reach them
    counts: Counter[Outcome] = field(default_factory=Counter)  # how many have ended in which way
    used: Counter[int] = field(default_factory=Counter)  # how much of each budget
    touched: set[str] = field(default_factory=set)  # minions whose rows have changed since they were written
    pace: Pace = field(init=False)
    pending: Pending = field(init=False)
    schedule: Schedule = field(init=False)
    rights: Rights = field(init=False)

    def __post_init__(self) -> None:
        spec, self.last_progress = self.spec, self.created
        self.pace, self.schedule, self.rights = Pace(spec, not_before=self.created), Schedule(spec), Rights(spec)
        self.pending = Pending(spec)
        self.pending.put(spec.minions)
        if spec.presence == "ping":
            self.pending.first_ping = True
            self.pending.await_signs()

    # -- rows ---------------------------------------------------------------------------------------------------------

    def row(self) -> dict[str, Any]:
        return {**self.values(), **{name: getattr(self, name).values() for name in PARTS}}

    @classmethod
    def of_rows(cls, spec: Spec, row: Mapping[str, Any], members: Mapping[str, Any]) -> Batch:
        """Return the batch of rows. :raises ValueError, KeyError, TypeError: if they are not rows of a batch."""
        batch = cls(spec, row["created"])
        batch.load(row)
        if batch.paused is not None:
            batch.paused = Pause(PausedBy(batch.paused[0]), str(batch.paused[1]))
        for name in PARTS:
            getattr(batch, name).load(row[name])
        for minion, kept in members.items():
            member = batch.members[minion] = Member.of_row(kept)
            if member.step is not None:
                batch.flights[minion] = member
                batch.flights.set_due(minion, member.due)
            elif member.ended is not None:
                batch._count(minion, member, 1)
        batch.publishing = tuple(batch.flights.at(batch.flights, Step.SENDING))
        done, batch.pending.unseen = {*batch.flights, *batch.outcomes}, {}
        batch.pending.ready = [place for place, minion in enumerate(spec.minions) if minion not in done]
        return batch

    # -- queries ------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """The state in one word: running, paused, stopping, complete or halted."""
        if self.halted:
            return "halted" if self.finished else "stopping"
        if self.finished:
            return "complete"
        return "paused" if self.waits_for() else "running"

    def waits_for(self) -> Pause | None:
        """Return why nothing is published although minions are pending; None if nothing holds the batch."""
        if self.paused or self.halted or self.finished or not (self.pending or self.pace.to_approve):
            return self.paused
        if self.pace.to_approve:
            return Pause(PausedBy.APPROVAL, ", ".join(self.spec.approve_by))
        if self.schedule.bounded and not self.schedule.open:
            return self.schedule.pause()
        return Pause(PausedBy.RIGHTS, self.rights.trouble) if self.rights.trouble else None

    def blocked(self) -> str:
        """Return a sentence about what it waits for before it sends to more minions; empty if it would not send anyway."""
        limit, until = self.pace.limit, self.pending.awaited_until
        if self.halted or self.finished or not self.pending or self.waits_for():
            return ""
        if limit is not None:
            fly = f"{limit} of {counted(limit, 'minion')} {'is' if limit == 1 else 'are'} in flight"
            return f"waits for room: {fly} over all batches, {len(self.flights)} of them of this"
        latest = local(until + 59.0, None)[:16]
        return f"waits for a sign of life of minions that do not answer, until {latest} at the latest" if until else ""

    @property
    def success(self) -> bool | None:
        """Whether some minion ran, and all completed or were left out by ``offline=skip``; None while that is open."""
        if not self.finished:
            return None
        completed = self.counts[Outcome.COMPLETED]
        left_out = self.counts[Outcome.OFFLINE] + self.counts[Outcome.QUEUED] if self.spec.offline == "skip" else 0
        return not self.halted and completed > 0 and completed + left_out == len(self.spec.minions)

    @property
    def next_due(self) -> float | None:
        """When the next Tick is due, in Unix time; None while only another fact can change anything."""
        due = min(self.goes_on_at, self.flights.next_overdue())
        return due if due < math.inf else None

    def holds_publish(self, now: float) -> str:
        """Return why a publish that was decided on must not go out after all; empty if it may."""
        if self.halted:
            return "stopped"
        pause = self.paused or (None if self.schedule.look(now) else self.schedule.pause())
        if pause is None and not self.rights.may_send(now):
            pause = Pause(PausedBy.RIGHTS)
        return pause.reason if pause else ""

    def hands_over(self) -> bool:
        """Whether there are minions that go to the retry queue in the end."""
        return self.spec.offline == "queue" and self.counts[Outcome.OFFLINE] > 0

    def overdrawn(self) -> str:
        """Return the limit that failures exceed; empty if they are within all."""
        budgets = self.spec.budgets
        over = next((group for group, used in self.used.items() if budgets and used > budgets[group]), None)
        if over is None:
            return ""
        return "max_failures" + (f" in group {self.spec.groups[over][0]}" if len(budgets) > 1 else "")

    def is_over(self) -> bool:
        """Whether nothing is under way, and no minion is to be sent to any more."""
        if self.flights or self.publishing:
            return False
        return bool(self.halted) or not (self.pending or self.hands_over())

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """``{minion: outcome}`` of the minions that have ended."""
        return {minion: member.ended for minion, member in self.members.items() if member.ended is not None}

    def unsettled(self) -> list[str]:
        """Return the minions whose return would change something."""
        return [minion for minion, member in self.members.items() if member.retcode is None]

    def wants_return(self, minion: str) -> bool:
        """Whether a return of ``minion`` changes anything."""
        member = self.members.get(minion)
        return member is not None and member.retcode is None

    # -- changes ------------------------------------------------------------------------------------------------------

    def change(self, minion: str) -> Member:
        """Return a member that is about to change; a new one for a minion that was never sent to."""
        self.touched.add(minion)
        if minion not in self.members:
            self.members[minion] = Member()
        return self.members[minion]

    def go(self, minion: str, step: Step, due: float | None = None) -> Member:
        """Take a minion to another step of its flight, or put one in flight. ``due``: when the next step is due."""
        member = self.change(minion)
        self.reopen(minion)
        if member.step is None:
            self._receives(minion)
            self.flights[minion] = member
        if step in AT_ANY_TIME:
            member.step = step
        else:
            member.go(step)
        self.flights.set_due(minion, due)
        return member

    def send(self, minions: tuple[str, ...], now: float) -> list[Effect]:
        if not minions:
            return []
        self.publishing, self.last_progress = minions, now
        self.pace.sends(now)
        for minion in minions:
            member = self.flights[minion] = self.change(minion)
            member.sends(now)
        return [facts.Publish(minions)]

    def put_back(self, minions: Iterable[str]) -> None:
        """Make minions pending again; they do not count against the wave."""
        for minion in minions:
            member = self.change(minion)
            member.step, member.due, member.claimed, member.begun_at = None, None, False, 0.0
            del self.flights[minion]
            self.pending.put([minion])
            self.pace.quota += 1

    def settle(self, minion: str, outcome: Outcome, now: float, retcode: int | None) -> None:
        """Note how a minion ended, in place of an earlier record, and free its slot if it has one."""
        member = self.change(minion)
        if self.flights.pop(minion, None):
            self.pace.freed(now, None if retcode is None else now - member.ran_since)
        self.reopen(minion)
        self._receives(minion)
        member.step = member.due = None
        member.ended, member.since, member.retcode = outcome, now, retcode
        self._count(minion, member, 1)
        self.last_progress = now

    def reopen(self, minion: str) -> None:
        """Take back how a minion has ended, if it has."""
        member = self.change(minion)
        if member.ended is not None:
            self._count(minion, member, -1)
            member.ended = member.retcode = None

    def halt(self, reason: str) -> list[Effect]:
        """Send to no minion any more, for this reason."""
        self.halted = reason
        self.paused = self.pace.checking = None
        return [facts.Announce("halted")]

    def pause(self, by: PausedBy, detail: str) -> list[Effect]:
        """Send to no minion until an operator resumes the batch."""
        if self.halted:
            return []
        self.paused, self.announced = Pause(by, detail), False
        return [facts.Announce("paused", self.paused.payload())]

    def _receives(self, minion: str) -> None:
        """A minion has received the job; if it is pending, it counts against the wave after all."""
        if minion in self.pending:
            self.pending.drop(minion)
            self.pace.quota -= 1

    def _count(self, minion: str, member: Member, by: int) -> None:
        assert member.ended is not None
        self.counts[member.ended] += by
        if member.is_failure:
            self.used[self.pending.group_of(minion) if len(self.spec.budgets) > 1 else 0] += by
