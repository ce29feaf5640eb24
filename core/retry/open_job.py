"""
A published job whose outcome is not known yet, as capture.py leads it.

It must never forget a minion that may have begun the job, nor keep any number of names that somebody has made up.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from saltext.jobs.core.retry.entry import Job

#: Up to this many claimed starts are accepted without checking that those minions have keys.
MOST_BEGUN = 1000


class Stage(enum.Enum):
    """Where an open job stands."""

    WAITING = "waiting"  # for its deadline
    READING = "reading"  # in the job cache
    TO_ASK = "to ask"  # for the next survey
    ASKING = "asking"  # the missing ones, which jobs they run


@dataclass(slots=True, eq=False)
class OpenJob:
    """
    What is known of it. Times are Unix time in seconds.

    :param at: its newest publish; minus infinity where none is known.
    :param known_since: when that became known; now, for one that is opened.
    :param place: that of the publish that opens it, among all publishes that are known.
    """

    at: float
    known_since: float
    place: int
    since: float = 0.0  # its first publish that is known
    stage: Stage = Stage.WAITING
    job: Job | None = None
    signal: bool = False  # a signal to another job, which cannot wait: so it seems until it is read
    is_overtaken: bool = False  # it was published again while it was read
    asking: set[str] = field(default_factory=set)
    survey: int = 0  # the number of the survey that it takes part in
    surveyed: set[str] = field(default_factory=set)  # minions that have been asked since its deadline
    idle: set[str] = field(default_factory=set)  # minions that are there, but do not run it
    begun: set[str] = field(default_factory=set)  # minions that have said that they begin it
    most_begun: int = MOST_BEGUN  # they are checked once there are more
    # What the log has under its jid: the place of each publish, the digest of what it runs, and the minions.
    publishes: list[tuple[int, str, tuple[str, ...]]] = field(default_factory=list)
    killed_at: int = -1  # the place at which it was killed last

    def __post_init__(self) -> None:
        self.since = min(self.known_since, self.at) if self.at > -math.inf else self.known_since

    def as_record(self) -> list[Any]:
        """Return what an engine that starts must know of it."""
        publishes = [[work, minions, place > self.killed_at] for place, work, minions in self.publishes]
        return [self.at, self.since, self.signal, 0.0, publishes]  # 0.4.0 needs the number

    @classmethod
    def from_record(cls, record: Any, now: float) -> OpenJob:
        """Return the job that a record describes. :raises ValueError: when it describes none."""
        try:
            at, since, signal, heard, publishes = record
            # Up to 0.4.0 ``heard`` is the newest publish that only an event had told of.
            newest = max(float(at), float(heard) or -math.inf)
            job = cls(min(newest, now), now, 1)  # all that was published so far, and nothing that follows
            job.since, job.signal = min(float(since), now), bool(signal)
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
