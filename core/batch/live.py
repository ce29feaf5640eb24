"""
The batches that an engine carries out: each with its machine and its alarm, the turns in which they are written, the room
that each gets beside the others, and the ports to the world.

A machine takes a fact. What has changed is written, together with what has changed of the other batches. Effects that
change something outside are performed after that; if it cannot be written, all effects wait until it can. This holds no
policy about minions. It must never wait for the disk on the loop's thread.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from saltext.jobs.core import compat, lines
from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.permission import Permission
from saltext.jobs.core.batch.store import Asks, BatchStore, ask_of, change_of
from saltext.jobs.core.engine.alarm import Alarm, Clock
from saltext.jobs.core.engine.feeder import Follower
from saltext.jobs.core.engine.requests import Inbox
from saltext.jobs.core.engine.returns import Returns
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.ledger.log import Position
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.master.events import function_of
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.master.publisher import Publisher
from saltext.jobs.core.master.questions import Questions
from saltext.jobs.core.site import Log

log = lines.logger(__name__)

#: Effects that change something outside, at minions or at the retry queue. The end of a batch must be durable too.
_DURABLE = (facts.Publish, facts.Kill, facts.Check, facts.Queue)

#: Seconds by which the wall clock may drift from the engine's before windows are looked at again.
CLOCK_SLACK = 0.5
#: Seconds after which changes are written, unless an effect needs that sooner, and progress is announced.
_FLUSH = 1.0


@dataclasses.dataclass(frozen=True)
class Ports:
    """
    What the engine uses: Salt, the disk, the time, and threads for everything that blocks. Tests wire stand-ins.

    * ``loop``: the engine's tornado loop. ``clock``: the time of deadlines. ``wall``: returns Unix time, as files have it.
    * ``log``: returns the log of the masters for its reader, from a place on.
    * ``cache`` and ``returns`` are used in ``cache_worker`` only; ``permission`` in ``rights_worker``.
    * ``runner``: calls a runner function, as ``effects.call_runner``.
    * ``can_queue``: whether the retry queue's engine runs.
    * ``master_age``: for how many seconds the master has been running.
    * ``restarted``: returns the minions of ``{minion: Unix time}`` whose processes may have started since; it blocks.
    * ``acks``: whether minions say when they begin a job.
    * ``keep``: seconds for which ended batches are kept; 0 for ever.
    * ``is_takeover``: whether another master led the engine before, or may have led it; that one may have ended in the
      middle of anything.
    """

    loop: Any
    clock: Clock
    wall: Callable[[], float]
    bus: Bus
    publisher: Publisher
    questions: Questions
    cache: JobCache
    returns: Returns
    log: Callable[[Follower, Position | None], Log]
    store: BatchStore
    inbox: Inbox
    cache_worker: Worker
    disk_worker: Worker
    runner: Callable[[str, Sequence[str], float, Mapping[str, Any]], Awaitable[tuple[Any, bool | str]]]
    can_queue: Callable[[], bool]
    permission: Permission
    rights_worker: Worker
    master_age: Callable[[], float]
    restarted: Callable[[Mapping[str, float]], Collection[str]]
    acks: bool
    keep: float
    is_takeover: bool = True

    def close(self) -> None:
        """Release sockets and threads."""
        self.bus.close()
        self.publisher.close()
        self.cache_worker.close()
        self.disk_worker.close()
        self.rights_worker.close()


class Live:
    """A batch under way."""

    def __init__(self, batch: Batch, ports: Ports, turns: Turns, room: Sharing) -> None:
        self.batch, self.jid = batch, batch.spec.jid
        self.functions = function_of({"fun": batch.spec.fun})  # in the form of a return
        self._ports, self._turns, self._room = ports, turns, room
        self._alarm = Alarm(ports.loop, ports.clock, lambda: self.step(facts.Tick()))
        self.waiting = 0  # how many of its facts have effects that wait for the disk
        self._quiet_waiters: list[Any] = []
        self.asks: Asks = {}  # to be written with the rows
        self.gone = False  # it is closed, and takes no facts any more
        self.load_kept = False  # the job cache has the batch's load
        self.is_new = False  # it was started in this process
        self.served = 0  # in which round it last got room

    def step(self, fact: facts.Fact) -> None:
        """Have the batch take a fact, and perform its effects."""
        if self.gone:
            return  # the batch ended while the fact was on its way
        effects = self.batch.step(fact, self._ports.clock.now(), self._ahead)
        self._alarm.set(None if self.batch.closed else self.batch.next_due)
        self._room.stepped(self.batch)
        if not self.batch.is_publishing():
            waiters, self._quiet_waiters = self._quiet_waiters, []
            for waiter in waiters:
                waiter.set_result(None)
        for effect in effects:
            if isinstance(effect, facts.Queue):
                self.asks.update(ask_of(self.batch, effect.minions))
        self._turns.took(self, effects)

    @property
    def _ahead(self) -> float:
        return self._ports.wall() - self._ports.clock.now()

    def heed_clock(self) -> None:
        """Look at the windows if the wall clock was set. Call it every few seconds."""
        if self.batch.schedule.bounded and abs(self._ahead - self.batch.schedule.ahead) >= CLOCK_SLACK:
            self.step(facts.Tick())

    async def durable(self) -> None:
        """Return once all facts so far are durable, and their effects are done or under way."""
        done = compat.Future()
        self._turns.took(self, (), done)
        await done

    async def quiet(self) -> None:
        """Return once no publish is under way."""
        if self.batch.is_publishing():
            waiter = compat.Future()
            self._quiet_waiters.append(waiter)
            await waiter

    def close(self) -> None:
        """Take no more facts."""
        self.gone = True
        self._alarm.close()


class Turns:
    """
    Writes what batches take, and has their effects performed.

    :param perform: carries out effects of a batch, also none, once all before is durable; it must not raise.
    :param position: returns the place in the log up to which batches have taken it; it is written with what they took.
    """

    def __init__(
        self,
        ports: Ports,
        perform: Callable[[Live, Sequence[facts.Effect]], None],
        position: Callable[[], Position | None],
    ) -> None:
        self._ports, self._perform, self._position = ports, perform, position
        self._written: Position | None = None  # what was written last
        self._changed: dict[Live, None] = {}  # since they were written
        self._in_progress: dict[Live, None] = {}  # since progress was announced
        #: What is to be done once that is durable, in this order: effects of a batch, and futures.
        self._todo: list[tuple[Live, Sequence[facts.Effect], Any]] = []
        self._answers: dict[str, bytes] = {}  # to requests, to be written with what has changed
        self._is_writing = self._is_due = self._is_over = False
        self.stands_still = False  # the disk did not take what has changed

    def took(self, live: Live, effects: Sequence[facts.Effect], done: Any = None) -> None:
        """
        A batch has taken a fact that calls for these effects.

        :param done: a future, which is done once that and all before it is durable, and its effects are under way.
        """
        self._changed[live] = self._in_progress[live] = None
        is_urgent = bool(done or live.batch.finished) or any(isinstance(effect, _DURABLE) for effect in effects)
        if is_urgent or self._todo or self.stands_still:
            live.waiting += 1
            self._todo.append((live, effects, done))
        elif effects:
            self._perform(live, effects)
        if is_urgent and not self.stands_still:
            self.write()
        if not self._is_due:
            self._is_due = True
            self._ports.loop.call_later(_FLUSH, self._flush)

    def answer(self, request_id: str, reply: bytes) -> None:
        """Answer a request, together with all that batches have taken so far."""
        self._answers[request_id] = reply
        self.write()

    def write(self) -> None:
        """Write what has changed, and go on with what waits for that; also after the disk has failed."""
        is_new = self._changed or self._todo or self._answers or self._position() != self._written
        if is_new and not (self._is_writing or self._is_over):
            self._is_writing = True
            self._ports.loop.spawn_callback(self._write)

    def close(self) -> None:
        """Write and perform nothing more."""
        self._is_over = True

    def _flush(self) -> None:
        self._is_due = False
        if self._changed and not self.stands_still:
            self.write()
        changed, self._in_progress = self._in_progress, {}
        for live in changed:
            if not (self._is_over or live.batch.finished):
                self._perform(live, [facts.Announce("progress")])

    async def _write(self) -> None:
        try:
            while await self._write_once() and (self._todo or self._answers):
                pass
        finally:
            self._is_writing = False

    async def _write_once(self) -> bool:
        """Write what has changed so far, do what waited for that, and tell whether that was possible."""
        count, changes = len(self._todo), {live: change_of(live.batch, live.asks) for live in self._changed}
        position, answers = self._position(), self._answers
        self._changed.clear()
        self._answers = {}
        try:
            is_urgent = bool(count or answers)
            await self._ports.disk_worker.call(
                self._ports.store.write, list(changes.values()), is_urgent, position, answers
            )
        except Exception as exc:
            self._answers = {**answers, **self._answers}
            for live, change in changes.items():
                live.batch.touched.update(change.parts)
                live.asks.update(change.asks)
                self._changed[live] = None
            if not self.stands_still:
                told = None if isinstance(exc, OSError) else exc
                log.critical(
                    "The batches cannot be written down and stand still until they can: %s", exc, exc_info=told
                )
            self.stands_still = True
            return False
        if self.stands_still:
            log.info("The batches are written down again and go on")
            self.stands_still = False
        self._written = position
        todo, self._todo = self._todo[:count], self._todo[count:]
        for live, effects, done in todo if not self._is_over else ():
            live.waiting -= 1
            if done is not None:
                done.set_result(None)
            if not live.gone:
                self._perform(live, effects)
        return True


class Sharing:
    """
    Divides ``max_in_flight``, the most minions in flight over all batches, among the batches.

    A free slot goes to the batch with the fewest minions in flight, and among equals to the one that was served least
    recently. So a small batch never waits for a large one to end, and no batch starves. A batch holds a slot only while a
    minion is in flight, and needs no other batch to free it, so there is no deadlock. It must never give more than the limit
    leaves, even if minions are in flight that were not given.

    :param limit: how many minions may be in flight; None for any number, and then nothing is shared.
    :param lives: by jid, the batches under way. All that have minions in flight must be there before the first one takes a
        fact.
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
        """Give nothing any more."""
        self._alarm.close()

    def _round(self) -> None:
        """Give the free room to the batches that want it, and tell the others what they wait for."""
        self._rounds += 1
        wanted = {jid: live.batch.pace.wanted for jid, live in self._lives.items() if live.batch.pace.wanted}
        free = (self.limit or 0) - sum(len(live.batch.flights) for live in self._lives.values())
        given = collections.Counter[str]()
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
                live.step(facts.Allotted(given[jid], limit))
