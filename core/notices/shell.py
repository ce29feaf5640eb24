"""
The job_notices engine's work: it looks at the state of batches, owed jobs and engines, and reports what has changed.

An event on the bus is only a hint to look. What is reported was read from the batches and the retry queue. Each
target has a thread of its own, so a target that hangs delays no other target and no engine. A notice leaves the outbox, on
the disk, after its target has taken it. A crash in between makes it come twice, with the same ``id``; none is lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from saltext.jobs.core import lines
from saltext.jobs.core.engine.names import JOB_NOTICES
from saltext.jobs.core.engine.requests import Inbox
from saltext.jobs.core.engine.service import Service
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.master import events
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.metrics import Figures, History, of_bus
from saltext.jobs.core.notices.ledger import Ledger
from saltext.jobs.core.notices.notice import TEST, GivenUp, Seen
from saltext.jobs.core.notices.store import NoticesStore
from saltext.jobs.core.quiet import Quiet

log = lines.logger(__name__)

#: Seconds between two looks at requests and at the engines' beats.
_TICK = 5.0
#: Seconds between two looks at the batches: with events, and without any.
_SOON, _ANYWAY = 1.0, 300.0
#: Seconds between two looks at the retry queue: each look reads all of it.
_QUEUE = 15.0
#: Seconds before a notice that did not arrive is sent again; twice as long each time, up to the longest.
_SHORTEST, _LONGEST = 5.0, 300.0
#: Most notices that wait for one target; beyond it the oldest are dropped.
MOST = 200
#: Events of a batch after which there may be something to report.
_TELLING = frozenset(("check", "checked", "paused", "resumed", "halted", "complete"))

#: Delivers a notice to a target, or raises; blocks.
Send = Callable[[Mapping[str, Any]], None]


@dataclass
class Target:
    """
    A receiver of notices.

    :param worker: the thread in which ``send`` is called.
    :param waiting: the notices that it has not got yet, oldest first.
    :param delivered: when it last got a notice, in Unix time; None if it never has.
    """

    send: Send
    worker: Worker
    waiting: list[dict[str, Any]] = field(default_factory=list)
    delivered: float | None = None
    sent: int = 0
    failures: int = 0
    dropped: int = 0
    trouble: str | None = None
    pause: float = _SHORTEST
    #: Whether a delivery is under way, or waits for its next attempt.
    busy: bool = False


@dataclass(frozen=True)
class Ports:
    """
    What the engine works with. It closes them.

    :param wall: returns Unix time.
    :param steady: returns seconds that only ever rise.
    :param jids: returns the jids of all batches; blocks.
    :param look: returns how a batch stands, or None if that cannot be read; blocks.
    :param given_up: returns the owed jobs that were given up, by jid; blocks, and raises if that cannot be read.
    :param silent: returns for how many seconds each engine has not answered, 0 if it has.
    """

    loop: Any
    wall: Callable[[], float]
    steady: Callable[[], float]
    bus: Bus
    inbox: Inbox
    disk: Worker
    store: NoticesStore
    jids: Callable[[], list[str]]
    look: Callable[[str], Seen | None]
    given_up: Callable[[], Mapping[str, GivenUp]]
    silent: Callable[[], Mapping[str, float]]
    targets: Mapping[str, Target] = field(default_factory=dict)


class NoticesShell:
    """
    The job_notices engine's work; an engine.process.App and a bus.Listener.

    :param ledger: the ledger, as it was kept.
    :param keep: seconds after which a notice is given up.
    :param shortest: seconds before the second attempt.
    """

    def __init__(self, ports: Ports, ledger: Ledger, keep: float, shortest: float = _SHORTEST) -> None:
        self._ports, self._ledger, self._keep, self._shortest = ports, ledger, keep, shortest
        self.history = History()
        verbs = {"stats": lambda request: self._stats(), "test": self._test}
        self.service = Service(ports.loop, ports.inbox, verbs)
        self._wake = events.wake_tag(JOB_NOTICES)
        self._quiet = Quiet(log)
        self._looked = 0.0
        self._is_wanted = False
        self._looked_at_queue = -math.inf
        self._is_queue_wanted = False
        self._is_unsaved = False
        self._touched: set[tuple[str, str]] = (
            set()
        )  # target and id of the notices that have changed since the last write

    def start(self) -> None:
        # once the bus is heard, the engine looks for what happened before
        self._ports.bus.listen(self, self.on_gap)
        self._want_queue()
        self._tick()
        self._kick()

    def take_requests(self) -> None:
        """Carry out what runners have asked for."""
        self.service.take()

    def metrics(self) -> Figures:
        """Return the engine's figures."""
        targets = self._ports.targets.items()
        return {
            "notices_waiting": {name: len(target.waiting) for name, target in targets},
            "notices_sent_total": {name: target.sent for name, target in targets},
            "notices_failures_total": {name: target.failures for name, target in targets},
            "notices_dropped_total": {name: target.dropped for name, target in targets},
            **of_bus(JOB_NOTICES, self._ports.bus),
        }

    def close(self) -> None:
        """End. Notices that have not arrived are on the disk."""
        self._ports.bus.close()
        for worker in (self._ports.disk, *(target.worker for target in self._ports.targets.values())):
            worker.close()

    # -- the bus ------------------------------------------------------------------------------------------------------

    def wants(self, tag: str) -> bool:
        return tag == self._wake or _is_of_queue(tag) or (tag.startswith("salt/batch/") and _kind(tag) in _TELLING)

    def handle(self, tag: str, data: Any) -> None:
        if tag == self._wake:
            self.service.take()
        elif _is_of_queue(tag):
            self._want_queue()
        else:
            self._want_batches()

    def on_gap(self) -> None:
        """Look at everything soon."""
        self._want_batches()
        self._want_queue()

    def _want_batches(self) -> None:
        """Look at the batches soon, once for all events until then."""
        if not self._is_wanted:
            self._is_wanted = True
            self._ports.loop.call_later(_SOON, self._ports.loop.spawn_callback, self._look)

    def _want_queue(self) -> None:
        """Look at the retry queue soon, but only ``_QUEUE`` seconds after the last look, however many events there are."""
        if not self._is_queue_wanted:
            self._is_queue_wanted = True
            wait = max(_SOON, self._looked_at_queue + _QUEUE - self._ports.steady())
            self._ports.loop.call_later(wait, self._ports.loop.spawn_callback, self._look_at_queue)

    # -- looking ------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._ports.loop.call_later(_TICK, self._tick)
        now = self._ports.wall()
        self.service.sweep(now)
        self.service.take()
        changed = [self._ledger.take_engine(name, silent, now) for name, silent in self._ports.silent().items()]
        if any(changed) or self._is_unsaved:
            self._ports.loop.spawn_callback(self._tell)
        if not 0 <= now - self._looked < _ANYWAY:  # the clock may have been set back
            self.on_gap()

    async def _look(self) -> None:
        self._is_wanted, self._looked = False, self._ports.wall()
        try:
            jids = await self._ports.disk.call(self._ports.jids)
            seen = await self._ports.disk.call(self._read, self._ledger.to_read(jids))
        except Exception as exc:
            self._quiet.error(
                "look", "The state of batches cannot be read, so no notices are sent about them", exc_info=exc
            )
            return
        if self._ledger.take_batches(seen, jids, self._ports.wall()):
            await self._tell()

    async def _look_at_queue(self) -> None:
        self._is_queue_wanted, self._looked_at_queue = False, self._ports.steady()
        try:
            found = await self._ports.disk.call(self._ports.given_up)
        except Exception as exc:
            self._quiet.error("queue", "The retry queue cannot be read, so no notices are sent about it: %s", exc)
            return
        if self._ledger.take_given_up(found, self._ports.wall()):
            await self._tell()

    def _read(self, jids: list[str]) -> dict[str, Seen]:
        return {jid: seen for jid in jids if (seen := self._ports.look(jid)) is not None}

    async def _tell(self) -> None:
        """Keep what was written, and send it."""
        for notice in self._ledger.written():
            for name, target in self._ports.targets.items():
                # tests must not push out a real notice, however many there are
                if notice["kind"] != TEST or not any(one["kind"] == TEST for one in target.waiting):
                    target.waiting.append(notice)
                    self._touched.add((name, notice["id"]))
                if len(target.waiting) > MOST:
                    self._quiet.error(
                        f"dropped {name}", "%d notices wait for %s, so older ones were dropped", MOST, name
                    )
                    self._forget(name, target, target.waiting[0])
                    target.dropped += 1
        await self._save()
        self._kick()

    def _forget(self, name: str, target: Target, notice: Mapping[str, Any]) -> None:
        """A notice does not wait for a target any more."""
        target.waiting = [one for one in target.waiting if one["id"] != notice["id"]]
        self._touched.add((name, notice["id"]))

    async def _save(self) -> None:
        self._is_unsaved = True
        touched, self._touched = self._touched, set()
        waiting = {(name, one["id"]): one for name, target in self._ports.targets.items() for one in target.waiting}
        delivered = {name: target.delivered for name, target in self._ports.targets.items()}
        record = {**self._ledger.record(), "delivered": delivered}
        try:
            await self._ports.disk.call(self._ports.store.write, record, {key: waiting.get(key) for key in touched})
            self._is_unsaved = False
        except OSError as exc:
            self._touched |= touched
            self._quiet.error("save", "Sent notices cannot be recorded, so some may come again: %s", exc)

    # -- telling ------------------------------------------------------------------------------------------------------

    def _kick(self) -> None:
        for name, target in self._ports.targets.items():
            if not target.busy and target.waiting:
                target.busy = True
                self._ports.loop.spawn_callback(self._deliver, name, target)

    async def _deliver(self, name: str, target: Target) -> None:
        """Send the waiting notices of a target, oldest first, until all have arrived or one fails."""
        while target.waiting:
            notice = target.waiting[0]
            if self._ports.wall() - notice["time"] > self._keep:
                log.error("A notice for %s is given up: %s", name, notice["text"])
                target.dropped += 1
            else:
                try:
                    await target.worker.call(target.send, notice)
                except Exception as exc:
                    self._put_off(name, target, exc)
                    return
                target.sent, target.trouble, target.pause = target.sent + 1, None, self._shortest
                target.delivered = self._ports.wall()
            self._forget(name, target, notice)
            await self._save()
        target.busy = False

    def _put_off(self, name: str, target: Target, exc: Exception) -> None:
        target.failures, target.trouble = target.failures + 1, str(exc) or type(exc).__name__
        self._quiet.warning(name, "A notice has not arrived at %s and is sent again: %s", name, target.trouble)
        self._ports.loop.call_later(target.pause, self._again, name, target)
        target.pause = min(2 * target.pause, _LONGEST)

    def _again(self, name: str, target: Target) -> None:
        self._ports.loop.spawn_callback(self._deliver, name, target)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _stats(self) -> dict[str, Any]:
        return {
            name: {
                "sent": target.sent,
                "waiting": len(target.waiting),
                "failures": target.failures,
                "dropped": target.dropped,
                "delivered": target.delivered,
                "trouble": target.trouble,
            }
            for name, target in self._ports.targets.items()
        }

    async def _test(self, request: Mapping[str, Any]) -> list[str]:
        self._ledger.take_test(self._ports.wall())
        await self._tell()
        return list(self._ports.targets)


def _kind(tag: str) -> str:
    return tag.rpartition("/")[2]


def _is_of_queue(tag: str) -> bool:
    return tag.startswith("salt/job_retry/") and _kind(tag) == "dead"
