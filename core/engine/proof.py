"""
What is done by the masters that share this one's cachedir, and returns that are waited for, until they are proven. An event
proves nothing: every accepted minion can fire one in another's name.

With our own job cache the log of each master proves them: it has each publish, and each return that the master has stored.
Nothing that the bus tells, or fails to tell, matters then; an event has the log read a little sooner. With any other job
cache, and as long as there is no log, a return of which the bus tells is looked for there, for many minions at once;
``core/master/hearsay.py`` says when. Where the job cache is no better evidence than the event, that counts as it is.

It must never conclude from a record's absence that there was no return: where the log may lack some, it says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from saltext.jobs.core import lines
from saltext.jobs.core.engine.alarm import Alarm, Clock
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.errors import JobCacheError
from saltext.jobs.core.log.checkpoints import Position
from saltext.jobs.core.log.reader import News
from saltext.jobs.core.log.records import Record
from saltext.jobs.core.master.hearsay import STORED, Hearsay
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.quiet import Quiet
from saltext.jobs.core.site import Log

log = lines.logger(__name__)

#: Seconds before a job cache that failed is asked again.
RETRY_PAUSE = 5.0
#: Longest pause in seconds between two looks at the log.
POLL = 0.5
#: Seconds between two times at which the job cache is read because of gaps in the log.
GAP_PAUSE = 5.0


class Listener(Protocol):
    """Who wants to know what this master does."""

    def waits_for(self, jid: str, minion: str) -> bool:
        """Whether a return would change anything."""

    def found(self, jid: str, returns: Mapping[str, int]) -> None:
        """The job cache has these returns, ``{minion: retcode}``, which are the job's own."""

    def logged(self, record: Record) -> None:
        """The log has this, in its order. A return is of whatever job, and may be of another function than the job's."""

    def on_read(self) -> None:
        """The log was read; what it has had a moment ago has been told."""

    def on_lost(self) -> None:
        """Records may be missing in the log: look in the job cache for all that they would have told."""


class Proof:
    """
    :param loop: the engine's tornado loop.
    :param clock: the time by which deadlines go.
    :param cache: the job cache; used in ``worker`` only.
    :param tail: reads the logs of this master and of those that share its cachedir; None where there is none.
    :param listener: who waits for returns.
    :param poll: longest pause in seconds between two looks at the log: each that finds nothing doubles it.
    """

    def __init__(
        self,
        loop: Any,
        clock: Clock,
        cache: JobCache,
        worker: Worker,
        tail: Log | None,
        listener: Listener,
        poll: float = POLL,
    ) -> None:
        self._loop, self._clock, self._cache, self._worker = loop, clock, cache, worker
        self._tail = None if cache.unproven else tail
        self._listener, self._poll = listener, poll
        self._of: dict[str, tuple[Hearsay, Alarm]] = {}  # by jid: what is looked for in the job cache
        self._next_read, self._pause = Alarm(loop, clock, self._read), STORED
        self._after_gap = Alarm(loop, clock, self._make_good)
        self._made_good = -GAP_PAUSE
        self._quiet = Quiet(log)

    @property
    def reads_log(self) -> bool:
        """Whether the log proves returns, so that events need not be taken."""
        return self._tail is not None and self._tail.there

    @property
    def positions(self) -> Mapping[str, Position]:
        """Before which place of each master's log all has been told, by its folder's name; none where there is no log."""
        return self._tail.positions if self._tail is not None else {}

    def start(self) -> str:
        """
        Begin to read the log where ``tail`` begins. Returns why what was before that, or part of it, may be missing; empty
        where it is not: what is missing is the caller's to look for.
        """
        if self._tail is None:
            return "there is none"
        news = self._next_of_log()
        self._tell(news)
        self._next_read.set(self._clock.now() + (0.0 if news is not None and news.more else self._pause))
        return "it cannot be read" if news is None else news.gap

    def close(self) -> None:
        """Look for nothing any more."""
        self._next_read.close()
        self._after_gap.close()
        for jid in list(self._of):
            self.forget(jid)
        if self._tail is not None:
            self._tail.close()

    # -- the log ------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """The bus tells of a return, which the log may have in a moment. Cheap: it is called for each one."""
        due, soon = self._next_read.due, self._clock.now() + STORED
        if due is not None and due > soon:
            self._pause = STORED
            self._next_read.set(soon)

    def _read(self) -> None:
        news = self._next_of_log()
        self._pause = self._poll if news is None else STORED if news.records else min(2 * self._pause, self._poll)
        self._tell(news)
        if news is not None and news.gap:
            self._lose(news.gap)
        self._next_read.set(self._clock.now() + (0.0 if news is not None and news.more else self._pause))

    def _next_of_log(self) -> News | None:
        assert self._tail is not None
        try:
            return self._tail.read()
        except OSError as exc:
            self._quiet.error("log", "The log of this master cannot be read now, trying again: %s", exc)
            return None

    def _tell(self, news: News | None) -> None:
        if news is None:
            return
        for record in news.records:
            self._hand_over(record)
        if not news.more:
            self._listener.on_read()

    def _hand_over(self, record: Record) -> None:
        try:
            self._listener.logged(record)
        except Exception as exc:
            self._quiet.error(
                type(exc).__name__,
                "A record of job %s in the log cannot be taken: %s",
                record.jid,
                exc,
                exc_info=exc,
            )

    def _lose(self, why: str) -> None:
        self._quiet.warning("gap", "The log may lack records, so the job cache is searched: %s", why)
        self._after_gap.set(max(self._clock.now(), self._made_good + GAP_PAUSE))

    def _make_good(self) -> None:
        self._made_good = self._clock.now()
        self._listener.on_lost()

    # -- the job cache ------------------------------------------------------------------------------------------------

    def heard(self, jid: str, minion: str, retcode: int) -> None:
        """The bus tells of a return that is waited for."""
        if self._cache.unproven:
            self._listener.found(jid, {minion: retcode})
            return
        if jid not in self._of:
            self._of[jid] = Hearsay(), Alarm(self._loop, self._clock, lambda: self._begin(jid))
        hearsay, alarm = self._of[jid]
        hearsay.heard(minion, self._clock.now())
        alarm.set(hearsay.next_due)

    def forget(self, jid: str) -> bool:
        """Look for no return of a job any more, and tell whether some were still to be looked for."""
        if jid not in self._of:
            return False
        hearsay, alarm = self._of.pop(jid)
        alarm.close()
        return bool(hearsay.minions())

    def _begin(self, jid: str) -> None:
        self._loop.spawn_callback(self._look, jid, *self._of[jid])

    async def _look(self, jid: str, hearsay: Hearsay, alarm: Alarm) -> None:
        began = self._clock.now()
        asked = hearsay.take(began)
        wanted = [minion for minion in asked if self._listener.waits_for(jid, minion)]
        try:
            found = await self._worker.call(self._cache.returned, jid, wanted) if wanted else {}
        except Exception as exc:
            told = None if isinstance(exc, JobCacheError) else exc
            self._quiet.error(jid, "Job %s waits for the job cache: %s", jid, exc, exc_info=told)
            hearsay.failed(asked, self._clock.now() + RETRY_PAUSE)
        else:
            now = self._clock.now()
            doubted = hearsay.looked(asked, found.keys() | set(asked).difference(wanted), now, now - began)
            if doubted:
                self._quiet.warning(
                    jid,
                    "Job %s: the bus tells of returns that the job cache does not have, which count for nothing: %s",
                    jid,
                    ", ".join(doubted[:5]) + (" …" if len(doubted) > 5 else ""),
                )
            if found:
                self._listener.found(jid, found)
        if jid in self._of:
            alarm.set(hearsay.next_due)
