"""
The minions that a batch still has to send to: their order, the group whose turn it is, and which have shown a sign of life.
With ``presence=ping`` a minion is sent to only if it has answered one of ``probe_attempts`` pings, or has shown another
sign of life that proves that it is there. Pure: stdlib only.
"""

from __future__ import annotations

import bisect
import dataclasses
import heapq
import itertools
from collections.abc import Iterable

from saltext.jobs.core.batch.spec import Part, Spec

#: Most minions of the first ping (or two batch sizes, if that is more), and of any ping.
FIRST_PINGED, MOST_PINGED = 20, 500


@dataclasses.dataclass(slots=True, eq=False)
class Pending(Part):
    """The minions still to be sent to. ``ready``: they only wait for their group's turn; ``unseen``: not heard from."""

    KEPT = ("first_ping",)

    spec: Spec
    ready: set[str] = dataclasses.field(default_factory=set)
    unseen: dict[str, int] = dataclasses.field(default_factory=dict)  # {minion: pings without an answer}
    available: int = 0  # how many are ready in the groups up to the one whose turn it is
    first_ping: bool = False  # the first ping is not over, and nothing is sent before it is
    pinged: tuple[str, ...] = ()  # the minions of the ping that is under way
    ping_at: float = 0.0  # no ping before this Unix time
    settled_at: float = 0.0  # no minion is given up before this time: the master is young, and minions still connect
    _places: dict[str, int] = dataclasses.field(init=False)
    _ends: list[int] = dataclasses.field(init=False)  # of groups
    _turn: int = dataclasses.field(init=False)  # the end of the group whose turn it is
    _heap: list[int] = dataclasses.field(default_factory=list)  # places of the ready ones, and of some others

    def __post_init__(self) -> None:
        self._places = {minion: place for place, minion in enumerate(self.spec.minions)}
        self._ends = [*itertools.accumulate(self.spec.counts)]
        self._turn = self._ends[0]

    def __len__(self) -> int:
        return len(self.ready) + len(self.unseen)

    def __contains__(self, minion: object) -> bool:
        return minion in self.ready or minion in self.unseen

    def in_order(self) -> list[str]:
        """Return all, in the order of the target, which is group by group."""
        return [minion for minion in self.spec.minions if minion in self]

    def group_of(self, minion: str) -> int:
        """Return the place of a minion's group; 0 in a batch without groups."""
        return bisect.bisect_right(self._ends, self._places.get(minion, 0))

    def open_to(self, group: int) -> None:
        """Begin the turn of a group. Earlier groups may be sent to as well, later ones not."""
        self._turn = self._ends[group]
        self.available = sum(self._places[minion] < self._turn for minion in self.ready)

    def awaits_signs(self) -> bool:
        """Tell whether minions of this group, or of an earlier one, have shown no sign of life yet."""
        return any(self._places[minion] < self._turn for minion in self.unseen)

    def put(self, minions: Iterable[str]) -> None:
        places = sorted(self._places[minion] for minion in minions if minion not in self.ready)
        self.ready.update(self.spec.minions[place] for place in places)
        self.available += bisect.bisect_left(places, self._turn)
        if not self._heap:
            self._heap = places  # a sorted list is a heap
            return
        for place in places:
            heapq.heappush(self._heap, place)

    def drop(self, minion: str) -> None:
        """Remove a minion, wherever it is."""
        self.unseen.pop(minion, None)
        if minion in self.ready:
            self.ready.remove(minion)
            self.available -= self._places[minion] < self._turn

    def empty(self) -> None:
        self.unseen, self.available = {}, 0
        self.ready.clear()
        self._heap.clear()

    def take(self, count: int) -> tuple[str, ...]:
        """Remove the first ``count`` that are available and return them."""
        taken: list[str] = []
        while len(taken) < count and self._heap and self._heap[0] < self._turn:
            minion = self.spec.minions[heapq.heappop(self._heap)]
            if minion in self.ready:
                self.drop(minion)
                taken.append(minion)
        return tuple(taken)

    # -- signs of life ------------------------------------------------------------------------------------------------

    def await_signs(self) -> None:
        """Send to no minion before it has shown a sign of life."""
        unseen = dict.fromkeys(self.in_order(), 0)
        self.empty()
        self.unseen = unseen

    def see(self, minions: Iterable[str]) -> None:
        self.put([minion for minion in minions if self.unseen.pop(minion, None) is not None])

    def ping(self, size: int) -> tuple[str, ...]:
        """Return the minions of the next ping. The first one is small: the answers of all would swamp the master."""
        most = max(FIRST_PINGED, 2 * size) if self.first_ping else MOST_PINGED
        self.pinged = tuple(itertools.islice(self.unseen, min(most, MOST_PINGED)))
        return self.pinged

    def ping_over(self, now: float) -> list[str]:
        """A ping is over: return the minions that have been pinged often enough and are not there."""
        for minion in self.pinged:
            if minion in self.unseen:
                self.unseen[minion] += 1
        self.pinged, self.first_ping = (), False
        if now < self.settled_at:
            self.ping_at = now + self.spec.gather_job_timeout
            return []
        self.ping_at = now
        given_up = [minion for minion, pings in self.unseen.items() if pings >= self.spec.probe_attempts]
        for minion in given_up:
            del self.unseen[minion]
        return given_up
