"""
The job_recorder engine's work: a consumer for each returner, which reads the log; one for each target of notices; the watch
that makes notices; and answers to requests of runners.

Nothing is lost: the master's workers have put each publish and return into the log and the job cache before the recorder
sees it, and a returner's place in the log moves on with a row in its outbox. It must never wait for a returner, and never
record to the master's own job cache, from which it reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from saltext.jobs.core.engine.loop import Worker
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.engine.requests import Service
from saltext.jobs.core.ledger.outbox import Key, Outbox, Row
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.metrics import Figures, of_engine
from saltext.jobs.core.recorder.consumer import DEAD, Consumer
from saltext.jobs.core.recorder.watch import Watch

#: The figures of each recipient, by the keys of its statistics.
_FIGURES = {
    "delivered_total": "delivered",
    "dropped_total": "dropped",
    "lag_records": "queued",
    "lag_seconds": "lag",
    "refused_records": "refused",
    "set_aside_records": "set_aside",
}


class RecorderShell:
    """An engine.process.App. It closes all that it is given. ``watch``: None if nobody gets notices."""

    def __init__(
        self,
        loop: Any,
        bus: Bus,
        service: Service,
        consumers: Sequence[Consumer],
        watch: Watch | None = None,
    ) -> None:
        self._loop, self._bus = loop, bus
        self._consumers, self._watch = {consumer.name: consumer for consumer in consumers}, watch
        self._disk = Worker(loop)  # the thread of the watch, and of dead letters
        self.service = service

    def start(self) -> None:
        for consumer in self._consumers.values():
            self._loop.spawn_callback(consumer.run)
        self._bus.listen()
        if self._watch is not None:
            self._loop.spawn_callback(self._watch.run, self._disk)
        self.service.serve(
            {
                "stats": self._stats,
                "set_aside": self._set_aside,
                "redeliver": lambda request: self._with_dead(request, Outbox.again),
                "drop": lambda request: self._with_dead(request, Outbox.drop),
                "test_notice": self._test_notice,
            }
        )

    def metrics(self) -> Figures:
        return {**figures(self._stats({})["returners"]), **of_engine(JOB_RECORDER, self._bus)}

    def close(self) -> None:
        self.service.close()
        self._bus.close()
        if self._watch is not None:
            self._watch.is_closed = True
        for consumer in self._consumers.values():
            consumer.close()
        self._disk.close()

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
        return {
            "bus_gaps": self._bus.gaps,
            "loop_lag": round(self._bus.lag, 3),
            "returners": {consumer.name: consumer.stats() for consumer in self._chosen(request)},
        }

    async def _set_aside(self, request: Mapping[str, Any]) -> dict[str, Any]:
        newest = int(request["limit"])
        return {
            consumer.name: [_shown(row) for row in await self._dead(consumer, newest)]
            for consumer in self._chosen(request)
        }

    async def _with_dead(self, request: Mapping[str, Any], work: Any) -> dict[str, int]:
        """Have dead letters handed over again, or forget them."""
        wanted, done = frozenset(request.get("names") or ()), dict[str, int]()
        for consumer in self._chosen(request):
            keys = [row.key for row in await self._dead(consumer, DEAD) if not wanted or _name_of(row.key) in wanted]
            done[consumer.name] = await self._disk.call(work, consumer.outbox, keys)
        return done

    async def _dead(self, consumer: Consumer, newest: int) -> list[Row]:
        return await self._disk.call(consumer.outbox.dead, newest)

    async def _test_notice(self, request: Mapping[str, Any]) -> list[str]:
        if self._watch is None:
            raise ValueError("nobody gets notices: job_notices has neither url nor returners")
        await self._disk.call(self._watch.test)
        return [target.name for target in self._watch.targets]


def figures(stats: Mapping[str, Mapping[str, Any]]) -> Figures:
    """Return the figures of all recipients. :param stats: ``Consumer.stats`` of each."""
    return {
        "recorder_records_total": sum(one["delivered"] for one in stats.values()),
        **{f"recorder_{name}": {of: one[key] for of, one in stats.items()} for name, key in _FIGURES.items()},
        "recorder_trouble": {of: one["trouble"] is not None for of, one in stats.items()},
    }


def _shown(row: Row) -> dict[str, Any]:
    """Return what is shown of a dead letter, which is not its content."""
    more = {"reason": row.why, "tries": row.tries, "time": row.at}
    return {"name": _name_of(row.key), **row.key._asdict(), **more}


def _name_of(key: Key) -> str:
    return "/".join(part for part in key if part)
