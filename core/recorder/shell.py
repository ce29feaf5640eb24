"""
The job_recorder engine's work: a consumer for each returner, which reads the log; one for each target of notices; the watch
that makes notices; and answers to requests of runners.

Nothing is lost: the master's workers have put each publish and return into the log and the job cache before the recorder
sees it, and a returner's place in the log moves on with a row in its outbox. It must never wait for a returner, and never
record to the master's own job cache, from which it reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import salt.payload

from saltext.jobs.core import compat, lines
from saltext.jobs.core.engine.loop import Worker
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.engine.requests import Service
from saltext.jobs.core.ledger.outbox import Key, Outbox, Row
from saltext.jobs.core.ledger.tables import META, Tables
from saltext.jobs.core.lines import Quiet
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.metrics import Figures, of_engine
from saltext.jobs.core.recorder.consumer import DEAD, Consumer
from saltext.jobs.core.recorder.notices import TEST, Reported
from saltext.jobs.core.recorder.recipients import NOTICE

log = lines.logger(__name__)

#: The figures of each recipient, by the keys of its statistics.
_FIGURES = {
    "delivered_total": "delivered",
    "dropped_total": "dropped",
    "lag_records": "queued",
    "lag_seconds": "lag",
    "refused_records": "refused",
    "set_aside_records": "set_aside",
}
#: Seconds from one turn to the next.
_TURN = 1.0
#: A pause is at least _TIMES times as long as the look took, for the sake of a large fleet; but at most _LONGEST seconds,
#: since a look also takes long where the database or the machine stands still.
_TIMES, _LONGEST = 50.0, 300.0
#: Most notices that wait for one target; beyond it the oldest are dropped.
MOST = 200
#: The name under which the engine keeps what was reported.
_REPORTED = "reported"
#: The row of a test in the outbox of a target.
_TEST = Key(NOTICE, TEST)

#: Takes the present state of something into what was reported, at a Unix time. It blocks, and raises if it cannot be read.
Look: TypeAlias = Callable[[float], None]


class RecorderShell:
    """An engine.process.App. It closes all that it is given. ``watch``: None if nobody gets notices."""

    def __init__(
        self, loop: Any, bus: Bus, service: Service, consumers: Sequence[Consumer], watch: Watch | None = None
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
    return {"name": _name_of(row.key), **row.key._asdict(), "reason": row.why, "tries": row.tries, "time": row.at}


def _name_of(key: Key) -> str:
    return "/".join(part for part in key if part)


# -- notices -----------------------------------------------------------------------------------------------------------


def known_of(tables: Tables) -> dict[str, Any] | None:
    """Return what was reported before; None if that is not known. :raises OSError:"""
    body = META.get(tables, JOB_RECORDER, _REPORTED)
    try:
        return None if body is None else dict(salt.payload.loads(body))
    except Exception as exc:  # msgpack raises many kinds
        log.error("What was reported before cannot be read, so it may be reported again, or not at all: %s", exc)
        return None


class Watch:
    """
    Looks at the state of batches, owed jobs and engines, and puts notices of what has changed into the outboxes of
    ``targets``. It reads the batches and the retry queue, and no event, which can be lost or forged. What was ``reported``
    is kept in the ``tables``, with the notices that follow, in one transaction, on the disk, so a crash loses none.
    ``looks``: by what they look at, with the seconds between two of them.
    """

    def __init__(
        self, looks: Mapping[str, tuple[Look, float]], reported: Reported, targets: Sequence[Consumer], tables: Tables
    ) -> None:
        self._looks, self._reported, self.targets, self._tables = looks, reported, targets, tables
        self._quiet = Quiet(log)
        self._due = dict.fromkeys(self._looks, 0.0)  # when to look next, by what time.monotonic() says
        self._kept, self._rows = b"", list[Row]()
        self.is_closed = False

    async def run(self, worker: Worker) -> None:
        """Look until closed. :param worker: the thread to look in."""
        while not self.is_closed:
            try:
                await worker.call(self._turn)
            except Exception as exc:
                if not self.is_closed:
                    told = None if isinstance(exc, OSError) else exc
                    self._quiet.error("turn", "Notices cannot be kept, so none are sent: %s", exc, exc_info=told)
            await compat.sleep(_TURN)

    # -- in the Worker's thread ---------------------------------------------------------------------------------------

    def test(self) -> None:
        """Send a test notice: a user wants to see whether notices arrive. :raises OSError:"""
        for target in self.targets:
            target.outbox.drop([_TEST])  # one that was refused for good must not keep the next one away
        self._reported.take_test(time.time())
        self._keep()

    def _turn(self) -> None:
        for what, (look, pause) in self._looks.items():
            begun = time.monotonic()
            if begun < self._due[what]:
                continue
            try:
                look(time.time())
                pause = max(pause, min((time.monotonic() - begun) * _TIMES, _LONGEST))
            except Exception as exc:
                told = None if isinstance(exc, OSError) else exc
                self._quiet.error(what, "No notices are sent about %s now: %s", what, exc, exc_info=told)
            self._due[what] = time.monotonic() + pause
        self._keep()

    def _keep(self) -> None:
        """Keep what was reported, and the notices about it. :raises OSError: if it fails; the next call keeps them."""
        for notice in self._reported.written():
            # at most one test waits for a target, so that tests push out no notice
            key = _TEST if notice["kind"] == TEST else Key(NOTICE, notice["id"])
            self._rows.append(Row(key, notice["time"], body=salt.payload.dumps(notice)))
        known: bytes = salt.payload.dumps(self._reported.record())
        if known == self._kept and not self._rows:
            return
        gone = self._tables.together(lambda: self._write(known), durable=True)
        self._kept, self._rows = known, []
        for target, count in zip(self.targets, gone, strict=True):
            target.lose(count)

    def _write(self, known: bytes) -> list[int]:
        META.keep(self._tables, JOB_RECORDER, _REPORTED, known)
        return [target.outbox.push(self._rows, MOST) for target in self.targets]  # each checks that this process leads
