"""
The shell of the retry queue: it feeds the machine facts from the log, the bus, the job cache and operators, and has its
effects performed (retry/effects.py). It holds no policy. What may block runs in one of two threads, for the job cache and
for the store. A write that fails is tried again; publishes and answers wait for it.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import salt.utils.job

from saltext.jobs.core import compat, lines
from saltext.jobs.core.engine.loop import Alarm, Worker
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.engine.proof import POLL, Proof
from saltext.jobs.core.engine.writer import Writer
from saltext.jobs.core.errors import JobCacheError, NotYet, StateError
from saltext.jobs.core.ledger.records import Record, Returned
from saltext.jobs.core.lines import Quiet
from saltext.jobs.core.master import events
from saltext.jobs.core.metrics import Figures, of_engine
from saltext.jobs.core.options.engines import RetrySettings
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.effects import Effects, Ports, answer_time
from saltext.jobs.core.retry.entry import CURSOR, PAUSED, Entry, Job, Key, Kind, State, Watched
from saltext.jobs.core.retry.machine import Retry
from saltext.jobs.core.retry.owing import VERBS
from saltext.jobs.core.retry.reader import of_record
from saltext.jobs.core.retry.store import Changes, Cursor

log = lines.logger(__name__)

#: Default seconds between two writes of the cursor.
MAINTENANCE = 10.0
#: Seconds by which the cursor's time lies in the past: the master may take that long to store what it publishes.
MARGIN = 30.0
#: Seconds before a store or a job cache that failed is read again.
CACHE_PAUSE = 2.0
#: Seconds between two removals of old records of delivered jobs.
_FORGETS = 3600.0
#: By how many seconds the wall clock may differ from the engine's before the engine starts anew.
_SET = 1.0
#: Seconds before the engine starts anew on request, so that the request is answered.
_SOON = 1.0
#: Most claimed starts that are remembered until the log, or the job cache, has been read.
_MOST_EARLY = 200_000
#: Most entries that are taken up in one go at the start.
_PART = 10_000

#: The kinds of announcements about entries (``salt/job_retry/<minion>/<jid>/<kind>``).
_TOLD = ("queued", "sent", "done", "held", "expired", "cancelled", "dead")

T = TypeVar("T")


class RetryShell:
    """
    The job_retry engine's work; an engine.App, and the Listener of its bus. ``ports`` are closed with it.

    :param poll: longest pause in seconds between two looks at the log.
    """

    def __init__(
        self,
        opts: Mapping[str, Any],
        settings: RetrySettings,
        ports: Ports,
        poll: float = POLL,
        maintenance: float = MAINTENANCE,
    ) -> None:
        loop = self._loop = ports.loop
        self._ports, self.maintenance = ports, maintenance
        patience = float(opts.get("timeout", 5)) + answer_time(opts)
        self.machine = Retry(settings, patience, paused=ports.store.is_paused(), acks=ports.acks)
        self.restored = False  # the queue has been taken up
        self._is_searched = False  # what was published while no engine ran is known too
        # Claimed starts of jobs that are not known yet: the log tells of a publish a moment after the bus.
        self._early: list[tuple[str, str]] = []
        self._cache_worker, self._store_worker = ports.cache_worker, ports.disk_worker
        self.writer = Writer(loop, self._store_worker, "the retry queue", ports.store, self._changes, self._everything)
        self._alarm = Alarm(loop, ports.clock, lambda: self.step(facts.Tick()))
        found, now = ports.store.cursor(), ports.clock.now()
        #: The cursor as last written, or about to be. The first one is now: no job from before is owed.
        self._cursor = found._replace(at=min(found.at, now)) if found else Cursor(now, search=now)
        self._proof = Proof(loop, ports.clock, ports.log(self._cursor.position), ports.questions, self, poll)
        self._read_at = -math.inf  # when the log was last read to its end
        # For each search of the job cache: since when it looks for publishes. One that an engine's end cut off begins again.
        self._searches = [self._cursor.search] if self._cursor.search < math.inf else []
        self._effects = Effects(ports, self.machine, self.writer, opts, self._learn)
        self.service = ports.service
        self._turn, self._quiet = compat.Lock(), Quiet(log)  # the turn of the request that is carried out
        self._keep_jobs = float(salt.utils.job.get_keep_jobs_seconds(opts) or 0)

    def start(self) -> None:
        """Listen to the bus, and begin once it is heard."""
        self._ports.bus.listen(self, lambda: self._loop.spawn_callback(self._begin))

    def metrics(self) -> Figures:
        machine, ports = self.machine, self._ports
        return {
            **figures(machine.entries(), self._effects.announced, machine.turns.paused, ports.clock.now()),
            **of_engine(JOB_RETRY, ports.bus, ports.publisher),
        }

    def close(self) -> None:
        """Release everything. The next engine finds what is not in the store: it goes on from the cursor."""
        self._proof.close()
        self._alarm.set(None)
        self.writer.close()
        self._ports.close()

    async def _begin(self) -> None:
        """Take up what the store holds, then what was published since the cursor, then requests."""
        if self._cursor.position is None:  # if the engine ended now, the next start would count as the first
            self._cursor = self._cursor._replace(position=self._proof.position)
            await self._at_last(self._store_worker, self._ports.store.write, {CURSOR: self._cursor.as_record()})
        owed = await self._at_last(self._store_worker, self._ports.store.read)
        watched = await self._at_last(self._store_worker, self._ports.store.watched, self._ports.clock.now())
        for start in range(0, len(owed), _PART):
            self.machine.take_up(owed[start : start + _PART], self._ports.clock.now())
            gc.freeze()  # a pass of the collector stops all else, so it must not walk through long-lived entries
            await compat.sleep(0)
        self.step(facts.Restored(watched))
        self.restored = True
        at, gap = self._cursor.at, self._proof.start() or ("a search was not over" if self._searches else "")
        # ``job_cache.recover`` has brought back entries: an engine that starts reads the whole queue.
        verbs = {**dict.fromkeys(VERBS, self._carry_out), "take_up": lambda _request: self._start_anew()}
        self.service.serve(verbs, self.writer.answer)
        if gap:
            log.info("The job cache is searched for jobs, since the log may lack some: %s", gap)
            since, self._searches = min(at, self._ports.clock.now() - MARGIN, *self._searches), []
            await self._search(since)
        self._is_searched = True
        log.info("The retry queue holds %d entries of %d jobs", self.machine.total, len(self.machine.jobs))
        self._maintain()
        if self._keep_jobs:
            await self._forget()

    async def _at_last(self, worker: Worker, read: Callable[..., T], *args: Any) -> T:
        """Call in a thread until that works."""
        while True:
            try:
                return await worker.call(read, *args)
            except (OSError, JobCacheError) as exc:
                self._quiet.error("wait", "The retry queue waits for its database or for the job cache: %s", exc)
                await compat.sleep(CACHE_PAUSE)

    # -- facts in -----------------------------------------------------------------------------------------------------

    def wants(self, tag: str) -> bool:
        """Tell by its tag whether an event is wanted. This is called for every event on the bus."""
        parts = events.parts_of_job(tag)
        if parts is not None:
            jid, kind, minion = parts
            if kind == "new":
                self._proof.wake()
                return False
            if (self.restored and self.machine.knows(jid)) or self._ports.questions.wants(jid):
                return True
            if minion and len(self._early) < _MOST_EARLY:
                self._early.append((minion, jid))
            if kind == "ret":
                self._seen(minion)
            return False
        beacon = events.beacon_of(tag)
        if beacon is not None:
            self._seen(beacon)
            return False
        started = events.started_by(tag)
        if started is not None:
            return self.machine.wants_start(started)
        return tag in (events.PRESENCE, events.KEY)

    def _seen(self, minion: str) -> None:
        if self.restored and minion in self.machine.backlogs:
            self.step(facts.SignOfLife((minion,)))

    def handle(self, tag: str, data: Any) -> None:
        """Take a wanted event. Until the queue is taken up, events are ignored: the log or a search makes up for them."""
        fact = events.fact_of(tag, data)
        if not self.restored:
            return
        if tag == events.KEY:
            self.step(facts.KeysChanged())
        elif isinstance(fact, events.JobReturned):
            self._proof.wake()
            if self._ports.questions.wants(fact.jid):
                self._ports.questions.heard(fact.jid, fact.minion, data.get("return"))
            else:
                # If the master cannot store the return (its disk is full), this event is the only trace that the job began.
                self._begun(fact.minion, fact.jid)
                self._seen(fact.minion)
        elif isinstance(fact, events.JobStarted):
            self._begun(fact.minion, fact.jid)
        elif isinstance(fact, events.MinionStarted):
            self.step(facts.SignOfLife((fact.minion,), started=True))
        elif isinstance(fact, events.PresenceChanged):
            known = tuple(minion for minion in fact.new if minion in self.machine.backlogs)
            self.step(facts.SignOfLife(known))

    def _begun(self, minion: str, jid: str) -> None:
        """An event claims that a minion has begun a job."""
        entry = self.machine.entry(minion, jid)
        # The first receipt of a replay.
        if entry is not None and entry.state is State.SENT and entry.sent_at is not None:
            self._ports.questions.handed_on(self._ports.clock.now() - entry.sent_at)
        self.step(facts.Acknowledged(minion, jid))

    def on_gap(self) -> None:
        """Events were lost. What they would have told of publishes and returns is in the log."""
        if self.restored:
            self.step(facts.Gap(returns=False))

    # -- what this master has done ------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether nothing in the log is urgent: no job is owed, or may be. The bus tells of the next publish."""
        return not (self.machine.jobs or self.machine.capture.open)

    def logged(self, record: Record) -> None:
        if not isinstance(record, Returned):
            for fact in of_record(record):
                self.step(fact)
            return
        if self.machine.entry(record.minion, record.jid) is not None:
            self.step(facts.Returned(record.minion, record.jid))

    def on_read(self) -> None:
        """The log was read to its end: jobs that are not known by now are not this master's."""
        self._read_at = self._ports.clock.now()
        if self._is_searched:
            early, self._early = self._early, []
            for minion, jid in early:
                if self.machine.knows(jid):
                    self.step(facts.Acknowledged(minion, jid))

    def on_lost(self) -> None:
        """The log may lack records: search the job cache for what they would have told."""
        self._loop.spawn_callback(self._search, self._cursor.at)

    # -- the machine --------------------------------------------------------------------------------------------------

    def step(self, fact: facts.Fact) -> list[facts.Effect]:
        """Give the machine a fact; perform and return the effects. If the wall clock was set, the engine starts anew."""
        by = self._ports.wall() - self._ports.clock.now()
        if abs(by) > _SET:
            log.warning("The clock was set by %d s; the job_retry engine starts anew", by)
            self._ports.restart()
            return []
        effects, changed = self.machine.step(fact, self._ports.clock.now()), self.machine.queue.changed
        if changed:
            self.writer.put(changed)
            changed.clear()
        for effect in effects:
            self._effects.perform(effect)
        self._alarm.set(self.machine.next_due)
        return effects

    async def _learn(self, fact: facts.Fact) -> None:
        """Take the outcome of an effect, after all that the log tells by now: no job is published after its kill."""
        await self._proof.read_on()
        self.step(fact)

    def _everything(self) -> Iterator[Key]:
        yield PAUSED
        for kind, jids in ((Kind.JOB, self.machine.jobs), (Kind.WATCHED, self.machine.watched)):
            yield from (Key(kind, jid) for jid in jids)
        yield from (Key(Kind.ENTRY, entry.jid, entry.minion) for entry in self.machine.entries())

    def _changes(self, keys: Iterable[Key]) -> Changes:
        return {key: self._record_of(key) for key in (*keys, CURSOR)}

    def _record_of(self, key: Key) -> Any:
        machine, jid = self.machine, key.jid
        if key.kind is Kind.CURSOR:  # how far the log is read, by what the queue holds now
            at = self._read_at - MARGIN if self._read_at > -math.inf else self._cursor.at
            self._cursor = Cursor(at, self._proof.position, min(self._searches, default=math.inf))
            return self._cursor.as_record()
        if key.kind is Kind.PAUSED:
            return {} if machine.turns.paused else None
        if key.kind is Kind.DONE:
            return machine.queue.done.pop(key, None)
        by_jid: Mapping[Kind, Mapping[str, Job | Watched]] = {Kind.JOB: machine.jobs, Kind.WATCHED: machine.watched}
        kept = by_jid[key.kind].get(jid) if key.kind in by_jid else machine.entry(key.minion, jid)
        return None if kept is None else kept.as_record()

    async def _carry_out(self, request: Mapping[str, Any]) -> int | bool:
        """
        Have the machine do what is asked for, after earlier requests and all that the log tells by now, and return its
        answer. A batch does not wait for the answer to its hand-over, so what fails now is tried again.
        """
        jid, read = request.get("jid"), None
        try:
            async with self._turn:
                if request["do"] == "enqueue":
                    read = await self._cache_worker.call(self._ports.reader.read, str(jid))
                await self._proof.read_on()
                if request["do"] == "cancel" and jid in self.machine.capture.open:  # its time is not up yet
                    read = await self._cache_worker.call(self._ports.reader.read, str(jid))
                for effect in self.step(facts.Requested(request, read)):
                    if isinstance(effect, facts.Answer):
                        return effect.value
                raise NotYet("The engine starts anew")
        except (OSError, JobCacheError, StateError) as exc:
            if request.get("batch"):
                raise NotYet(f"Batch {jid} cannot hand minions over now: {exc}") from exc
            raise
        except ValueError as exc:
            if request.get("batch"):
                log.error("The retry queue takes no minion of batch %s over: %s", jid, exc)
            raise

    # -- maintenance --------------------------------------------------------------------------------------------------

    def _maintain(self) -> None:
        self._loop.call_later(self.maintenance, self._maintain)
        self.step(facts.Tick())  # the clock may have been set
        self.writer.put(())  # the cursor has moved on; and the database may be another one than before

    async def _forget(self) -> None:
        """Remove old records of delivered jobs, now and every hour."""
        self._loop.call_later(_FORGETS, self._loop.spawn_callback, self._forget)
        with contextlib.suppress(OSError):
            # The jids may be in the time of another zone.
            await self._store_worker.call(self._ports.store.forget_done, self._ports.wall() - self._keep_jobs - 86400.0)

    def _start_anew(self) -> None:
        """End the process soon, once the queue is stored. Salt starts another."""
        self.writer.when_durable(lambda: self._loop.call_later(_SOON, self._ports.restart))

    async def _search(self, since: float) -> None:
        """Take publishes that the log lacks. If the engine ends before that is done, the next one does it."""
        self._searches.append(since)
        self.writer.when_durable(lambda: None)  # from now on the place in the log counts
        found = await self._at_last(self._cache_worker, self._ports.returns.untold, since)
        await self._proof.read_on()  # what the log has came first
        for record in found:
            self.logged(record)
        self.step(facts.Gap())
        self._searches.remove(since)


def figures(entries: Iterable[Entry], told: Mapping[str, int], paused: bool, now: float) -> Figures:
    """Return the figures. ``told``: how often each kind of announcement was made."""
    entries = list(entries)
    states = collections.Counter(entry.state for entry in entries)
    pending = [entry for entry in entries if entry.state is State.PENDING]
    return {
        "retry_entries": {state.value: states[state] for state in State if state is not State.DONE},
        "retry_oldest_pending_seconds": now - min((entry.queued for entry in pending), default=now),
        **({"retry_next_expiry_seconds": min(entry.expires_at for entry in pending) - now} if pending else {}),
        "retry_transitions_total": {kind: told.get(kind, 0) for kind in _TOLD},
        "retry_paused": paused,
    }
