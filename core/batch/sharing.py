"""
Divides ``max_in_flight``, the most minions in flight over all batches, among the batches.

A free slot goes to the batch with the fewest minions in flight, and among equals to the one that was served least recently.
So a small batch never waits for a large one to end, and no batch starves. A batch holds a slot only while a minion is in
flight, and needs no other batch to free it, so there is no deadlock.

It must never give more than the limit leaves, even if minions are in flight that were not given.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
from collections.abc import Callable, Mapping
from typing import Any

from saltext.jobs.core.batch.facts import Allotted
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.pace import PublishWindow
from saltext.jobs.core.batch.spec import PUBLISH_WINDOW
from saltext.jobs.core.engine.alarm import Clock


@dataclasses.dataclass(slots=True)
class Demand:
    """
    What a batch has, and what it could use.

    ``flying``: how many minions it has in flight. ``wanted``: how many more it would send to. ``served``: the number of the
    round in which it last got something.
    """

    flying: int = 0
    wanted: int = 0
    served: int = 0


def share(free: int, demands: Mapping[str, Demand]) -> collections.Counter[str]:
    """
    Return how many more minions each batch may send to, by jid.

    :param free: how many slots there are; none if it is not above 0.
    :param demands: those of all batches that have or want minions in flight, by jid.
    """
    given = collections.Counter[str]()
    heap = [(demand.flying, demand.served, jid) for jid, demand in demands.items() if demand.wanted]
    heapq.heapify(heap)
    while heap and given.total() < free:
        flying, served, jid = heapq.heappop(heap)
        given[jid] += 1
        if given[jid] < demands[jid].wanted:
            heapq.heappush(heap, (flying + 1, served, jid))
    return given


class Sharing:
    """
    :param limit: how many minions may be in flight; None for any number, and then nothing is shared.
    :param loop: the engine's tornado loop.
    :param clock: the time of deadlines.
    :param tell: has the batch of a jid take a fact.
    """

    def __init__(self, limit: int | None, loop: Any, clock: Clock, tell: Callable[[str, Allotted], None]) -> None:
        self.limit, self._loop, self._clock, self._tell = limit, loop, clock, tell
        self._batches: dict[str, Batch] = {}
        self._demands: dict[str, Demand] = {}  # of each of them, as of its last fact
        self._window = PublishWindow(PUBLISH_WINDOW, 0.0)
        self._wanting: set[str] = set()
        self._urgent = False  # one of ``_wanting`` has no answer yet, and gets one without gathering slots
        self._changed = self._complete = False
        self._rounds = 0
        self._timer: Any = None

    # -- what happens --------------------------------------------------------------------------------------------------

    def enter(self, batch: Batch) -> None:
        """Take in a batch."""
        if self.limit is not None:
            self._batches[batch.spec.jid], self._demands[batch.spec.jid] = batch, Demand(len(batch.flights))
            self._changed = True

    def note_completeness(self, complete: bool) -> None:
        """Note whether all batches that have not ended were taken in. Until they are, the free room is not known."""
        self._changed |= complete and not self._complete
        self._complete = complete
        self._plan()

    def leave(self, jid: str) -> None:
        """A batch has ended."""
        if self._batches.pop(jid, None) is not None:
            del self._demands[jid]
            self._wanting.discard(jid)
            self._changed = True
            self._plan()

    def stepped(self, batch: Batch) -> None:
        """A batch has taken a fact."""
        jid, wanted, flying = batch.spec.jid, batch.room.wanted, len(batch.flights)
        demand = self._demands.get(jid)
        if demand is None:
            return
        if flying < demand.flying:
            self._changed = True
            self._window.freed(self._clock.now())
            if batch.publish_window.runs:
                self._window.ran(batch.publish_window.runs[-1])
        if not wanted:
            self._wanting.discard(jid)
        elif wanted > demand.wanted:
            self._wanting.add(jid)
            self._changed = True
            self._urgent |= batch.room.limit is None
        demand.flying, demand.wanted = flying, wanted
        self._plan()

    def close(self) -> None:
        """Give nothing any more."""
        if self._timer is not None:
            self._loop.remove_timeout(self._timer)
            self._timer = None

    # -- who gets what -------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """How many minions are in flight over all batches."""
        return sum(demand.flying for demand in self._demands.values())

    def _wait(self) -> float | None:
        """Return for how many more seconds to gather freed slots; None if no batch would be told anything new now."""
        if not self._changed or not self._wanting:
            return None
        if self._urgent or self._window.first is None:
            return 0.0
        return self._window.left(self._clock.now(), self.in_flight, gathers=True)

    def _plan(self) -> None:
        """Set the time of the next round, if it would tell a batch anything new."""
        if self._timer is not None and not self._urgent:
            return
        wait = self._wait()
        if wait is not None:
            self.close()
            self._timer = self._loop.call_later(wait, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._wait() is not None:
            self._round()

    def _round(self) -> None:
        """Give the free room to the batches that want it, and tell the others what they wait for."""
        self._changed = self._urgent = False
        self._rounds += 1
        self._window.reset()
        known = self.limit if self._complete and self.limit is not None else 0
        given = share(known - self.in_flight, self._demands)
        for jid in sorted(self._wanting):
            demand, count = self._demands[jid], given[jid]
            before, limit = demand.flying, None if count >= demand.wanted else known
            if count:
                demand.served = self._rounds
            if count or limit != self._batches[jid].room.limit:
                self._tell(jid, Allotted(count, limit))
            if demand.flying < before + count:
                self._changed = True  # rights or windows kept it from sending: others get the room
        self._plan()
