"""
Proves what the masters of a site have done: publishes, kills and returns. An event proves nothing: any accepted minion can
fire one in another's name.

The log is the proof: it has each publish, and each return that a master has stored. So it does not matter
what the bus tells or loses: an event only makes the engine read the log sooner. With a job cache that keeps no log, batches
read one that ``feeder.py`` makes.

It must never conclude from a missing record that there was no return: if the log may lack records, the listener is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from saltext.jobs.core import compat, lines
from saltext.jobs.core.engine.alarm import Alarm, Clock
from saltext.jobs.core.engine.feeder import Feeder
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.errors import JobCacheError
from saltext.jobs.core.ledger.log import News, Position
from saltext.jobs.core.log.records import Record
from saltext.jobs.core.master.hearsay import STORED
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.quiet import Quiet
from saltext.jobs.core.site import Log

log = lines.logger(__name__)

#: Longest pause in seconds between two looks at the log; and while the listener waits for nothing that it may tell.
POLL, IDLE = 0.5, 5.0
#: Seconds between the first two reads while the log comes from a server. Each further pause is twice as long.
_LOOKING = 0.005
#: Seconds between two searches of the job cache that gaps in the log cause, and before another look after a failed one.
GAP_PAUSE = 5.0


class Listener(Protocol):
    """Is told what the masters do."""

    def found(self, jid: str, returns: Mapping[str, int]) -> None:
        """The job cache has these returns, ``{minion: retcode}``. They are returns of this very job."""

    def logged(self, record: Record) -> None:
        """The log has this record next. A return may be of any job, and of a function that is not the job's."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing in the log is urgent. Once something is, ``Proof.wake`` must be called."""

    def on_read(self) -> None:
        """The log was read to its end, and all its records have been told."""

    def on_lost(self) -> None:
        """The log may lack records: look in the job cache for what they would have told."""


class Proof:
    """
    :param loop: the engine's tornado loop.
    :param clock: the clock by which deadlines are set.
    :param cache: the job cache; used in ``worker`` only.
    :param tail: reads the log of the masters.
    :param listener: is told what is found.
    :param poll: longest pause in seconds between two looks at the log. Each look that finds nothing doubles the pause.
    """

    def __init__(
        self,
        loop: Any,
        clock: Clock,
        cache: JobCache,
        worker: Worker,
        tail: Log | Feeder,
        listener: Listener,
        poll: float = POLL,
    ) -> None:
        self._loop, self._clock, self._cache, self._worker = loop, clock, cache, worker
        self._tail, self._listener, self._poll = tail, listener, poll
        self._unclear: dict[str, dict[str, None]] = {}  # by jid: minions whose returns are to be read in the job cache
        self._looks_up = False
        self._next_read, self._pause = Alarm(loop, clock, self._read), STORED
        self._after_gap = Alarm(loop, clock, self._search_after_gap)
        self._searched_at = -GAP_PAUSE
        #: The log had a gap at the start, and records from before the start are being told.
        self.catches_up = False
        self._quiet = Quiet(log)

    @property
    def reads_log(self) -> bool:
        """Whether there was a log at the last look."""
        return self._tail.there

    @property
    def position(self) -> Position | None:
        """The place in the log before which all records have been told; None if there is no log."""
        return self._tail.position

    def start(self) -> str:
        """
        Begin to read the log where ``tail`` begins.

        :return: why earlier records may be missing; then the caller must look for what they would have told. Empty if none
            are missing.
        """
        news = self._next_of_log()
        gap = "it cannot be read" if news is None else news.gap
        self.catches_up = bool(gap)
        self._tell(news)
        self._next_read.set(self._clock.now() + (0.0 if news is not None and news.more else self._pause))
        return gap

    def close(self) -> None:
        """Stop all reading and looking."""
        self._next_read.close()
        self._after_gap.close()
        self._unclear.clear()
        self._tail.close()

    # -- the log ------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Read the log soon, since the bus tells of a return. This is called for every return, so it is cheap."""
        due, soon = self._next_read.due, self._clock.now() + STORED
        if due is not None and due > soon:
            self._pause = STORED
            self._next_read.set(soon)

    async def read_on(self) -> None:
        """Read the log to its end, unless it cannot be read now, or is not read at all."""
        is_over, pause = self._tail.look(), _LOOKING
        while self._next_read.due is not None:
            was_over, more = is_over(), self._read()
            if was_over and not more:
                return
            await compat.sleep(0.0 if more else pause)
            pause = min(2 * pause, self._poll)  # the server may be away for long

    def _read(self) -> bool:
        """Read a part of the log, and return whether there is more."""
        news = self._next_of_log()
        longest = IDLE if self._listener.is_idle else self._poll
        self._pause = self._poll if news is None else STORED if news.records else min(2 * self._pause, longest)
        is_more = news is not None and news.more
        self._next_read.set(self._clock.now() + (0.0 if is_more else self._pause))
        self._tell(news)
        if news is not None and news.gap:
            self._note_gap(news.gap)
        return is_more

    def _next_of_log(self) -> News | None:
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
            self.catches_up = False
            self._listener.on_read()

    def _hand_over(self, record: Record) -> None:
        try:
            self._listener.logged(record)
        except Exception as exc:
            self._quiet.error(
                type(exc).__name__,
                "A record of job %s in the log cannot be processed: %s",
                record.jid,
                exc,
                exc_info=exc,
            )

    def _note_gap(self, why: str) -> None:
        self._quiet.warning("gap", "The log may lack records, so the job cache is searched: %s", why)
        self._after_gap.set(max(self._clock.now(), self._searched_at + GAP_PAUSE))

    def _search_after_gap(self) -> None:
        self._searched_at = self._clock.now()
        self._listener.on_lost()

    # -- the job cache ------------------------------------------------------------------------------------------------

    def look_up(self, jid: str, minions: Iterable[str]) -> None:
        """Soon read in the job cache what these minions have returned: the log does not tell, or which return counts."""
        if wanted := dict.fromkeys(minions):
            self._unclear.setdefault(jid, {}).update(wanted)
        if self._unclear and not self._looks_up:
            self._looks_up = True
            self._loop.spawn_callback(self._look_up)

    async def _look_up(self) -> None:
        pause = STORED
        while self._unclear:
            await compat.sleep(pause)
            pause, unclear, self._unclear = STORED, self._unclear, {}
            for jid, minions in unclear.items():
                try:
                    found = await self._worker.call(self._cache.returned, jid, tuple(minions))
                except Exception as exc:
                    told = None if isinstance(exc, JobCacheError) else exc
                    self._quiet.error(jid, "Job %s waits for the job cache: %s", jid, exc, exc_info=told)
                    pause = GAP_PAUSE
                    self.look_up(jid, minions)
                else:
                    self._listener.found(jid, found)
        self._looks_up = False
