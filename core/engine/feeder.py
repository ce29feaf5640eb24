"""
Writes the log for batches on a master whose job cache is another than ours: nothing else of the engines knows of that.

Returns and answers are heard on the bus, where any accepted minion can forge them. So each is looked for in the job cache,
together with the others of that time, and gets its record once the job cache has it. If returns in the job cache are no
better evidence than events (``why_unproven``), the event of a return counts as it is.

It must never tell of a return that nothing proves, and must tell of a gap when the bus may have lost events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from saltext.jobs.core import compat, lines
from saltext.jobs.core.engine.loop import Worker
from saltext.jobs.core.errors import JobCacheError
from saltext.jobs.core.ledger.log import Writer
from saltext.jobs.core.ledger.records import Returned, return_of
from saltext.jobs.core.lines import Quiet
from saltext.jobs.core.master import events
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.master.job_cache import OURS, JobCache

log = lines.logger(__name__)

#: Seconds after which the job cache should have a return: the master fires the event before it stores the return. Then
#: seconds before each further look; after the last one the event counts as forged.
AGAIN = (0.03, 0.1, 0.15, 0.5, 1.0, 3.0)
#: Seconds between two looks: PAUSE, or SPARING times as long as the last one took if that is more; LONGEST_PAUSE at most.
PAUSE, SPARING, LONGEST_PAUSE = 0.03, 4.0, 5.0
#: Most returns of a job in one look, and most that are waited for.
MOST, MOST_WAITING = 200, 100_000
#: Job caches that give back the return of one minion alone, as it was stored.
EXACT = frozenset((OURS, "local_cache"))


def why_unproven(opts: Mapping[str, Any]) -> str:
    """
    Return why stored returns are no better evidence than events, which anyone can fire; empty if they are: if only the
    master writes them (``salt.utils.job.store_job``), from authenticated minions or a syndic. The job cache must also be
    able to read the return of one minion alone; others read all returns of the job each time.
    """
    name = opts.get("master_job_cache", "local_cache")
    if opts.get("ext_job_cache"):
        return f"ext_job_cache is {opts['ext_job_cache']!r}: minions write to it themselves"
    if not opts.get("job_cache", True):
        return "job_cache is False: no return is stored"
    if name not in EXACT:
        return f"master_job_cache is {name!r}, which cannot give the return of one minion alone"
    if opts.get("cluster_id") and not opts.get("saltext_jobs_site"):
        return "cluster_id is set, and the masters of a cluster store the returns that each other's events report"
    return ""


class Feeder:
    """
    A Listener of the bus. ``cache`` and ``writer`` are used in ``worker`` only. ``functions_of`` returns the functions of a
    job, with commas, if a return by a minion changes anything; ``asks`` tells whether returns of a job are answers to an
    open question. ``wake`` has the log read. ``unproven``: why events count as they are; empty if they do not.
    """

    def __init__(
        self,
        loop: Any,
        bus: Bus,
        cache: JobCache,
        worker: Worker,
        writer: Writer,
        functions_of: Callable[[str, str], str | None],
        wake: Callable[[], object],
        asks: Callable[[str], bool],
        unproven: str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop, self._cache, self._worker, self._writer, self._now = loop, cache, worker, writer, now
        self._functions_of, self._wake, self._asks, self._believes = functions_of, wake, asks, bool(unproven)
        # (jid, minion): how many looks, and when the next is due
        self._heard: dict[tuple[str, str], tuple[int, float]] = {}
        self._is_looking = False
        self._quiet = Quiet(log)
        if unproven:
            log.warning("Returns and answers on the bus are believed, forged ones too: %s", unproven)
        bus.listeners.append(self)

    def wants(self, tag: str) -> bool:
        parts = events.parts_of_job(tag)
        return parts is not None and parts[1] == "ret" and self._waits_for(parts[0], parts[2])

    def _waits_for(self, jid: str, minion: str) -> bool:
        return self._functions_of(jid, minion) is not None or self._asks(jid)

    def handle(self, tag: str, data: Any) -> None:
        fact = events.fact_of(tag, data)
        if isinstance(fact, events.JobReturned):
            asked = self._asks(fact.jid)
            if self._believes:
                if asked or fact.fun == self._functions_of(fact.jid, fact.minion):
                    record = return_of(fact.jid, fact.minion, data, asked)
                    self._loop.spawn_callback(self._write, self._writer.append, record)
            elif len(self._heard) < MOST_WAITING:
                self._heard.setdefault((fact.jid, fact.minion), (0, self._now() + AGAIN[0]))
                if not self._is_looking:
                    self._is_looking = True
                    self._loop.spawn_callback(self._look)

    def on_gap(self) -> None:
        """Events may have been lost: note a gap in the log."""
        self._loop.spawn_callback(self._write, self._writer.leave_gap)

    async def _write(self, work: Callable[..., object], *args: Any) -> None:
        await self._worker.call(work, *args)
        self._wake()

    # -- the job cache ------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        pause = AGAIN[0]
        try:
            while self._heard:
                await compat.sleep(pause)
                began, due = self._now(), dict[str, list[str]]()
                for (jid, minion), (_, at) in list(self._heard.items()):
                    if not self._waits_for(jid, minion):
                        del self._heard[jid, minion]
                    elif at <= began and len(due.setdefault(jid, [])) < MOST:
                        due[jid].append(minion)
                for jid, minions in due.items():
                    await self._look_for(jid, minions)
                pause = min(max(PAUSE, SPARING * (self._now() - began)), LONGEST_PAUSE)
        finally:
            self._is_looking = False

    async def _look_for(self, jid: str, minions: list[str]) -> None:
        try:
            found = await self._worker.call(lambda: dict(self._cache.each_return(jid, minions)))
        except Exception as exc:
            told = None if isinstance(exc, JobCacheError) else exc
            self._quiet.error(jid, "Job %s: what the bus tells waits for the job cache: %s", jid, exc, exc_info=told)
            for minion in minions:
                self._heard[jid, minion] = 0, self._now() + LONGEST_PAUSE
            return
        doubted = []
        for minion in minions:
            looks = self._heard.pop((jid, minion), (0, 0.0))[0] + 1
            if found.get(minion):
                continue
            if looks < len(AGAIN):
                self._heard[jid, minion] = looks, self._now() + AGAIN[looks]
            else:
                doubted.append(minion)
        if doubted:
            shown = ", ".join(doubted[:5]) + (" …" if len(doubted) > 5 else "")
            self._quiet.warning(
                jid, "Job %s: what the bus tells is not in the job cache and does not count: %s", jid, shown
            )
        if records := [self._record_of(jid, minion, data) for minion, data in found.items() if data]:
            await self._write(lambda: [self._writer.append(record) for record in records])

    def _record_of(self, jid: str, minion: str, data: Mapping[str, Any]) -> Returned:
        # Salt's job caches keep the return alone, which counts as one of the job's functions.
        fun = self._functions_of(jid, minion) or ""
        return return_of(jid, minion, {**data, "fun": fun}, self._asks(jid))
