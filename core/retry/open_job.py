"""
A published job whose outcome is not known yet, as capture.py handles it.

It must never forget a minion that may have begun the job.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from saltext.jobs.core.retry.entry import Job

#: Up to this many claimed starts are accepted without checking that those minions have keys.
MOST_BEGUN = 1000


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
    :param known_since: when that became known; now if none is known.
    :param place: how many publishes, of all jobs, were known when this job was opened.
    """

    at: float
    known_since: float
    place: int
    since: float = 0.0  # when it was first published, as far as is known
    stage: Stage = Stage.WAITING
    job: Job | None = None
    signal: bool = False  # it seems to be a signal to another job; signals are read sooner
    is_overtaken: bool = False  # it was published again while it was being read
    asking: set[str] = field(default_factory=set)
    survey: int = 0  # the number of the survey that it takes part in
    surveyed: set[str] = field(default_factory=set)  # minions that have been asked since its deadline
    idle: set[str] = field(default_factory=set)  # minions that are there, but do not run it
    begun: set[str] = field(default_factory=set)  # minions that claim to have begun it
    most_begun: int = MOST_BEGUN  # their keys are checked once there are more of them than this
    # What the log has under its jid: the place of each publish, the digest of what it runs, and the minions.
    publishes: list[tuple[int, str, tuple[str, ...]]] = field(default_factory=list)
    # The kills of it that this engine was told of: the place of each, and the minions.
    kills: list[tuple[int, frozenset[str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.since = min(self.known_since, self.at) if self.at > -math.inf else self.known_since

    def as_record(self) -> list[Any]:
        """Return what the next engine must know of it."""
        publishes: list[list[Any]] = []
        for place, work, minions in self.publishes:
            ended = self._ended(place, minions)
            spared = [minion for minion in minions if minion not in ended] if ended else minions
            publishes += [[work, sorted(ended), False]] if ended else []
            publishes += [[work, spared, True]] if spared or not ended else []
        return [self.at, self.since, self.signal, publishes]

    @classmethod
    def from_record(cls, record: Any, now: float) -> OpenJob:
        """Return the job that a record describes. :raises ValueError: when it describes none."""
        try:
            at, since, signal, publishes = record
            job = cls(min(float(at), now), now, 1)  # place 1, since every further publish has a higher one
            job.since, job.signal = min(float(since), now), bool(signal)
            job.publishes = [(int(later), str(work), tuple(minions)) for work, minions, later in publishes]
        except (TypeError, ValueError) as exc:
            raise ValueError(f"{type(exc).__name__}: {exc}") from exc
        return job

    def published(self, at: float) -> None:
        """It was published at ``at``: what its minions said before does not count for this publish."""
        self.since = min(self.since, at)
        if at > self.at:
            self.at, self.surveyed, self.idle = at, set(), set()

    def told(self, place: int, work: str, minions: tuple[str, ...]) -> None:
        """The log tells to which minions it was published."""
        self.publishes.append((place, work, minions))

    def _ended(self, place: int, minions: Iterable[str]) -> set[str]:
        """Return those of ``minions`` on which it was killed after the publish at ``place``."""
        killed = set[str]().union(*(names for at, names in self.kills if at >= place))
        return killed.intersection(minions) if place else set(minions)

    def spared(self, work: str) -> set[str]:
        """
        Return the minions to which it was published, but on which it was not killed later. Another job under its jid
        spares no minion.
        """
        its = (set(minions) - self._ended(place, minions) for place, runs, minions in self.publishes if runs == work)
        return set[str]().union(*its)

    def claims(self, missing: Collection[str]) -> set[str]:
        """
        Return the minions whose claims to have begun it count. If the log has told of it, these are minions that the log
        names, or ``missing`` ones. Otherwise all claims count: a search can find a job before a further part of it is
        recorded.
        """
        if not self.publishes:
            return set(self.begun)
        named = (names for _, _, names in self.publishes)
        return self.begun.intersection(itertools.chain(missing, *named))
