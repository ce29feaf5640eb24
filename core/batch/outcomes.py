"""
How each minion's part in a batch ended, the counts of each outcome, and the failure budget.

Pure: stdlib only.
"""

from __future__ import annotations

import collections
import enum

from saltext.jobs.core.batch.plan import Membership
from saltext.jobs.core.batch.spec import Spec


class Outcome(str, enum.Enum):
    """How a minion's part in a batch ended."""

    COMPLETED = "completed"  # returned with success
    FAILED = "failed"  # returned without success; or was away, and the batch counts that as failed
    LOST = "lost"  # may have begun, has not returned, and now is silent or does not run the job
    OFFLINE = "offline"  # was not there
    QUEUED = "queued"  # was not there, and was handed over to the retry queue
    KILLED = "killed"  # was killed by a stop, and has not returned
    TIMED_OUT = "timed_out"  # ran longer than ``max_runtime``, was killed for that, and has not returned with success


#: Outcomes that count against the failure budget.
_AGAINST_BUDGET = frozenset({Outcome.FAILED, Outcome.LOST, Outcome.TIMED_OUT})

#: Outcome, since when (Unix time), the retcode of the return, and when the run began, or else when the minion was sent to.
Ended = tuple[Outcome, float, int | None, float | None]


def _is_against_budget(ended: Ended) -> bool:
    """Tell whether an outcome counts against the budget. FAILED without a return means away, which does not count."""
    outcome, _, retcode, _ = ended
    return outcome in _AGAINST_BUDGET and (retcode is not None or outcome is not Outcome.FAILED)


class Outcomes:
    """
    :param spec: what was asked for.
    :param membership: the group of each minion.
    :param touched: the minions whose rows have changed.
    """

    __slots__ = (
        *("spec", "membership", "_touched", "ended", "begun", "budget_used", "group_used", "counts", "_unjudged"),
    )

    def __init__(self, spec: Spec, membership: Membership, touched: set[str]) -> None:
        self.spec, self.membership, self._touched = spec, membership, touched
        self.ended: dict[str, Ended] = {}
        self.begun: set[str] = set()  # minions without a return that are known to have begun the job
        self.budget_used = 0
        self.group_used = [0] * self.membership.groups  # used part of the budget, by group
        self.counts = collections.Counter[Outcome]()
        self._unjudged = set[int]()  # groups whose failures have changed since they were judged

    def settle(
        self, minion: str, outcome: Outcome, now: float, retcode: int | None, started: float | None = None
    ) -> None:
        """Record how a minion ended, in place of an earlier record, whose start is kept."""
        if minion in self.ended:
            started = started or self.ended[minion][3]
            self.reopen(minion)
        self.ended[minion] = (outcome, now, retcode, started)
        self._touched.add(minion)
        self._count(minion, self.ended[minion], 1)

    def reopen(self, minion: str) -> None:
        """Remove the record of a minion: it has not ended."""
        self._count(minion, self.ended.pop(minion), -1)
        self.begun.discard(minion)
        self._touched.add(minion)

    def is_guess(self, minion: str) -> bool:
        """Tell whether a minion's outcome was concluded without its return."""
        return minion in self.ended and self.ended[minion][2] is None

    def timed_out(self, minion: str) -> bool:
        """Tell whether a minion was killed because it ran too long."""
        return minion in self.ended and self.ended[minion][0] is Outcome.TIMED_OUT

    def overdrawn(self) -> str | None:
        """Return the limit that the failures so far exceed, or None."""
        allowed, groups = self.spec.failures_allowed, sorted(self._unjudged)
        self._unjudged = set()
        if allowed is not None and self.budget_used > allowed:
            return "max_failures"
        for group in groups if self.spec.group_failures_allowed else ():
            if self.group_used[group] > self.spec.group_failures_allowed[group]:
                return f"max_failures in group {self.spec.groups[group][0]}"
        return None

    def _count(self, minion: str, ended: Ended, by: int) -> None:
        outcome, group = ended[0], self.membership.of(minion)
        self.counts[outcome] += by
        self._unjudged.add(group)
        if _is_against_budget(ended):
            self.budget_used += by
            self.group_used[group] += by
