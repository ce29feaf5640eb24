"""
What the masters of a site have done, by their log: ``Proof`` reads it on, and ``Returns`` looks into it. An event only makes
the engine read the log sooner: it proves nothing, as any accepted minion can fire one in another's name. With another job
cache ``feeder.py`` writes the log.

It must never conclude from a missing record that there was no return: if the log may lack records, the listener is told, and
the job cache is read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from saltext.jobs.core import compat, lines
from saltext.jobs.core.engine.loop import Alarm, Clock, Worker
from saltext.jobs.core.errors import JobCacheError
from saltext.jobs.core.ledger import log as ledger
from saltext.jobs.core.ledger.log import News, Reader
from saltext.jobs.core.ledger.records import JOB_CACHE, Published, Record
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.lines import Quiet
from saltext.jobs.core.master.job_cache import OURS, JobCache
from saltext.jobs.core.master.questions import Questions

log = lines.logger(__name__)

#: Longest pause in seconds between two looks at the log; and the same while the listener ``is_idle``.
POLL, IDLE = 0.5, 5.0
#: Seconds from an event to the record: the master fires the event before it stores the return.
STORED = 0.03
#: Longest pause in seconds if the log is on a server: the bus does not tell what other masters do.
FAR = 0.25
#: Seconds between two searches of the job cache that gaps in the log cause.
GAP_PAUSE = 5.0


class Listener(Protocol):
    """Is told what the masters do."""

    def logged(self, record: Record) -> None:
        """The log has this record next. A return may be of any job."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing in the log is urgent. Once something is, ``Proof.wake`` must be called."""

    def on_read(self) -> None:
        """The log was read to its end, and all its records have been told."""

    def on_lost(self) -> None:
        """The log may lack records: look in the job cache for what they would have told."""


class Proof:
    """
    ``tail`` reads the log, in a thread if it is far. ``questions`` get answers, before ``listener`` has the record.
    ``poll``: longest pause in seconds between two looks at the log.
    """

    def __init__(
        self, loop: Any, clock: Clock, tail: Reader, questions: Questions, listener: Listener, poll: float = POLL
    ) -> None:
        self._clock, self._tail, self._questions, self._listener, self._poll = clock, tail, questions, listener, poll
        questions.read_on = self.read_on
        self._worker = Worker(loop) if tail.is_far else None
        self._next_read, self._pause = Alarm(loop, clock, lambda: loop.spawn_callback(self._read)), STORED
        self._after_gap, self._searched_at = Alarm(loop, clock, self._search_after_gap), -GAP_PAUSE
        self._is_open = False
        self._quiet = Quiet(log)
        self.position = tail.position  # all records before it have been told; None if that is not known

    def start(self) -> str:
        """Begin where ``tail`` begins. Returns why the caller must look for earlier records; empty if it need not."""
        self._is_open = True
        news = self._look()
        self._take(news)
        return "it cannot be read" if news is None else news.gap

    def close(self) -> None:
        self._is_open = False
        self._next_read.set(None)
        self._after_gap.set(None)
        if self._worker is not None:
            self._worker.close()

    def wake(self) -> None:
        """Read the log soon, since the bus tells of a return. This is called for every return, so it is cheap."""
        due, soon = self._next_read.due, self._clock.now() + STORED
        if due is not None and due > soon:
            self._pause = STORED
            self._next_read.set(soon)

    async def read_on(self) -> None:
        """Read the log to its end, unless it cannot be read now, or is not read at all."""
        while self._is_open and await self._read():
            await compat.sleep(0.0)

    async def _read(self) -> bool:
        """Read a part of the log, and return whether there is more."""
        # Reads at the same time take place one after the other, and are told in this order.
        news = await self._worker.call(self._look) if self._worker is not None else self._look()
        if not self._is_open:
            return False
        self._take(news)
        if news is None or news.gap:
            self._questions.doubt()
        if news is not None and news.gap:
            self._quiet.warning("gap", "The log may lack records, so the job cache is searched: %s", news.gap)
            self._after_gap.set(max(self._clock.now(), self._searched_at + GAP_PAUSE))
        return news is not None and news.more

    def _look(self) -> News | None:
        try:
            return self._tail.read()
        except OSError as exc:
            self._quiet.error("log", "The log of this master cannot be read now, trying again: %s", exc)
            return None

    def _take(self, news: News | None) -> None:
        """Tell what the log has, and say when it is read next."""
        if news is None:
            self._pause = self._poll
            self._next_read.set(self._clock.now() + self._pause)
            return
        longest = FAR if self._tail.is_far else IDLE if self._listener.is_idle else self._poll
        self._pause = STORED if news.records else min(2 * self._pause, longest)
        self._next_read.set(self._clock.now() + (0.0 if news.more else self._pause))
        self.position = news.position or self.position
        for record in news.records:
            try:
                self._questions.logged(record)
                self._listener.logged(record)
            except Exception as exc:
                told = "A record of job %s in the log cannot be processed: %s"
                self._quiet.error(type(exc).__name__, told, record.jid, exc, exc_info=exc)
        if not news.more:
            self._listener.on_read()

    def _search_after_gap(self) -> None:
        self._searched_at = self._clock.now()
        self._listener.on_lost()


# -- who has returned, and what was published -----------------------------------------------------------------------------


def is_fed(opts: Mapping[str, Any]) -> bool:
    """Tell whether the master's workers do not write all returns to the log; then the batch engine does."""
    return bool(opts.get("master_job_cache") != OURS or opts.get("ext_job_cache") or not opts.get("job_cache", True))


class Returns:
    """
    Who has returned a job: the log tells; the job cache is read only for a job that the log does not reach back to, or since
    which it may lack something. ``tables`` have the log. ``is_fed``: it may lack returns at any time. It blocks.
    """

    def __init__(self, tables: Tables, cache: JobCache, is_fed: bool = False) -> None:
        self._tables, self._cache, self._is_fed = tables, cache, is_fed

    def of(self, jid: str, minions: Collection[str]) -> dict[str, int]:
        """Return ``{minion: retcode}`` of those that have returned. :raises JobCacheError: if that cannot be told."""
        wanted = list(dict.fromkeys(minions))
        try:
            found = {minion: record.retcode for minion, record in ledger.returns(self._tables, jid, wanted).items()}
            rest = [minion for minion in wanted if minion not in found]
            if not rest or (not self._is_fed and ledger.is_whole(self._tables, jid)):
                return found
        except OSError as exc:
            raise JobCacheError(f"The log cannot be read: {exc}") from exc
        return {**self._cache.returned(jid, rest), **found}

    def times(self, jid: str, minions: Collection[str]) -> dict[str, float]:
        """Return ``{minion: Unix time}`` of the returns of a job, as far as the log tells."""
        try:
            return {minion: record.at for minion, record in ledger.returns(self._tables, jid, minions).items()}
        except OSError:
            return {}

    def publishes(self, jid: str) -> list[Published]:
        """Return the publishes of a job, the first one first. :raises JobCacheError: as ``of``."""
        try:
            found = ledger.publishes(self._tables, jid)
            if ledger.is_whole(self._tables, jid):
                return found
        except OSError as exc:
            raise JobCacheError(f"The log cannot be read: {exc}") from exc
        return [*self._cache.publishes(jid), *found]

    def untold(self, since: float) -> list[Published]:
        """Return the publishes since a Unix time to minions of which the log tells none, oldest first. Raises as ``of``."""
        found = [self.publishes(jid) for jid in self._cache.published_since(since)]
        told = [{minion for row in rows if row.origin != JOB_CACHE for minion in row.minions} for rows in found]
        lacking = (row for rows, its in zip(found, told, strict=True) for row in rows if {*row.minions} - its)
        return sorted((row for row in lacking if row.at >= since), key=lambda row: row.at)
