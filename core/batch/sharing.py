"""
How batches share minions. The minions in flight over all batches are limited, in all and in each *lane*: a group of
minions with a limit of its own (``max_in_flight``). An exclusive batch does not send to a minion on which a batch that it
avoids is in flight.

``share`` divides the free room among batches. ``Sharing`` keeps the accounts for it: which batch is in flight on which
minions, which one wants room, and which one waits for which. Each change costs the same for any number of minions.

Room is divided evenly: a free slot goes to the batch with the smallest share of what is scarce, and among equals to the
one that was served least recently. So a small batch never waits for a large one to end, and no batch starves. A batch
holds a slot only while a minion is in flight, and needs no other batch to free it, so there is no deadlock.

It must never allot more than the limit leaves, even if minions are in flight that were not allotted. Pure: stdlib only.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
from collections.abc import Iterator, Mapping

from saltext.jobs.core.batch.facts import Allotted
from saltext.jobs.core.batch.gates import GROUPS, TOTAL, UNKNOWN
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.pace import PublishWindow
from saltext.jobs.core.batch.plan import NOT_KNOWN
from saltext.jobs.core.settings import InFlightLimit


@dataclasses.dataclass(frozen=True)
class Demand:
    """
    What a batch has, and what it could use.

    ``flying``: how many minions it has in flight; ``by_lane``: the same by lane. ``wanted``: how many more it would send to.
    ``lanes``: how many it could send to in each lane, the lane of the next minion first. ``served``: the number of the round
    in which it last got something.
    """

    flying: int
    wanted: int
    lanes: Mapping[str, int]
    by_lane: Mapping[str, int] = dataclasses.field(default_factory=dict)
    served: int = 0


def share(limit: InFlightLimit, demands: Mapping[str, Demand]) -> dict[str, dict[str, int]]:
    """
    Return how many more minions each batch may send to in each lane: ``{jid: {lane: count}}``.

    :param demands: those of all batches that have or want minions in flight, by jid.
    """
    free = None if limit.total is None else limit.total - sum(demand.flying for demand in demands.values())
    if free is not None and free <= 0:
        return {}
    flying = collections.Counter[str]()
    for demand in demands.values():
        flying.update(demand.by_lane)
    takers = [_Taker(jid, demand, limit, flying) for jid, demand in demands.items() if demand.wanted > 0]
    heap = [(place, taker) for taker in takers if (place := taker.place()) is not None]
    heapq.heapify(heap)
    while heap and (free is None or free > 0):
        place, taker = heapq.heappop(heap)
        now = taker.place()
        if now == place:
            taker.take()
            free = None if free is None else free - 1
            now = taker.place()
        if now is not None:
            heapq.heappush(heap, (now, taker))
    return {taker.jid: dict(taker.given) for taker in takers if taker.given}


class _Taker:
    """
    A batch while room is divided. A lane is scarce if the batch has a larger share of the lane than of the total. The batch
    takes slots in the first lane that is not scarce; if all are scarce, in the one in which its share is smallest.

    Slots are not taken back meanwhile: shares only rise, and a full lane stays full.

    :param flying: minions in flight over all batches, by lane; ``take`` adds to it.
    """

    def __init__(self, jid: str, demand: Demand, limit: InFlightLimit, flying: collections.Counter[str]) -> None:
        self.jid, self._demand, self._limit, self._flying = jid, demand, limit, flying
        self.given = collections.Counter[str]()
        self._count = 0
        self._lane = ""  # where it would take the next slot
        self._plenty: list[tuple[int, str]] = []  # heap of lanes that are not scarce, by their order
        self._scarce: list[tuple[float, int, str]] = []  # heap of the others, by their shares
        total = self._share_of_total()
        for order, lane in enumerate(demand.lanes):
            share = self._share_of(lane)
            if share <= total:
                self._plenty.append((order, lane))
            else:
                heapq.heappush(self._scarce, (share, order, lane))

    def __lt__(self, other: _Taker) -> bool:
        return self.jid < other.jid

    def place(self) -> tuple[float, int, str] | None:
        """Return the sort key of its turn, the smallest first; None if it can take nothing more."""
        if self._count >= self._demand.wanted:
            return None
        total = self._share_of_total()
        self._sort_lanes(total)
        if self._plenty:
            share, self._lane = total, self._plenty[0][1]
        elif self._scarce:
            share, self._lane = self._scarce[0][0], self._scarce[0][2]
        else:
            return None
        return share, self._demand.served, self.jid

    def take(self) -> None:
        """Take the slot that ``place`` has found."""
        self.given[self._lane] += 1
        self._flying[self._lane] += 1
        self._count += 1
        order, lane = heapq.heappop(self._plenty) if self._plenty else heapq.heappop(self._scarce)[1:]
        heapq.heappush(self._scarce, (self._share_of(lane), order, lane))

    def _sort_lanes(self, total: float) -> None:
        """Bring lanes in which it can take a slot to the heads of the heaps."""
        while self._scarce and (self._scarce[0][0] <= total or not self._can_take(self._scarce[0][2])):
            _, order, lane = heapq.heappop(self._scarce)
            if self._can_take(lane):
                heapq.heappush(self._plenty, (order, lane))
        while self._plenty and not self._can_take(self._plenty[0][1]):
            heapq.heappop(self._plenty)

    def _share_of_total(self) -> float:
        return (self._demand.flying + self._count) / self._limit.total if self._limit.total else 0.0

    def _can_take(self, lane: str) -> bool:
        has_room = self._limit.each is None or self._flying[lane] < self._limit.each
        return has_room and self.given[lane] < self._demand.lanes[lane]

    def _share_of(self, lane: str) -> float:
        if self._limit.each is None:
            return 0.0
        return (self._demand.by_lane.get(lane, 0) + self.given[lane]) / self._limit.each


class _Member:
    """A batch that takes part. ``ready``: the lanes of its minions are known."""

    __slots__ = ("available", "batch", "flying", "free", "lanes", "ready", "served", "wanted")

    def __init__(self, batch: Batch, ready: bool) -> None:
        self.batch, self.ready = batch, ready
        self.flying, self.served = len(batch.flights), 0
        self.wanted = self.available = 0  # as of its last fact
        self.lanes = collections.Counter(map(batch.membership.lane_of, batch.flights))
        self.free: list[str] = []  # minions that it no longer waits for, and was not told of yet


class Sharing:
    """
    :param limit: how many minions may be in flight.
    :param publish_window: least seconds for which freed slots are gathered.
    """

    def __init__(self, limit: InFlightLimit | None, publish_window: float) -> None:
        self.limit = limit or InFlightLimit()
        self._members: dict[str, _Member] = {}
        self._window = PublishWindow(publish_window, 0.0)
        self._wanting: set[str] = set()
        self._fresh: set[str] = set()  # those of ``_wanting`` that have no answer yet
        self._waiters: dict[str, set[str]] = {}  # {minion: jids of the batches that wait for it}
        self._untold: set[str] = set()  # jids of batches with ``free`` minions
        self._lanes: dict[str, str] = {}  # {minion: lane}, as last read
        self._changed = self._complete = False
        self._rounds = 0

    # -- the batches that take part ------------------------------------------------------------------------------------

    def is_shared(self, batch: Batch) -> bool:
        """Return whether a batch may send only to minions that it is allotted."""
        return self.limit != InFlightLimit() or bool(batch.spec.avoids)

    @property
    def active(self) -> bool:
        """Whether any batch takes part."""
        return bool(self._members)

    def enter(self, batch: Batch) -> None:
        """
        Take in a batch. While a batch that shares takes part, all others have to take part too. With a limit by groups, a
        batch gets nothing until ``know`` is called for it.
        """
        self._members[batch.spec.jid] = _Member(batch, ready=not self.limit.by)
        batch.inflight.moves = []
        self._changed = True

    def note_completeness(self, complete: bool) -> None:
        """Note whether all batches that have not ended were taken in. Until they are, the free room is not known."""
        self._changed |= complete and not self._complete
        self._complete = complete

    def know(self, jid: str, lanes: Mapping[str, str]) -> None:
        """
        Take the lanes of a batch's minions, as just read. A minion has the same lane in all batches: the latest reading
        counts, unless it does not know the minion's group.
        """
        member = self._members.get(jid)
        if member is None:
            return
        found = {minion: lane for minion, lane in lanes.items() if lane != NOT_KNOWN or minion not in self._lanes}
        moved = [minion for minion, lane in found.items() if self._lanes.get(minion, lane) != lane]
        self._lanes.update(found)
        for other in self._members.values():
            if other.ready and any(minion in other.batch.waiting or minion in other.batch.flights for minion in moved):
                self._sort(other)
        self._sort(member)
        member.ready = self._changed = True
        if jid in self._wanting:
            self._fresh.add(jid)

    def _sort(self, member: _Member) -> None:
        batch = member.batch
        batch.membership.lanes = self._lanes
        batch.waiting.order_by_lanes()
        member.lanes = collections.Counter(map(batch.membership.lane_of, batch.flights))

    def leave(self, jid: str) -> None:
        """A batch has ended."""
        if self._members.pop(jid, None) is None:
            return
        for jids in (self._wanting, self._fresh, self._untold):
            jids.discard(jid)
        if not self._members:
            self._lanes = {}
        self._changed = True

    # -- what happens --------------------------------------------------------------------------------------------------

    def stepped(self, batch: Batch, now: float) -> None:
        """A batch has taken a fact."""
        jid = batch.spec.jid
        member = self._members.get(jid)
        if member is None:
            return
        if batch.inflight.moves:
            self._follow(member, batch.inflight.moves)
            batch.inflight.moves = []
        flying = len(batch.flights)
        if flying < member.flying:
            self._changed = True
            self._window.freed(now)
            if batch.publish_window.runs:
                self._window.ran(batch.publish_window.runs[-1])
        member.flying = flying
        wanted, available = batch.room.wanted, batch.waiting.available
        if not wanted:
            self._wanting.discard(jid)
            self._fresh.discard(jid)
        elif wanted > member.wanted or available > member.available:
            self._wanting.add(jid)
            self._changed = True
            if not batch.room.short:
                self._fresh.add(jid)
        member.wanted, member.available = wanted, available

    def _follow(self, member: _Member, moves: list[tuple[str, int]]) -> None:
        for minion, by in moves:
            if member.ready:
                member.lanes[member.batch.membership.lane_of(minion)] += by
            if by < 0 and minion in self._waiters:
                self._let_go(minion)

    def _let_go(self, minion: str) -> None:
        for jid in self._waiters.pop(minion):
            waiter = self._members.get(jid)
            if waiter is not None:
                waiter.batch.waiting.let_go(minion)
                waiter.free.append(minion)
                self._untold.add(jid)
                self._changed = True

    # -- who gets what -------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """How many minions are in flight over all batches that take part."""
        return sum(member.flying for member in self._members.values())

    @property
    def urgent(self) -> bool:
        """Whether a batch waits for its first answer, which is given without gathering slots."""
        return bool(self._fresh)

    def wait(self, now: float) -> float | None:
        """Return for how many more seconds to gather freed slots; None if no batch would be told anything new now."""
        if not self._changed or not (self._wanting or self._untold):
            return None
        if self.urgent or self._window.first is None:
            return 0.0
        return self._window.left(now, self.in_flight, gathers=True)

    def round(self) -> Iterator[tuple[str, Allotted]]:
        """
        Yield ``(jid, fact)`` for each batch that is told something. Before you ask for the next one, the batch must take the
        fact, and you must call ``stepped``.
        """
        self._changed, self._rounds = False, self._rounds + 1
        self._window.reset()
        self._fresh.clear()
        again = self._knows_all()
        while again:
            again = False
            shares = share(self.limit, self._demands())
            promised = sum(sum(lanes.values()) for lanes in shares.values())
            for jid, lanes in shares.items():
                fact = self._pick(self._members[jid], lanes, promised)
                promised -= sum(lanes.values())
                again |= bool(fact.taken)  # it passed over minions, so slots are left
                yield jid, fact
                flights = self._members[jid].batch.flights
                if any(minion not in flights for minion in fact.minions):
                    self._changed = True  # rights or windows kept it from sending: others get the room
        yield from self._rest()

    def _knows_all(self) -> bool:
        """Whether all minions in flight are known, and their lanes."""
        return self._complete and all(member.ready or not member.flying for member in self._members.values())

    def _demands(self) -> dict[str, Demand]:
        return {
            jid: Demand(
                member.flying,
                member.batch.room.wanted if member.ready else 0,
                member.batch.waiting.lanes() if member.ready and jid in self._wanting else {},
                member.lanes,
                member.served,
            )
            for jid, member in self._members.items()
        }

    def _pick(self, member: _Member, lanes: Mapping[str, int], promised: int) -> Allotted:
        """
        Choose the minions that a batch gets, and those on which it has to wait for another batch.

        :param promised: slots that are given in this round but not handed out yet, this batch's included.
        """
        batch, minions, taken = member.batch, list[str](), dict[str, str]()
        rivals = self._rivals(batch)

        def holder(minion: str) -> str:
            return next((rival.spec.jid for rival in rivals if minion in rival.flights), "")

        for lane, count in lanes.items():
            found, held = batch.waiting.first(lane, count, holder)
            minions += found
            taken.update(held)
        for minion in taken:
            self._waiters.setdefault(minion, set()).add(batch.spec.jid)
        if minions:
            member.served = self._rounds
        short, limit = self._shortage(member, len(minions), promised)
        return Allotted(tuple(minions), short, limit, taken, self._freed(member))

    def _rivals(self, batch: Batch) -> list[Batch]:
        avoids = batch.spec.avoids
        if not avoids:
            return []
        others = (member.batch for member in self._members.values() if member.batch is not batch)
        return [other for other in others if avoids & other.spec.claims]

    def _shortage(self, member: _Member, gets: int, promised: int) -> tuple[str, int]:
        """Return (which room is short, its limit) if a batch ``gets`` fewer minions than it wants; ("", 0) if none is."""
        if gets >= member.batch.room.wanted:
            return "", 0
        if not (member.ready and self._knows_all()):
            return UNKNOWN, 0
        if self.limit.total is not None and self.in_flight + promised >= self.limit.total:
            return TOTAL, self.limit.total
        if self.limit.each is not None and member.batch.waiting.available > gets and self._is_full(member, gets):
            return GROUPS, self.limit.each
        return "", 0

    def _is_full(self, member: _Member, gets: int) -> bool:
        return sum(member.batch.waiting.lanes().values()) > gets

    def _freed(self, member: _Member) -> tuple[str, ...]:
        self._untold.discard(member.batch.spec.jid)
        free, member.free = tuple(member.free), []
        return free

    def _rest(self) -> Iterator[tuple[str, Allotted]]:
        """Yield facts for the batches that got nothing, if there is anything new to tell them."""
        for jid in sorted(self._wanting | self._untold):
            member = self._members[jid]
            room = member.batch.room
            short, limit = self._shortage(member, 0, 0) if room.wanted else (room.short, room.limit)
            if jid in self._untold or (short, limit) != (room.short, room.limit if room.short else 0):
                yield jid, Allotted((), short, limit, {}, self._freed(member))
