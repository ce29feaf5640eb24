"""
The shell of the retry queue: it feeds the machine facts from the log, the bus, the job cache and operators, and has its
effects performed (retry/effects.py).

It holds no policy. What may wait for a server, or for many files, runs in one of two threads: that of the job cache, or that
of the store. If the store cannot be written, the write is tried again; publishes and answers wait for it.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from saltext.jobs.core import compat, lines
from saltext.jobs.core.engine.alarm import Alarm
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.engine.proof import POLL, Proof
from saltext.jobs.core.engine.service import Service
from saltext.jobs.core.errors import JobCacheError, NotYet
from saltext.jobs.core.ledger.log import Position
from saltext.jobs.core.log.records import Record, Returned
from saltext.jobs.core.master import events
from saltext.jobs.core.metrics import Figures, History, of_bus, of_publisher
from saltext.jobs.core.options.engines import RetrySettings
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.effects import Effects, Ports, answer_time
from saltext.jobs.core.retry.entry import CURSOR, PAUSED, Entry, Key, Kind, State
from saltext.jobs.core.retry.machine import Retry
from saltext.jobs.core.retry.reader import of_record, untold
from saltext.jobs.core.retry.store import Cursor, Writer
from saltext.jobs.core.retry.verbs import Verbs, read_queue

log = lines.logger(__name__)

#: Default seconds between two writes of the cursor, heartbeats and looks at the inbox.
MAINTENANCE = 10.0
#: Seconds by which the cursor's time lies in the past: the master may take that long to store what it publishes.
MARGIN = 30.0
#: Seconds before a store or a job cache that failed is read again.
CACHE_PAUSE = 2.0
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
    The job_retry engine's work; an engine.App, and the Listener of its bus.

    :param ports: what it reaches the world through; closed with it.
    :param poll: longest pause in seconds between two looks at the log.
    :param maintenance: seconds between two writes of the cursor, heartbeats and looks at the inbox; an attribute too.
    """

    def __init__(
        self,
        opts: Mapping[str, Any],
        settings: RetrySettings,
        loop: Any,
        ports: Ports,
        poll: float = POLL,
        maintenance: float = MAINTENANCE,
    ) -> None:
        self._loop, self._ports, self.maintenance = loop, ports, maintenance
        patience = float(opts.get("timeout", 5)) + answer_time(opts)
        self.machine = Retry(settings, patience, paused=ports.store.is_paused(), acks=ports.acks)
        self.restored = False  # the queue has been taken up
        self._is_searched = False  # what was published while no engine ran is known too
        # Claimed starts of jobs that are not known yet: the log tells of a publish a moment after the bus.
        self._early: list[tuple[str, str]] = []
        self._cache_worker, self._store_worker = ports.cache_worker, ports.store_worker
        self.writer = Writer(loop, self._store_worker, ports.store, self._record_of)
        self._alarm = Alarm(loop, ports.clock, lambda: self.step(facts.Tick()))
        found, now = ports.store.cursor(), ports.clock.now()
        #: The last one that was written, or will be. Without one it is now: nothing is missed from now on.
        self._cursor = found._replace(at=min(found.at, now)) if found else Cursor(now, search=now)
        self._tail = ports.log(self._cursor.position)
        self._proof = Proof(loop, ports.clock, self._tail, self, poll)
        ports.questions.read_log = self._proof.read_on
        self._read_at = -math.inf  # when the log was last read to its end
        self._searches: list[float] = []  # the times since which searches of the job cache look for publishes
        self._effects = Effects(loop, ports, self.machine, self.writer, opts, self._learn)
        verbs = Verbs(ports, self.request, self._start_anew)
        ports.inbox.write = self.writer.answer
        self.history = History()
        self.service = Service(loop, ports.inbox, verbs.table())
        self._stored_in = ""  # the name of the database
        self._keep_jobs = float(opts.get("keep_jobs_seconds") or 0)
        self._told: collections.Counter[str] = collections.Counter()

    def start(self) -> None:
        """Listen to the bus, and begin once it is heard."""
        self._ports.bus.listen(self, lambda: self._loop.spawn_callback(self._begin))

    def metrics(self) -> Figures:
        machine, ports = self.machine, self._ports
        return {
            **figures(machine.entries(), self._told, machine.turns.paused, ports.clock.now()),
            **of_publisher(JOB_RETRY, ports.publisher),
            **of_bus(JOB_RETRY, ports.bus),
        }

    def close(self) -> None:
        """Release everything. The next engine finds what is not in the store: it goes on from the cursor."""
        self._proof.close()
        self._alarm.close()
        self._ports.close()

    async def _begin(self) -> None:
        """Take up what the store holds, then what was published since the cursor, then requests."""
        self._stored_in = await self._of_store(self._ports.store.name)
        await self._of_store(self._ports.store.tidy)
        if self._cursor.position is None:  # if the engine ended now, the next start would count as the first
            await self._of_store(self._ports.store.write, {CURSOR: self._cursor.as_record()})
        jobs, entries = await self._of_store(read_queue, self._ports)
        watched = await self._of_store(self._ports.store.watched, self._ports.clock.now())
        # A record that was recovered may be of an entry that an operator has removed since.
        settled = {(minion, jid) for jid, job in watched.items() for minion in job.settled}
        self.writer.put(
            Key(Kind.ENTRY, entry.jid, entry.minion) for entry in entries if (entry.minion, entry.jid) in settled
        )
        entries = [entry for entry in entries if (entry.minion, entry.jid) not in settled]
        for start in range(0, len(entries), _PART):
            part = entries[start : start + _PART]
            self.machine.take_up(jobs, part, self._ports.clock.now())
            gc.freeze()  # a pass of the collector stops all else, so it must not walk through long-lived entries
            await compat.sleep(0)
        self.step(facts.Restored(watched))
        self.restored = True
        gap, before = self._proof.start(), self._cursor
        if before.search < math.inf:
            gap = gap or "a search was not over"
        if gap:
            log.info("The job cache is searched for jobs, since the log may lack some: %s", gap)
            since = min(before.at, before.search, self._ports.clock.now() - MARGIN)
            await self._search(since)
        self._is_searched = True
        log.info("The retry queue holds %d entries of %d jobs", self.machine.total, len(self.machine.jobs))
        self._maintain()

    async def _of_store(self, read: Callable[..., T], *args: Any) -> T:
        while True:
            try:
                return await self._store_worker.call(read, *args)
            except OSError as exc:
                log.error("The retry queue waits for its database: %s", exc)
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
            if minion:
                self._heard_early(minion, jid)
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
        if self.restored and minion in self.machine.backlogs:
            self.step(facts.SignOfLife((minion,), facts.Sign.SEEN))

    def handle(self, tag: str, data: Any) -> None:
        """Take a wanted event. Until the queue is taken up, events are ignored: the log or a search makes up for them."""
        if tag == events.wake_tag(JOB_RETRY):
            self.take_requests()
            return
        fact = events.fact_of(tag, data)
        if self.restored:
            self._tell(tag, fact, data)

    def _heard_early(self, minion: str, jid: str) -> None:
        """Remember a claimed start of a job that is not known yet: it may become known in a moment."""
        if len(self._early) < _MOST_EARLY:
            self._early.append((minion, jid))

    def _place_early(self) -> None:
        early, self._early = self._early, []
        for minion, jid in early:
            if self.machine.knows(jid):
                self.step(facts.Acknowledged(minion, jid))

    def _tell(self, tag: str, fact: events.BusFact | None, data: Mapping[str, Any]) -> None:
        if tag == events.KEY:
            self.step(facts.KeysChanged())
        elif isinstance(fact, events.JobReturned):
            self._returned(fact, data)
        elif isinstance(fact, events.JobStarted):
            self._handed_on(fact.minion, fact.jid)
            self.step(facts.Acknowledged(fact.minion, fact.jid))
        elif isinstance(fact, events.MinionStarted):
            self.step(facts.SignOfLife((fact.minion,), facts.Sign.START))
        elif isinstance(fact, events.PresenceChanged):
            known = tuple(minion for minion in fact.new if minion in self.machine.backlogs)
            self.step(facts.SignOfLife(known, facts.Sign.SEEN))

    def _returned(self, fact: events.JobReturned, data: Mapping[str, Any]) -> None:
        if self._ports.questions.wants(fact.jid):
            self._ports.questions.heard(fact.jid, fact.minion, data.get("return"))
            self._proof.wake()
        else:
            self._handed_on(fact.minion, fact.jid)
            # If the master cannot store the return (its disk is full), this event is the only trace that the job began.
            self.step(facts.Acknowledged(fact.minion, fact.jid))
            self._proof.wake()
            self._seen(fact.minion)

    def _handed_on(self, minion: str, jid: str) -> None:
        """If this is the first receipt of a replay, note that the master has forwarded it."""
        since = self.machine.receipt_awaited_since(minion, jid)
        if since is not None:
            self._ports.questions.handed_on(self._ports.clock.now() - since)

    def on_gap(self) -> None:
        """Events were lost. What they would have told of publishes and returns is in the log."""
        if self.restored:
            self.step(facts.Gap(returns=False))
            self.take_requests()

    # -- what this master has done ------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether nothing in the log is urgent: no job is owed, or may be. The bus tells of the next publish."""
        return not (self.machine.jobs or self.machine.capture.open)

    def logged(self, record: Record) -> None:
        """Take a record of the log."""
        if not isinstance(record, Returned):
            for fact in of_record(record):
                self.step(fact)
            return
        self._ports.questions.logged(record)
        if self.machine.entry(record.minion, record.jid) is not None:
            self.step(facts.Returned(record.jid, frozenset([record.minion])))

    def on_read(self) -> None:
        """
        The log was read to its end: jobs that are not known by now are not this master's. As long as there is no log, the
        cursor stays: what is published meanwhile is searched for once there is one.
        """
        if self._proof.reads_log:
            self._read_at = self._ports.clock.now()
            if self._is_searched:
                self._place_early()

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
        effects = self.machine.step(fact, self._ports.clock.now())
        for effect in effects:
            if isinstance(effect, facts.Announce):
                self._told[effect.kind] += 1
            self._effects.perform(effect)
        self._alarm.set(self.machine.next_due)
        return effects

    async def _learn(self, fact: facts.Fact) -> None:
        """
        Take the outcome of an effect, but first all that the log tells by now. So a kill finds entries as they were
        before that outcome, and no job is published after its kill.
        """
        await self._proof.read_on()
        self.step(fact)

    def _record_of(self, key: Key) -> Any:
        """Return what is to be stored under a key; None to remove what is there."""
        machine, jid = self.machine, key.jid
        if key.kind is Kind.CURSOR:
            return self._newer_cursor().as_record()
        if key.kind is Kind.PAUSED:
            return {} if machine.turns.paused else None
        if key.kind is Kind.DONE:
            return machine.queue.done.pop(key)
        if key.kind is Kind.JOB:
            if jid not in machine.jobs:
                return None
            job = machine.jobs[jid]
            return {"published_at": job.published_at, "load": dict(job.load)}
        kept = machine.watched.get(jid) if key.kind is Kind.WATCHED else machine.entry(key.minion, jid)
        return None if kept is None else kept.as_record()

    def request(self, do: str, given: Mapping[str, Any]) -> Any:
        """Have the machine do what an operator asks for, and return its answer, which is to be stored with what changed."""
        for effect in self.step(facts.Requested(do, given)):
            if isinstance(effect, facts.Answer):
                if do in ("pause", "resume"):
                    self.writer.put([PAUSED])
                if effect.failed is not None:
                    raise effect.failed
                return effect.value
        raise NotYet("The engine starts anew")

    def take_requests(self) -> None:
        """Carry out what runners have asked for, after all that the log tells by now."""
        if self.restored:
            self._loop.spawn_callback(self._take_requests)

    async def _take_requests(self) -> None:
        await self._proof.read_on()
        self.service.take()

    # -- maintenance --------------------------------------------------------------------------------------------------

    def _maintain(self) -> None:
        self._loop.call_later(self.maintenance, self._maintain)
        self.step(facts.Tick())  # the clock may have been set
        self.take_requests()
        self.service.sweep(self._ports.wall())
        self.writer.put(())  # the cursor has moved on
        self._loop.spawn_callback(self._look_at_store)

    async def _look_at_store(self) -> None:
        """If another database has taken the place of the one in use, such as a damaged one, store all that is known."""
        try:
            name = await self._store_worker.call(self._ports.store.name)
        except OSError as exc:
            log.debug("The store cannot be looked at: %s", exc)
            return
        if name != self._stored_in:
            log.error("The retry queue has another database than before; what the engine knows is written into it")
            self._stored_in = name
            self._effects.save_all()
        if self._keep_jobs:
            old = self._ports.wall() - self._keep_jobs - 86400.0  # the jids may be in the time of another zone
            with contextlib.suppress(OSError):
                await self._store_worker.call(self._ports.store.forget_done, old)

    def _start_anew(self) -> None:
        """End the process soon, once the queue is stored. Salt starts another."""
        self.writer.when_durable(lambda: self._loop.call_later(_SOON, self._ports.restart))

    def _newer_cursor(self) -> Cursor:
        """Return how far the log is read, by what the queue holds now."""
        at = self._read_at - MARGIN if self._read_at > -math.inf else self._cursor.at
        self._cursor = Cursor(at, self._proof.position, min(self._searches, default=math.inf), self._began)
        return self._cursor

    @property
    def _began(self) -> Position | None:
        """The end of the log at which reading began, until what was published before it has been searched for."""
        return None if self._is_searched else self._tail.began or self._cursor.began

    async def _search(self, since: float) -> None:
        """Take the publishes since a time that the log does not tell of. Until that is done, the next engine must do it."""
        self._searches.append(since)
        self.writer.when_durable(lambda: None)  # from now on the place in the log counts
        while True:
            await self._proof.read_on()  # what the log has came first
            began, now = self._began, self._proof.position
            place = began.offset if began and now and began.log == now.log else 0  # another log is read as a whole
            try:
                found = await self._cache_worker.call(untold, self._ports.cache, self._ports.returns, since, place)
                break
            except JobCacheError as exc:
                log.warning("The job cache cannot be used now, and is tried again: %s", exc)
                await compat.sleep(CACHE_PAUSE)
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
        "retry_next_expiry_seconds": min((entry.expires_at for entry in pending), default=math.inf) - now,
        "retry_transitions_total": {kind: told.get(kind, 0) for kind in _TOLD},
        "retry_paused": paused,
    }
