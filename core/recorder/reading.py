"""
What a returner is to get next of the log: the records after its place, and what the log lacks.

It blocks: use it in the Worker of its consumer. The place must never move past a record that is still to be handed over,
unless the record has a row in the outbox. If the log lacks records, the job cache is read once, and what the returner may
not have becomes rows of the outbox before the place moves on.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable

from saltext.jobs.core import lines
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.ids import jid_time
from saltext.jobs.core.ledger import outbox
from saltext.jobs.core.ledger.log import after, count_after, state
from saltext.jobs.core.ledger.outbox import Key, Place, Row
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.recorder.pipeline import Item
from saltext.jobs.core.recorder.recipients import LOAD, RETURN, ToReturner

log = lines.logger(__name__)

#: Of the first records after a start, how many may have been delivered before.
_DOUBTFUL = 2000
#: Seconds after which the job cache has what the log has, if it is elsewhere.
_SETTLED = 1.0


def reader_of(name: str) -> str:
    """Return how the database names the reader for a recipient."""
    return f"{JOB_RECORDER} {name}"


class Reading:
    """
    :param name: the returner's name.
    :param recipient: the returner, with the job cache.
    :param look_back: seconds; when the log lacks records, jobs that were published earlier are not looked at.
    """

    def __init__(
        self,
        name: str,
        recipient: ToReturner,
        tables: Tables,
        lease: Lease | None = None,
        look_back: float = 3600.0,
    ) -> None:
        self._name, self._reader, self._recipient = name, reader_of(name), recipient
        self._tables, self._lease, self._look_back = tables, lease, look_back
        self._settled = 0.0 if recipient.store.writes_together else _SETTLED
        self._log: str | None = None  # before it is known how far the returner is
        self._gap = ""
        self._read_to = self._gaps = self._doubtful = 0
        #: Whether there is more to read now.
        self.has_more = False

    def take(self, most: int, at_hand: Container[Key]) -> tuple[list[Item], int]:
        """
        Return the next records, at most ``most``, without those at hand; and how many the log had no more when they were to
        be read.
        """
        if self._log is None:
            self._begin()
        found = after(self._tables, self._read_to, most) if most else []
        # after the records: it covers what was removed, or could not be written, before they were read
        now, lost = state(self._tables), 0
        if now.name != self._log:
            self._log, self._read_to, self._gap, found = now.name, now.removed, "it is a new one", []
        if self._read_to < now.removed:
            # in PostgreSQL places have gaps
            lost = 1 if self._tables.is_far else now.removed - self._read_to
            self._read_to = now.removed
        if now.gaps != self._gaps:
            self._gap = self._gap or "a record could not be written"
        self.has_more, waits, taken = bool(found) and len(found) >= most, False, dict[Key, Item]()
        latest = time.time() - self._settled
        for place, record, is_gap in found:
            if is_gap:
                self._gap = "a record could not be written, or this version cannot read it"
            if record is not None and record.at > latest:
                self.has_more, waits = False, True
                break
            self._read_to = place
            if record is None or not record.listed:
                continue
            key = Key(RETURN if record.minion else LOAD, record.jid, record.minion)
            if key not in at_hand and key not in taken:
                taken[key] = Item(key, in_doubt=self._doubtful > 0, at=record.at, place=place)
                self._doubtful -= 1
        if self._gap and not waits:
            self._mend()
        return list(taken.values()), lost

    def place(self, waiting: Iterable[Item]) -> Place | None:
        """Return how far the returner is, as long as some records still wait; None while that must not be noted."""
        if self._gap or self._log is None:
            return None
        # after a change of the log, places of the former one are among them
        return Place(min((item.place - 1 for item in waiting if item.place), default=self._read_to), self._gaps)

    def later(self, most: int) -> int:
        """Return how many records are still to be read, at most ``most``."""
        return count_after(self._tables, self._read_to, most) if self.has_more else 0

    def _begin(self) -> None:
        now, known = state(self._tables), outbox.place_of(self._tables, self._reader)
        if known is None:  # a new returner gets what comes from now on
            known = Place(now.last, now.gaps)
            outbox.keep(self._tables, self._reader, {}, known, self._lease)
        else:
            self._doubtful = _DOUBTFUL
        self._log, self._read_to, self._gaps = now.name, known.place, known.gaps

    def _mend(self) -> None:
        """Put into the outbox what the job cache has, and the returner has not."""
        returner = self._recipient.returner
        can_ask = returner.has("get_jid")
        if not can_ask and not returner.takes_many:
            log.error(
                "Returns may be missing in %s, which cannot be asked: the log lacks records, %s", self._name, self._gap
            )
        else:
            log.error("Looking in the job cache for what %s lacks: the log lacks records, %s", self._name, self._gap)
            for jid, minions in self._recipient.young(self._look_back):
                held = returner.returns(jid) if can_ask else ()
                at, missing = jid_time(jid) or 0.0, [minion for minion in minions if minion not in held]
                rows = [Row(Key(LOAD, jid), at), *(Row(Key(RETURN, jid, minion), at) for minion in missing)]
                outbox.add(self._tables, self._reader, rows, self._lease)
        self._gaps, self._gap = state(self._tables).gaps, ""
