"""
What a returner is to get next of the log: the records after its place, and what the log lacks.

It blocks: use it in the Worker of its consumer. The place must never move past a record that is still to be handed over,
unless the record has a row in the outbox. If the log lacks records, the job cache is read once, and what the returner may
not have becomes rows of the outbox before the place moves on.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Container
from typing import TypeAlias

from saltext.jobs.core import lines
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.ids import jid_time
from saltext.jobs.core.ledger import outbox
from saltext.jobs.core.ledger.outbox import Key, Place, Row
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.log import records
from saltext.jobs.core.recorder.record import LOAD, RETURN
from saltext.jobs.core.recorder.returner import ReturnerModule
from saltext.jobs.core.recorder.source import Source

log = lines.logger(__name__)

#: Of the first records after a start, how many may have been delivered before.
_DOUBTFUL = 2000
#: Seconds after which the job cache has what the log has, if it is elsewhere.
_SETTLED = 1.0

#: A row, and whether the returner may have it already.
Next: TypeAlias = tuple[Row, bool]


class Reading:
    """
    :param name: the returner's name.
    :param reader: its name in the database.
    :param look_back: seconds; when the log lacks records, jobs that were published earlier are not looked at.
    """

    def __init__(
        self,
        name: str,
        reader: str,
        module: ReturnerModule,
        source: Source,
        tables: Tables,
        lease: Lease | None = None,
        look_back: float = 3600.0,
    ) -> None:
        self._name, self._reader, self._module, self._source = name, reader, module, source
        self._tables, self._lease, self._look_back = tables, lease, look_back
        self._settled = 0.0 if source.writes_together else _SETTLED
        self._order: collections.deque[tuple[int, Key]] = collections.deque()  # what was read, by its places
        self._log: str | None = None
        self._gap = ""
        self._read_to = self._gaps = self._doubtful = 0
        #: Whether there is more to read now.
        self.has_more = False
        #: Records that the log had no more when they were to be read.
        self.lost = 0

    @property
    def has_begun(self) -> bool:
        """Whether it knows how far the returner is: a new one gets what comes after that."""
        return self._log is not None

    def take(self, most: int, at_hand: Container[Key]) -> list[Next]:
        """Return the next records, at most ``most``, without those at hand."""
        if not self.has_begun:
            self._begin()
        found = outbox.after(self._tables, self._read_to, most) if most else []
        # after the records: it covers what was removed, or could not be written, before they were read
        state = outbox.state(self._tables)
        if state.name != self._log:
            self._log, self._read_to, self._gap, found = state.name, state.removed, "it is a new one", []
            self._order.clear()
        if self._read_to < state.removed:
            # in PostgreSQL places have gaps
            self.lost += 1 if self._tables.is_far else state.removed - self._read_to
            self._read_to = state.removed
        if state.gaps != self._gaps:
            self._gap = self._gap or "a record could not be written"
        self.has_more, waits, taken = bool(found) and len(found) >= most, False, dict[Key, Next]()
        latest = time.time() - self._settled
        for place, jid, minion, body in found:
            record = None if body == b"" else self._record(jid, minion, body)
            if record is not None and record.at > latest:
                self.has_more, waits = False, True
                break
            self._read_to = place
            if record is None or not record.listed:
                continue
            key = Key(RETURN if minion else LOAD, jid, minion)
            if key not in at_hand and key not in taken:
                self._order.append((place, key))
                taken[key] = Row(key, record.at), self._doubtful > 0
                self._doubtful -= 1
        if self._gap and not waits:
            self._mend()
        return list(taken.values())

    def place(self, is_open: Callable[[Key], bool]) -> Place | None:
        """
        Return how far the returner is; None while that must not be noted.

        :param is_open: tells whether a record is still to be handed over, and has no row.
        """
        while self._order and not is_open(self._order[0][1]):
            self._order.popleft()
        if self._gap or not self.has_begun:
            return None
        return Place(self._order[0][0] - 1 if self._order else self._read_to, self._gaps)

    def later(self, most: int) -> int:
        """Return how many records are still to be read, at most ``most``."""
        return outbox.count_after(self._tables, self._read_to, most) if self.has_more else 0

    def _begin(self) -> None:
        state, known = outbox.state(self._tables), outbox.place_of(self._tables, self._reader)
        if known is None:  # a new returner gets what comes from now on
            known = Place(state.last, state.gaps)
            outbox.keep(self._tables, self._reader, {}, known, self._lease)
        else:
            self._doubtful = _DOUBTFUL
        self._log, self._read_to, self._gaps = state.name, known.place, known.gaps

    def _record(self, jid: str, minion: str, body: bytes | None) -> records.Record | None:
        try:
            return records.read(jid, minion, body or b"")
        except Exception:  # msgpack raises many kinds
            self._gap = "a record could not be written, or this version cannot read it"
            return None

    def _mend(self) -> None:
        """Put into the outbox what the job cache has, and the returner has not."""
        can_ask = self._module.has("get_jid")
        if not can_ask and not self._module.takes_many:
            log.error(
                "Returns may be missing in %s, which cannot be asked: the log lacks records, %s", self._name, self._gap
            )
        else:
            log.error("Looking in the job cache for what %s lacks: the log lacks records, %s", self._name, self._gap)
            for jid in self._source.young(self._look_back):
                if self._source.job(jid).is_wanted:
                    held = frozenset(self._module.returns(jid)) if can_ask else frozenset()
                    at, minions = jid_time(jid) or 0.0, self._source.minions(jid)
                    rows = [Row(Key(RETURN, jid, minion), at) for minion in minions if minion not in held]
                    outbox.add(self._tables, self._reader, [Row(Key(LOAD, jid), at), *rows], self._lease)
        self._gaps, self._gap = outbox.state(self._tables).gaps, ""
