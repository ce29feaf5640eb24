"""
A batch that is being carried out: the machine with its journal, its alarm, and its effects.

For each fact: step the machine, write the fact, sync if an effect follows that changes something outside, perform the
effects. If a fact cannot be written, its effects wait until the disk takes it. This holds no policy about
batches. It must never wait for the disk on the loop's thread: syncs, and the end of a rewrite, are done in the disk's
thread.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

from saltext.jobs.core import compat, lines
from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.engine.alarm import Alarm, Clock
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.master.events import function_of
from saltext.jobs.core.site import Journal

log = lines.logger(__name__)

#: Effects that change something outside: at minions, at the retry queue, or as the batch ends. First the journal is synced.
_DURABLE = (facts.Publish, facts.Kill, facts.Check, facts.Close, facts.Queue)

#: Seconds after which facts that wait in the journal are synced, unless an effect needs that sooner.
_FLUSH = 1.0


class Live:
    """
    :param batch: the machine.
    :param journal: holds its facts.
    :param loop: the engine's tornado loop.
    :param clock: the time of deadlines.
    :param disk: the thread that waits for the disk.
    :param perform: carries out effects of this batch; it must not raise.
    :param stepped: called after each fact.
    :param heed: returns a fact about an unnoticed change, to be taken before any other fact, or None.
    """

    def __init__(
        self,
        batch: Batch,
        journal: Journal,
        loop: Any,
        clock: Clock,
        disk: Worker,
        perform: Callable[[Live, list[facts.Effect]], None],
        stepped: Callable[[Live], None] = lambda live: None,
        heed: Callable[[Live], facts.Fact | None] = lambda live: None,
    ) -> None:
        self.batch, self.journal = batch, journal
        self.jid = batch.spec.jid
        self.functions = function_of({"fun": batch.spec.fun})  # in the form of a return
        self._loop, self._clock, self._disk = loop, clock, disk
        self._perform, self._stepped, self._heed = perform, stepped, heed
        self._alarm = Alarm(loop, clock, lambda: self.step(facts.Tick()))
        #: What is to be done, in this order: effects, and futures that are done once everything before them is durable.
        self._todo: collections.deque[tuple[list[facts.Effect], Any]] = collections.deque()
        self._working = False
        self._quiet_waiters: list[Any] = []
        self._rewriting: Any = None  # a future: done at the end of the rewrite under way
        #: Hand-overs that are being taken back. The batch is closed after that, as nothing would repeat it then.
        self.taking_back: set[facts.TakeBack] = set()
        self.closing = False  # it has ended, and is being closed
        self.gone = False  # it is closed, and takes no facts any more
        self._flushes = False  # what waits in the journal is about to be synced
        self.unwritten = False  # the disk did not take a fact: the journal is behind
        self.load_kept = False  # the job cache has the batch's load
        self.wall_ahead: float | None = None  # seconds by which the wall clock is ahead of ours, at the last look
        self.progress_timer: Any = None
        self.progress_at = clock.now()  # time of the last progress event; the first one is "new"

    @property
    def busy(self) -> bool:
        """Whether effects are still to be performed."""
        return self._working or bool(self._todo)

    @property
    def is_over(self) -> bool:
        """Whether the batch has ended, and nothing is left to be done before it is closed."""
        return bool(self.batch.finished) and not (self.busy or self.unwritten or self.taking_back)

    @property
    def rewriting(self) -> bool:
        """Whether the journal is being rewritten."""
        return self._rewriting is not None

    def step(self, fact: facts.Fact) -> None:
        """Have the batch take a fact, and perform its effects."""
        self.heed()
        self._take(fact)

    def heed(self) -> None:
        """Have the batch take a fact about an unnoticed change, if there is any. Call it every few seconds."""
        news = None if self.gone else self._heed(self)
        if news is not None:
            self._take(news)

    def _take(self, fact: facts.Fact) -> None:
        if self.gone:
            return  # the batch ended while the fact was on its way
        now = self._clock.now()
        effects = self.batch.step(fact, now)
        self._write(facts.record_of(fact, now))
        self._alarm.set(None if self.batch.closed else self.batch.next_due)
        self._stepped(self)
        if not self.batch.is_publishing():
            waiters, self._quiet_waiters = self._quiet_waiters, []
            for waiter in waiters:
                waiter.set_result(None)
        if effects:
            self._todo.append((effects, None))
            self._work()

    async def durable(self) -> None:
        """Return once all facts so far are durable, and their effects are done or under way."""
        done = compat.Future()
        self._todo.append(([], done))
        self._work()
        await done

    async def quiet(self) -> None:
        """Return once no publish is under way."""
        if self.batch.is_publishing():
            waiter = compat.Future()
            self._quiet_waiters.append(waiter)
            await waiter

    def close(self) -> None:
        """Stop the timers and take no more facts. The disk's thread then releases the journal."""
        self.gone = True
        self._alarm.close()
        if self.progress_timer is not None:
            self._loop.remove_timeout(self.progress_timer)
            self.progress_timer = None
        self._loop.spawn_callback(self._disk.call, self.journal.close)

    # -- writing, and then performing ----------------------------------------------------------------------------------

    async def rewrite(self) -> None:
        """
        Rewrite the journal as a snapshot of this moment, durably, and perform the effects that waited for the disk.

        :raises OSError: if the disk does not take it.
        """
        while self.rewriting:
            await self._rewriting
        self._rewriting = compat.Future()
        try:
            self.journal.begin_rewrite(self.batch.snapshot())
            await self._disk.call(self.journal.finish_rewrite)
        finally:
            ended, self._rewriting = self._rewriting, None
            ended.set_result(None)
        if self.unwritten:
            log.info("Batch %s is written down again and goes on", self.jid)
            self.unwritten = False
        self._work()

    def tend(self) -> None:
        """Rewrite the journal if it lacks a fact or has outgrown its snapshot. Call it every few seconds."""
        if not self.rewriting and (self.unwritten or self.journal.overgrown):
            self._loop.spawn_callback(self._try_to_rewrite)

    async def _try_to_rewrite(self) -> None:
        try:
            await self.rewrite()
        except OSError as exc:
            log.debug("The journal of batch %s cannot be rewritten: %s", self.jid, exc)
            if not self.journal.whole:
                self._fall_behind(exc)

    def _write(self, record: list[Any]) -> None:
        try:
            self.journal.append(record)
        except OSError as exc:
            self._fall_behind(exc)
        if self.journal.behind and not self._flushes:
            self._flushes = True
            self._loop.call_later(_FLUSH, self._loop.spawn_callback, self._flush)

    async def _flush(self) -> None:
        """Sync what has been written, so that other masters see it."""
        self._flushes = False
        if self.gone or self.unwritten or not self.journal.behind:
            return
        try:
            await self._disk.call(self.journal.sync)
        except OSError as exc:
            self._fall_behind(exc)

    def _fall_behind(self, exc: OSError) -> None:
        if not self.unwritten:
            log.critical("Batch %s cannot be written down and stands still until it can: %s", self.jid, exc)
        self.unwritten = True

    def _work(self) -> None:
        """Perform the effects, up to the first that has to wait for the disk."""
        while self._todo and not self._working and not self.unwritten:
            effects, done = self._todo[0]
            if done is not None or any(isinstance(effect, _DURABLE) for effect in effects):
                self._working = True
                self._loop.spawn_callback(self._sync)
                return
            self._todo.popleft()
            if not self.gone:
                self._perform(self, effects)

    async def _sync(self) -> None:
        """Sync the journal, perform the effects that waited for that, and go on. A closed batch is durable."""
        effects, done = self._todo[0]
        try:
            if not self.gone:
                await self._disk.call(self.journal.sync)
        except OSError as exc:
            self._fall_behind(exc)
        self._working = False
        if self.unwritten or (self.gone and not self.batch.closed):
            return
        self._todo.popleft()
        if done is not None:
            done.set_result(None)
        if not self.gone:
            self._perform(self, effects)
        self._work()
