"""
What a returner is to get of the log: it becomes rows of the returner's outbox, and what the log lacks too.

It blocks: use it in the Worker of its consumer. The rows and the place up to which the log was read are kept in one
transaction. If the log lacks records, the job cache is read once, and what the returner may not have becomes rows before the
place moves on.
"""

from __future__ import annotations

import time

from saltext.jobs.core import lines
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.ids import jid_time
from saltext.jobs.core.ledger.log import AWAY, REMOVED, RESTARTED, News, Position, Reader, count_after
from saltext.jobs.core.ledger.outbox import Key, Outbox, Row
from saltext.jobs.core.ledger.records import Record
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.lines import Quiet
from saltext.jobs.core.recorder.recipients import LOAD, RETURN, SETTLED, ToReturner

log = lines.logger(__name__)

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
        self._place: Position | None = None  # what is before it is in the outbox, or was
        self._news: News | None = None  # what was read after it
        self._is_sure = (
            False  # what comes now was not delivered before: by an earlier engine, or as what the log lacked
        )
        self._quiet = Quiet(log)
        self.new = set[Key]()  # rows that the returner surely has not
        self.has_more = False  # there is more to take now
        self.gap_since: float | None = None  # the Unix time since when the log lacks records that the outbox has not

    def take(self, most: int) -> int:
        """
        Move the next records into the outbox, at most ``most``. Returns how many are lost: the log removed them before they
        were read. :raises Exception: if the log or the job cache cannot be read, or a returner that is asked fails.
        """
        self._log = self._log or self._begun()
        if self._news is None:
            self._news = self._log.read(most)
            if self._news.gap and not (self._recipient.store.writes_together and self._news.gap in (AWAY, RESTARTED)):
                self.gap_since = time.time()
                self._tell(self._news.gap)
        news, lost, is_mended = self._news, 0, self.gap_since is not None and self._recipient.knows
        if is_mended:
            self._mend()
        if news.gap == REMOVED:
            lost = self._removed_before(news)
        rows = [Row(_key_of(record), record.at) for record in news.records if record.listed]
        if news.position != self._place:
            self._outbox.add(rows, news.position)
        self._news, self._place, self.has_more, self.gap_since = None, news.position, news.more, None
        if self._is_sure:
            self.new.update(row.key for row in rows)
        self._is_sure = (self._is_sure or not news.more) and not is_mended
        return lost

    def later(self, most: int) -> int:
        """Return how many records are still to be read, at most ``most``."""
        return count_after(self._outbox.tables, self._place.offset, most) if self._place else 0

    def _begun(self) -> Reader:
        self._place = self._outbox.cursor()
        found = Reader(self._outbox.tables, self._place)
        if self._place is None:  # a new returner gets what comes from now on
            self._place = found.read().position
            self._outbox.add([], self._place)
        return found

    def _removed_before(self, news: News) -> int:
        if self._place is None or news.position is None:
            return 0
        first = news.places[0] if news.places else news.position.offset + 1
        # in PostgreSQL places have gaps
        return 1 if self._outbox.tables.is_far else first - 1 - self._place.offset

    def _tell(self, gap: str) -> None:
        if self._recipient.knows:
            log.error("Looking in the job cache for what %s lacks: the log lacks records, %s", self._name, gap)
            return
        self._quiet.error(
            "gap", "Returns may be missing in %s, which cannot be asked: the log lacks records, %s", self._name, gap
        )

    def _mend(self) -> None:
        """Put into the outbox what the job cache has, and the returner has not."""
        time.sleep(SETTLED)
        returner = self._recipient.returner
        can_ask = returner.has("get_jid")
        for jid, minions in self._recipient.young(_LOOK_BACK):
            held = returner.returns(jid) if can_ask else ()
            at, missing = jid_time(jid) or 0.0, [minion for minion in minions if minion not in held]
            self._outbox.add([Row(Key(LOAD, jid), at), *(Row(Key(RETURN, jid, minion), at) for minion in missing)])


def _key_of(record: Record) -> Key:
    return Key(RETURN if record.minion else LOAD, record.jid, record.minion)
