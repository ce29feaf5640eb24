"""
A published job whose outcome is not known yet, as capture.py leads it. Part of the retry machine, and as pure as it.

It must never forget a minion that may have begun the job, nor keep any number of names that somebody has made up.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from saltext.jobs.core.retry.entry import Job

#: Of how many minions that have begun a job it is not looked at whether there are such minions.
MOST_BEGUN = 1000


class Stage(enum.Enum):
    """Where an open job stands."""

    WAITING = "waiting"  # for its deadline
    READING = "reading"  # in the job cache
    TO_ASK = "to ask"  # for the next survey
    ASKING = "asking"  # the missing ones, which jobs they run


class OpenJob:
    """
    What is known of it. Times are Unix time in seconds.

    :param published_at: when it was published first, as far as is known.
    """

    __slots__ = (
        "anew",
        "asking",
        "begun",
        "first",
        "heard",
        "idle",
        "job",
        "last",
        "most_begun",
        "published_at",
        "read_at",
        "recorded",
        "several",
        "signal",
        "stage",
        "sure_at",
        "survey",
        "surveyed",
        "told",
        "waited_for",
    )

    def __init__(self, published_at: float) -> None:
        self.published_at = published_at
        self.stage = Stage.WAITING
        self.job: Job | None = None
        self.signal = False  # a signal to another job, which cannot wait: so the bus says until it is read
        self.asking: set[str] = set()
        self.survey = 0  # the number of the survey that it takes part in
        self.surveyed: set[str] = set()  # minions that have been asked since its deadline
        self.idle: set[str] = set()  # minions that are there, but do not run it
        self.begun: set[str] = set()  # minions that have said that they begin it
        self.most_begun = MOST_BEGUN  # so many of them are not looked at
        self.heard = published_at  # its newest publish, as the bus says
        self.first = published_at  # likewise its first one since it was last settled
        self.last = 0.0  # its newest publish when it was last read, as its record has it
        self.recorded = 0.0  # the same by this machine's clock
        self.read_at = 0.0  # when it was last read: what comes later is recorded later
        self.several = False  # there was another publish or a replay of it: which of them is recorded is not known
        self.sure_at = 0.0  # when all that was published before a kill of it, or unheard, is recorded
        self.told: frozenset[str] = frozenset()  # to whom it was published, where some of it may be recorded later
        self.anew = False  # it is to be judged although nothing new is recorded
        self.waited_for = 0.0  # the publish whose deadline was waited for

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
