"""
The minions that a batch is still to send to, in order.

Pure: stdlib only.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator


class Pending:
    """
    Ids in the order in which they are sent to, each once. Every operation takes the same time for any number of them.

    :param minions: the first ones.
    """

    __slots__ = ("_ids", "_order")

    def __init__(self, minions: Iterable[str] = ()) -> None:
        self._order = collections.deque(minions)  # holds some that are not pending any more
        self._ids = set(self._order)

    def __contains__(self, minion: object) -> bool:
        return minion in self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[str]:
        return (minion for minion in dict.fromkeys(self._order) if minion in self._ids)

    def take(self, count: int) -> tuple[str, ...]:
        """Remove the first ``count`` and return them."""
        return tuple(self._first() for _ in range(min(count, len(self._ids))))

    def drop(self, minion: str) -> None:
        """Remove one, wherever it stands."""
        self._ids.discard(minion)

    def put_first(self, minions: Iterable[str]) -> None:
        """Add minions before all others."""
        for minion in reversed(list(minions)):
            self._ids.add(minion)
            self._order.appendleft(minion)

    def _first(self) -> str:
        while True:
            minion = self._order.popleft()
            if minion in self._ids:
                self._ids.discard(minion)
                return minion
