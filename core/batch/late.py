"""
Returns of batches that have ended: they correct the record of a minion that was given up before it returned.

It must never bring an ended batch back to life: only what is recorded of a minion changes. Returns that were heard are
gathered, looked for in the job cache and written down in other threads, so that they cost the loop next to nothing however
many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from saltext.jobs.core import lines
from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.ports import Ports
from saltext.jobs.core.errors import JobCacheError, LaterVersion, StateError
from saltext.jobs.core.master.hearsay import MOST

log = lines.logger(__name__)

#: Seconds for which returns are gathered.
GATHER = 1.0
#: Looks into the job cache for a return that was heard, one after each such time, before the event counts as forged.
LOOKS = 5
#: Batches and minions of which it is remembered at the most whose return would change anything.
_REMEMBERED, _MINIONS = 100, 200_000


class LateReturns:
    """
    :param ports: what is worked with.
    :param gather: seconds for which returns are gathered.
    :param most_batches: for how many batches it is remembered whose return would change anything …
    :param most_minions: … and of how many minions together.
    """

    def __init__(
        self, ports: Ports, gather: float = GATHER, most_batches: int = _REMEMBERED, most_minions: int = _MINIONS
    ) -> None:
        self._ports, self._gather_time = ports, gather
        self._most_batches, self._most_minions = most_batches, most_minions
        self._gathered: dict[str, dict[str, tuple[int, int]]] = {}  # by jid and minion: retcode, looks in vain
        self._timer: Any = None
        self._closed = False
        #: ``{jid: minions}`` whose returns would change anything; used in the job cache's thread only.
        self._open: dict[str, set[str]] = {}

    def take(self, jid: str, minion: str, retcode: int) -> None:
        """Take a return of an ended batch that the bus tells of."""
        self._gather(jid, minion, retcode, 0)

    def expect(self, jid: str, minions: Iterable[str]) -> None:
        """Take returns that were heard while the batch ran, and that the job cache did not have by its end."""
        for minion in minions:
            self._gather(jid, minion, 1, 0)

    def _gather(self, jid: str, minion: str, retcode: int, looks: int) -> None:
        self._gathered.setdefault(jid, {}).setdefault(minion, (retcode, looks))
        if self._timer is None and not self._closed:
            self._timer = self._ports.loop.call_later(self._gather_time, self._write_down)

    async def catch_up(self, jids: Iterable[str]) -> None:
        """Look for returns of ended batches that came while no engine was there to see them."""
        for jid in jids:
            try:
                found = await self._ports.cache_worker.call(self._look_up, jid)
            except (StateError, JobCacheError, OSError) as exc:
                log.debug("Batch %s is not looked at again: %s", jid, exc)
                continue
            if found:
                await self._correct(jid, found)

    def close(self) -> None:
        """Gather no more. What is not written down is in the job cache, and found at the next start."""
        self._closed = True
        if self._timer is not None:
            self._ports.loop.remove_timeout(self._timer)
            self._timer = None

    def _write_down(self) -> None:
        self._timer = None
        gathered, self._gathered = self._gathered, {}
        for jid, heard in gathered.items():
            self._ports.loop.spawn_callback(self._prove, jid, heard)

    async def _correct(self, jid: str, found: Mapping[str, int]) -> None:
        """Write down returns that the job cache has."""
        try:
            late = await self._ports.cache_worker.call(self._choose, jid, found)
            if late:
                now = self._ports.clock.now()
                records = [facts.record_of(facts.Returned(minion, retcode), now) for minion, retcode in late.items()]
                await self._ports.disk_worker.call(self._ports.store.append_to_ended, jid, records)
        except (StateError, OSError) as exc:
            log.error("Late returns of batch %s are in the job cache only: %s", jid, exc)

    async def _prove(self, jid: str, heard: Mapping[str, tuple[int, int]]) -> None:
        """Write down the returns that the job cache has of those that were heard, and look for the others again."""
        try:
            found, missing = await self._ports.cache_worker.call(self._look_for, jid, heard)
        except (StateError, JobCacheError, OSError) as exc:
            log.error("Late returns of batch %s are looked for at the next start: %s", jid, exc)
            return
        if found:
            await self._correct(jid, found)
        for minion in missing:
            retcode, looks = heard[minion]
            if looks + 1 < LOOKS:
                self._gather(jid, minion, retcode, looks + 1)

    # -- in the job cache's thread -------------------------------------------------------------------------------------

    def _look_up(self, jid: str) -> dict[str, int]:
        waiting = sorted(self._waiting(jid))
        return self._ports.cache.returned(jid, waiting) if waiting else {}

    def _look_for(self, jid: str, heard: Mapping[str, tuple[int, int]]) -> tuple[dict[str, int], list[str]]:
        """Of the returns that were heard, return those that count, and the minions whose return is not there yet."""
        wanted = [minion for minion in heard if minion in self._waiting(jid)]
        if self._ports.cache.unproven:
            return {minion: heard[minion][0] for minion in wanted}, []
        found: dict[str, int] = {}
        for first in range(0, len(wanted), MOST):
            found.update(self._ports.cache.returned(jid, wanted[first : first + MOST]))
        return found, [minion for minion in wanted if minion not in found]

    def _choose(self, jid: str, found: Mapping[str, int]) -> dict[str, int]:
        """Of the returns that were found, return those that change the record. Each does so once."""
        waiting = self._waiting(jid)
        late = {minion: retcode for minion, retcode in found.items() if minion in waiting}
        waiting.difference_update(late)
        return late

    def _waiting(self, jid: str) -> set[str]:
        """Return the minions whose returns would change anything."""
        if jid not in self._open:
            batch = self._read(jid)
            minions = batch.spec.minions if batch is not None else ()
            self._open[jid] = {minion for minion in minions if batch is not None and batch.wants_return(minion)}
            while len(self._open) > 1 and self._are_too_many():
                del self._open[next(iter(self._open))]
        return self._open[jid]

    def _read(self, jid: str) -> Batch | None:
        try:
            return self._ports.store.read(jid)
        except LaterVersion as exc:
            log.debug("Late returns are in the job cache only: %s", exc)
            return None

    def _are_too_many(self) -> bool:
        return len(self._open) > self._most_batches or sum(map(len, self._open.values())) > self._most_minions
