"""
Carries the retry queue out: feeds the machine facts from the bus, the job cache and operators, and has its effects
performed (retry/effects.py).

It holds no policy. What may wait for a server, or for many files, runs in a thread: one for the job cache, one for the
store. What the store does not take is kept and written again, and what depends on it (a publish, an answer) waits that
long.
"""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Mapping
from typing import Any

from saltext.jobs.core import compat, lines
from saltext.jobs.core.disk import files
from saltext.jobs.core.engine.alarm import Alarm
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.engine.requests import Inbox, engine_dir
from saltext.jobs.core.engine.service import Service
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.errors import JobCacheError, StateError
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.master import events
from saltext.jobs.core.metrics import History, Metric, figures_of, of_bus, of_publisher
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.capture import LATEST
from saltext.jobs.core.retry.checkpoint import CHECKPOINT, MARGIN, Checkpoint
from saltext.jobs.core.retry.effects import Context, Effects
from saltext.jobs.core.retry.machine import Retry
from saltext.jobs.core.retry.metrics import metrics_of
from saltext.jobs.core.retry.ports import Ports
from saltext.jobs.core.retry.verbs import Verbs, read_queue
from saltext.jobs.core.retry.writer import Writer
from saltext.jobs.core.settings import RetrySettings

log = lines.logger(__name__)

#: Seconds between two checkpoints, heartbeats and looks at the inbox.
MAINTENANCE = 10.0
#: Seconds before a store or a job cache that failed is tried again at the start.
CACHE_PAUSE = 2.0
#: Events that are remembered until the store has been read.
_MOST_EARLY = 200_000


class RetryShell:
    """
    The job_retry engine's work; an engine.App, and the Listener of its bus.

    :param opts: the master's options.
    :param settings: the engine's options.
    :param loop: the engine's tornado loop.
    :param ports: what it reaches the world through; closed with it.
    :param latest: seconds after which publishes that were not heard of are looked for once more.
    :raises LaterVersion: when a later version of this extension has driven the queue so far.
    """

    def __init__(
        self, opts: Mapping[str, Any], settings: RetrySettings, loop: Any, ports: Ports, latest: float = LATEST
    ) -> None:
        self._loop, self._ports, self._latest = loop, ports, latest
        self._owner = str(opts["id"])
        folder = engine_dir(opts, JOB_RETRY)
        files.private_dir(folder)
        paused, answers = folder / "paused", float(opts.get("gather_job_timeout", 10))
        patience = float(opts.get("timeout", 5)) + answers
        self.machine = Retry(settings, patience, paused=paused.exists(), acks=ports.acks)
        self.restored = False  # the queue has been taken up
        # What was published before that, which the job cache tells of as well, but later; and who has begun it.
        self._early: list[facts.Published | facts.Acknowledged] = []
        self._early_jids: set[str] = set()
        self._loads: dict[str, dict[str, Any]] = {}
        self._cache_worker, self._store_worker = Worker(loop), Worker(loop)
        self.writer = Writer(loop, self._store_worker, ports.store, self._record_of, self._refused)
        self._alarm = Alarm(loop, ports.clock, self._tick)
        self._checkpoint = Checkpoint(folder / CHECKPOINT, ports.clock.now())
        self._checkpoint.read()
        self._reconciling, self._since = False, math.inf
        self._looks: list[float] = []  # since when it is looked once more for what was stored late
        context = Context(
            loop=loop,
            ports=ports,
            machine=self.machine,
            loads=self._loads,
            writer=self.writer,
            cache_worker=self._cache_worker,
            store_worker=self._store_worker,
            owner=self._owner,
            shared=opts.get("cache") not in (None, "localfs", "mmap_cache") or bool(opts.get("cluster_id")),
            # Without cached data of minions Salt 3008 matches nobody with a compound target, and earlier releases everybody.
            compound=bool(opts.get("minion_data_cache", True)),
            timeout=answers,
            step=self.step,
        )
        self._effects = Effects(context)
        verbs = Verbs(self._owner, ports, self._cache_worker, self._store_worker, self._loads, paused, self._request)
        self.history = History()
        table = {
            **verbs.table(),
            "metrics": lambda request: figures_of(self.metrics()),
            "history": lambda request: self.history.told(),
        }
        self._service = Service(loop, Inbox(opts, JOB_RETRY), table)
        self._told: collections.Counter[str] = collections.Counter()

    def start(self) -> None:
        """Listen, and begin once the bus is heard."""
        self._ports.bus.listen(self, lambda: self._loop.spawn_callback(self._begin))

    def metrics(self) -> list[Metric]:
        """Return the engine's figures."""
        machine, ports = self.machine, self._ports
        return [
            *metrics_of(machine.entries(), self._told, machine.turns.paused, ports.clock.now()),
            *of_publisher("salt_job_retry", ports.publisher),
            *of_bus("salt_job_retry", ports.bus),
        ]

    def close(self) -> None:
        """Release everything. What matters is in the store, or is found in the job cache from the checkpoint on."""
        self._ports.bus.close()
        self._alarm.close()
        self._ports.publisher.close()
        self._cache_worker.close()
        self._store_worker.close()

    async def _begin(self) -> None:
        """Take up what the store holds, then what was published since the last checkpoint, then requests."""
        while True:
            try:
                jobs, entries = await self._store_worker.call(read_queue, self._ports, self._owner)
                notes = await self._store_worker.call(self._ports.store.notes, self._owner)
                break
            except StateError as exc:
                log.error("The retry queue waits for its store: %s", exc)
                await compat.sleep(CACHE_PAUSE)
        self._loads.update({jid: load for jid, (_, load) in jobs.items()})
        self.machine.capture.closed.update(self._checkpoint.closed)  # before what is to be looked at all the same
        # The clock may have been set back since.
        since = min(self._checkpoint.at, self._ports.clock.now() - MARGIN)
        self.machine.capture.forget_closed(since)
        self.step(facts.Restored(tuple(job for job, _ in jobs.values()), tuple(entries), notes))
        self.restored = True
        for fact in self._early:
            self.step(fact)
        self._early, self._early_jids = [], set()
        await self._look_back(since)
        log.info("The retry queue holds %d entries of %d jobs", self.machine.total, len(self.machine.jobs))
        self._maintain()

    # -- facts in -----------------------------------------------------------------------------------------------------

    def wants(self, tag: str) -> bool:
        """Tell by its tag whether an event is wanted. Called for every event on the bus."""
        parts = events.parts_of_job(tag)
        if parts is not None:
            jid, kind, minion = parts
            if kind == "new" or self.machine.knows(jid) or self._ports.questions.wants(jid) or jid in self._early_jids:
                return True
            if kind == "ret":
                self._seen(minion)
            return False
        beacon = events.beacon_of(tag)
        if beacon is not None:
            self._seen(beacon)
            return False
        started = events.started_by(tag)
        if started is not None:
            return self.machine.wants_start(started, self._ports.clock.now())
        return tag in (events.PRESENCE, events.KEY, events.wake_tag(JOB_RETRY))

    def _seen(self, minion: str) -> None:
        if minion in self.machine.backlogs:
            self.step(facts.SignOfLife((minion,), facts.Sign.ACTIVITY))

    def handle(self, tag: str, data: Any) -> None:
        """Take a wanted event. Before the store has been read that is what is published and begun, for afterwards."""
        if tag == events.wake_tag(JOB_RETRY):
            self._take_requests()
            return
        fact = events.fact_of(tag, data)
        if isinstance(fact, events.JobPublished):
            # What another master of a cluster published is that master's to keep.
            foreign = data.get("__peer_id") or self._ports.questions.wants(fact.jid)
            if not foreign and not self._effects.is_echo(fact.jid, fact.tgt):
                # One that names no function is none that was found in the job cache, which is read at once.
                published = facts.Published(fact.jid, fact.fun or "?", self._ports.clock.now())
                self.step(published) if self.restored else self._keep(published)
        elif self.restored:
            self._tell(tag, fact, data)
        elif isinstance(fact, (events.JobStarted, events.JobReturned)):
            self._keep(facts.Acknowledged(fact.minion, fact.jid))

    def _keep(self, fact: facts.Published | facts.Acknowledged) -> None:
        """Remember what was told before the store has been read."""
        if len(self._early) < _MOST_EARLY:
            self._early.append(fact)
            self._early_jids.add(fact.jid)

    def _tell(self, tag: str, fact: events.BusFact | None, data: Mapping[str, Any]) -> None:
        if tag == events.KEY:
            self._effects.check_keys_soon()
        elif isinstance(fact, events.JobReturned):
            self._returned(fact, data)
        elif isinstance(fact, events.JobStarted):
            self._handed_on(fact.minion, fact.jid)
            self.step(facts.Acknowledged(fact.minion, fact.jid))
        elif isinstance(fact, events.MinionStarted):
            self.step(facts.SignOfLife((fact.minion,), facts.Sign.START))
        elif isinstance(fact, events.PresenceChanged):
            known = tuple(minion for minion in fact.new if minion in self.machine.backlogs)
            self.step(facts.SignOfLife(known, facts.Sign.PRESENCE))

    def _returned(self, fact: events.JobReturned, data: Mapping[str, Any]) -> None:
        if self._ports.questions.wants(fact.jid):
            self._ports.questions.heard(fact.jid, fact.minion, data.get("return"))
        else:
            self._handed_on(fact.minion, fact.jid)
            self.step(facts.ReturnHeard(fact.minion, fact.jid))
            self._seen(fact.minion)

    def _handed_on(self, minion: str, jid: str) -> None:
        """Where this is the first sign of receipt of a replay, it tells how far the master has got."""
        since = self.machine.receipt_awaited_since(minion, jid)
        if since is not None:
            self._ports.questions.handed_on(self._ports.clock.now() - since)

    def on_gap(self) -> None:
        """Look in the job cache for what the events that were lost would have told."""
        if self.restored:
            self.step(facts.Gap())
            self._loop.spawn_callback(self._look_back, self._checkpoint.at)
            self._take_requests()

    # -- the machine --------------------------------------------------------------------------------------------------

    def step(self, fact: facts.Fact) -> int | bool | None:
        """Give the machine a fact, perform what it wants done, and return its answer to a request."""
        answer = None
        for effect in self.machine.step(fact, self._ports.clock.now()):
            if isinstance(effect, facts.Answer):
                answer = effect.value
                continue
            if isinstance(effect, facts.Announce):
                self._told[effect.kind] += 1
            self._effects.perform(effect)
        jid = getattr(fact, "jid", None)
        for ended in list(self._loads) if isinstance(fact, facts.Surveyed) else [jid]:
            if ended in self._loads and not self.machine.knows(ended):
                del self._loads[ended]
        self._alarm.set(self.machine.next_due)
        return answer

    def _record_of(self, minion: str, jid: str) -> dict[str, Any] | None:
        entry = self.machine.entry(minion, jid)
        return None if entry is None else entry.as_record()

    def _refused(self, jid: str, reason: str) -> None:
        self.step(facts.Refused(jid, reason))

    def _tick(self) -> None:
        self.step(facts.Tick())

    def _request(self, fact: facts.Fact) -> Any:
        """Take a request; its answer comes once all that it changes is stored."""
        # What an operator removes must not be found again by an engine that starts from an older checkpoint.
        self._write_checkpoint()
        durable: Any = compat.Future()
        answer = self.step(fact)
        self.writer.when_durable(lambda: durable.set_result(answer))
        return durable

    def _take_requests(self) -> None:
        if self.restored:
            self._service.take()

    # -- maintenance --------------------------------------------------------------------------------------------------

    def _maintain(self) -> None:
        self._loop.call_later(MAINTENANCE, self._maintain)
        self._take_requests()
        self._service.sweep(time.time())
        self._write_checkpoint()
        self._loop.spawn_callback(self._beat)

    async def _beat(self) -> None:
        try:
            await self._store_worker.call(self._ports.store.beat, self._owner, time.time())
        except StateError as exc:
            log.debug("No heartbeat: %s", exc)

    def _write_checkpoint(self) -> None:
        """Note until when all is settled, once the store holds it."""
        capture = self.machine.capture
        at = capture.checkpoint(self._ports.clock.now()) - MARGIN
        closed = capture.closed_since(at)

        def write() -> None:
            if self._checkpoint.write(at, closed):
                capture.forget_closed(min([at, *self._looks]))

        if not self._reconciling:
            self.writer.when_durable(write)

    async def _look_back(self, since: float) -> None:
        """Find the jobs that were published while nobody listened, and once more those that the master stored late."""
        self._looks.append(since)
        self._loop.call_later(self._latest, self._loop.spawn_callback, self._look_once_more, since)
        await self._reconcile(since)

    async def _look_once_more(self, since: float) -> None:
        await self._reconcile(since)
        self._looks.remove(since)

    async def _reconcile(self, since: float) -> None:
        self._since = min(since, self._since)
        if self._reconciling:
            return
        self._reconciling = True
        # Records have the system's time, which may have been set since this engine started.
        ahead = self._ports.clock.now() - time.time()
        try:
            while self._since < math.inf:
                since, self._since = self._since, math.inf
                found = await self._published_since(since - ahead)
                for jid, last in sorted(found.items(), key=lambda item: item[1]):
                    if is_plain(jid) and self.machine.capture.needs_look(jid, last, last + ahead):
                        self.step(facts.Published(jid, "", last + ahead))
        finally:
            self._reconciling = False

    async def _published_since(self, since: float) -> dict[str, float]:
        while True:
            try:
                return await self._cache_worker.call(self._ports.cache.published_since, since)
            except JobCacheError as exc:
                log.warning("The job cache cannot be used now, and is tried again: %s", exc)
                await compat.sleep(CACHE_PAUSE)
