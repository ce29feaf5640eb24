"""
A batch that is being carried out: the machine with its alarm; and the turns in which an engine's batches are written.

The machine takes a fact. What has changed is written, together with what has changed of the other batches. Effects that
change something outside are performed after that; if it cannot be written, all effects wait until it can. This holds no
policy about batches. It must never wait for the disk on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from saltext.jobs.core import compat, lines
from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.store import Asks, BatchStore, ask_of, change_of
from saltext.jobs.core.engine.alarm import Alarm, Clock
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.ledger.log import Position
from saltext.jobs.core.master.events import function_of

log = lines.logger(__name__)

#: Effects that change something outside, at minions or at the retry queue. The end of a batch must be durable too.
_DURABLE = (facts.Publish, facts.Kill, facts.Check, facts.Queue)

#: Seconds by which the wall clock may drift from the engine's before windows are looked at again.
CLOCK_SLACK = 0.5
#: Seconds after which changes are written, unless an effect needs that sooner.
_FLUSH = 1.0


class Turns:
    """
    :param loop: the engine's tornado loop.
    :param disk: the thread that waits for the disk.
    :param store: writes rows; used in that thread.
    :param perform: carries out effects of a batch, also none, once all before is durable; it must not raise.
    :param position: returns the place in the log up to which batches have taken it; it is written with what they took.
    """

    def __init__(
        self,
        loop: Any,
        disk: Worker,
        store: BatchStore,
        perform: Callable[[Live, Sequence[facts.Effect]], None],
        position: Callable[[], Position | None],
    ) -> None:
        self._loop, self._disk, self._store, self._perform = loop, disk, store, perform
        self._position = position
        self._written: Position | None = None  # what was written last
        self._changed: dict[Live, None] = {}  # since they were written
        #: What is to be done once that is durable, in this order: effects of a batch, and futures.
        self._todo: list[tuple[Live, Sequence[facts.Effect], Any]] = []
        self._is_writing = self._is_due = self._is_over = False
        self.stands_still = False  # the disk did not take what has changed

    def took(self, live: Live, effects: Sequence[facts.Effect], done: Any = None) -> None:
        """
        A batch has taken a fact that calls for these effects.

        :param done: a future, which is done once that and all before it is durable, and its effects are under way.
        """
        self._changed[live] = None
        is_urgent = bool(done or live.batch.finished) or any(isinstance(effect, _DURABLE) for effect in effects)
        if is_urgent or self._todo or self.stands_still:
            live.waiting += 1
            self._todo.append((live, effects, done))
        elif effects:
            self._perform(live, effects)
        if is_urgent and not self.stands_still:
            self.write()
        elif not self._is_due:
            self._is_due = True
            self._loop.call_later(_FLUSH, self._flush)

    def write(self) -> None:
        """Write what has changed, and go on with what waits for that; also after the disk has failed."""
        is_new = self._changed or self._todo or self._position() != self._written
        if is_new and not (self._is_writing or self._is_over):
            self._is_writing = True
            self._loop.spawn_callback(self._write)

    def close(self) -> None:
        """Write and perform nothing more."""
        self._is_over = True

    def _flush(self) -> None:
        self._is_due = False
        if self._changed and not self.stands_still:
            self.write()

    async def _write(self) -> None:
        try:
            while await self._write_once() and self._todo:
                pass
        finally:
            self._is_writing = False

    async def _write_once(self) -> bool:
        """Write what has changed so far, do what waited for that, and tell whether that was possible."""
        count, changes = len(self._todo), {live: change_of(live.batch, live.asks) for live in self._changed}
        position = self._position()
        self._changed.clear()
        try:
            await self._disk.call(self._store.write, list(changes.values()), count > 0, position)
        except Exception as exc:
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


class Live:
    """
    :param batch: the machine.
    :param loop: the engine's tornado loop.
    :param clock: the time of deadlines.
    :param wall: returns Unix time, which windows follow.
    :param turns: writes what the batch takes, and performs its effects.
    :param stepped: called after each fact.
    """

    def __init__(
        self,
        batch: Batch,
        loop: Any,
        clock: Clock,
        wall: Callable[[], float],
        turns: Turns,
        stepped: Callable[[Live], None],
    ) -> None:
        self.batch = batch
        self.jid = batch.spec.jid
        self.functions = function_of({"fun": batch.spec.fun})  # in the form of a return
        self._loop, self._clock, self._wall, self._turns, self._stepped = loop, clock, wall, turns, stepped
        self._alarm = Alarm(loop, clock, lambda: self.step(facts.Tick()))
        self.waiting = 0  # how many of its facts have effects that wait for the disk
        self._quiet_waiters: list[Any] = []
        self.asks: Asks = {}  # to be written with the rows
        self.gone = False  # it is closed, and takes no facts any more
        self.load_kept = False  # the job cache has the batch's load
        self.is_new = False  # it was started in this process
        self.progress_timer: Any = None
        self.progress_at = clock.now()  # time of the last progress event; the first one is "new"

    def step(self, fact: facts.Fact) -> None:
        """Have the batch take a fact, and perform its effects."""
        if self.gone:
            return  # the batch ended while the fact was on its way
        effects = self.batch.step(fact, self._clock.now(), self._ahead)
        self._alarm.set(None if self.batch.closed else self.batch.next_due)
        self._stepped(self)
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
        return self._wall() - self._clock.now()

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
        """Stop the timers and take no more facts."""
        self.gone = True
        self._alarm.close()
        if self.progress_timer is not None:
            self._loop.remove_timeout(self.progress_timer)
            self.progress_timer = None
