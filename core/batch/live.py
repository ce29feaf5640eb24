"""
The batches that an engine carries out: each with its machine and its alarm, the turns in which they are written, the room
that each gets beside the others, and the ports to the world.

What a fact has changed is written, together with the changes of other batches. Effects come after that; if it cannot be
written, they wait. It holds no policy about minions, and must never wait for the disk.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from saltext.jobs.core.batch import facts, machine
from saltext.jobs.core.batch.permission import Permission
from saltext.jobs.core.batch.state import Batch
from saltext.jobs.core.batch.store import BatchStore, change_of
from saltext.jobs.core.engine.loop import Alarm, Worker
from saltext.jobs.core.engine.process import EnginePorts
from saltext.jobs.core.engine.writer import GATHER, Writer
from saltext.jobs.core.ledger.batches import Change
from saltext.jobs.core.ledger.log import Reader

#: Seconds by which the wall clock may drift from the engine's before windows are looked at again.
CLOCK_SLACK = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ports(EnginePorts):
    """What the engine reaches the world through."""

    # Makes a reader of the masters' logs that begins at their end, with what a ``Feeder`` needs: functions_of and wake.
    log: Callable[[Callable[[str, str], str | None], Callable[[], object]], Reader]
    store: BatchStore
    # Calls a runner function, as ``effects.call_runner``: its name, words, seconds, and limits.
    runner: Callable[[str, Sequence[str], float, Mapping[str, Any]], Awaitable[tuple[Any, bool | str]]]
    can_queue: Callable[[], bool]  # whether the retry queue's engine runs
    permission: Permission  # used in ``rights_worker`` only, where a server may hang, but for ``strangers``
    rights_worker: Worker
    master_age: Callable[[], float]  # for how many seconds the master has been running
    # Returns the minions of ``{minion: Unix time}`` whose processes may have started since; it blocks.
    restarted: Callable[[Mapping[str, float]], Collection[str]]
    keep: float  # seconds for which ended batches are kept; 0 for ever
    is_takeover: bool = True  # another master may have led the engine before, and have ended in the middle of anything

    def close(self) -> None:
        super().close()
        self.rights_worker.close()


class Live:
    """A batch under way."""

    def __init__(
        self, batch: Batch, ports: Ports, turns: Turns, room: Sharing, end: Callable[[Live], Awaitable[None]]
    ) -> None:
        self.batch, self.jid, self.end = batch, batch.spec.jid, end
        self._ports, self._turns, self._room = ports, turns, room
        self._alarm = Alarm(ports.loop, ports.clock, lambda: self.step(facts.Tick()))
        self.gone = False  # it is closed, and takes no facts any more
        self.served = 0  # in which round it last got room
        self.counted = Counter(batch.counts)  # of its minions that have ended: the engine's figures have them

    def step(self, fact: facts.Fact, room: int = 0) -> bool:
        """Have the batch take a fact, and tell whether that changes anything. ``room``: as ``Sharing`` gives it."""
        if self.gone:
            return False  # the batch ended while the fact was on its way
        self.batch.schedule.ahead = self.ahead
        self.batch.pace.room = None if self._room.limit is None else room
        if (effects := machine.step(self.batch, fact, self._ports.clock.now())) is None:
            return False
        self._alarm.set(None if self.batch.closed else self.batch.next_due)
        self._room.stepped(self.batch)
        self._turns.took(self, effects)
        return True

    @property
    def ahead(self) -> float:
        """Seconds by which the wall clock is ahead of the engine's."""
        return self._ports.wall() - self._ports.clock.now()

    def heed_clock(self) -> None:
        """Look at the windows if the wall clock was set. Call it every few seconds."""
        if self.batch.schedule.bounded and abs(self.ahead - self.batch.schedule.ahead) >= CLOCK_SLACK:
            self.step(facts.Tick())

    def close(self) -> None:
        self.gone = True
        self._alarm.set(None)


class Turns(Writer[Live, list[Change]]):
    """Writes what has changed of batches, and then calls ``perform`` with the effects of each."""

    def __init__(
        self, ports: Ports, lives: Mapping[str, Live], perform: Callable[[Ports, Live, Sequence[facts.Effect]], None]
    ) -> None:
        def changes_of(changed: Iterable[Live]) -> list[Change]:
            return [change_of(live.batch) for live in changed]

        def everything() -> Iterable[Live]:
            for live in lives.values():
                live.batch.touched.update(live.batch.members)
            return lives.values()

        super().__init__(ports.loop, ports.disk_worker, "the batches", ports.store, changes_of, everything)
        self._ports, self._perform = ports, perform
        self._in_progress: dict[Live, None] = {}  # since progress was announced

    def took(self, live: Live, effects: Sequence[facts.Effect]) -> None:
        """A batch has taken a fact that calls for these effects."""
        if not self._in_progress:
            self._ports.loop.call_later(GATHER, self._announce)
        self._in_progress[live] = None
        self.put([live])
        if effects:
            self.when_durable(lambda: live.gone or self._perform(self._ports, live, effects))

    def _announce(self) -> None:
        changed, self._in_progress = self._in_progress, {}
        for live in changed:
            if not (live.gone or live.batch.finished):
                self._perform(self._ports, live, [facts.Announce("progress")])


class Sharing:
    """
    Divides ``limit``, the most minions in flight over all batches (None for any number), among the batches.

    A free slot goes to the batch with the fewest minions in flight, among equals to the one that was served least recently.
    So a small batch never waits for a large one to end. A batch holds a slot only while a minion is in flight, so there is
    no deadlock. It must never give more than the limit leaves, even if minions are in flight that were not given.

    :param lives: the batches under way, by jid. All with minions in flight must be there before the first takes a fact.
    """

    def __init__(self, limit: int | None, ports: Ports, lives: Mapping[str, Live]) -> None:
        self.limit, self._clock, self._lives, self._rounds = limit, ports.clock, lives, 0
        self._alarm = Alarm(ports.loop, ports.clock, self._round)

    def stepped(self, batch: Batch) -> None:
        """A batch has taken a fact: it may want more, or have freed slots, which are gathered for a while."""
        if self.limit is None:
            return
        wants_first = batch.pace.wanted and batch.pace.limit is None
        due = self._clock.now() + (0.0 if wants_first else batch.pace.longest)
        self._alarm.set(due if self._alarm.due is None else min(due, self._alarm.due))

    def close(self) -> None:
        self._alarm.set(None)

    def _round(self) -> None:
        """Give the free room to batches that want it, and tell the others what they wait for."""
        self._rounds += 1
        wanted = {jid: live.batch.pace.wanted for jid, live in self._lives.items() if live.batch.pace.wanted}
        free = (self.limit or 0) - sum(len(live.batch.flights) for live in self._lives.values())
        given = Counter[str]()
        heap = [(len(self._lives[jid].batch.flights), self._lives[jid].served, jid) for jid in wanted]
        heapq.heapify(heap)
        while heap and given.total() < free:
            flying, served, jid = heapq.heappop(heap)
            given[jid] += 1
            if given[jid] < wanted[jid]:
                heapq.heappush(heap, (flying + 1, served, jid))
        for jid in sorted(wanted):
            live, limit = self._lives[jid], None if given[jid] >= wanted[jid] else self.limit
            if given[jid]:
                live.served = self._rounds
            if given[jid] or limit != live.batch.pace.limit:
                live.batch.pace.limit = limit
                live.step(facts.Tick(), given[jid])
