"""
What a returner is to get next of the log: the records after its place, and what the log lacks.

It blocks: use it in the Worker of its consumer. The place must never move past a record that is still to be handed over, but
for one with a row in the outbox. If the log lacks records, the job cache is read once, and what the returner may not have
becomes rows of the outbox before the place moves on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from saltext.jobs.core import lines
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.ids import jid_time
from saltext.jobs.core.ledger.log import AWAY, REMOVED, RESTARTED, News, Position, Reader, count_after
from saltext.jobs.core.ledger.outbox import Key, Outbox, Row
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.lines import Quiet
from saltext.jobs.core.recorder.pipeline import Item
from saltext.jobs.core.recorder.recipients import LOAD, RETURN, SETTLED, ToReturner

log = lines.logger(__name__)

#: Of the first records after a start, how many may have been delivered before: more than a consumer reads ahead. And more
#: records than a log has.
_DOUBTFUL, _MANY = 2000, 10**9
#: Seconds: when the log lacks records, jobs that were published earlier are not looked at.
_LOOK_BACK = 3600.0


def outbox_of(tables: Tables, name: str, lease: Lease | None = None) -> Outbox:
    """Return the outbox of a recipient, given its name in statistics."""
    return Outbox(tables, f"{JOB_RECORDER} {name}", lease)


class Reading:
    """``name``: that of the returner. ``recipient``: the returner, with the job cache."""

    def __init__(self, name: str, recipient: ToReturner, outbox: Outbox) -> None:
        self._name, self._recipient, self._outbox = name, recipient, outbox
        self._log: Reader | None = None  # before it is known how far the returner is
        self._read_to: Position | None = None
        self._doubtful, self._quiet = 0, Quiet(log)
        self.has_more = False  # there is more to take now
        self.gap_since: float | None = None  # the Unix time since when the log lacks records that the outbox has not

    def take(self, most: int) -> tuple[list[Item], int]:
        """Return the next records, at most ``most``, and how many are lost: the log removed them before they were read."""
        self._log, found, lost = self._log or self._begun(), list[Item](), 0
        if most and self.gap_since is None:  # what is handed over before the place is noted must be little
            news = self._log.read(most)
            if news.gap and not (self._recipient.store.writes_together and news.gap in (AWAY, RESTARTED)):
                self.gap_since = time.time()
                self._tell(news.gap)
                lost = self._removed_before(news) if news.gap == REMOVED else 0
            self._read_to, self.has_more = news.position, news.more and self.gap_since is None
            for place, record in zip(news.places, news.records, strict=True):
                if record.listed:
                    key = Key(RETURN if record.minion else LOAD, record.jid, record.minion)
                    found.append(Item(key, in_doubt=self._doubtful > 0, at=record.at, place=place))
                    self._doubtful -= 1
        if self.gap_since is not None and (not self._recipient.knows or abs(time.time() - self.gap_since) >= SETTLED):
            self._mend()
        return found, lost

    def place(self, waiting: Iterable[Item]) -> Position | None:
        """Return how far the returner is, given the records that still wait; None while that must not be noted."""
        if self.gap_since is not None or self._log is None or self._log.position is None:
            return None
        # after a change of the log, places of the former one are among them
        places = [item.place - 1 for item in waiting if item.place is not None]
        return self._log.position._replace(offset=min([self._log.position.offset, *places]))

    def later(self, most: int) -> int:
        """Return how many records are still to be read, at most ``most``."""
        place = self._log and self._log.position
        more = self.has_more or self.gap_since is not None
        return count_after(self._outbox.tables, place.offset, most) if place and more else 0

    def _begun(self) -> Reader:
        known = self._outbox.cursor()
        found = Reader(self._outbox.tables, known)
        self._read_to = known
        if known is None:  # a new returner gets what comes from now on
            self._outbox.keep({}, found.read().position)
        else:
            self._doubtful = _DOUBTFUL
        return found

    def _removed_before(self, news: News) -> int:
        if self._read_to is None or news.position is None:
            return 0
        first = news.places[0] if news.places else news.position.offset + 1
        # in PostgreSQL places have gaps
        return 1 if self._outbox.tables.is_far else first - 1 - self._read_to.offset

    def _tell(self, gap: str) -> None:
        if self._recipient.knows:
            log.error("Looking in the job cache for what %s lacks: the log lacks records, %s", self._name, gap)
            return
        self._quiet.error(
            "gap", "Returns may be missing in %s, which cannot be asked: the log lacks records, %s", self._name, gap
        )

    def _mend(self) -> None:
        """Put into the outbox what the job cache has, and the returner has not."""
        if self._recipient.knows:
            returner = self._recipient.returner
            can_ask = returner.has("get_jid")
            for jid, minions in self._recipient.young(_LOOK_BACK):
                held = returner.returns(jid) if can_ask else ()
                at, missing = jid_time(jid) or 0.0, [minion for minion in minions if minion not in held]
                self._outbox.add([Row(Key(LOAD, jid), at), *(Row(Key(RETURN, jid, minion), at) for minion in missing)])
            if self._read_to:  # what the log still has of these comes again
                self._doubtful = max(self._doubtful, count_after(self._outbox.tables, self._read_to.offset, _MANY))
        self.gap_since = None
