"""
The minions that a batch is still to send to, in order, and of which group's turn it is.

Pure: stdlib only.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator

from saltext.jobs.core.batch.plan import Membership

_ONE_GROUP = Membership((), ())


class Pending:
    """
    Ids in the order in which they are sent to, each once, group by group.
    Whatever is done with one id takes the same time, however many there are.

    :param minions: the first ones.
    :param membership: which group each is in; by default all are in one.
    :param turn: the place of the group whose turn it is: those of earlier groups may be sent to as well, later ones not.
    """

    __slots__ = ("_counts", "_ids", "_membership", "_order", "_turn", "available")

    def __init__(self, minions: Iterable[str] = (), membership: Membership = _ONE_GROUP, turn: int = 0) -> None:
        self._membership, self._turn = membership, turn
        self._order: dict[int, collections.deque[str]] = {}  # by group; holds some that are not pending any more
        self._ids: set[str] = set()
        self._counts: collections.Counter[int] = collections.Counter()  # of pending minions, by group
        self.available = 0  # how many may be sent to: those of the groups up to the one whose turn it is
        for minion in minions:
            self._order.setdefault(membership.of(minion), collections.deque()).append(minion)
            self._add(minion)

    def __contains__(self, minion: object) -> bool:
        return minion in self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[str]:
        ids = (minion for group in sorted(self._order) for minion in dict.fromkeys(self._order[group]))
        return (minion for minion in ids if minion in self._ids)

    def open_to(self, group: int) -> None:
        """It is the turn of this group, which is a later one."""
        self.available += sum(self._counts[place] for place in range(self._turn + 1, group + 1))
        self._turn = group

    def take(self, count: int) -> tuple[str, ...]:
        """Remove the first ``count`` that are available and return them."""
        taken: list[str] = []
        for group in sorted(group for group in self._order if group <= self._turn):
            order = self._order[group]
            while order and len(taken) < count:
                minion = order.popleft()
                if minion in self._ids:
                    self.drop(minion)
                    taken.append(minion)
            if not order:
                del self._order[group]
        return tuple(taken)

    def drop(self, minion: str) -> None:
        """Remove one, wherever it stands."""
        if minion in self._ids:
            self._ids.discard(minion)
            self._count(minion, -1)

    def put_first(self, minions: Iterable[str]) -> None:
        """Add minions before all others of their groups."""
        for minion in reversed(list(minions)):
            self._order.setdefault(self._membership.of(minion), collections.deque()).appendleft(minion)
            self._add(minion)

    def put_last(self, minions: Iterable[str]) -> None:
        """Add minions behind all others of their groups."""
        for minion in minions:
            self._order.setdefault(self._membership.of(minion), collections.deque()).append(minion)
            self._add(minion)

    def _add(self, minion: str) -> None:
        if minion not in self._ids:
            self._ids.add(minion)
            self._count(minion, 1)

    def _count(self, minion: str, by: int) -> None:
        group = self._membership.of(minion)
        self._counts[group] += by
        if group <= self._turn:
            self.available += by
