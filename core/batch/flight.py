"""
One minion's part in a batch: where it stands while it is in flight, and how it ended.

Pure: stdlib only.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any


class Outcome(str, enum.Enum):
    """How a minion's part in a batch ended."""

    COMPLETED = "completed"  # returned with success
    FAILED = "failed"  # returned without success, or absent where that counts as failed
    LOST = "lost"  # received the job or not, does not run it, and has not returned
    OFFLINE = "offline"  # said nothing when asked
    KILLED = "killed"  # was killed by a stop, and has not returned


class Phase(str, enum.Enum):
    """Where a minion in flight stands."""

    SENDING = "sending"  # its publish is under way; the intent is recorded, the outcome is not known
    SENT = "sent"  # published; due after ``timeout``
    RUNNING = "running"  # seen running (an acknowledgement or an answer); due ``timeout`` after that
    LOOKING = "looking"  # overdue; the job cache is read
    PROBING = "probing"  # not in the job cache; asked whether it runs the job
    ASKED = "asked"  # did not answer; it will be asked again
    GRACE = "grace"  # says that it does not run the job; its return may still be on the way
    FINAL = "final"  # given up unless this last look into the job cache finds its return
    KILLING = "killing"  # a kill is under way


class Flight:
    """One minion in flight."""

    __slots__ = ("asked", "due", "idle", "kills", "phase", "seen", "since", "unknown")

    def __init__(self, phase: Phase, since: float) -> None:
        self.phase = phase
        self.since = since  # when it was sent to, or last seen running
        self.due: float | None = None  # when something is to be done about it
        self.asked = 0  # questions without an answer
        self.kills = 0  # kills sent
        self.seen = False  # it is known to have begun
        self.idle = False  # it said that it does not run the job
        self.unknown = False  # its publish has no outcome: it may never have been sent to

    def as_list(self) -> list[Any]:
        return [self.phase.value, self.since, self.due, self.asked, self.kills, self.seen, self.idle, self.unknown]

    @classmethod
    def from_list(cls, values: Iterable[Any]) -> Flight:
        phase, since, due, asked, kills, seen, idle, unknown = values
        flight = cls(Phase(phase), since)
        flight.due, flight.asked, flight.kills = due, asked, kills
        flight.seen, flight.idle, flight.unknown = seen, idle, unknown
        return flight
