"""
Performs what batches want done: publishes, questions, kills, look-ups, announcements. Each reports back as a fact.

It holds no policy: what is tried again, and when, the machine says. It must never wait on the loop's thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from saltext.jobs.core import compat
from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.summary import counts
from saltext.jobs.core.disk.journal import Journal
from saltext.jobs.core.engine.requests import leave
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.errors import JobCacheError, PublishFailed
from saltext.jobs.core.master import events
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.master.job_cache import BATCH_MARK, JobCache, load_of
from saltext.jobs.core.master.publisher import Publisher
from saltext.jobs.core.master.questions import Questions

log = logging.getLogger(__name__)

#: Who takes minions that are offline over.
RETRY_ENGINE = "job_retry"
#: Least seconds between two progress events of a batch.
PROGRESS_PAUSE = 1.0
#: Seconds before a job cache or a disk that failed is tried again.
RETRY_PAUSE = 5.0


class Live:
    """A batch that is being carried out."""

    def __init__(self, batch: Batch, journal: Journal) -> None:
        self.batch, self.journal = batch, journal
        self.jid = batch.spec.jid
        self.timer: Any = None
        self.progress_timer: Any = None
        self.progress_at = time.monotonic()  # of the last progress event; the batch's first one is "new"
        self.unwritten = False  # the disk did not take a fact: the journal is behind
        self.held: list[Callable[[], None]] = []  # what is to be done once it is written
        self.load_kept = False
        self.stamp: tuple[int, int] | None = None  # of the state file as we wrote it
        self.shown_at = 0.0  # when we wrote it


class Effects:
    """
    :param opts: the master's options.
    :param loop: the engine's tornado loop.
    :param bus: where announcements go.
    :param cache: the job cache, used in ``worker`` only.
    :param step: takes a batch and a fact about it.
    :param close: ends a batch.
    """

    def __init__(
        self,
        opts: Mapping[str, Any],
        loop: Any,
        bus: Bus,
        cache: JobCache,
        worker: Worker,
        step: Callable[[Live, facts.Fact], None],
        close: Callable[[Live], None],
    ) -> None:
        self._opts, self._loop, self._bus, self._cache, self._worker = opts, loop, bus, cache, worker
        self._step, self._close_batch = step, close
        self._publisher = Publisher(opts, loop)
        self.questions = Questions(loop, self._publisher)

    def close(self) -> None:
        """Release the publisher's sockets."""
        self._publisher.close()

    def perform(self, live: Live, effects: list[facts.Effect]) -> None:
        for effect in effects:
            _PERFORM[type(effect)](self, live, effect)

    def _announce(self, live: Live, effect: facts.Announce) -> None:
        spec, batch = live.batch.spec, live.batch
        payload = {"jid": spec.jid, "fun": spec.fun, "user": spec.user, **counts(batch)}
        # Salt 3008's manager takes a "state" in such an event for a whole batch of its own.
        payload["status"] = payload.pop("state")
        if effect.kind == "new":
            payload.update(tgt=spec.tgt, tgt_type=spec.tgt_type, batch_size=batch.pace.size)
        if effect.kind in ("complete", "halted"):
            payload.update(halted_reason=batch.halted, success=batch.success, stopped_by=batch.stopped_by)
        self._bus.fire(events.batch_tag(live.jid, effect.kind), {**payload, **effect.details})

    def plan_progress(self, live: Live) -> None:
        if live.progress_timer is None and not live.batch.finished:
            wait = max(0.0, live.progress_at + PROGRESS_PAUSE - time.monotonic())
            live.progress_timer = self._loop.call_later(wait, self._report_progress, live)

    def _report_progress(self, live: Live) -> None:
        live.progress_timer, live.progress_at = None, time.monotonic()
        if not live.batch.finished:
            self._announce(live, facts.Announce("progress"))

    def _gather(self, live: Live, _effect: facts.Gather) -> None:
        async def gather() -> None:
            spec = live.batch.spec
            try:
                answers = await self.questions.ping(spec.tgt, spec.tgt_type, spec.gather_job_timeout)
            except PublishFailed as exc:
                self._step(live, facts.PublishFailed(str(exc), exc.certain))
            else:
                self._step(live, facts.Gathered(tuple(sorted(answers.given))))

        self._loop.spawn_callback(gather)

    def _publish(self, live: Live, effect: facts.Publish) -> None:
        async def publish() -> None:
            spec = live.batch.spec
            await self._keep_load(live, before=True)
            if live.batch.halted:  # by a stop that came while the disk was full
                self._step(live, facts.PublishFailed("stopped", certain=True))
                return
            try:
                matched = await self._publisher.publish(
                    spec.fun,
                    spec.arg,
                    list(effect.minions),
                    jid=spec.jid,
                    user=spec.user,
                    ret=spec.ret,
                    kwarg=spec.kwargs,
                    options=spec.options,
                )
            except PublishFailed as exc:
                log.warning("Batch %s: a publish to %d minions failed: %s", live.jid, len(effect.minions), exc)
                self._step(live, facts.PublishFailed(str(exc), exc.certain))
                return
            await self._keep_load(live, before=False)
            self._step(live, facts.Published(tuple(minion for minion in effect.minions if minion not in matched)))

        self._loop.spawn_callback(publish)

    async def _keep_load(self, live: Live, before: bool) -> None:
        """Have the job cache show the batch's own target: our own keeps the first load, others take the last."""
        if before != self._cache.keeps_first_load or (before and live.load_kept):
            return
        spec = live.batch.spec
        load = load_of(
            spec.jid, spec.fun, spec.arg, spec.kwargs, spec.tgt, spec.tgt_type, spec.user, spec.ret, spec.options
        )
        try:
            await self._worker.call(self._cache.keep_load, spec.jid, {**load, BATCH_MARK: True}, spec.minions)
            live.load_kept = True
        except JobCacheError as exc:
            log.error("Batch %s: its load is not in the job cache: %s", live.jid, exc)

    def _look_up(self, live: Live, effect: facts.LookUp) -> None:
        self._loop.spawn_callback(self._look_up_until_read, live, effect.minions)

    async def _look_up_until_read(self, live: Live, minions: tuple[str, ...]) -> None:
        """No minion is given up because the job cache could not be read."""
        told = False
        while True:
            try:
                found = await self._worker.call(self._cache.returned, live.jid, minions)
            except JobCacheError as exc:
                if not told:
                    log.error("Batch %s waits for the job cache: %s", live.jid, exc)
                told = True
                await compat.sleep(RETRY_PAUSE)
            else:
                self._step(live, facts.LookedUp(minions, tuple(found.items())))
                return

    def _probe(self, live: Live, effect: facts.Probe) -> None:
        async def probe() -> None:
            minions = effect.minions
            try:
                said = await self.questions.find_job(live.jid, minions, live.batch.spec.gather_job_timeout)
            except PublishFailed as exc:
                log.warning("Batch %s: %d minions could not be asked: %s", live.jid, len(minions), exc)
                self._step(live, facts.Probed(unasked=minions))
            else:
                self._step(
                    live,
                    facts.Probed(
                        running=tuple(minion for minion in minions if minion in said.running),
                        idle=tuple(minion for minion in minions if minion in said.idle),
                        silent=tuple(minion for minion in minions if minion in said.silent),
                    ),
                )

        self._loop.spawn_callback(probe)

    def _kill(self, live: Live, effect: facts.Kill) -> None:
        async def kill() -> None:
            try:
                await self._publisher.kill_job(live.jid, effect.minions, kill_jid=self._publisher.new_jid())
            except PublishFailed as exc:
                log.warning("Batch %s: a kill on %d minions failed: %s", live.jid, len(effect.minions), exc)
            self._step(live, facts.KillSent())

        self._loop.spawn_callback(kill)

    def _queue(self, live: Live, effect: facts.Queue) -> None:
        async def queue() -> None:
            await self._keep_load(live, before=True)
            request = {
                "do": "enqueue",
                "jid": live.jid,
                "minions": list(effect.minions),
                "reason": "offline in a batch",
            }
            while True:
                try:
                    await self._worker.call(leave, self._opts, RETRY_ENGINE, request)
                    break
                except OSError as exc:
                    log.error("Batch %s: minions could not be handed to the retry queue: %s", live.jid, exc)
                    await compat.sleep(RETRY_PAUSE)
            self._step(live, facts.Queued(effect.minions))

        self._loop.spawn_callback(queue)

    def _close(self, live: Live, _effect: facts.Close) -> None:
        self._close_batch(live)


_PERFORM: dict[type, Callable[[Effects, Live, Any], None]] = {
    facts.Announce: Effects._announce,
    facts.Gather: Effects._gather,
    facts.Publish: Effects._publish,
    facts.LookUp: Effects._look_up,
    facts.Probe: Effects._probe,
    facts.Kill: Effects._kill,
    facts.Queue: Effects._queue,
    facts.Close: Effects._close,
}
