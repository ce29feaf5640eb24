"""
What is known of a published job besides its entries in the queue: to whom it was published, which minions have begun it, on
which an operator has killed it, and which lost their entry without a return: a later look must not send it to these again.
There is one record for each job: if 10,000 minions run a job for an hour, that costs one.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Stage(enum.Enum):
    """Where a job stands whose outcome is not known yet."""

    WAITING = "waiting"  # for its deadline
    READING = "reading"  # in the log
    TO_ASK = "to ask"  # its minions wait for the next survey
    ASKING = "asking"  # the survey is under way


@dataclass(slots=True, eq=False)
class Watched:
    """One job. Times are Unix time in seconds."""

    until: float = 0.0  # when it is no longer owed, as far as that is known
    begun: set[str] = field(default_factory=set)  # minions that have begun it
    settled: set[str] = field(default_factory=set)  # minions that are no longer owed it, whatever the job cache says
    killed: dict[str, tuple[str, float]] = field(default_factory=dict)  # where it was killed: {minion: (user, time)}
    # -- of a job whose outcome is not known: until it is closed
    at: float = -math.inf  # its newest publish; minus infinity if there was none since it was closed
    named: set[str] = field(default_factory=set)  # minions that it was published to
    stage: Stage | None = None  # None: closed
    asking: frozenset[str] = frozenset()  # minions that are to be asked, or were asked last
    survey: int = 0  # the number of the survey that it takes part in
    answers: dict[str, bool | None] = field(default_factory=dict)  # who was asked, and runs it; None: did not answer
    claims: set[str] = field(default_factory=set)  # named minions of which an event says that they have begun it
    started: set[str] = field(default_factory=set)  # named minions that have started since it was opened

    @property
    def is_noted(self) -> bool:
        return bool(self.begun or self.settled or self.killed)

    def was_killed(self, minion: str, since: float) -> bool:
        """Tell whether it was killed on a minion at or after a Unix time, that of a request."""
        return minion in self.killed and since <= self.killed[minion][1]

    def closed(self) -> Watched:
        """Return what is to be remembered of it."""
        return Watched(self.until, self.begun, self.settled, self.killed)

    def as_record(self) -> dict[str, Any]:
        return {
            "until": self.until,
            "begun": sorted(self.begun),
            "settled": sorted(self.settled),
            "killed": {minion: list(kill) for minion, kill in self.killed.items()},
            "published": [self.at, sorted(self.named)],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any], now: float) -> Watched:
        """Return the job that a record describes. :raises Exception: of many kinds, when it describes none."""
        killed = {minion: (str(user), float(at)) for minion, (user, at) in record["killed"].items()}
        at, *_, named = record["published"]  # until 0.17 there was more
        note = float(record["until"]), set(record["begun"]), set(record["settled"]), killed
        return cls(*note, min(float(at), now), set(named))
