"""
What jobs do on featherweight minions, and what happens to their messages: random, and reproducible by the seed.

Pure: stdlib only.
"""

from __future__ import annotations

import dataclasses
import random


@dataclasses.dataclass(frozen=True)
class Work:
    """
    One job on one minion: how long it runs, what it returns, and whether its minion dies in the middle of it.

    ``seconds``: its run time. ``retcode``: 0 for success. ``size``: bytes of what it returns. ``dies_after``: seconds from
    the beginning to the death of the minion, or None. ``away``: seconds until that minion starts again, or None for never.
    """

    seconds: float
    retcode: int
    size: int
    dies_after: float | None
    away: float | None


@dataclasses.dataclass(frozen=True)
class Script:
    """
    :param seconds: least and most run time of a job.
    :param slow: share of runs that take ``slow_seconds`` instead.
    :param failing: share of runs that end with retcode 1.
    :param dying: share of runs during which the minion is killed; it starts again after ``away`` seconds (None: never).
    :param size: bytes of a return.
    :param deaf: share of publishes that a minion does not hear.
    :param losing: share of messages to the master (acknowledgements, returns) that never arrive.
    :param repeating: share of them that arrive twice.
    :param delay: most seconds by which a message is late.
    """

    seed: int = 1
    seconds: tuple[float, float] = (1.0, 5.0)
    slow: float = 0.0
    slow_seconds: float = 60.0
    failing: float = 0.0
    dying: float = 0.0
    away: float | None = None
    size: int = 100
    deaf: float = 0.0
    losing: float = 0.0
    repeating: float = 0.0
    delay: float = 0.0

    def work(self, minion: str, jid: str, number: int = 1) -> Work:
        """Return what a job does on a minion when it runs there for the nth time."""
        chance = random.Random(f"{self.seed} {minion} {jid} {number}")
        seconds = self.slow_seconds if chance.random() < self.slow else chance.uniform(*self.seconds)
        retcode = int(chance.random() < self.failing)
        dies = chance.random() < self.dying
        return Work(seconds, retcode, self.size, chance.uniform(0, seconds) if dies else None, self.away)
