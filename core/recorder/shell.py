"""
The job_recorder engine's work: a consumer for each returner, which reads the log; one for each target of notices; the watch
that makes notices; and answers to requests of runners.

Why nothing is lost: the master's workers have put each publish and each return into the log and the job cache before the
recorder sees it, and a returner's place in the log moves on after it has the record, or the outbox has it.

It must never wait for a returner, and never record to the master's own job cache: it would write back what it reads
there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.engine.alarm import Clock
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.engine.requests import Inbox
from saltext.jobs.core.engine.service import Service
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.ledger import outbox
from saltext.jobs.core.ledger.outbox import Row
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.master import events
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.metrics import Figures, History, of_bus
from saltext.jobs.core.recorder.consumer import DEAD, Consumer
from saltext.jobs.core.recorder.metrics import figures
from saltext.jobs.core.recorder.record import name_of, summary_of
from saltext.jobs.core.recorder.watch import Watch

#: Seconds between two looks at requests.
_TICK = 5.0


@dataclass(frozen=True)
class Ports:
    """What the recorder works with. It closes them. :param disk: the thread of the watch, and of dead letters."""

    loop: Any
    clock: Clock
    bus: Bus
    inbox: Inbox
    disk: Worker
    tables: Tables
    lease: Lease | None
    consumers: Sequence[Consumer]
    watch: Watch | None = None


class RecorderShell:
    """
    The job_recorder engine's work; an engine.process.App and a bus.Listener.

    :param ports: what it works with.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._consumers = {consumer.name: consumer for consumer in ports.consumers}
        self.history = History()
        verbs = {
            "stats": self._stats,
            "set_aside": self._set_aside,
            "redeliver": lambda request: self._with_dead(request, outbox.again),
            "drop": lambda request: self._with_dead(request, outbox.drop),
            "test_notice": self._test_notice,
        }
        self.service = Service(ports.loop, ports.inbox, verbs)
        self._wake = events.wake_tag(JOB_RECORDER)

    def start(self) -> None:
        for consumer in self._consumers.values():
            self._ports.loop.spawn_callback(consumer.run)
        self._ports.bus.listen(self, self.on_gap)
        if self._ports.watch is not None:
            self._ports.loop.spawn_callback(self._ports.watch.run, self._ports.disk)
        self._tick()

    def take_requests(self) -> None:
        """Carry out what runners have asked for."""
        self.service.take()

    def metrics(self) -> Figures:
        """Return the engine's figures."""
        return {**figures(self._stats({})), **of_bus(JOB_RECORDER, self._ports.bus)}

    def close(self) -> None:
        self._ports.bus.close()
        if self._ports.watch is not None:
            self._ports.watch.is_closed = True
        for consumer in self._consumers.values():
            consumer.close()
        self._ports.disk.close()

    def _tick(self) -> None:
        self._ports.loop.call_later(_TICK, self._tick)
        self.service.sweep(self._ports.clock.now())
        self.service.take()
        for consumer in self._consumers.values():
            consumer.tell_lost()

    # -- the bus ------------------------------------------------------------------------------------------------------

    def wants(self, tag: str) -> bool:
        return tag == self._wake or (self._ports.watch is not None and self._ports.watch.wants(tag))

    def handle(self, tag: str, data: Any) -> None:
        if tag == self._wake:
            self.service.take()
        elif self._ports.watch is not None:
            self._ports.watch.hint(tag)

    def on_gap(self) -> None:
        """Look at everything soon."""
        if self._ports.watch is not None:
            self._ports.watch.look_at_all()

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

    async def _with_dead(self, request: Mapping[str, Any], work: Any) -> dict[str, int]:
        """Have dead letters handed over again, or forget them."""
        wanted = frozenset(request.get("names") or ())
        done = {}
        for consumer in self._chosen(request):
            keys = [row.key for row in await self._dead(consumer) if not wanted or name_of(row.key) in wanted]
            args = self._ports.tables, consumer.reader, keys, self._ports.lease
            done[consumer.name] = await self._ports.disk.call(work, *args)
            consumer.recount()
        return done

    async def _dead(self, consumer: Consumer, newest: int = DEAD) -> list[Row]:
        found: list[Row] = await self._ports.disk.call(outbox.dead, self._ports.tables, consumer.reader, newest)
        return found

    async def _test_notice(self, request: Mapping[str, Any]) -> list[str]:
        if self._ports.watch is None:
            raise ValueError("nobody gets notices: job_notices has neither url nor returners")
        await self._ports.disk.call(self._ports.watch.test)
        return [target.name for target in self._ports.watch.targets]
