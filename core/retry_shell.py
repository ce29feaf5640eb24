"""
Carries the retry queue out: feeds the machine facts from the bus, the job cache and operators, and performs its effects.

It holds no policy. The loop's thread never waits: the job cache and the store have a thread each. What the store does not
take is kept and written again, and what depends on it (a publish, an answer) waits that long.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from saltext.jobs.core import compat, events, files
from saltext.jobs.core import retry_facts as facts
from saltext.jobs.core.bus import Bus
from saltext.jobs.core.errors import JobCacheError, JobsError, PublishFailed, StateError
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.job_cache import JobCache
from saltext.jobs.core.publisher import Publisher
from saltext.jobs.core.questions import Questions
from saltext.jobs.core.requests import Inbox, engine_dir
from saltext.jobs.core.retry import Retry
from saltext.jobs.core.retry_entry import Job
from saltext.jobs.core.retry_jobs import JobReader, job_of
from saltext.jobs.core.retry_store import RetryStore
from saltext.jobs.core.retry_writer import Writer
from saltext.jobs.core.settings import RetrySettings
from saltext.jobs.core.worker import Worker

log = logging.getLogger(__name__)

ENGINE = "job_retry"
#: Seconds between two checkpoints, heartbeats and looks at the inbox.
MAINTENANCE = 10.0
#: Seconds by which a checkpoint lies before the present: events of that time may still be on their way.
CHECKPOINT_MARGIN = 60.0
#: Seconds without a heartbeat after which a master counts as gone.
OWNER_GONE = 180.0
#: Seconds for which key events are gathered into one look at the keys.
KEYS_PAUSE = 1.0
#: Seconds before a job cache that failed is tried again at the start.
CACHE_PAUSE = 5.0

#: Seconds that a job found at a start is left to the other masters that share the cache: one of them may have published it.
SHARED_PAUSE = 30.0

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
        self.machine = Retry(settings, patience, paused=(self._dir / "paused").exists())
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
        self._restored = False
        self._timer: Any = None
        self._timer_at: float | None = None
        self._keys_asked = False
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
        if minion in self.machine.lines:
            self.step(facts.SignOfLife((minion,)))

    def _handle(self, tag: str, data: Any) -> None:
        if tag == events.wake_tag(ENGINE):
            self._take_requests()
            return
        if tag == _KEY_TAG:
            self._check_keys_soon()
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
            self.step(facts.SignOfLife(tuple(minion for minion in fact.new if minion in self.machine.lines)))

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
            try:
                _PERFORM[type(effect)](self, effect)
            except Exception:
                log.exception("An effect could not be performed: %s", type(effect).__name__)
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

    # -- effects out --------------------------------------------------------------------------------------------------

    def _save(self, effect: facts.Save) -> None:
        for jid in effect.jobs:
            job = self.machine.jobs.get(jid)
            if job is None:
                self.writer.put_job(jid, None)
                if not self.machine.knows(jid):
                    self.loads.pop(jid, None)
            else:
                self.writer.put_job(jid, self._snapshot(job))
        for minion, jid in effect.entries:
            entry = self.machine.entry(minion, jid)
            self.writer.put_entry(minion, jid, entry.as_record() if entry else None)

    def _snapshot(self, job: Job) -> dict[str, Any]:
        return {
            "owner": self.owner,
            "published_at": job.published_at,
            "load": self.loads[job.jid],
            "minions": self.machine.minions_of(job.jid),
        }

    def _read(self, effect: facts.Read) -> None:
        async def read() -> None:
            try:
                fact, load = await self.cache_worker.call(self.reader.read, effect.jid)
                if self._shared and await self._is_others(effect.jid):
                    fact = facts.JobRead(effect.jid, None)
            except (JobCacheError, StateError) as exc:
                self._complain(exc)
                self.step(facts.Unreadable(effect.jid))
                return
            if fact.job is not None:
                self.loads.setdefault(effect.jid, load)
            self.step(fact)

        self.loop.spawn_callback(read)

    async def _is_others(self, jid: str) -> bool:
        """Tell whether another master that shares our cache keeps a job."""
        snapshot = await self.store_worker.call(self.store.snapshot, jid)
        return bool(snapshot) and snapshot.get("owner") != self.owner

    def _vet(self, effect: facts.Vet) -> None:
        async def vet() -> None:
            try:
                found = await self.cache_worker.call(self.reader.vet, effect.minions, self.loads[effect.jid])
            except Exception as exc:
                log.warning("Which minions job %s is for cannot be told now: %s", effect.jid, exc)
                self.step(facts.Unreadable(effect.jid))
            else:
                self.step(facts.Vetted(effect.jid, found))

        self.loop.spawn_callback(vet)

    def _look_up(self, effect: facts.LookUp) -> None:
        async def look_up() -> None:
            try:
                load = self.loads[effect.jid]
                fact = await self.cache_worker.call(self.reader.look_up, effect.jid, effect.minions, load)
            except Exception as exc:
                self._complain(exc)
                self.step(facts.Unreadable(effect.jid, effect.minions))
            else:
                self.step(fact)

        self.loop.spawn_callback(look_up)

    def _ask(self, effect: facts.Ask) -> None:
        async def ask() -> None:
            try:
                said = await self.questions.find_either(effect.jid, effect.minions, self.timeout)
            except PublishFailed as exc:
                log.warning("%d minions could not be asked about job %s: %s", len(effect.minions), effect.jid, exc)
                self.step(facts.Asked(effect.jid, unasked=frozenset(effect.minions)))
                return
            ran = await self._store_returns(effect.jid, said.ran)
            # One whose return cannot be stored now is asked again.
            unasked = frozenset(said.ran) - ran
            self.step(facts.Asked(effect.jid, said.running, ran, said.idle, said.silent, unasked))

        self.loop.spawn_callback(ask)

    async def _store_returns(self, jid: str, returns: Mapping[str, Any]) -> frozenset[str]:
        if not returns:
            return frozenset()
        try:
            load = self.loads[jid]
            return await self.cache_worker.call(self.reader.store_returns, jid, load, returns)
        except (JobCacheError, KeyError) as exc:
            self._complain(exc)
            return frozenset()

    def _claim(self, effect: facts.Claim) -> None:
        claims = self.machine.claims_of(effect.jid)
        self.writer.claim(effect.jid, claims, lambda: self.step(facts.Claimed(effect.jid, effect.minions)))

    def _publish(self, effect: facts.Publish) -> None:
        async def publish() -> None:
            load = self.loads[effect.jid]
            options = load.get("kwargs")
            try:
                matched = await self.publisher.publish(
                    load["fun"],
                    load.get("arg") or [],
                    list(effect.minions),
                    jid=effect.jid,
                    user=load.get("user"),
                    ret=load.get("ret") or "",
                    options=options if isinstance(options, Mapping) else None,
                )
            except PublishFailed as exc:
                log.warning("Job %s could not be replayed to %d minions: %s", effect.jid, len(effect.minions), exc)
                self.step(facts.SendFailed(effect.jid, effect.minions, str(exc), exc.certain))
            else:
                log.info("Replayed job %s to %d minions", effect.jid, len(effect.minions))
                self.step(facts.Sent(effect.jid, effect.minions, frozenset(effect.minions) - matched))
            await self._keep_load(effect.jid, load)

        self.loop.spawn_callback(publish)

    async def _keep_load(self, jid: str, load: Mapping[str, Any]) -> None:
        """Where publishing overwrites the load in the job cache, put the original one back."""
        if self.cache.keeps_first_load:
            return
        try:
            await self.cache_worker.call(self.cache.keep_load, jid, load, self.machine.minions_of(jid))
        except JobCacheError as exc:
            log.warning("The job cache shows the replay of job %s and not the job itself: %s", jid, exc)

    def _ping(self, effect: facts.Ping) -> None:
        async def ping() -> None:
            try:
                answers = await self.questions.ping(list(effect.minions), "list", self.timeout)
            except PublishFailed as exc:
                log.warning("Minions with a queue could not be pinged: %s", exc)
            else:
                self.step(facts.SignOfLife(tuple(m for m in effect.minions if m in answers.given)))

        self.loop.spawn_callback(ping)

    def _check_keys(self, effect: facts.CheckKeys) -> None:
        async def check() -> None:
            try:
                gone = await self.cache_worker.call(self.reader.without_key, effect.minions)
            except Exception as exc:
                log.warning("The keys cannot be read now: %s", exc)
            else:
                if gone:
                    self.step(facts.KeysGone(gone))

        self.loop.spawn_callback(check)

    def _check_keys_soon(self) -> None:
        # The event may be forged: the keys themselves are looked at, once for many events.
        if not self._keys_asked and self.machine.lines:
            self._keys_asked = True
            self.loop.call_later(KEYS_PAUSE, self._check_keys_now)

    def _check_keys_now(self) -> None:
        self._keys_asked = False
        self._check_keys(facts.CheckKeys(tuple(self.machine.lines)))

    def _announce(self, effect: facts.Announce) -> None:
        payload = {
            "minion": effect.minion,
            "jid": effect.jid,
            "fun": effect.fun,
            "attempts": effect.attempts,
            "reason": effect.reason,
        }
        self.bus.fire(events.retry_tag(effect.minion, effect.jid, effect.kind), payload)

    def _warn(self, effect: facts.Warn) -> None:
        log.warning("%s", effect.message)

    def _answer(self, effect: facts.Answer) -> None:
        request = self._request
        if request is not None:
            self.writer.when_durable(lambda: self.inbox.answer(request, effect.value))

    def _complain(self, exc: BaseException) -> None:
        log.warning("The job cache cannot be used now, and is tried again: %s", exc)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _take_requests(self) -> None:
        if not self._restored:
            return
        for request_id, request in self.inbox.take():
            self.loop.spawn_callback(self._carry_out, request_id, request)

    async def _carry_out(self, request_id: str, request: Mapping[str, Any]) -> None:
        try:
            fact = await self._fact_of(request)
        except ValueError as exc:
            self.inbox.refuse(request_id, str(exc), invalid=True)
        except (JobsError, OSError) as exc:
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
        minions = list(read.minions if named is None else named)
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
            if found is not None:
                self._checkpoint = float(found["at"])
                self.machine.capture.closed.update(found["closed"])
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
                    self.step(facts.Published(jid, "", at, self.now() + SHARED_PAUSE if self._shared else 0.0))
        finally:
            self._reconciling = False

    async def _published_since(self, since: float) -> dict[str, float]:
        while True:
            try:
                return await self.cache_worker.call(self.cache.published_since, since)
            except JobCacheError as exc:
                self._complain(exc)
                await compat.sleep(CACHE_PAUSE)


_PERFORM: dict[type, Callable[[Keeper, Any], None]] = {
    facts.Save: Keeper._save,
    facts.Read: Keeper._read,
    facts.Vet: Keeper._vet,
    facts.LookUp: Keeper._look_up,
    facts.Ask: Keeper._ask,
    facts.Claim: Keeper._claim,
    facts.Publish: Keeper._publish,
    facts.Ping: Keeper._ping,
    facts.CheckKeys: Keeper._check_keys,
    facts.Announce: Keeper._announce,
    facts.Warn: Keeper._warn,
    facts.Answer: Keeper._answer,
}
