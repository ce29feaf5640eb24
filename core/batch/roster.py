"""
All minions of a batch. What is known of each is in one place: it is pending (``pending.py``), or a ``Member`` says it, or
both, if it is to be sent the job again. Here are the members, and what is counted and looked up of them: who is in flight,
who is overdue, how many have ended in which way, the failure budget, and whose rows have changed.

It must never decide: ``member.py`` does. Pure: stdlib only.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from saltext.jobs.core.batch.member import Member, Outcome, overdue_at
from saltext.jobs.core.batch.pending import Pending
from saltext.jobs.core.batch.spec import Part, Spec
from saltext.jobs.core.delivery.known import Evidence
from saltext.jobs.core.delivery.steps import Step

#: Seconds for which overdue minions are gathered, for one look-up and one question.
CHECK_WINDOW = 1.0


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Roster(Part):
    """``spec``: what was asked for."""

    spec: Spec
    _: dataclasses.KW_ONLY
    members: dict[str, Member] = field(default_factory=dict)
    flights: dict[str, Member] = field(default_factory=dict)  # the members in flight
    publishing: tuple[str, ...] | None = None  # the minions of the publish that is under way
    counts: Counter[Outcome] = field(default_factory=Counter)  # how many have ended in which way
    budget_used: int = 0
    group_used: Counter[int] = field(default_factory=Counter)  # used part of the budget, by group
    overdrawn: str = ""  # the limit that the last failures exceed
    touched: set[str] = field(default_factory=set)  # minions whose rows have changed since they were written
    pending: Pending = field(init=False)
    _due: list[tuple[float, str]] = field(default_factory=list)  # heap over due times; some are out of date

    def __post_init__(self) -> None:
        self.pending = Pending(self.spec)

    def load_members(self, rows: Mapping[str, Any], group: int) -> None:
        """
        Take the rows of members. The other minions are pending; it is the turn of ``group``.

        :raises ValueError, TypeError: if they are no such rows.
        """
        self.pending.empty()
        self.pending.open_to(group)
        for minion, row in rows.items():
            member = self.members[minion] = Member.of_row(row)
            if member.step is not None:
                self.flights[minion] = member
                self._note_due(minion, member)
            elif member.ended is not None:
                self._count(minion, member, 1)
        self.publishing = tuple(self.at(self.flights, Step.SENDING)) or None
        done = {minion for minion, member in self.members.items() if member.step or member.ended}
        self.pending.put(minion for minion in self.spec.minions if minion not in done)

    # -- queries ------------------------------------------------------------------------------------------------------

    def at(self, minions: Iterable[str], *steps: Step) -> list[str]:
        """Return those of ``minions`` that are in flight and at one of these steps."""
        return [minion for minion in minions if minion in self.flights and self.flights[minion].step in steps]

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """How the minions that have ended did so."""
        return {minion: member.ended for minion, member in self.members.items() if member.ended is not None}

    def unsettled(self) -> list[str]:
        """Return the minions whose return would change something."""
        return [minion for minion, member in self.members.items() if member.retcode is None]

    def wants_return(self, minion: str) -> bool:
        """Whether a return of ``minion`` changes anything."""
        member = self.members.get(minion)
        return member is not None and member.retcode is None

    def wants_start(self, minion: str) -> bool:
        """Whether a start of the process of ``minion`` changes anything."""
        return minion in self.flights and not self.flights[minion].restarted

    def next_overdue(self) -> float | None:
        """Return when minions are next overdue, or None."""
        while self._due and self._is_stale(*self._due[0]):
            heapq.heappop(self._due)
        return self._due[0][0] + CHECK_WINDOW if self._due else None

    def overdue(self, now: float) -> list[str]:
        """Return the minions whose next step is due."""
        first = self.next_overdue()
        due = list[tuple[float, str]]()
        while first is not None and first <= now and self._due and self._due[0][0] <= now:
            due.append(heapq.heappop(self._due))
        return list(dict.fromkeys(minion for at, minion in due if not self._is_stale(at, minion)))

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
        if member.ended is not None:
            self._reopen(minion, member)
        if member.step is None:
            self.pending.drop(minion)
            self.flights[minion] = member
        member.go(step)
        member.due = due
        self._note_due(minion, member)
        return member

    def send(self, minions: tuple[str, ...], now: float) -> None:
        """Begin a publish to minions."""
        self.publishing = minions
        for minion in minions:
            member = self.flights[minion] = self.change(minion)
            member.sends(now)

    def end_publish(self) -> list[str]:
        """End the publish under way, and return its minions that have not returned or begun meanwhile."""
        minions, self.publishing = self.publishing or (), None
        return self.at(minions, Step.SENDING)

    def put_back(self, minions: Iterable[str]) -> None:
        """Make minions pending again."""
        for minion in minions:
            member = self.change(minion)
            member.step, member.due, member.claimed, member.begun_at = None, None, False, 0.0
            del self.flights[minion]
            self.pending.put([minion])

    def end(self, minion: str, outcome: Outcome, now: float, retcode: int | None) -> None:
        """Record how a minion ended, in place of an earlier record."""
        member = self.change(minion)
        if member.ended is not None:
            self._reopen(minion, member)
        self.flights.pop(minion, None)
        self.pending.drop(minion)
        member.step = member.due = None
        member.ended, member.since, member.retcode = outcome, now, retcode
        self._count(minion, member, 1)

    def doubt_silence(self) -> None:
        """Events may have been lost: a minion that was not heard to begin may have begun."""
        for minion, member in self.flights.items():
            if not (member.begun_at or member.unheard):
                self.change(minion).unheard = True

    def doubt_flights(self, now: float, doubtful_since: float | None) -> None:
        """
        The engine has restarted: nothing that was under way has a known outcome. What is known stays known. Those that were
        being asked, or were about to be given up, are asked again unless they have returned.

        :param doubtful_since: publishes after that time may not have left the master, which ended soon after.
        """
        self.doubt_silence()
        self.publishing = None
        self._due.clear()
        for minion in self.flights:
            member = self.change(minion)
            if member.step in (Step.SENT, Step.RUNNING, Step.WAITING):
                is_asked = member.step is Step.WAITING
                latest = now + self.spec.gather_job_timeout if is_asked else overdue_at(member, self.spec, now)
                member.due = latest if member.due is None else min(member.due, latest)
                self._note_due(minion, member)
            else:
                self.go(minion, Step.LOOKING)
            if doubtful_since is not None and not member.begun_at and (member.sent_at or 0.0) >= doubtful_since:
                member.take(Evidence.UNCONFIRMED, now)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _note_due(self, minion: str, member: Member) -> None:
        if member.due is not None:
            heapq.heappush(self._due, (member.due, minion))

    def _is_stale(self, due: float, minion: str) -> bool:
        member = self.flights.get(minion)
        return member is None or member.due != due

    def _reopen(self, minion: str, member: Member) -> None:
        """Remove the record of how a minion ended."""
        self._count(minion, member, -1)
        member.ended = member.retcode = None

    def _count(self, minion: str, member: Member, by: int) -> None:
        assert member.ended is not None
        self.counts[member.ended] += by
        if not member.is_failure:
            return
        group, allowed = self.pending.group_of(minion), self.spec.group_failures_allowed
        self.budget_used += by
        self.group_used[group] += by
        if self.spec.failures_allowed is not None and self.budget_used > self.spec.failures_allowed:
            self.overdrawn = "max_failures"
        elif allowed and self.group_used[group] > allowed[group]:
            self.overdrawn = f"max_failures in group {self.spec.groups[group][0]}"
