"""
One minion's part in the retry queue: what it is owed, and the replay of it that is under way.

Pure: stdlib only. It decides nothing; the way of a flight is told in retry.py.
"""

from __future__ import annotations

import enum

from saltext.jobs.core.retry.entry import UNDER_WAY, Entry, State


class Step(enum.Enum):
    """Where a flight stands; see retry.py."""

    WAIT = enum.auto()
    LOOKING = enum.auto()
    TO_ASK = enum.auto()
    ASKING = enum.auto()
    TO_SEND = enum.auto()
    CLAIMING = enum.auto()
    SENDING = enum.auto()
    SENT = enum.auto()
    RUNNING = enum.auto()


class Flight:
    """The replay that a minion has under way."""

    __slots__ = ("asked", "before", "began", "early", "idle", "jid", "restarted", "step", "urgent")

    def __init__(self, jid: str, before: bool, began: float) -> None:
        self.jid, self.before, self.began = jid, before, began
        self.step = Step.WAIT
        self.asked = False  # before it is sent: it said that it knows nothing of the job
        self.early = False  # it is asked so soon that it may not have begun yet
        self.idle = False  # afterwards: it said that it does not run the job
        self.restarted = False  # it started anew since the job was sent
        self.urgent = False  # an operator wants what the minion is owed to go now


class Line:
    """What one minion is owed."""

    __slots__ = ("entries", "flight", "not_before", "seen")

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.flight: Flight | None = None
        self.not_before = 0.0  # no new flight earlier
        self.seen = 0.0  # when it last showed a sign of life

    @property
    def waiting(self) -> list[Entry]:
        """What it is still to get, or may be getting."""
        return [entry for entry in self.entries.values() if entry.state is State.PENDING or entry.state in UNDER_WAY]
