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
from saltext.jobs.core.engine.alarm import Alarm, Clock


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
        self.limit, self._clock, self._tell = limit, clock, tell
        self._batches: dict[str, Batch] = {}
        self._wanting: set[str] = set()
        self._served: dict[str, int] = {}  # in which round each batch last got something
        self._rounds = 0
        self._alarm = Alarm(loop, clock, self._round)  # set if a batch may be told something new

    def enter(self, batch: Batch) -> None:
        """Take in a batch. All that have minions in flight must be in before the first one takes a fact."""
        self._batches[batch.spec.jid] = batch

    def leave(self, jid: str) -> None:
        """A batch has ended."""
        del self._batches[jid]
        self._wanting.discard(jid)

    def stepped(self, batch: Batch) -> None:
        """A batch has taken a fact: it may want more, or have freed slots, which are gathered for a while."""
        if self.limit is None:
            return
        wants_first = batch.room.wanted and batch.room.limit is None
        if batch.room.wanted:
            self._wanting.add(batch.spec.jid)
        else:
            self._wanting.discard(batch.spec.jid)
        if self._wanting:
            due = self._clock.now() + (0.0 if wants_first else batch.publish_window.longest)
            self._alarm.set(due if self._alarm.due is None else min(due, self._alarm.due))

    def close(self) -> None:
        """Give nothing any more."""
        self._alarm.close()

    @property
    def in_flight(self) -> int:
        """How many minions are in flight over all batches."""
        return sum(len(batch.flights) for batch in self._batches.values())

    def _round(self) -> None:
        """Give the free room to the batches that want it, and tell the others what they wait for."""
        self._rounds += 1
        demands = {
            jid: Demand(len(batch.flights), batch.room.wanted, self._served.get(jid, 0))
            for jid, batch in self._batches.items()
        }
        given = share((self.limit or 0) - self.in_flight, demands)
        for jid in sorted(self._wanting):
            count = given[jid]
            limit = None if count >= demands[jid].wanted else self.limit
            if count:
                self._served[jid] = self._rounds
            if count or limit != self._batches[jid].room.limit:
                self._tell(jid, Allotted(count, limit))
