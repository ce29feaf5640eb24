"""
Carries batches out: feeds the machines facts from the bus and from requests, writes them down, and performs the effects.

It holds no policy about batches. The order for each fact is: step, write down, make durable if something is published
because of it, perform. What cannot be written down is not performed: it is held until the disk takes it. The loop's
thread never waits: disk syncs and the job cache have a thread each.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import salt.utils.job

from saltext.jobs.core import compat
from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.effects import Effects, Live
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.spec import Spec
from saltext.jobs.core.batch.store import ENGINE, BatchStore
from saltext.jobs.core.batch.summary import counts, native_view, summary
from saltext.jobs.core.disk import files
from saltext.jobs.core.disk.journal import Journal
from saltext.jobs.core.engine.requests import Inbox
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.errors import JobCacheError, StateError
from saltext.jobs.core.master import events
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.settings import BatchSettings

log = logging.getLogger(__name__)

#: Effects that reach minions or end the batch: the journal is synced before they are performed.
_PUBLISHING = (facts.Publish, facts.Kill, facts.Close, facts.Queue)


class Manager:
    """
    The batch_manager engine's work; an engine.App.

    :param opts: the master's options.
    :param settings: the engine's options.
    :param loop: the engine's tornado loop.
    """

    def __init__(self, opts: Mapping[str, Any], settings: BatchSettings, loop: Any) -> None:
        self.opts, self.settings, self.loop = dict(opts), settings, loop
        self.store = BatchStore(self.opts)
        self.inbox = Inbox(self.opts, ENGINE)
        self.cache = JobCache(self.opts)
        self.cache_worker, self.disk_worker = Worker(loop), Worker(loop)
        self.bus = Bus(self.opts, loop, ENGINE, self._wants, self._handle, self._reconcile_all)
        self.effects = Effects(self.opts, loop, self.bus, self.cache, self.cache_worker, self.step, self._close)
        self.live: dict[str, Live] = {}
        self.ended: set[str] = set()
        # Deadlines must not move when somebody sets the clock.
        self._epoch = time.time() - time.monotonic()

    def now(self) -> float:
        """Unix time as it was when the engine started, carried on by a clock that nobody sets."""
        return self._epoch + time.monotonic()

    def start(self) -> None:
        """Listen, and begin once the bus is heard: an answer that came before would be missed."""
        self.bus.start(self._begin)

    def _begin(self) -> None:
        """Adopt what an earlier engine left, then requests made meanwhile, then go on."""
        self.ended = set(self.store.ended_jids())
        for jid in self.store.open_jids():
            self._adopt(jid)
        self._take_requests()
        for live in list(self.live.values()):
            self.step(live, facts.Recovered())
        log.info("Carrying on %d batches", len(self.live))
        self.loop.spawn_callback(self._correct_ended)
        self._maintain()

    def close(self) -> None:
        """Release everything. All that matters is in the journals."""
        self.bus.close()
        self.effects.close()
        self.cache_worker.close()
        self.disk_worker.close()
        for live in self.live.values():
            live.journal.close()

    # -- facts in -----------------------------------------------------------------------------------------------------

    def _wants(self, tag: str) -> bool:
        jid = events.job_of(tag)
        if jid is None:
            return tag == events.wake_tag(ENGINE)
        return jid in self.live or self.effects.questions.wants(jid) or jid in self.ended

    def _handle(self, tag: str, data: Any) -> None:
        if tag == events.wake_tag(ENGINE):
            self._take_requests()
            return
        fact = events.fact_of(tag, data)
        if isinstance(fact, events.JobReturned):
            self.effects.questions.heard(fact.jid, fact.minion, data.get("return"))
            live = self.live.get(fact.jid)
            if live is None:
                self._correct(fact.jid, {fact.minion: fact.retcode})
            elif live.batch.wants_return(fact.minion):
                self.step(live, facts.Returned(fact.minion, fact.retcode))
        elif isinstance(fact, events.JobStarted) and fact.jid in self.live:
            self.step(self.live[fact.jid], facts.Acknowledged(fact.minion))

    def step(self, live: Live, fact: facts.Fact, then: Callable[[], None] | None = None) -> None:
        """Have a batch take a fact, and do what it calls for; ``then`` is done once the fact is durable."""
        if self.live.get(live.jid) is not live:
            return  # it has ended while the fact was on its way
        now = self.now()
        effects = live.batch.step(fact, now)
        if not live.unwritten:
            try:
                live.journal.append(facts.record_of(fact, now))
            except OSError as exc:
                self._fall_behind(live, exc)
        self._set_timer(live)
        self.effects.plan_progress(live)
        if then or any(isinstance(effect, _PUBLISHING) for effect in effects):
            self.loop.spawn_callback(self._sync_and_perform, live, effects, then)
        else:
            self._do(live, lambda: self.effects.perform(live, effects))

    def _set_timer(self, live: Live) -> None:
        if live.timer is not None:
            self.loop.remove_timeout(live.timer)
            live.timer = None
        due = live.batch.next_due
        if due is not None and not live.batch.closed:
            live.timer = self.loop.call_later(max(0.0, due - self.now()), self._tick, live)

    def _tick(self, live: Live) -> None:
        live.timer = None
        due = live.batch.next_due
        if due is not None and due <= self.now():
            self.step(live, facts.Tick())
        else:
            self._set_timer(live)

    # -- writing down -------------------------------------------------------------------------------------------------

    async def _sync_and_perform(
        self, live: Live, effects: list[facts.Effect], then: Callable[[], None] | None = None
    ) -> None:
        if not live.unwritten:
            try:
                await self.disk_worker.call(live.journal.sync)
            except OSError as exc:
                self._fall_behind(live, exc)

        def done() -> None:
            if then:
                then()
            self.effects.perform(live, effects)

        self._do(live, done)

    def _do(self, live: Live, action: Callable[[], None]) -> None:
        """Do something now, or once the journal is no longer behind."""
        if live.unwritten:
            live.held.append(action)
        else:
            action()

    def _fall_behind(self, live: Live, exc: OSError) -> None:
        if not live.unwritten:
            log.critical("Batch %s cannot be written down and stands still until it can: %s", live.jid, exc)
        live.unwritten = True

    def _catch_up(self, live: Live) -> None:
        """Write the whole batch again, and then do what was held."""
        try:
            live.journal.rewrite(live.batch.snapshot())
        except OSError as exc:
            log.debug("Batch %s still cannot be written down: %s", live.jid, exc)
            return
        log.info("Batch %s is written down again and goes on", live.jid)
        live.unwritten = False
        held, live.held = live.held, []
        for action in held:
            self._do(live, action)

    def _close(self, live: Live) -> None:
        """Leave the batch as it is to be found from now on: one snapshot, out of the index."""
        self.step(live, facts.Closed())
        try:
            self._show(live)
            self.store.converge_index((), [live.jid])
            live.journal.rewrite(live.batch.snapshot())
            self.store.end(live.jid)
        except OSError as exc:
            # It stays open and is closed again, with its announcement, after a restart or by the maintenance loop.
            log.error("Batch %s has ended but cannot be closed: %s", live.jid, exc)
            live.batch.closed = False
            return
        live.journal.close()
        for timer in (live.timer, live.progress_timer):
            if timer is not None:
                self.loop.remove_timeout(timer)
        del self.live[live.jid]
        self.ended.add(live.jid)
        log.info("Batch %s has ended: %s", live.jid, counts(live.batch))

    # -- late returns of batches that have ended -----------------------------------------------------------------------

    def _correct(self, jid: str, found: Mapping[str, int]) -> None:
        """Correct the record of an ended batch by returns that came after a minion was given up."""
        path = self.store.journal_path(jid, ended=True)
        try:
            batch = self.store.read(jid)
            changed = [minion for minion in found if batch is not None and batch.wants_return(minion)]
            if batch is None or not changed:
                return
            for minion in changed:
                batch.step(facts.Returned(minion, found[minion]), self.now())
            Journal(path).rewrite(batch.snapshot())
            self.store.write_native(jid, native_view(batch, self.now()))
        except (StateError, OSError) as exc:
            log.error("A late return of batch %s is in the job cache only: %s", jid, exc)

    async def _correct_ended(self) -> None:
        """At start: look for returns that came while no engine was there to see them."""
        for jid in sorted(self.ended):
            try:
                batch = await self.cache_worker.call(self.store.read, jid)
                waiting = batch.unsettled() if batch is not None else []
                found = await self.cache_worker.call(self.cache.returned, jid, waiting) if waiting else {}
            except (StateError, JobCacheError, OSError) as exc:
                log.debug("Batch %s is not looked at again: %s", jid, exc)
                continue
            if found:
                self._correct(jid, found)

    # -- requests ------------------------------------------------------------------------------------------------------

    def _take_requests(self) -> None:
        for request_id, request in self.inbox.take():
            try:
                self._carry_out(request_id, request)
            except Exception as exc:
                log.exception("A request failed: %s", request.get("do"))
                self.inbox.refuse(request_id, f"{type(exc).__name__}: {exc}")

    def _carry_out(self, request_id: str, request: Mapping[str, Any]) -> None:
        kind = request.get("do")
        if kind == "start":
            self._create(request_id, Spec.from_dict(request["spec"]))
            return
        user = str(request.get("user", ""))
        wanted: dict[Any, facts.Fact] = {
            "stop": facts.StopRequested(bool(request.get("kill")), user),
            "pause": facts.PauseRequested(user),
            "resume": facts.ResumeRequested(user),
        }
        live = self.live.get(str(request.get("jid")))
        if kind not in wanted or live is None or not live.batch.accepts(wanted[kind]):
            done = bool(request.get("again")) and live is not None and live.batch.has_taken(wanted[kind])
            self.inbox.answer(request_id, done)
            return
        found = live
        self.step(found, wanted[kind], then=lambda: self.loop.spawn_callback(self._confirm, found, request_id))

    async def _confirm(self, live: Live, request_id: str) -> None:
        """Say that a request is carried out, once a publish that was under way when it came has ended."""
        while live.batch.is_publishing():
            await compat.sleep(0.02)
        self.inbox.answer(request_id, True)

    def _create(self, request_id: str, spec: Spec) -> None:
        known = self.live.get(spec.jid)
        if known is None and spec.jid in self.ended:  # it was asked for before a crash, and has run
            ended = self.store.read(spec.jid)
            self.inbox.answer(request_id, summary(ended, self.now()) if ended else None)
            return
        if known is None:
            live = Live(Batch(spec, self.now()), Journal(self.store.journal_path(spec.jid)))
            try:
                live.journal.rewrite(live.batch.snapshot())
            except OSError as exc:
                self.inbox.refuse(request_id, f"The batch cannot be written down: {exc}")
                return
            self.live[spec.jid] = known = live
        self.inbox.answer(request_id, summary(known.batch, self.now()))
        if known.batch.started is None:
            self.step(known, facts.Tick())
        self._converge_index()
        self._show_quietly(known)

    # -- maintenance ---------------------------------------------------------------------------------------------------

    def _adopt(self, jid: str) -> None:
        try:
            batch, journal = self.store.open(jid)
        except (StateError, OSError) as exc:
            aside = files.set_aside(self.store.journal_path(jid))
            log.error("Batch %s is set aside as %s and the others go on: %s", jid, aside, exc)
            return
        self.live[jid] = Live(batch, journal)

    def _maintain(self) -> None:
        self.loop.call_later(self.settings.loop_interval, self._maintain)
        try:
            self._take_requests()
            for live in list(self.live.values()):
                self._maintain_one(live)
            self._converge_index()
            self._forget_old()
        except Exception:
            log.exception("A pass of the maintenance loop failed")

    def _maintain_one(self, live: Live) -> None:
        if live.unwritten:
            self._catch_up(live)
        elif live.batch.finished and not live.batch.closed:
            self._close(live)
            return
        elif live.journal.records > max(self.settings.compact_records, len(live.batch.spec.minions)):
            try:
                live.journal.rewrite(live.batch.snapshot())
            except OSError as exc:
                log.error("Batch %s cannot be compacted: %s", live.jid, exc)
        foreign = live.stamp is not None and live.stamp != self.store.native_stamp(live.jid)
        if foreign or self.now() - live.shown_at > self._freshness(live):
            self._show_quietly(live)

    def _freshness(self, live: Live) -> float:
        """Return after how many seconds Salt 3008 would begin to take a state file for that of a dead batch, halved."""
        spec = live.batch.spec
        slack = 6 * float(self.opts.get("batch_manager_loop_interval", 5))
        return (spec.timeout + spec.gather_job_timeout + slack) / 2

    def _show(self, live: Live) -> None:
        live.stamp = self.store.write_native(live.jid, native_view(live.batch, self.now()))
        live.shown_at = self.now()

    def _show_quietly(self, live: Live) -> None:
        try:
            self._show(live)
        except OSError as exc:
            log.error("The state file of batch %s cannot be written: %s", live.jid, exc)

    def _converge_index(self) -> None:
        try:
            self.store.converge_index(self.live, self.ended)
        except OSError as exc:
            log.error("The index of active batches cannot be written: %s", exc)

    def _forget_old(self) -> None:
        keep = salt.utils.job.get_keep_jobs_seconds(self.opts)
        if keep:
            self.ended.difference_update(self.store.forget_ended(time.time() - keep))
        self.inbox.sweep(time.time())

    def _reconcile_all(self) -> None:
        """Events may have been lost: look for returns of every minion that a return would change."""
        for live in self.live.values():
            waiting = tuple(live.batch.unsettled())
            if waiting:
                self.loop.spawn_callback(self._reconcile, live, waiting)
        self._take_requests()

    async def _reconcile(self, live: Live, waiting: tuple[str, ...]) -> None:
        try:
            found = await self.cache_worker.call(self.cache.returned, live.jid, waiting)
        except JobCacheError as exc:
            log.error("Batch %s cannot be reconciled now: %s", live.jid, exc)
            return
        if found and live.jid in self.live:
            self.step(live, facts.LookedUp((), tuple(found.items())))
