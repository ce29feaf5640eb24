"""
The job_recorder engine's work: a consumer for each returner, which reads the log; events that are recorded too; and answers
to requests of runners.

Why nothing is lost: the master's workers have put each publish and each return into the log and the job cache before the
recorder sees it, and a returner's place in the log moves on after it has the record, or the outbox has it. Only events come
from the bus: they are gathered, and become rows of the outbox.

It must never wait for a returner, and never record to the master's own job cache: it would write back what it reads
there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from saltext.jobs.core import lines
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.engine.alarm import Clock
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.engine.requests import Inbox
from saltext.jobs.core.engine.service import Service
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.ledger import outbox
from saltext.jobs.core.ledger.outbox import Row
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.master import events, secrets
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.metrics import Figures, History, of_bus
from saltext.jobs.core.options.engines import RecorderSettings
from saltext.jobs.core.quiet import Quiet
from saltext.jobs.core.recorder import choice
from saltext.jobs.core.recorder.consumer import DEAD, Consumer
from saltext.jobs.core.recorder.metrics import figures
from saltext.jobs.core.recorder.record import event_row, name_of, summary_of

log = lines.logger(__name__)

#: Seconds for which events are gathered before they are written, and between two looks at requests.
_FLUSH, _TICK = 0.2, 5.0
#: Most events that are gathered, and bytes of events that may wait for a returner; further ones are dropped.
_GATHERED, _EVENT_BYTES = 10_000, 64 << 20


@dataclass(frozen=True)
class Ports:
    """What the recorder works with. It closes them. :param disk: the thread that writes events and looks at dead letters."""

    loop: Any
    clock: Clock
    bus: Bus
    inbox: Inbox
    disk: Worker
    tables: Tables
    lease: Lease | None
    consumers: Sequence[Consumer]


class RecorderShell:
    """
    The job_recorder engine's work; an engine.process.App and a bus.Listener.

    :param ports: what it works with.
    :param settings: the recorder's options.
    """

    def __init__(self, ports: Ports, settings: RecorderSettings) -> None:
        self._ports = ports
        self._consumers = {consumer.name: consumer for consumer in ports.consumers}
        self._readers = [consumer.reader for consumer in ports.consumers]
        self.history = History()
        verbs = {"stats": self._stats, "set_aside": self._set_aside, "redeliver": self._redeliver, "drop": self._drop}
        self.service = Service(ports.loop, ports.inbox, verbs)
        self._wake = events.wake_tag(JOB_RECORDER)
        self._is_asked_for = choice.any_of(settings.events)
        self._gathered: list[Row] = []
        self._is_writing, self._last_event = False, 0.0
        #: Events taken in, and dropped, since the start.
        self.events = self.events_dropped = 0
        self._quiet = Quiet(log)

    def start(self) -> None:
        self._ports.loop.spawn_callback(self._forget_others)
        for consumer in self._consumers.values():
            self._ports.loop.spawn_callback(consumer.run)
        self._ports.bus.listen(self)
        self._tick()

    def take_requests(self) -> None:
        """Carry out what runners have asked for."""
        self.service.take()

    def metrics(self) -> Figures:
        """Return the engine's figures."""
        return {**figures(self._stats({})), **of_bus(JOB_RECORDER, self._ports.bus)}

    def close(self) -> None:
        """End. Events that were gathered are written first: they are nowhere else."""
        self._ports.bus.close()
        for consumer in self._consumers.values():
            consumer.close()
        if self._ports.disk.end() and self._gathered:
            try:
                self._write(self._gathered)
            except OSError as exc:
                log.error("%d events are lost, since they cannot be written: %s", len(self._gathered), exc)

    async def _forget_others(self) -> None:
        """Let the log not wait for returners that are not in the options any more."""
        try:
            await self._ports.disk.call(outbox.forget_others, self._ports.tables, f"{JOB_RECORDER} ", self._readers)
        except OSError as exc:
            log.warning("The log waits for returners that are not used any more: %s", exc)

    def _tick(self) -> None:
        self._ports.loop.call_later(_TICK, self._tick)
        self.service.sweep(self._ports.clock.now())
        self.service.take()
        for consumer in self._consumers.values():
            consumer.tell_lost()

    # -- events -------------------------------------------------------------------------------------------------------

    def wants(self, tag: str) -> bool:
        return tag == self._wake or self._is_asked_for(tag)

    def handle(self, tag: str, data: Any) -> None:
        if tag == self._wake:
            self.service.take()
        if not self._is_asked_for(tag) or not isinstance(data, Mapping):
            return
        if len(self._gathered) >= _GATHERED:
            self._have_dropped(1)
            return
        # Each event has a time of its own, so that a returner recognises an event that comes twice.
        self._last_event = max(self._ports.clock.now(), self._last_event + 2e-6)
        at = self._last_event
        self._gathered.append(event_row(f"{at:.6f}", at, tag, secrets.event_for_history(data)))
        self.events += 1
        if not self._is_writing:
            self._is_writing = True
            self._ports.loop.call_later(_FLUSH, self._ports.loop.spawn_callback, self._flush)

    def on_gap(self) -> None:
        """Events may have been lost: they are nowhere else."""

    async def _flush(self) -> None:
        rows, self._gathered = self._gathered, []
        try:
            self._have_dropped(await self._ports.disk.call(self._write, rows))
        except OSError as exc:
            self._gathered = rows + self._gathered
            self._quiet.error("events", "Events cannot be written, and wait in memory: %s", exc)
        self._is_writing = bool(self._gathered)
        if self._is_writing:
            self._ports.loop.call_later(_FLUSH, self._ports.loop.spawn_callback, self._flush)

    def _write(self, rows: Sequence[Row]) -> int:
        return outbox.add(self._ports.tables, self._readers, rows, self._ports.lease, _EVENT_BYTES)

    def _have_dropped(self, count: int) -> None:
        self.events_dropped += count
        if count:
            self._quiet.error(
                "dropped", "Events are dropped, since too many wait for a returner (returns are not dropped)"
            )

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
            "events": self.events,
            "events_dropped": self.events_dropped,
            "bus_gaps": self._ports.bus.gaps,
            "loop_lag": round(self._ports.bus.lag, 3),
            "returners": {consumer.name: consumer.stats(now) for consumer in self._chosen(request)},
        }

    async def _set_aside(self, request: Mapping[str, Any]) -> dict[str, Any]:
        newest = int(request["limit"])
        return {
            consumer.name: [summary_of(row) for row in await self._dead(consumer, newest)]
            for consumer in self._chosen(request)
        }

    async def _redeliver(self, request: Mapping[str, Any]) -> dict[str, int]:
        """Have dead letters handed to their returner again."""
        return await self._with_dead(request, outbox.again)

    async def _drop(self, request: Mapping[str, Any]) -> dict[str, int]:
        """Forget dead letters."""
        return await self._with_dead(request, outbox.drop)

    async def _with_dead(self, request: Mapping[str, Any], work: Any) -> dict[str, int]:
        wanted = frozenset(request.get("names") or ())
        done = {}
        for consumer in self._chosen(request):
            keys = [row.key for row in await self._dead(consumer) if not wanted or name_of(row.key) in wanted]
            args = self._ports.tables, consumer.reader, keys, self._ports.lease
            done[consumer.name] = await self._ports.disk.call(work, *args)
            consumer.dead -= done[consumer.name]
        return done

    async def _dead(self, consumer: Consumer, newest: int = DEAD) -> list[Row]:
        found: list[Row] = await self._ports.disk.call(outbox.dead, self._ports.tables, consumer.reader, newest)
        return found
