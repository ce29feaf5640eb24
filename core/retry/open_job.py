"""
A published job whose outcome is not known yet, as capture.py leads it. Part of the retry machine, and as pure as it.

It must never forget a minion that may have begun the job, nor keep any number of names that somebody has made up.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from typing import Any

from saltext.jobs.core.retry.entry import Job

#: Up to this many claimed starts are accepted without checking that those minions have keys.
MOST_BEGUN = 1000


class Source(enum.Enum):
    """How it is known that a job was published."""

    LOG = "log"  # the master's log has it, in its place among all that the master did
    CACHE = "cache"  # the job cache was searched
    BUS = "bus"  # an event tells of it, which anybody can forge


class Stage(enum.Enum):
    """Where an open job stands."""

    WAITING = "waiting"  # for its deadline
    READING = "reading"  # in the job cache
    TO_ASK = "to ask"  # for the next survey
    ASKING = "asking"  # the missing ones, which jobs they run


class OpenJob:
    """
    What is known of it. Times are Unix time in seconds.

    :param at: its newest publish; minus infinity where none is known.
    :param now: when it is opened.
    :param place: that of the publish that opens it, among all publishes that are known.
    """

    __slots__ = (
        "asking",
        "at",
        "begun",
        "heard",
        "idle",
        "is_overtaken",
        "job",
        "killed_at",
        "known_since",
        "most_begun",
        "place",
        "publishes",
        "recorded",
        "signal",
        "since",
        "stage",
        "survey",
        "surveyed",
    )

    def __init__(self, at: float, now: float, place: int) -> None:
        self.at, self.place = at, place
        self.since = min(now, at) if at > -math.inf else now  # its first publish that is known
        self.known_since = now  # when its newest publish became known
        self.stage = Stage.WAITING
        self.job: Job | None = None
        self.signal = False  # a signal to another job, which cannot wait: so it seems until it is read
        self.is_overtaken = False  # it was published again while it was read
        self.asking: set[str] = set()
        self.survey = 0  # the number of the survey that it takes part in
        self.surveyed: set[str] = set()  # minions that have been asked since its deadline
        self.idle: set[str] = set()  # minions that are there, but do not run it
        self.begun: set[str] = set()  # minions that have said that they begin it
        self.most_begun = MOST_BEGUN  # they are checked once there are more
        # What the log has under its jid: the place of each publish, the digest of what it runs, and the minions.
        self.publishes: list[tuple[int, str, tuple[str, ...]]] = []
        self.killed_at = -1  # the place at which it was killed last
        # Without a log: the newest publish that was heard of, and the newest one that the job cache had when it was read.
        self.heard, self.recorded = 0.0, 0.0

    def as_record(self) -> list[Any]:
        """Return what an engine that starts must know of it."""
        publishes = [[work, minions, place > self.killed_at] for place, work, minions in self.publishes]
        return [self.at, self.since, self.signal, self.heard, publishes]

    @classmethod
    def from_record(cls, record: Any, now: float) -> OpenJob:
        """Return the job that a record describes. :raises ValueError: when it describes none."""
        try:
            at, since, signal, heard, publishes = record
            job = cls(min(float(at), now), now, 0)
            job.since, job.signal, job.heard = min(float(since), now), bool(signal), min(float(heard), now)
            job.publishes = [(int(later), str(work), tuple(minions)) for work, minions, later in publishes]
            job.killed_at = 0
        except (TypeError, ValueError) as exc:
            raise ValueError(f"{type(exc).__name__}: {exc}") from exc
        return job

    def published(self, at: float) -> None:
        """It was published at ``at``: what its minions said before is no answer to that."""
        self.since = min(self.since, at)
        if at > self.at:
            self.at, self.surveyed, self.idle = at, set(), set()

    def spared(self, work: str) -> set[str]:
        """Return the minions to which it was published since it was killed. Another job under its jid spares nobody."""
        later = (named for place, runs, named in self.publishes if runs == work and place > self.killed_at)
        return {minion for minions in later for minion in minions}

    def is_to_vet(self) -> bool:
        """Tell whether so many are said to have begun it that it must be looked at which of them are minions."""
        if len(self.begun) <= self.most_begun:
            return False
        self.most_begun = 2 * len(self.begun)  # each is looked at a few times at most, however many come
        return True

    def forget(self, strangers: Iterable[str]) -> None:
        """Forget those that have no key here: they have begun nothing."""
        self.begun.difference_update(strangers)
        self.most_begun = max(MOST_BEGUN, 2 * len(self.begun))
