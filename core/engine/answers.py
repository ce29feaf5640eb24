"""
Answers to questions, which the job cache keeps. It is used only in its Worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from saltext.jobs.core import lines
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.errors import JobCacheError
from saltext.jobs.core.master.asking import Answer
from saltext.jobs.core.master.job_cache import JobCache

log = lines.logger(__name__)


class Collected:
    """
    Gathers the answers to a question, and hands them on in groups.

    :param pause: seconds for which answers are gathered into one group.
    """

    def __init__(self, loop: Any, pause: float, hand_on: Callable[[dict[str, bool]], object]) -> None:
        self._loop, self._pause, self._hand_on = loop, pause, hand_on
        self._answers: dict[str, bool] = {}
        self._timer: Any = None

    def add(self, minion: str, answer: bool) -> None:
        """Take an answer."""
        self._answers[minion] = answer or self._answers.get(minion, False)  # one of two answers may be forged
        if self._timer is None:
            self._timer = self._loop.call_later(self._pause, self._hand_on_all)

    def rest(self) -> dict[str, bool]:
        """Return the answers that have not been handed on yet."""
        if self._timer is not None:
            self._loop.remove_timeout(self._timer)
            self._timer = None
        answers, self._answers = self._answers, {}
        return answers

    def _hand_on_all(self) -> None:
        self._hand_on(self.rest())


def kept_answers(cache: JobCache, worker: Worker) -> KeptAnswers | None:
    """
    Return the place from which answers are read: any accepted minion can forge an event, but the job cache has each return
    under the authenticated name of its minion. None if it has not; then events are believed.
    """
    return None if cache.why_unauthenticated else KeptAnswers(cache, worker)


class KeptAnswers:
    """
    A ``Place`` for answers to questions.

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
