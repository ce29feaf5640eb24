"""
Who has returned a job: the log tells; the job cache is read only for a job that the log does not reach back to, or since
which it may lack something. It blocks: it is used in a Worker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from saltext.jobs.core.errors import JobCacheError
from saltext.jobs.core.ledger import log
from saltext.jobs.core.ledger.records import JOB_CACHE, Published
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.master.job_cache import OURS, JobCache


def is_fed(opts: Mapping[str, Any]) -> bool:
    """Tell whether the master's workers do not write all returns to the log; then the batch engine does."""
    return bool(opts.get("master_job_cache") != OURS or opts.get("ext_job_cache") or not opts.get("job_cache", True))


class Returns:
    """``tables`` have the log. ``is_fed``: it may lack returns at any time."""

    def __init__(self, tables: Tables, cache: JobCache, is_fed: bool = False) -> None:
        self._tables, self._cache, self._is_fed = tables, cache, is_fed

    def of(self, jid: str, minions: Collection[str]) -> dict[str, int]:
        """Return ``{minion: retcode}`` of those that have returned. :raises JobCacheError: if that cannot be told."""
        wanted = list(dict.fromkeys(minions))
        try:
            found = {minion: record.retcode for minion, record in log.returns(self._tables, jid, wanted).items()}
            rest = [minion for minion in wanted if minion not in found]
            if not rest or (not self._is_fed and log.is_whole(self._tables, jid)):
                return found
        except OSError as exc:
            raise JobCacheError(f"The log cannot be read: {exc}") from exc
        return {**self._cache.returned(jid, rest), **found}

    def times(self, jid: str, minions: Collection[str]) -> dict[str, float]:
        """Return ``{minion: Unix time}`` of the returns of a job, as far as the log tells."""
        try:
            return {minion: record.at for minion, record in log.returns(self._tables, jid, minions).items()}
        except OSError:
            return {}

    def publishes(self, jid: str) -> list[Published]:
        """Return the publishes of a job, the first one first. :raises JobCacheError: as ``of``."""
        try:
            found = log.publishes(self._tables, jid)
            if log.is_whole(self._tables, jid):
                return found
        except OSError as exc:
            raise JobCacheError(f"The log cannot be read: {exc}") from exc
        return [*self._cache.publishes(jid), *found]

    def untold(self, since: float) -> list[Published]:
        """Return the publishes since a Unix time of jobs of which the log tells none, the oldest first. Raises as ``of``."""
        found = [self.publishes(jid) for jid in self._cache.published_since(since)]
        lacking = [rows for rows in found if all(row.origin == JOB_CACHE for row in rows)]
        return sorted((row for rows in lacking for row in rows if row.at >= since), key=lambda row: row.at)
