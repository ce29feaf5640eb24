"""
The state of a batch, with queries, and with the changes that several parts make; and its rows (``core/ledger/batches.py``):
one of the batch, and one for each minion that was once sent to or has ended. What no row holds is found out again.

It must never decide what to do: that is in ``machine.py`` and the parts named there. Pure: stdlib only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.facts import Effect
from saltext.jobs.core.batch.gates import SCHEDULED, Pause, PausedBy, Rights, Schedule
from saltext.jobs.core.batch.member import Outcome
from saltext.jobs.core.batch.pace import Pace
from saltext.jobs.core.batch.roster import Roster
from saltext.jobs.core.batch.spec import Spec
from saltext.jobs.core.delivery.steps import Step

#: The parts of a batch that keep something in its row.
PARTS = ("pace", "pending", "schedule", "rights")

S = TypeVar("S", bound="BatchState")


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class BatchState(Roster):
    """Build one from a Spec and the time at which it was asked for, in Unix time."""

    KEPT = (
        *("created", "started", "last_progress", "finished", "closed", "halted", "paused", "announced", "killing"),
        *("stopped_by", "stepped_at"),
    )

    created: float = 0.0
    started: float | None = None  # when the start was announced
    last_progress: float = dataclasses.field(init=False)
    finished: float | None = None
    closed: bool = False
    halted: str | None = None  # why nothing more is published
    paused: Pause | None = None  # until an operator resumes it
    announced: PausedBy | None = None  # the announced pause that ends by itself
    killing: bool = False
    stopped_by: str = ""
    stepped_at: float = 0.0  # when the last fact became known
    catching_up: tuple[str, ...] = ()  # minions whose returns from before this engine are looked for
    pace: Pace = dataclasses.field(init=False)
    schedule: Schedule = dataclasses.field(init=False)
    rights: Rights = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        Roster.__post_init__(self)
        spec, self.last_progress = self.spec, self.created
        self.pace, self.schedule, self.rights = Pace(spec, not_before=self.created), Schedule(spec), Rights(spec)
        self.pending.put(spec.minions)
        if spec.presence == "ping":
            self.pending.first_ping = True
            self.pending.await_signs()

    # -- rows ---------------------------------------------------------------------------------------------------------

    def row(self) -> dict[str, Any]:
        """Return the row of the batch as plain values. The spec is beside it."""
        return {**self.values(), **{name: getattr(self, name).values() for name in PARTS}}

    @classmethod
    def of_rows(cls: type[S], spec: Spec, row: Mapping[str, Any], members: Mapping[str, Any]) -> S:
        """Return the batch of rows. :raises ValueError, KeyError, TypeError: if they are not rows of a batch."""
        batch = cls(spec, row["created"])
        batch.load(row)
        if batch.paused is not None:
            by, detail = batch.paused
            batch.paused = Pause(PausedBy(by), str(detail))
        batch.announced = None if batch.announced is None else PausedBy(batch.announced)
        for name in PARTS:
            getattr(batch, name).load(row[name])
        batch.load_members(members, batch.pace.group)
        return batch

    # -- queries ------------------------------------------------------------------------------------------------------

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
        if self.paused or self.halted or self.finished or not self.pending:
            return self.paused
        if self.pace.by_hand and self.pace.checking is not None:
            return Pause(PausedBy.APPROVAL)
        if self.schedule.shut:
            return self.schedule.pause()
        return Pause(PausedBy.RIGHTS, self.rights.trouble) if self.rights.trouble else None

    def waits_for_room(self) -> str:
        """Return a sentence about how other batches hold it up; empty if they do not, or if it would not send anyway."""
        limit = self.pace.limit
        if limit is None or self.halted or self.finished or not self.pending or self.waits_for():
            return ""
        flying = len(self.flights)
        return f"waits for room: {limit} of {limit} minions are in flight over all batches, {flying} of them of this"

    def opens_at(self) -> float | None:
        """Return when the batch goes on by itself, in Unix time; None if it does not, or if that is not known."""
        pause = self.waits_for()
        return self.schedule.opens if pause and pause.by in SCHEDULED else None

    @property
    def success(self) -> bool | None:
        """
        Whether it has succeeded: at least one minion ran, and all completed or were left out by ``offline=skip``; None while
        that is open.
        """
        if not self.finished:
            return None
        completed = self.counts[Outcome.COMPLETED]
        left_out = self.counts[Outcome.OFFLINE] if self.spec.offline == "skip" else 0
        return not self.halted and completed > 0 and completed + left_out == len(self.spec.minions)

    @property
    def next_due(self) -> float | None:
        """When the next Tick is due, in Unix time; None while only another fact can change anything."""
        if self.started is None:
            return self.created
        due = (*self._sending_due(), self.next_overdue())
        return min((time for time in due if time is not None), default=None)

    def _sending_due(self) -> Iterator[float | None]:
        """
        Yield the times at which the batch may go on, in the order of ``sending.go_on``, up to the first gate that is
        shut. A time behind that gate would change nothing, and once passed it would stay due for ever.
        """
        if self.halted or self.paused:
            return
        if self.pending:
            yield self.schedule.next_due()
            if self.schedule.shut:
                return
            if self.rights.asking or self.rights.ask_at is not None:
                yield None if self.rights.asking else self.rights.ask_at
                return
        if self.pending.unseen and not self.pending.pinged:
            yield max(self.pending.ping_at, self.pace.not_before)
        yield None if self.pace.wanted else self.pace.publish_at  # then ``live.py`` allots minions
        yield self.pace.cooling[0] if self.pace.cooling and self.pending.ready else None

    def rely_on_memory(self, minions: Iterable[str]) -> dict[str, float]:
        """
        Return ``{minion: when it was sent to}`` of those among ``minions`` that are to be sent the job again and may have
        received it. Sending it again is safe while their processes remember the jid.
        """
        last = {minion: self.members[minion] for minion in self.at(minions, Step.LOOKING_AGAIN)}
        return {
            minion: member.sent_at
            for minion, member in last.items()
            if member.idle and member.sent_at is not None and not (member.has_begun or member.restarted)
        }

    def wants_acknowledgement(self, minion: str) -> bool:
        """
        Whether the event that ``minion`` has begun the job changes anything. Such starts are unauthenticated, and a forger
        can fire any number of them. So a start is believed only of a minion that was sent to and is not known to have begun.
        """
        if self.finished or not self.wants_return(minion):
            return False
        return self.members[minion].sent_at is not None and not self.members[minion].has_begun

    def accepts(self, fact: facts.Requested) -> bool:
        """Whether a request changes anything."""
        if self.finished:
            return False
        if fact.verb == "stop":
            return not self.halted or (fact.kill and not self.killing and bool(self.flights))
        if self.halted:
            return False
        if fact.verb == "approve":
            return self.pace.by_hand and self.pace.checking == fact.stage
        return bool(self.paused) is (fact.verb == "resume")

    def is_publishing(self) -> bool:
        """Whether a publish is under way: it may still reach minions though the batch is paused or halted."""
        return self.publishing is not None

    def holds_publish(self, wall: float) -> str:
        """
        Return why a publish that the machine has decided on must not go out after all; empty if it may.

        :param wall: the time of the wall clock.
        """
        if self.halted:
            return "stopped"
        pause = self.paused or (None if self.schedule.look(wall) else self.schedule.pause())
        return pause.reason if pause else ""

    def hands_over(self) -> bool:
        """Whether there are minions that go to the retry queue in the end."""
        return self.spec.offline == "queue" and self.counts[Outcome.OFFLINE] > 0

    def is_over(self) -> bool:
        """Whether nothing is under way, and no minion is to be sent to any more."""
        if self.flights or self.is_publishing():
            return False
        return bool(self.halted) or not (self.pending or self.hands_over())

    # -- changes ------------------------------------------------------------------------------------------------------

    def settle(self, minion: str, outcome: Outcome, now: float, retcode: int | None) -> None:
        """Note how a minion ended, and free its slot if it has one."""
        member = self.flights.get(minion)
        if member is not None:
            self.pace.freed(now, None if retcode is None else now - member.ran_since)
        self.end(minion, outcome, now, retcode)
        self.last_progress = now

    def check_budget(self) -> list[Effect]:
        """Halt if the failures exceed the budget."""
        reason, self.overdrawn = self.overdrawn, ""
        return self.halt(reason) if reason and not (self.halted or self.finished) else []

    def halt(self, reason: str) -> list[Effect]:
        """Send to no minion any more, for this reason."""
        self.halted = reason
        self.paused = self.pace.publish_at = self.pace.checking = None
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
