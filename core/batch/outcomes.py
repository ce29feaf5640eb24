"""
How each minion's part in a batch ended, how many ended in which way, and what that means for the failure budget.

Pure: stdlib only.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.batch.flight import Outcome
from saltext.jobs.core.batch.kept import Kept, kept, made
from saltext.jobs.core.batch.spec import Spec

#: Outcomes that a later return corrects.
GUESSED = frozenset({Outcome.LOST, Outcome.OFFLINE, Outcome.KILLED})
#: Outcomes that count against the failure budget: a minion that never answered does not.
_AGAINST_BUDGET = frozenset({Outcome.FAILED, Outcome.LOST})

#: Outcome, since when (Unix time), and the retcode of its return.
Ended = tuple[Outcome, float, int | None]


def _write(ended: Mapping[str, Ended]) -> dict[str, list[Any]]:
    return {minion: [value[0].value, *value[1:]] for minion, value in ended.items()}


def _read(ended: Mapping[str, Any]) -> dict[str, Ended]:
    return {minion: (Outcome(outcome), since, retcode) for minion, (outcome, since, retcode) in ended.items()}


@dataclasses.dataclass(slots=True)
class Outcomes(Kept):
    """
    :param spec: what was asked for.
    """

    spec: Spec
    ended: dict[str, Ended] = kept(dict, _write, _read, name="outcomes")
    budget_used: int = kept(int)
    counts: collections.Counter[Outcome] = made(collections.Counter)

    def rebuild(self) -> None:
        self.counts = collections.Counter(outcome for outcome, *_ in self.ended.values())

    def settle(self, minion: str, outcome: Outcome, now: float, retcode: int | None, counts: bool = True) -> None:
        """Note how a minion ended, or that it did otherwise than it seemed. ``counts``: against the budget, if it is bad."""
        earlier = self.ended.get(minion)
        if earlier is not None:
            self._count(earlier[0], -1, earlier[2] is not None or earlier[0] is not Outcome.FAILED)
        self.ended[minion] = (outcome, now, retcode)
        self._count(outcome, 1, counts)

    def reopen(self, minion: str) -> None:
        """Forget how a minion ended: it has not."""
        outcome, *_ = self.ended.pop(minion)
        self._count(outcome, -1, True)

    def is_guess(self, minion: str) -> bool:
        """Tell whether a minion has an outcome, and one that was found without a return of it."""
        if minion not in self.ended:
            return False
        outcome, _, retcode = self.ended[minion]
        return outcome in GUESSED or (outcome is Outcome.FAILED and retcode is None)

    def overdrawn(self) -> str | None:
        """Return which limit the failures so far exceed, or None."""
        if self.spec.failhard and self.budget_used:
            return "failhard"
        allowed = self.spec.failures_allowed
        executed = self.counts[Outcome.COMPLETED] + self.budget_used
        if allowed is not None and self.budget_used > allowed and executed >= self.spec.min_executed:
            return "max_failures"
        return None

    def _count(self, outcome: Outcome, by: int, against_budget: bool) -> None:
        self.counts[outcome] += by
        if outcome in _AGAINST_BUDGET and against_budget:
            self.budget_used = max(0, self.budget_used + by)
