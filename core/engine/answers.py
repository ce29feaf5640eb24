"""
Answers to questions, read from the job cache. Any accepted minion can forge an event. A return is stored under the name
of the minion whose key it came with.

That is so only if ``JobCache.why_unauthenticated`` is empty; otherwise the events are believed. The job cache is used in its
Worker.
"""

from __future__ import annotations

from collections.abc import Mapping

from saltext.jobs.core import lines
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.errors import JobCacheError
from saltext.jobs.core.master.asking import Answer
from saltext.jobs.core.master.job_cache import JobCache

log = lines.logger(__name__)


class KeptAnswers:
    """
    A ``Kept`` of questions.

    :param cache: the job cache.
    :param worker: the thread in which it is used.
    """

    def __init__(self, cache: JobCache, worker: Worker) -> None:
        self._cache, self._worker = cache, worker

    async def read(self, jid: str, minions: frozenset[str]) -> Mapping[str, Answer]:
        """Return ``{minion: (answer, retcode)}`` for those that have answered. :raises JobCacheError: if that fails."""
        found: Mapping[str, Answer] = await self._worker.call(self._cache.answers, jid, minions)
        return found

    async def answered(self, jid: str, minions: frozenset[str]) -> frozenset[str]:
        """Return the minions that have answered, whatever the answer. :raises JobCacheError: if that fails."""
        return await self._worker.call(self._cache.have_returned, jid, minions)

    async def forget(self, jid: str) -> None:
        """Remove a question that is over, so that it is not listed among the jobs."""
        try:
            await self._worker.call(self._cache.forget, jid)
        except JobCacheError as exc:
            log.debug("The question %s stays in the job cache until that expires: %s", jid, exc)
