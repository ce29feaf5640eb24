"""
The job_recorder engine's work: what comes from the bus goes into the intake, and what is stored goes to the returners. It
also answers requests of runners.

Why nothing is lost: every record goes to the spool on the disk (at most ``FLUSH`` seconds later) before any returner
sees it, and leaves it when all returners have it. A crash can take what was in memory, and what came over the bus while
the engine was down. Both are in the job cache, and are looked for there at every start and whenever the bus lost
events. One spool serves all returners, so a record is written once however many there are, and a returner that is down
costs disk and no memory.

It must never wait for a returner, and never record to the master's own job cache: it would write back what it reads
there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from saltext.jobs.core import lines
from saltext.jobs.core.engine.alarm import Clock
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.engine.requests import Inbox
from saltext.jobs.core.engine.service import Service
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.master import events
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.metrics import Figures, History, of_bus
from saltext.jobs.core.quiet import Quiet
from saltext.jobs.core.recorder import choice
from saltext.jobs.core.recorder.catch_up import CatchUp
from saltext.jobs.core.recorder.consumer import Consumer
from saltext.jobs.core.recorder.files import Seen
from saltext.jobs.core.recorder.intake import Intake
from saltext.jobs.core.recorder.metrics import figures
from saltext.jobs.core.recorder.spool import Spool
from saltext.jobs.core.settings import RecorderSettings

log = lines.logger(__name__)

#: Seconds for which records are gathered before they are written.
FLUSH = 0.2
#: Seconds between two looks into the job cache without a sign that events were lost.
AUDIT = 1800.0
#: Seconds between two looks at requests and at the spool's bounds.
_TICK = 5.0
#: Records that go back into the spool at a time.
_REDELIVERED = 100


@dataclass(frozen=True)
class Ports:
    """What the recorder works with. It closes them."""

    loop: Any
    clock: Clock
    bus: Bus
    inbox: Inbox
    disk: Worker
    spool: Spool
    seen: Seen
    intake: Intake
    catch_up: CatchUp
    consumers: Sequence[Consumer]


class RecorderShell:
    """
    The job_recorder engine's work; an engine.process.App and a bus.Listener.

    :param ports: what it works with.
    :param settings: the recorder's options.
    :param flush: seconds between two writes; ``audit``: between two looks into the job cache.
    """

    def __init__(self, ports: Ports, settings: RecorderSettings, flush: float = FLUSH, audit: float = AUDIT) -> None:
        self._ports, self._flush_interval, self._audit_interval = ports, flush, audit
        self._intake, self._catch_up = ports.intake, ports.catch_up
        self._consumers = {consumer.name: consumer for consumer in ports.consumers}
        self.history = History()
        verbs = {
            "stats": self._stats,
            "set_aside": self._set_aside,
            "redeliver": self._redeliver,
        }
        self.service = Service(ports.loop, ports.inbox, verbs)
        self._wake = events.wake_tag(JOB_RECORDER)
        self._is_flush_wanted = False
        self._is_asked_for = choice.any_of(settings.events)
        self._quiet = Quiet(log)

    def start(self) -> None:
        # first, and in this thread, because these digests decide which records are duplicates
        try:
            self._intake.known = self._intake.what_was_recorded()
        except Exception as exc:
            log.error("The digests of recorded returns cannot be read, so some returns may be recorded again: %s", exc)
        for consumer in self._consumers.values():
            self._ports.loop.spawn_callback(consumer.run)
        # Look for what came before the engine listened, once it listens.
        self._ports.bus.listen(self, self._catch_up.begin)
        self._tick()
        self._ports.loop.call_later(self._audit_interval, self._audit)

    def take_requests(self) -> None:
        """Carry out what runners have asked for."""
        self.service.take()

    def metrics(self) -> Figures:
        """Return the engine's figures."""
        return {**figures(self._stats({})), **of_bus(JOB_RECORDER, self._ports.bus)}

    async def settle(self) -> None:
        """Do nothing: ``close`` writes what is in memory."""

    def close(self) -> None:
        """End. Records in memory go to the spool first: with ``job_cache: False`` they are nowhere else."""
        self._ports.bus.close()
        self._catch_up.close()
        for consumer in self._consumers.values():
            consumer.close()
        if self._ports.disk.end():
            self._intake.drain()
        self._ports.spool.close()
        self._ports.seen.close()

    # -- the bus ------------------------------------------------------------------------------------------------------

    def wants(self, tag: str) -> bool:
        return tag.startswith(events.JOB) or tag == self._wake or self._is_asked_for(tag)

    def handle(self, tag: str, data: Any) -> None:
        if tag == self._wake:
            self.service.take()
            return
        fact = events.fact_of(tag, data)
        if isinstance(fact, events.JobReturned):
            self._intake.accept(fact.jid, fact.minion, data)
        elif isinstance(fact, events.JobPublished):
            self._intake.announce(fact.jid, data)
        if self._is_asked_for(tag) and isinstance(data, Mapping):
            self._intake.accept_event(tag, data)
        if self._intake.is_full:
            self._ports.loop.spawn_callback(self._write)
        self._want_flush()

    def on_gap(self) -> None:
        self._catch_up.begin()

    # -- timers -------------------------------------------------------------------------------------------------------

    def _want_flush(self) -> None:
        """Write soon, and again until nothing waits."""
        if not self._is_flush_wanted and self._intake.has_work:
            self._is_flush_wanted = True
            self._ports.loop.call_later(self._flush_interval, self._flush)

    def _flush(self) -> None:
        self._is_flush_wanted = False
        self._ports.loop.spawn_callback(self._write)
        self._want_flush()

    async def _write(self) -> None:
        done = await self._intake.flush()
        if done.stored:
            self._kick()
        if done.missed:
            self._catch_up.begin()

    def _audit(self) -> None:
        """Search the job cache: a return can be lost before it becomes an event, or in an unnoticed gap."""
        self._catch_up.begin()
        self._ports.loop.call_later(self._audit_interval, self._audit)

    def _kick(self) -> None:
        for consumer in self._consumers.values():
            consumer.kick()

    def _tick(self) -> None:
        self._ports.loop.spawn_callback(self._keep_house)
        self._ports.loop.call_later(_TICK, self._tick)

    async def _keep_house(self) -> None:
        now = self._ports.clock.now()
        self._want_flush()  # of what the job cache had
        try:
            for consumer in self._consumers.values():
                consumer.tell_drops(now)
            self.service.sweep(now)
            self.service.take()
            await self._ports.disk.call(self._ports.spool.trim, min(one.base for one in self._consumers.values()))
        except Exception as exc:
            self._quiet.error("house", "A pass of the maintenance loop failed", exc_info=exc)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _chosen(self, request: Mapping[str, Any]) -> list[Consumer]:
        name = request.get("returner")
        if name is None:
            return list(self._consumers.values())
        if name not in self._consumers:
            known = ", ".join(sorted(self._consumers))
            raise ValueError(f"{name!r} is no returner of the recorder; accepted are {known}")
        return [self._consumers[name]]

    def _stats(self, request: Mapping[str, Any]) -> dict[str, Any]:
        now = self._ports.clock.now()
        return {
            "recorded": self._intake.accepted,
            "unwritten": self._intake.waiting,
            "events": self._intake.events,
            "events_dropped": self._intake.events_dropped,
            "found_in_job_cache": self._catch_up.found,
            "spool_bytes": self._ports.spool.size,
            "bus_gaps": self._ports.bus.gaps,
            "loop_lag": round(self._ports.bus.lag, 3),
            "returners": {consumer.name: consumer.stats(now) for consumer in self._chosen(request)},
        }

    async def _set_aside(self, request: Mapping[str, Any]) -> dict[str, Any]:
        newest = int(request["limit"])
        return {consumer.name: await consumer.set_aside(newest) for consumer in self._chosen(request)}

    async def _redeliver(self, request: Mapping[str, Any]) -> dict[str, int]:
        """Put records that were set aside back into the spool, for the returner that refused them."""
        wanted = frozenset(request.get("names") or ())
        return {consumer.name: await self._put_back(consumer, wanted) for consumer in self._chosen(request)}

    async def _put_back(self, consumer: Consumer, wanted: frozenset[str]) -> int:
        names = [name for name in await consumer.aside_names() if not wanted or name in wanted]
        count = 0
        for start in range(0, len(names), _REDELIVERED):
            some = names[start : start + _REDELIVERED]
            found = [(name, await consumer.aside_payload(name)) for name in some]
            there = [(name, payload) for name, payload in found if payload is not None]
            # the spool first: then after a crash in between a record comes twice, and none is lost
            await self._intake.put_back([payload for _, payload in there], consumer.name)
            await consumer.forget_aside(*(name for name, _ in there))
            count += len(there)
        self._kick()
        return count
