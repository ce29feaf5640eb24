"""
A published job whose outcome is not known yet, as capture.py handles it.

It must never forget a minion that may have begun the job.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from saltext.jobs.core.retry.entry import Job


class Stage(enum.Enum):
    """Where an open job stands."""

    WAITING = "waiting"  # for its deadline
    READING = "reading"  # in the job cache
    TO_ASK = "to ask"  # its minions wait for the next survey
    ASKING = "asking"  # the survey is under way


@dataclass(slots=True, eq=False)
class OpenJob:
    """
    What is known of the job. Times are Unix time in seconds.

    :param at: its newest publish; minus infinity if none is known.
    """

    at: float
    stage: Stage = Stage.WAITING
    job: Job | None = None
    signal: bool = False  # it seems to be a signal to another job; signals are read sooner
    is_overtaken: bool = False  # it was published again while it was being read
    asking: set[str] = field(default_factory=set)
    survey: int = 0  # the number of the survey that it takes part in
    surveyed: set[str] = field(default_factory=set)  # minions that have been asked since its deadline
    idle: set[str] = field(default_factory=set)  # minions that are there, but do not run it
    begun: set[str] = field(default_factory=set)  # minions that claim to have begun it; of the named ones
    named: set[str] = field(default_factory=set)  # minions that it was published to

    def as_record(self) -> list[Any]:
        """Return what the next engine must know of it."""
        return [self.at, self.signal, sorted(self.named)]

    @classmethod
    def from_record(cls, record: Any, now: float) -> OpenJob:
        """Return the job that a record describes. :raises Exception: of many kinds, when it describes none."""
        at, signal, named = record
        return cls(min(float(at), now), signal=bool(signal), named=set(named))

    def published(self, at: float, minions: Iterable[str]) -> None:
        """It was published to minions at ``at``: what was said before does not count for this publish."""
        self.named |= set(minions)
        if at > self.at:
            self.at, self.surveyed, self.idle = at, set(), set()
