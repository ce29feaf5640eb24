"""
One minion's part in a batch: where it stands while it is in flight, and how it ended.

The table of transitions is here and nowhere else. A flight must never change its phase in any other way. Pure: stdlib only.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import Any


class Outcome(str, enum.Enum):
    """How a minion's part in a batch ended."""

    COMPLETED = "completed"  # returned with success
    FAILED = "failed"  # returned without success; or was away, and the batch counts that as failed
    LOST = "lost"  # was there, has not returned, and now is silent or does not run the job
    OFFLINE = "offline"  # was not there
    KILLED = "killed"  # was killed by a stop, and has not returned
    TIMED_OUT = "timed_out"  # ran longer than ``max_runtime``, was killed for that, and has not returned with success


class Phase(str, enum.Enum):
    """Where a minion in flight stands."""

    SENDING = "sending"  # its publish is under way; the intent is recorded, the outcome is not known
    SENT = "sent"  # published; due after ``timeout``
    RUNNING = "running"  # seen running (an acknowledgement or an answer); due ``timeout`` after that
    LOOKING = "looking"  # overdue; the job cache is read
    PROBING = "probing"  # not in the job cache; asked whether it runs the job
    ASKED = "asked"  # did not answer, or said for the first time that it does not run the job; it will be asked again
    GRACE = "grace"  # says again that it does not run the job; its return may still be on the way
    FINAL = "final"  # given up unless this last look into the job cache finds its return
    KILLING = "killing"  # a kill is under way


#: The phases that may follow each phase. A flight can end in any phase: the minion returns, is given up, or is put back.
TRANSITIONS: Mapping[Phase, frozenset[Phase]] = {
    Phase.SENDING: frozenset({Phase.SENT, Phase.RUNNING, Phase.LOOKING}),
    Phase.SENT: frozenset({Phase.RUNNING, Phase.LOOKING, Phase.KILLING}),
    Phase.RUNNING: frozenset({Phase.RUNNING, Phase.LOOKING, Phase.KILLING}),
    Phase.LOOKING: frozenset({Phase.LOOKING, Phase.PROBING, Phase.RUNNING, Phase.KILLING}),
    Phase.PROBING: frozenset(
        {Phase.RUNNING, Phase.GRACE, Phase.ASKED, Phase.FINAL, Phase.LOOKING, Phase.KILLING},
    ),
    Phase.ASKED: frozenset({Phase.LOOKING, Phase.RUNNING, Phase.KILLING}),
    Phase.GRACE: frozenset({Phase.FINAL, Phase.ASKED, Phase.LOOKING, Phase.RUNNING, Phase.KILLING}),
    Phase.FINAL: frozenset({Phase.LOOKING, Phase.RUNNING, Phase.KILLING}),
    Phase.KILLING: frozenset({Phase.SENT, Phase.LOOKING}),
}


@dataclasses.dataclass(slots=True)
class Flight:
    """One minion in flight. A snapshot holds the fields in this order, so a new one comes last and has a default."""

    phase: Phase
    since: float  # when it was sent to, or last seen running
    due: float | None = None  # when the next step is due
    unanswered: int = 0  # questions in a row without an answer
    kills: int = 0  # kills sent
    seen: bool = False  # it is known to have begun
    idle: int = 0  # answers in a row that it does not run the job
    unknown: bool = False  # the outcome of its publish is not known: the job may never have been sent
    began: float = 0.0  # start of its run time: when it said that it had begun, or else when it was sent to
    expired: bool = False  # it exceeded ``max_runtime``, and is being killed for that
    deaf: bool = False  # the engine may have missed its start, or it may have forgotten the jid
    runs: int = 0  # answers in a row that it runs the job
    never: bool = False  # its own records say that it has not begun the job
    acks: bool = False  # it reports its start, because it has the executor; known before it was sent to
    anew: bool = False  # its process has restarted since it was sent to: it would run the job again

    def move(self, to: Phase, due: float | None = None) -> None:
        """Go to another phase, whose next step is due at ``due``. :raises ValueError: if the table forbids it."""
        if to not in TRANSITIONS[self.phase]:
            raise ValueError(f"a minion in flight cannot go from {self.phase.value} to {to.value}")
        self.phase, self.due = to, due

    def as_list(self) -> list[Any]:
        """Return the flight as snapshots hold it."""
        return [self.phase.value, *(getattr(self, name) for name in _AFTER_PHASE)]

    @classmethod
    def from_list(cls, values: Iterable[Any]) -> Flight:
        """Return the flight in a snapshot; those of earlier releases have fewer values. :raises ValueError, TypeError:"""
        phase, *rest = values
        return cls(Phase(phase), *rest)


_AFTER_PHASE = tuple(field.name for field in dataclasses.fields(Flight))[1:]
