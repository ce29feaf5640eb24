"""
Carries the retry queue out: feeds the machine facts from the bus, the job cache and operators, and has its effects
performed (retry/effects.py).

It holds no policy. The loop's thread never waits: the job cache and the store have a thread each. What the store does not
take is kept and written again, and what depends on it (a publish, an answer) waits that long.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from saltext.jobs.core import compat
from saltext.jobs.core.disk import files
from saltext.jobs.core.engine.requests import Inbox, engine_dir
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.errors import JobCacheError, JobsError, StateError
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.master import events
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.master.publisher import Publisher
from saltext.jobs.core.master.questions import Questions
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.effects import Effects, Tools
from saltext.jobs.core.retry.entry import Job
from saltext.jobs.core.retry.machine import Retry
from saltext.jobs.core.retry.reader import JobReader, job_of
from saltext.jobs.core.retry.store import RetryStore
from saltext.jobs.core.retry.writer import Writer
from saltext.jobs.core.settings import RetrySettings

log = logging.getLogger(__name__)

ENGINE = "job_retry"
#: Seconds between two checkpoints, heartbeats and looks at the inbox.
MAINTENANCE = 10.0
#: Seconds by which a checkpoint lies before the present: events of that time may still be on their way.
CHECKPOINT_MARGIN = 60.0
#: Seconds without a heartbeat after which a master counts as gone.
OWNER_GONE = 180.0
#: Seconds before a job cache that failed is tried again at the start.
CACHE_PAUSE = 5.0

_KEY_TAG = "salt/key"


class Keeper:
    """
    The job_retry engine's work; an engine.App.

    :param opts: the master's options.
    :param settings: the engine's options.
    :param loop: the engine's tornado loop.
    """

    def __init__(self, opts: Mapping[str, Any], settings: RetrySettings, loop: Any) -> None:
        self.opts, self.settings, self.loop = dict(opts), settings, loop
        self.owner = str(self.opts["id"])
        self.timeout = float(self.opts.get("gather_job_timeout", 10))
        self._dir = engine_dir(self.opts, ENGINE)
        files.private_dir(self._dir)
        patience = float(self.opts.get("timeout", 5)) + self.timeout
        self.machine = Retry(settings, patience, paused=(self._dir / "paused").exists(), acks=compat.HAS_START_EVENT)
        self.loads: dict[str, dict[str, Any]] = {}
        self.cache = JobCache(self.opts)
        self.reader = JobReader(self.opts, self.cache, settings.trust_job_cache)
        self.store = RetryStore(self.opts)
        self.inbox = Inbox(self.opts, ENGINE)
        self.publisher = Publisher(self.opts, loop)
        self.questions = Questions(loop, self.publisher)
        self.cache_worker, self.store_worker = Worker(loop), Worker(loop)
        self.writer = Writer(loop, self.store_worker, self.store)
        self.bus = Bus(self.opts, loop, ENGINE, self._wants, self._handle, self._gap)
        self._any = "any" in settings.triggers
        self._shared = self.opts.get("cache") not in (None, "localfs", "mmap_cache") or bool(
            self.opts.get("cluster_id")
        )
        tools = Tools(
            self.owner,
            self.timeout,
            loop,
            self.bus,
            self.machine,
            self.loads,
            self.cache,
            self.reader,
            self.cache_worker,
            self.writer,
            self.publisher,
            self.questions,
        )
        self.effects = Effects(tools, self._is_others, self.step, self._answer)
        self._restored = False
        self._timer: Any = None
        self._timer_at: float | None = None
        self._request: str | None = None  # the request that the current step is for
        self._checkpoint = 0.0
        self._reconciling = False
        # Deadlines must not move when somebody sets the clock.
        self._epoch = time.time() - time.monotonic()

    def now(self) -> float:
        """Unix time as it was when the engine started, carried on by a clock that nobody sets."""
        return self._epoch + time.monotonic()

    def start(self) -> None:
        """Listen, and begin once the bus is heard."""
        self.bus.start(lambda: self.loop.spawn_callback(self._begin))

    def close(self) -> None:
        """Release everything. What matters is in the store, or is found in the job cache from the checkpoint on."""
        self.bus.close()
        self.publisher.close()
        self.cache_worker.close()
        self.store_worker.close()

    async def _begin(self) -> None:
        """Take up what the store holds, then what was published since the last checkpoint, then requests."""
        while True:
            try:
                jobs, entries = await self.store_worker.call(self._read_store, self.owner)
                break
            except StateError as exc:
                log.error("The retry queue waits for its store: %s", exc)
                await compat.sleep(CACHE_PAUSE)
        self._restore(jobs, entries)
        self._restored = True
        self._read_checkpoint()
        await self._reconcile(self._checkpoint)
        log.info("The retry queue holds %d entries of %d jobs", self.machine.total, len(self.machine.jobs))
        self._maintain()

    def _read_store(self, owner: str) -> tuple[dict[str, tuple[Job, dict[str, Any]]], list[Any]]:
        jobs, entries = {}, []
        for jid, snapshot in self.store.snapshots(owner):
            found = list(self.store.entries(jid, snapshot))
            if found:
                load = dict(snapshot["load"])
                jobs[jid] = job_of(jid, load, float(snapshot["published_at"])), load
                entries += found
            else:
                self.store.drop_snapshot(jid)
        return jobs, entries

    def _restore(self, jobs: Mapping[str, tuple[Job, dict[str, Any]]], entries: list[Any]) -> None:
        self.loads.update({jid: load for jid, (_, load) in jobs.items()})
        self.step(facts.Restored(tuple(job for job, _ in jobs.values()), tuple(entries)))

    # -- facts in -----------------------------------------------------------------------------------------------------

    def _wants(self, tag: str) -> bool:
        """Drop what is of no use by its tag: this is called for every event on the bus."""
        if tag.startswith(events.JOB):
            jid, _, rest = tag[len(events.JOB) :].partition("/")
            if rest == "new":
                return True
            if jid in self.machine.jobs or self.questions.wants(jid):
                return True
            if self._any and rest.startswith("ret/"):
                self._seen(rest[4:])
            return False
        if tag.startswith(events.MINION):
            return True
        if self._any and tag.startswith("salt/beacon/"):
            self._seen(tag.split("/", 3)[2])
            return False
        return tag in (events.PRESENCE, _KEY_TAG, events.wake_tag(ENGINE))

    def _seen(self, minion: str) -> None:
        if minion in self.machine.backlogs:
            self.step(facts.SignOfLife((minion,)))

    def _handle(self, tag: str, data: Any) -> None:
        if tag == events.wake_tag(ENGINE):
            self._take_requests()
            return
        if tag == _KEY_TAG:
            self.effects.check_keys_soon()
            return
        fact = events.fact_of(tag, data)
        if isinstance(fact, events.JobReturned):
            self._returned(fact, data)
        elif isinstance(fact, events.JobPublished):
            # What another master of a cluster published is that master's to keep.
            if not data.get("__peer_id") and not self.questions.wants(fact.jid):
                self.step(facts.Published(fact.jid, fact.fun, self.now()))
        elif isinstance(fact, events.JobStarted):
            self.step(facts.Acknowledged(fact.minion, fact.jid))
        elif isinstance(fact, events.MinionStarted):
            if set(self.settings.triggers) & {"start", "any"}:
                self.step(facts.SignOfLife((fact.minion,), start=True))
        elif isinstance(fact, events.PresenceChanged) and set(self.settings.triggers) & {"presence", "any"}:
            self.step(facts.SignOfLife(tuple(minion for minion in fact.new if minion in self.machine.backlogs)))

    def _returned(self, fact: events.JobReturned, data: Mapping[str, Any]) -> None:
        if self.questions.wants(fact.jid):
            self.questions.heard(fact.jid, fact.minion, data.get("return"))
        else:
            self.step(facts.ReturnHeard(fact.minion, fact.jid))
            if self._any:
                self._seen(fact.minion)

    def _gap(self) -> None:
        if self._restored:
            self.step(facts.Gap())
            self.loop.spawn_callback(self._reconcile, self._checkpoint)
            self._take_requests()

    # -- the machine --------------------------------------------------------------------------------------------------

    def step(self, fact: facts.Fact) -> None:
        """Give the machine a fact, and perform what it wants done."""
        for effect in self.machine.step(fact, self.now()):
            self.effects.perform(effect)
        jid = getattr(fact, "jid", None)
        if jid is not None and jid in self.loads and not self.machine.knows(jid):
            del self.loads[jid]
        self._arm()

    def _arm(self) -> None:
        due = self.machine.next_due
        if due == self._timer_at:
            return
        if self._timer is not None:
            self.loop.remove_timeout(self._timer)
        self._timer_at = due
        self._timer = None if due is None else self.loop.call_later(max(0.0, due - self.now()), self._tick)

    def _tick(self) -> None:
        self._timer = self._timer_at = None
        self.step(facts.Tick())

    async def _is_others(self, jid: str) -> bool:
        """Tell whether another master that shares our cache keeps a job."""
        if not self._shared:
            return False
        snapshot = await self.store_worker.call(self.store.snapshot, jid)
        return bool(snapshot) and snapshot.get("owner") != self.owner

    # -- requests -----------------------------------------------------------------------------------------------------

    def _take_requests(self) -> None:
        if not self._restored:
            return
        for request_id, request in self.inbox.take():
            self.loop.spawn_callback(self._carry_out, request_id, request)

    async def _carry_out(self, request_id: str, request: Mapping[str, Any]) -> None:
        try:
            fact = await self._fact_of(request)
        except (ValueError, JobsError, OSError) as exc:
            self.inbox.refuse(request_id, str(exc))
        except Exception as exc:
            log.exception("A request failed: %s", request.get("do"))
            self.inbox.refuse(request_id, f"{type(exc).__name__}: {exc}")
        else:
            # What an operator removes must not be found again by an engine that starts from an older checkpoint.
            self._write_checkpoint()
            self._request = request_id
            self.step(fact)
            self._request = None

    def _answer(self, value: int | bool) -> None:
        request = self._request
        if request is not None:
            self.writer.when_durable(lambda: self.inbox.answer(request, value))

    async def _fact_of(self, request: Mapping[str, Any]) -> facts.Fact:
        kind, minion, jid = request.get("do"), request.get("minion"), request.get("jid")
        if kind == "enqueue":
            return await self._enqueue(request)
        if kind == "adopt":
            return await self._adopt(str(request.get("owner")))
        if kind == "pause":
            files.write_atomic(self._dir / "paused", b"")
            return facts.PauseRequested()
        if kind == "resume":
            (self._dir / "paused").unlink(missing_ok=True)
            return facts.ResumeRequested()
        if kind == "purge":
            return facts.PurgeRequested(tuple(request["states"]))
        made: dict[Any, Callable[[], facts.Fact]] = {
            "replay": lambda: facts.ReplayRequested(str(minion)),
            "retry": lambda: facts.RetryRequested(minion, jid),
            "cancel": lambda: facts.CancelRequested(minion, jid),
        }
        if kind not in made:
            raise ValueError(f"The job_retry engine knows no request {kind!r}")
        return made[kind]()

    async def _enqueue(self, request: Mapping[str, Any]) -> facts.Fact:
        jid, named = str(request.get("jid")), request.get("minions")
        if not is_plain(jid) or (named is not None and not all(is_plain(minion) for minion in named)):
            raise ValueError(f"{jid!r} with {named!r} names no job and minions")
        read, load = await self.cache_worker.call(self.reader.read, jid)
        if read.job is None:
            raise ValueError(f"Job {jid} is not in the job cache as one that this master has published")
        if (load.get("kwargs") or {}).get("nocache"):
            raise ValueError(f"Job {jid} stores no returns, so nobody could tell who has run it")
        owner = (await self.store_worker.call(self.store.snapshot, jid)).get("owner", self.owner)
        if owner != self.owner:
            raise ValueError(f"Job {jid} is in the queue of the master {owner}")
        minions = sorted(read.missing) if named is None else list(named)
        accepted = (await self.cache_worker.call(self.reader.keys))[0]
        unknown = [minion for minion in minions if minion not in accepted]
        if unknown and named is not None:
            raise ValueError(f"Not enqueued, since they have no accepted key here: {', '.join(unknown[:10])}")
        returned = await self.cache_worker.call(self.cache.have_returned, jid, minions)
        self.loads.setdefault(jid, load)
        owed = tuple(minion for minion in minions if minion in accepted and minion not in returned)
        return facts.EnqueueRequested(read.job, owed, str(request.get("reason") or "by an operator"))

    async def _adopt(self, owner: str) -> facts.Fact:
        if owner == self.owner:
            raise ValueError(f"{owner} is this master")
        age = time.time() - await self.store_worker.call(self.store.last_beat, owner)
        if age < OWNER_GONE:
            raise ValueError(f"The master {owner} was alive {age:.0f} s ago; its entries are its own")
        jobs, entries = await self.store_worker.call(self._read_store, owner)
        if not jobs:
            raise ValueError(f"The master {owner} has no entries")
        # A job is taken over whole: one of whose minions this master does not know stays where it is.
        accepted = (await self.cache_worker.call(self.reader.keys))[0]
        foreign = {entry.jid for entry in entries if entry.minion not in accepted}
        jobs = {jid: job for jid, job in jobs.items() if jid not in foreign}
        if not jobs:
            raise ValueError(f"Each job of the master {owner} is owed to a minion that has no accepted key here")
        self.loads.update({jid: load for jid, (_, load) in jobs.items()})
        taken = tuple(entry for entry in entries if entry.jid in jobs)
        return facts.Adopted(tuple(job for job, _ in jobs.values()), taken)

    # -- maintenance --------------------------------------------------------------------------------------------------

    def _maintain(self) -> None:
        self.loop.call_later(MAINTENANCE, self._maintain)
        self._take_requests()
        self.inbox.sweep(time.time())
        self._write_checkpoint()
        self.loop.spawn_callback(self._beat)

    async def _beat(self) -> None:
        try:
            await self.store_worker.call(self.store.beat, self.owner, time.time())
        except StateError as exc:
            log.debug("No heartbeat: %s", exc)

    def _read_checkpoint(self) -> None:
        self._checkpoint = self.now()
        try:
            found = files.read_msgpack(self._dir / "checkpoint")
            if found is None:
                # From now on nothing is missed, even if this engine is killed before it does anything else.
                files.write_msgpack(self._dir / "checkpoint", {"at": self._checkpoint, "closed": {}})
            else:
                self._checkpoint = float(found["at"])
                self.machine.capture.closed.update(found["closed"])
        except OSError as exc:
            log.warning("The checkpoint cannot be written: %s", exc)
        except (StateError, KeyError, TypeError, ValueError) as exc:
            log.error("The checkpoint is lost, so jobs of the past are not looked at: %s", exc)

    def _write_checkpoint(self) -> None:
        """Note until when all is settled, once the store holds it."""
        at = self.machine.checkpoint(self.now()) - CHECKPOINT_MARGIN
        checkpoint = {"at": at, "closed": self.machine.closed_since(at)}

        def write() -> None:
            try:
                files.write_msgpack(self._dir / "checkpoint", checkpoint)
                self._checkpoint = at
            except OSError as exc:
                log.warning("The checkpoint cannot be written: %s", exc)

        if not self._reconciling:
            self.writer.when_durable(write)

    async def _reconcile(self, since: float) -> None:
        """Find the jobs that were published while nobody listened."""
        if self._reconciling:
            return
        self._reconciling = True
        try:
            found = await self._published_since(since)
            for jid, at in sorted(found.items(), key=lambda item: item[1]):
                capture = self.machine.capture
                if is_plain(jid) and jid not in capture.open and jid not in capture.closed:
                    self.step(facts.Published(jid, "", at))
        finally:
            self._reconciling = False

    async def _published_since(self, since: float) -> dict[str, float]:
        while True:
            try:
                return await self.cache_worker.call(self.cache.published_since, since)
            except JobCacheError as exc:
                log.warning("The job cache cannot be used now, and is tried again: %s", exc)
                await compat.sleep(CACHE_PAUSE)
