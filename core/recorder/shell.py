"""
The job_recorder engine's parts, put together: the bus, the spool, the returners, the look into the job cache, requests.

Why nothing is lost: whatever is taken in goes to the spool, on the disk, before any returner sees it (at most
``flush_interval`` later), and leaves it when all returners have it. A crash can take what was in memory in that moment, and
what was on the bus while nobody listened; both are in the job cache, and looked for there at every start and whenever the
bus lost events. One spool serves all returners, so that a record is written once however many there are, and a returner
that is down costs disk and no memory.

It must never wait for a returner, and never record to the master's own job cache: what it reads there it would write back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.disk.spool import Spool
from saltext.jobs.core.engine.requests import Inbox, engine_dir
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.master import events
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.master.returner import ReturnerModule
from saltext.jobs.core.recorder.catch_up import CatchUp
from saltext.jobs.core.recorder.consumer import Consumer
from saltext.jobs.core.recorder.files import Seen
from saltext.jobs.core.recorder.intake import Intake, unpacked
from saltext.jobs.core.settings import RecorderSettings

log = logging.getLogger(__name__)

ENGINE = "job_recorder"
#: Seconds between two looks at requests and at the spool's bounds.
_TICK = 1.0


def check(opts: Mapping[str, Any], settings: RecorderSettings) -> None:
    """:raises SettingsError: when these settings make no sense on this master."""
    if not settings.returners:
        raise SettingsError(f"{ENGINE}: returners is not set; accepted is a list of returners, such as ['pgjsonb']")
    for choice in settings.returners:
        if choice.label in (opts.get("master_job_cache"), opts.get("ext_job_cache")):
            raise SettingsError(
                f"{ENGINE}: returners has {choice.label!r}, which is this master's job cache and has everything already"
            )


class Recorder:
    """
    :param opts: the master's options.
    :param settings: the engine's options.
    :param loop: the engine's tornado loop.
    """

    def __init__(self, opts: dict[str, Any], settings: RecorderSettings, loop: Any) -> None:
        self._settings, self._loop = settings, loop
        folder = engine_dir(opts, ENGINE)
        self._disk = Worker(loop)
        self._spool = Spool(folder / "spool", settings.spool_max_bytes)
        self._seen = Seen(folder / "seen", settings.catch_up)
        job_cache = opts.get("ext_job_cache") or opts.get("master_job_cache", "local_cache")
        self._intake = Intake(
            settings, self._spool, self._seen, ReturnerModule(opts, job_cache), self._disk, self._kick, self._look_back
        )
        self._catch_up = CatchUp(
            loop, self._intake, self._seen, self._disk, ReturnerModule(opts, job_cache), settings.catch_up
        )
        self._consumers = {
            choice.label: Consumer(
                loop,
                choice.label,
                ReturnerModule(opts, choice.returner, choice.ret_config),
                self._spool,
                folder / "returners" / choice.label,
                settings,
            )
            for choice in settings.returners
        }
        self._bus = Bus(opts, loop, ENGINE, self._want, self._handle, self._look_back)
        self._inbox = Inbox(opts, ENGINE)
        self._wake = events.wake_tag(ENGINE)
        self._serving = False

    def start(self) -> None:
        self._bus.start()
        self._loop.spawn_callback(self._begin)

    def close(self) -> None:
        self._bus.close()
        self._catch_up.close()
        for consumer in self._consumers.values():
            consumer.close()
        self._disk.close()
        self._spool.close()
        self._seen.close()

    async def _begin(self) -> None:
        # First of all, since it decides what is a duplicate; the bus waits in its buffers meanwhile.
        self._intake.known = await self._disk.call(self._intake.what_was_recorded)
        for consumer in self._consumers.values():
            self._loop.spawn_callback(consumer.run)
        self._look_back()
        self._flush()
        self._tick()

    # -- the bus ------------------------------------------------------------------------------------------------------

    def _want(self, tag: str) -> bool:
        return tag.startswith(events.JOB) or tag == self._wake

    def _handle(self, tag: str, data: Any) -> None:
        if tag == self._wake:
            self._loop.spawn_callback(self._serve)
            return
        fact = events.fact_of(tag, data)
        if isinstance(fact, events.JobReturned):
            if self._intake.wants(data.get("fun")):
                self._intake.accept(fact.jid, fact.minion, data)
        elif isinstance(fact, events.JobPublished) and self._intake.wants(data.get("fun")):
            self._intake.announce(fact.jid, data)
        if self._intake.is_full:
            self._loop.spawn_callback(self._intake.flush)

    def _look_back(self) -> None:
        self._catch_up.begin()

    def _kick(self) -> None:
        for consumer in self._consumers.values():
            consumer.kick()

    # -- timers -------------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        self._loop.spawn_callback(self._intake.flush)
        self._loop.call_later(self._settings.flush_interval, self._flush)

    def _tick(self) -> None:
        self._loop.spawn_callback(self._keep_house)
        self._loop.call_later(_TICK, self._tick)

    async def _keep_house(self) -> None:
        now = time.time()
        for consumer in self._consumers.values():
            consumer.tell_drops(now)
        await self._disk.call(self._spool.trim, min(consumer.base for consumer in self._consumers.values()))
        self._inbox.sweep(now)
        await self._serve()

    # -- requests -----------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        if self._serving:
            return
        self._serving = True
        try:
            for request_id, request in self._inbox.take():
                await self._answer(request_id, request)
        except Exception:
            log.exception("A request to the recorder failed")
        finally:
            self._serving = False

    async def _answer(self, request_id: str, request: Mapping[str, Any]) -> None:
        actions = {"stats": self._stats, "set_aside": self._set_aside, "redeliver": self._redeliver}
        chosen = request.get("returner")
        if request.get("action") not in actions:
            self._inbox.refuse(request_id, f"{ENGINE} knows no request {request.get('action')!r}")
        elif chosen is not None and chosen not in self._consumers:
            known = ", ".join(sorted(self._consumers))
            self._inbox.refuse(request_id, f"{chosen!r} is not recorded to; accepted are {known}")
        else:
            consumers = [self._consumers[chosen]] if chosen else list(self._consumers.values())
            self._inbox.answer(request_id, await actions[request["action"]](consumers, request))

    async def _stats(self, consumers: list[Consumer], request: Mapping[str, Any]) -> dict[str, Any]:
        now = time.time()
        return {
            "recorded": self._intake.accepted,
            "unwritten": self._intake.waiting,
            "found_in_job_cache": self._catch_up.found,
            "spool_bytes": self._spool.size,
            "returners": {consumer.name: consumer.stats(now) for consumer in consumers},
        }

    async def _set_aside(self, consumers: list[Consumer], request: Mapping[str, Any]) -> dict[str, Any]:
        shown: dict[str, list[dict[str, Any]]] = {}
        for consumer in consumers:
            entries = await consumer.set_aside()
            shown[consumer.name] = [_summary(name, entry) for name, entry in entries[-int(request["limit"]) :]]
        return shown

    async def _redeliver(self, consumers: list[Consumer], request: Mapping[str, Any]) -> dict[str, int]:
        """Put what was set aside into the spool again, for the returner that refused it."""
        wanted = frozenset(request.get("names") or ())
        counts: dict[str, int] = {}
        for consumer in consumers:
            entries = [(name, entry) for name, entry in await consumer.set_aside() if not wanted or name in wanted]
            # Into the spool first: a crash between the two makes a record come twice, and not never.
            await self._intake.put_back([entry["payload"] for _, entry in entries], consumer.name)
            await consumer.forget_aside(name for name, _ in entries)
            counts[consumer.name] = len(entries)
        return counts


def _summary(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is shown of a record that was set aside: who and why, but not its payload."""
    shown = {key: entry.get(key) for key in ("reason", "tries", "time")}
    try:
        record = unpacked(entry["payload"])
    except Exception as exc:  # Salt and msgpack raise many kinds for what is no record.
        return {"name": name, "kind": f"unreadable: {exc}", **shown}
    return {"name": name, "kind": record.kind, "jid": record.jid, "minion": record.minion, **shown}
