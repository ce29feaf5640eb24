"""The members of a batch that are in flight, and when each is due. Pure: stdlib only."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from saltext.jobs.core.batch.member import Member
from saltext.jobs.core.delivery.known import Step

#: Seconds for which overdue minions are gathered, for one look-up and one question.
CHECK_WINDOW = 1.0


class Flights(dict[str, Member]):
    """The members in flight, by minion."""

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[float, str]] = []  # due times and minions; some are out of date

    def at(self, minions: Iterable[str], *steps: Step) -> list[str]:
        """Return those of ``minions`` that are in flight and at one of these steps."""
        return [minion for minion in minions if minion in self and self[minion].step in steps]

    def set_due(self, minion: str, due: float | None) -> None:
        """Set when the next step of a minion is due, in Unix time; None for never."""
        self[minion].due = due
        if due is not None:
            heapq.heappush(self._heap, (due, minion))

    def next_overdue(self) -> float | None:
        """Return when minions are next overdue, or None."""
        while self._heap and self._is_stale(*self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] + CHECK_WINDOW if self._heap else None

    def overdue(self, now: float) -> list[str]:
        """Return the minions that are overdue, each once: they are not overdue again before they get a new due time."""
        first, due = self.next_overdue(), list[tuple[float, str]]()
        while first is not None and first <= now and self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap))
        return list(dict.fromkeys(minion for at, minion in due if not self._is_stale(at, minion)))

    def _is_stale(self, due: float, minion: str) -> bool:
        return minion not in self or self[minion].due != due
