"""
Reads the log: what the masters of a site have done. An event proves nothing: any accepted minion can fire one in another's
name.

The log has each publish, and the first return of each minion. So it does not matter what the bus tells or loses: an event
only makes the engine read the log sooner. With another job cache ``feeder.py`` writes the log.

It must never conclude from a missing record that there was no return: if the log may lack records, the listener is told.
"""

from __future__ import annotations

from typing import Any, Protocol

from saltext.jobs.core import compat, lines
from saltext.jobs.core.engine.alarm import Alarm, Clock
from saltext.jobs.core.ledger.log import News, Position
from saltext.jobs.core.log.records import Record
from saltext.jobs.core.quiet import Quiet
from saltext.jobs.core.site import Log

log = lines.logger(__name__)

#: Longest pause in seconds between two looks at the log; and while the listener waits for nothing that it may tell.
POLL, IDLE = 0.5, 5.0
#: Seconds from an event to the record: the master fires the event before it stores the return.
STORED = 0.03
#: Seconds between the first two reads while the log comes from a server. Each further pause is twice as long.
_LOOKING = 0.005
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
    :param loop: the engine's tornado loop.
    :param clock: the clock by which deadlines are set.
    :param tail: reads the log of the masters.
    :param listener: is told what is found.
    :param poll: longest pause in seconds between two looks at the log. Each look that finds nothing doubles the pause.
    """

    def __init__(
        self,
        loop: Any,
        clock: Clock,
        tail: Log,
        listener: Listener,
        poll: float = POLL,
    ) -> None:
        self._clock = clock
        self._tail, self._listener, self._poll = tail, listener, poll
        self._next_read, self._pause = Alarm(loop, clock, self._read), STORED
        self._after_gap = Alarm(loop, clock, self._search_after_gap)
        self._searched_at = -GAP_PAUSE
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
        self._tell(news)
        self._next_read.set(self._clock.now() + (0.0 if news is not None and news.more else self._pause))
        return gap

    def close(self) -> None:
        """Stop all reading and looking."""
        self._next_read.close()
        self._after_gap.close()
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
