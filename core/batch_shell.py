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

from saltext.jobs.core import batch_facts as facts
from saltext.jobs.core import compat, events, files
from saltext.jobs.core.batch import Batch
from saltext.jobs.core.batch_snapshot import snapshot
from saltext.jobs.core.batch_spec import Spec
from saltext.jobs.core.batch_store import ENGINE, BatchStore
from saltext.jobs.core.batch_summary import counts, native_view, summary
from saltext.jobs.core.bus import Bus
from saltext.jobs.core.errors import JobCacheError, PublishFailed, StateError
from saltext.jobs.core.job_cache import BATCH_MARK, JobCache, load_of
from saltext.jobs.core.journal import Journal
from saltext.jobs.core.publisher import Publisher
from saltext.jobs.core.questions import Questions
from saltext.jobs.core.requests import Inbox, leave
from saltext.jobs.core.settings import BatchSettings
from saltext.jobs.core.worker import Worker

log = logging.getLogger(__name__)

#: Who takes minions that are offline over.
RETRY_ENGINE = "job_retry"
#: Least seconds between two progress events of a batch.
PROGRESS_PAUSE = 1.0
#: Seconds before a job cache that failed is tried again.
CACHE_PAUSE = 5.0
#: Effects that reach minions: the journal is synced before they are performed.
_PUBLISHING = (facts.Publish, facts.Kill, facts.Close, facts.Queue)


class Live:
    """A batch that is being carried out."""

    def __init__(self, batch: Batch, journal: Journal) -> None:
        self.batch, self.journal = batch, journal
        self.jid = batch.spec.jid
        self.timer: Any = None
        self.progress_timer: Any = None
        self.progress_at = 0.0  # when the last progress event was fired
        self.unwritten = False  # the disk did not take a fact: the journal is behind
        self.held: list[Callable[[], None]] = []  # what is to be done once it is written
        self.load_kept = False
        self.stamp: tuple[int, int] | None = None  # of the state file as we wrote it
        self.shown_at = 0.0  # when we wrote it


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
        self.publisher = Publisher(self.opts, loop)
        self.questions = Questions(loop, self.publisher)
        self.bus = Bus(self.opts, loop, ENGINE, self._wants, self._handle, self._reconcile_all)
        self.cache_worker, self.disk_worker = Worker(loop), Worker(loop)
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
        self.publisher.close()
        self.cache_worker.close()
        self.disk_worker.close()
        for live in self.live.values():
            live.journal.close()

    # -- facts in -----------------------------------------------------------------------------------------------------

    def _wants(self, tag: str) -> bool:
        jid = events.job_of(tag)
        if jid is None:
            return tag == events.wake_tag(ENGINE)
        return jid in self.live or self.questions.wants(jid) or jid in self.ended

    def _handle(self, tag: str, data: Any) -> None:
        if tag == events.wake_tag(ENGINE):
            self._take_requests()
            return
        fact = events.fact_of(tag, data)
        if isinstance(fact, events.JobReturned):
            self.questions.heard(fact.jid, fact.minion, data.get("return"))
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
        self._plan_progress(live)
        if then or any(isinstance(effect, _PUBLISHING) for effect in effects):
            self.loop.spawn_callback(self._sync_and_perform, live, effects, then)
        else:
            self._do(live, lambda: self._perform(live, effects))

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
            self._perform(live, effects)

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
            live.journal.rewrite(snapshot(live.batch))
        except OSError as exc:
            log.debug("Batch %s still cannot be written down: %s", live.jid, exc)
            return
        log.info("Batch %s is written down again and goes on", live.jid)
        live.unwritten = False
        held, live.held = live.held, []
        for action in held:
            self._do(live, action)

    # -- effects out --------------------------------------------------------------------------------------------------

    def _perform(self, live: Live, effects: list[facts.Effect]) -> None:
        for effect in effects:
            _PERFORM[type(effect)](self, live, effect)

    def _announce(self, live: Live, effect: facts.Announce) -> None:
        spec, batch = live.batch.spec, live.batch
        payload = {"jid": spec.jid, "fun": spec.fun, "user": spec.user, **counts(batch)}
        # Salt 3008's manager takes a "state" in such an event for a whole batch of its own.
        payload["status"] = payload.pop("state")
        if effect.kind == "new":
            payload.update(tgt=spec.tgt, tgt_type=spec.tgt_type, batch_size=batch.batch_size)
        if effect.kind in ("complete", "halted"):
            payload.update(halted_reason=batch.halted, success=batch.success, stopped_by=batch.stopped_by)
        self.bus.fire(events.batch_tag(live.jid, effect.kind), {**payload, **effect.details})

    def _plan_progress(self, live: Live) -> None:
        if live.progress_timer is None and not live.batch.finished:
            wait = max(0.0, live.progress_at + PROGRESS_PAUSE - self.now())
            live.progress_timer = self.loop.call_later(wait, self._report_progress, live)

    def _report_progress(self, live: Live) -> None:
        live.progress_timer, live.progress_at = None, self.now()
        if not live.batch.finished:
            self._announce(live, facts.Announce("progress"))

    def _gather(self, live: Live, _effect: facts.Gather) -> None:
        async def gather() -> None:
            spec = live.batch.spec
            try:
                answers = await self.questions.ping(spec.tgt, spec.tgt_type, spec.gather_job_timeout)
            except PublishFailed as exc:
                self.step(live, facts.PublishFailed(str(exc), exc.certain))
            else:
                self.step(live, facts.Gathered(tuple(sorted(answers.given))))

        self.loop.spawn_callback(gather)

    def _publish(self, live: Live, effect: facts.Publish) -> None:
        async def publish() -> None:
            spec = live.batch.spec
            await self._keep_load(live, before=True)
            if live.batch.halted:  # by a stop that came while the disk was full
                self.step(live, facts.PublishFailed("stopped", certain=True))
                return
            try:
                matched = await self.publisher.publish(
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
                self.step(live, facts.PublishFailed(str(exc), exc.certain))
                return
            await self._keep_load(live, before=False)
            self.step(live, facts.Published(tuple(minion for minion in effect.minions if minion not in matched)))

        self.loop.spawn_callback(publish)

    async def _keep_load(self, live: Live, before: bool) -> None:
        """Have the job cache show the batch's own target: our own keeps the first load, others take the last."""
        if before != self.cache.keeps_first_load or (before and live.load_kept):
            return
        spec = live.batch.spec
        load = load_of(
            spec.jid, spec.fun, spec.arg, spec.kwargs, spec.tgt, spec.tgt_type, spec.user, spec.ret, spec.options
        )
        try:
            await self.cache_worker.call(self.cache.keep_load, spec.jid, {**load, BATCH_MARK: True}, spec.minions)
            live.load_kept = True
        except JobCacheError as exc:
            log.error("Batch %s: its load is not in the job cache: %s", live.jid, exc)

    def _look_up(self, live: Live, effect: facts.LookUp) -> None:
        self.loop.spawn_callback(self._look_up_until_read, live, effect.minions)

    async def _look_up_until_read(self, live: Live, minions: tuple[str, ...]) -> None:
        """No minion is given up because the job cache could not be read."""
        told = False
        while True:
            try:
                found = await self.cache_worker.call(self.cache.returned, live.jid, minions)
            except JobCacheError as exc:
                if not told:
                    log.error("Batch %s waits for the job cache: %s", live.jid, exc)
                told = True
                await compat.sleep(CACHE_PAUSE)
            else:
                self.step(live, facts.LookedUp(minions, tuple(found.items())))
                return

    def _probe(self, live: Live, effect: facts.Probe) -> None:
        async def probe() -> None:
            minions = effect.minions
            try:
                said = await self.questions.find_job(live.jid, minions, live.batch.spec.gather_job_timeout)
            except PublishFailed as exc:
                log.warning("Batch %s: %d minions could not be asked: %s", live.jid, len(minions), exc)
                self.step(live, facts.Probed(unasked=minions))
            else:
                self.step(
                    live,
                    facts.Probed(
                        running=tuple(minion for minion in minions if minion in said.running),
                        idle=tuple(minion for minion in minions if minion in said.idle),
                        silent=tuple(minion for minion in minions if minion in said.silent),
                    ),
                )

        self.loop.spawn_callback(probe)

    def _kill(self, live: Live, effect: facts.Kill) -> None:
        async def kill() -> None:
            try:
                await self.publisher.kill_job(live.jid, effect.minions, kill_jid=self.publisher.new_jid())
            except PublishFailed as exc:
                log.warning("Batch %s: a kill on %d minions failed: %s", live.jid, len(effect.minions), exc)
            self.step(live, facts.KillSent())

        self.loop.spawn_callback(kill)

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
                    await self.disk_worker.call(leave, self.opts, RETRY_ENGINE, request)
                    break
                except OSError as exc:
                    log.error("Batch %s: minions could not be handed to the retry queue: %s", live.jid, exc)
                    await compat.sleep(CACHE_PAUSE)
            self.step(live, facts.Queued(effect.minions))

        self.loop.spawn_callback(queue)

    def _close(self, live: Live, _effect: facts.Close) -> None:
        """Leave the batch as it is to be found from now on: one snapshot, out of the index."""
        self.step(live, facts.Closed())
        try:
            self._show(live)
            self.store.converge_index((), [live.jid])
            live.journal.rewrite(snapshot(live.batch))
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
            Journal(path).rewrite(snapshot(batch))
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
            self.inbox.answer(request_id, False)
            return
        found = live
        self.step(found, wanted[kind], then=lambda: self.loop.spawn_callback(self._confirm, found, request_id))

    async def _confirm(self, live: Live, request_id: str) -> None:
        """Say that a request is carried out, once a publish that was under way when it came has ended."""
        while live.batch.publishing is not None:
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
                live.journal.rewrite(snapshot(live.batch))
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
            self._close(live, facts.Close())
            return
        elif live.journal.records > max(self.settings.compact_records, len(live.batch.spec.minions)):
            try:
                live.journal.rewrite(snapshot(live.batch))
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


_PERFORM: dict[type, Callable[[Manager, Live, Any], None]] = {
    facts.Announce: Manager._announce,
    facts.Gather: Manager._gather,
    facts.Publish: Manager._publish,
    facts.LookUp: Manager._look_up,
    facts.Probe: Manager._probe,
    facts.Kill: Manager._kill,
    facts.Queue: Manager._queue,
    facts.Close: Manager._close,
}
