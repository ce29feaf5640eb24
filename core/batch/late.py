"""
Returns of batches that have ended: they correct the record of a minion that was given up before it returned.

It must never bring an ended batch back to life: only what is recorded of a minion changes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.ports import Ports
from saltext.jobs.core.disk.journal import Journal
from saltext.jobs.core.errors import JobCacheError, StateError

log = logging.getLogger(__name__)


class LateReturns:
    """
    :param ports: what is worked with.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    def correct(self, jid: str, found: Mapping[str, int]) -> None:
        """Take returns of an ended batch: ``{minion: retcode}``."""
        store, now = self._ports.store, self._ports.clock.now()
        path = store.journal_path(jid, ended=True)
        try:
            batch = store.read(jid)
            changed = [minion for minion in found if batch is not None and batch.wants_return(minion)]
            if batch is None or not changed:
                return
            for minion in changed:
                batch.step(facts.Returned(minion, found[minion]), now)
            Journal(path).rewrite(batch.snapshot())
        except (StateError, OSError) as exc:
            log.error("A late return of batch %s is in the job cache only: %s", jid, exc)

    async def catch_up(self, jids: Iterable[str]) -> None:
        """Look for returns of ended batches that came while no engine was there to see them."""
        for jid in jids:
            try:
                batch = await self._ports.cache_worker.call(self._ports.store.read, jid)
                waiting = batch.unsettled() if batch is not None else []
                if not waiting:
                    continue
                found = await self._ports.cache_worker.call(self._ports.cache.returned, jid, waiting)
            except (StateError, JobCacheError, OSError) as exc:
                log.debug("Batch %s is not looked at again: %s", jid, exc)
                continue
            if found:
                self.correct(jid, found)
