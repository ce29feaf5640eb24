"""
Returns for ended batches: they correct the record of a minion that was given up before it returned.

It must never bring an ended batch back to life: only the record of a minion changes. Returns are gathered, and written in
other threads, so that even many of them hardly cost the loop anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from saltext.jobs.core import lines
from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.ports import Ports
from saltext.jobs.core.errors import JobCacheError, StateError
from saltext.jobs.core.master.events import function_of
from saltext.jobs.core.master.hearsay import MOST

log = lines.logger(__name__)

#: Seconds for which returns are gathered.
GATHER = 1.0
#: Limits of the missing returns in memory: how many batches, and how many minions of all these batches together.
_REMEMBERED, _MINIONS = 100, 200_000


#: Returns, ``{(minion, functions): retcode}``. ``functions``: as the return names them; None if they are known to be
#: the job's.
Found = dict[tuple[str, str | None], int]


class _Waiting(NamedTuple):
    """The functions of a batch, and the minions whose returns would change anything."""

    functions: str
    minions: set[str]


class LateReturns:
    """
    :param ports: the ports to the world.
    :param gather: seconds for which returns are gathered.
    :param most_batches: most batches whose missing returns are kept in memory.
    :param most_minions: most minions of these batches together.
    """

    def __init__(
        self, ports: Ports, gather: float = GATHER, most_batches: int = _REMEMBERED, most_minions: int = _MINIONS
    ) -> None:
        self._ports, self._gather_time = ports, gather
        self._most_batches, self._most_minions = most_batches, most_minions
        self._gathered: dict[str, Found] = {}  # by jid
        self._to_look_up: dict[str, None] = {}  # jids
        self._timer: Any = None
        self._closed = False
        self._awaited: dict[str, _Waiting] = {}  # by jid; used in the job cache's thread only

    def take(self, jid: str, minion: str, retcode: int, functions: str | None = None) -> None:
        """
        Take a proven return for an ended batch.

        :param functions: as the return names them; it counts only if they are the job's. None if they are known to be.
        """
        self._gathered.setdefault(jid, {}).setdefault((minion, functions), retcode)
        self._plan()

    def look_up(self, jids: Iterable[str]) -> None:
        """Soon look in the job cache for all returns that would change the records of ended batches."""
        self._to_look_up.update(dict.fromkeys(jids))
        self._plan()

    def _plan(self) -> None:
        if self._timer is None and not self._closed:
            self._timer = self._ports.loop.call_later(self._gather_time, self._write_down)

    async def _look(self, jids: Iterable[str]) -> None:
        for jid in jids:
            try:
                found = await self._ports.cache_worker.call(self._look_up, jid)
            except (StateError, JobCacheError, OSError) as exc:
                log.debug("Late returns of batch %s are not looked for: %s", jid, exc)
                continue
            if found:
                await self._correct(jid, {(minion, None): retcode for minion, retcode in found.items()})

    def close(self) -> None:
        """Gather no more. Returns that are not written yet are in the job cache, where the next start finds them."""
        self._closed = True
        if self._timer is not None:
            self._ports.loop.remove_timeout(self._timer)
            self._timer = None

    def _write_down(self) -> None:
        self._timer = None
        gathered, self._gathered = self._gathered, {}
        for jid, found in gathered.items():
            self._ports.loop.spawn_callback(self._correct, jid, found)
        if self._to_look_up:
            jids, self._to_look_up = self._to_look_up, {}
            self._ports.loop.spawn_callback(self._look, jids)

    async def _correct(self, jid: str, found: Found) -> None:
        """Write proven returns into the journal of an ended batch."""
        try:
            late = await self._ports.cache_worker.call(self._choose, jid, found)
            if late:
                now = self._ports.clock.now()
                records = [facts.record_of(facts.Returned(minion, retcode), now) for minion, retcode in late.items()]
                await self._ports.disk_worker.call(self._ports.store.append_to_ended, jid, records)
        except (StateError, OSError) as exc:
            log.error("Late returns of batch %s are in the job cache only: %s", jid, exc)

    # -- in the job cache's thread -------------------------------------------------------------------------------------

    def _look_up(self, jid: str) -> dict[str, int]:
        waiting, cache = self._waiting(jid).minions, self._ports.cache
        there = sorted(cache.have_returned(jid, waiting)) if waiting else []
        found: dict[str, int] = {}
        for first in range(0, len(there), MOST):
            found.update(cache.returned(jid, there[first : first + MOST]))
        return found

    def _choose(self, jid: str, found: Found) -> dict[str, int]:
        """Return the found returns that change the record. Each changes it once."""
        functions, waiting = self._waiting(jid)
        late = {
            minion: retcode
            for (minion, named), retcode in found.items()
            if minion in waiting and named in (None, functions)
        }
        waiting.difference_update(late)
        return late

    def _waiting(self, jid: str) -> _Waiting:
        """Return the minions whose returns would change anything, and the job's functions."""
        if jid not in self._awaited:
            batch = self._ports.store.read(jid)
            if batch is None:
                self._awaited[jid] = _Waiting("", set())
            else:
                minions = {minion for minion in batch.spec.minions if batch.wants_return(minion)}
                self._awaited[jid] = _Waiting(function_of({"fun": batch.spec.fun}), minions)
            while len(self._awaited) > 1 and self._are_too_many():
                del self._awaited[next(iter(self._awaited))]
        return self._awaited[jid]

    def _are_too_many(self) -> bool:
        return (
            len(self._awaited) > self._most_batches
            or sum(len(waiting.minions) for waiting in self._awaited.values()) > self._most_minions
        )
