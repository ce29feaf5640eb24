"""
The log of a site: what its masters did, in one order.

It must never prevent a publish or a return, nor hide that it may lack something: what cannot be written is noted as a gap,
which the reader reports once, so that the engine reads the job cache.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from saltext.jobs.core import lines
from saltext.jobs.core.ledger import records
from saltext.jobs.core.ledger.tables import LOG, SITE, Tables, marks_of, parts_of
from saltext.jobs.core.lines import Quiet

log = lines.logger(__name__)

#: Bytes of the log by default.
SIZE = 128 << 20
#: Records that always stay, for readers that lag; after how many records a process removes older ones; at most how many at
#: once; how many tell how large one is; and about how many bytes each takes beside its body.
_LEAST, _SWEPT_AFTER, _SWEPT, _SAMPLE, _MORE = 20_000, 2000, 5000, 500, 100
#: Records that are read at once.
_PART = 1000
_RECORDS = f"SELECT place, jid, minion, body FROM {LOG} WHERE"
_AFTER = f"{_RECORDS} place > ? ORDER BY place LIMIT ?"
_PUBLISHES = f"{_RECORDS} jid = ? AND minion = '' ORDER BY place"
_RETURNS = f"{_RECORDS} jid = ? AND minion <> ''"
_SINCE = f"{_RECORDS} minion = '' AND jid >= ?"
_FIRST = f"SELECT place, mark FROM {LOG} WHERE jid = ? AND minion = '' ORDER BY place LIMIT 1"
_GAP_AFTER = f"SELECT 1 FROM {LOG} WHERE body IS NULL AND place > ? LIMIT 1"
#: The name of the log, and the places of the newest record that was removed and of the newest one.
_STATE = f"SELECT id, removed, (SELECT coalesce(max(place), 0) FROM {LOG}) FROM {SITE}"
_COUNT = f"SELECT count(*) FROM (SELECT 1 FROM {LOG} WHERE place > ? LIMIT ?) AS later"
_BYTES = (
    f"SELECT avg(length(body)) + {_MORE} FROM (SELECT body FROM {LOG} ORDER BY place DESC LIMIT {_SAMPLE}) AS newest"
)
_BEFORE = f"SELECT place FROM {LOG} ORDER BY place DESC LIMIT 1 OFFSET ?"
_OLD = (
    f"SELECT max(place) FROM (SELECT place FROM {LOG} WHERE place <= ({_BEFORE}) ORDER BY place LIMIT {_SWEPT}) AS old"
)
_REMOVE = f"DELETE FROM {LOG} WHERE place <= ?"
_REMOVED = f"UPDATE {SITE} SET removed = ? WHERE removed < ?"
_GAP = "", "", "", None
#: Why records may be missing that no writer missed: then a job cache in the same database has lost the same.
AWAY, RESTARTED = "the server was away", "the machine was restarted since it was read"


class Position(NamedTuple):
    """A place in a log, and what shows later whether records may have been lost since: the boot, and the count of gaps."""

    log: str  # which log
    offset: int  # the place
    gaps: int  # ``Tables.gaps`` by then
    boot: str


class News(NamedTuple):
    """What was read."""

    records: list[records.Record]
    gap: str  # why records may be missing, or empty
    more: bool  # more can be read at once
    position: Position | None = None  # all up to this place was read; None if that is not known
    lost: int = 0  # how many were removed before they were read; in PostgreSQL that some were


def count_after(tables: Tables, place: int, most: int) -> int:
    """Return how many records of the log come after a place, at most ``most``. :raises OSError:"""
    return int(tables.read(_COUNT, (place, most))[0][0])


def _entries(tables: Tables, query: str, values: Sequence[Any]) -> list[tuple[int, records.Record | None, bool]]:
    """Return what is at places of the log: the record, None if none of this site can be read; and whether one is missing."""
    return [(place, *_record(tables, *row)) for place, *row in tables.read(query, values)]


def _record(tables: Tables, jid: str, minion: str, body: bytes | None) -> tuple[records.Record | None, bool]:
    try:
        sealed = None if body is None else tables.seal.take(body, LOG, jid, minion)
        return (None, body is None) if sealed is None else (records.read(jid, minion, sealed), False)
    except OSError:  # the key cannot be read
        raise
    except Exception:  # msgpack raises many kinds
        return None, True


def publishes(tables: Tables, jid: str) -> list[records.Published]:
    """Return the publishes of a job, in order. :raises OSError:"""
    return [record for _, record, _ in _entries(tables, _PUBLISHES, (jid,)) if isinstance(record, records.Published)]


def published_since(tables: Tables, jid: str) -> set[str]:
    """Return the jids of publishes from a jid on, but for questions of engines. :raises OSError:"""
    return {record.jid for _, record, _ in _entries(tables, _SINCE, (jid,)) if record is not None and record.listed}


def returns(tables: Tables, jid: str, minions: Collection[str]) -> dict[str, records.Returned]:
    """Return the returns of a job by some minions. :raises OSError:"""
    found = dict[str, records.Returned]()
    for part in parts_of(list(minions)):
        its = _entries(tables, f"{_RETURNS} AND minion IN ({marks_of(part)})", (jid, *part))
        found.update((record.minion, record) for _, record, _ in its if isinstance(record, records.Returned))
    return {minion: found[minion] for minion in minions if minion in found}


def is_whole(tables: Tables, jid: str) -> bool:
    """Tell whether the log has the job's first publish, and surely all that came after it. :raises OSError:"""
    found = tables.read(_FIRST, (jid,))
    return bool(found) and found[0][1] == _mark(tables) and not tables.read(_GAP_AFTER, (found[0][0],))


def _mark(tables: Tables) -> str:
    """Return a text that changes when records may be missing though no row says so."""
    return f"{tables.boot()}/{tables.gaps()}"


class Writer:
    """Appends, in each of the masters' processes. Beyond ``size`` bytes the oldest records are removed."""

    def __init__(self, tables: Tables, size: int = SIZE) -> None:
        self._tables, self._size = tables, size
        self._appended = 0
        self._unmarked = False  # a record is missing, and readers could not be told
        self._quiet = Quiet(log)

    def append(self, record: records.Record, durable: bool = False) -> bool:
        """
        Append a record, but no second return of a job by a minion. Returns False if that failed: the log has a gap then.
        ``durable``: it must survive a power cut when this returns.
        """
        try:
            self.add(record, durable)
        except (OSError, ValueError) as exc:
            self.missed(exc)
            return False
        self.appended()
        return True

    def publishes(self, jid: str) -> list[records.Published]:
        """Return the publishes of a job, in order; none if the log cannot be read now."""
        try:
            return publishes(self._tables, jid)
        except OSError as exc:
            self._quiet.error("publishes", "The log cannot be read now: %s", exc)
            return []

    def add(self, record: records.Record, durable: bool = False) -> None:
        """As ``append``, in this thread's transaction. Once that is committed, call ``appended``. :raises OSError:"""
        if self._unmarked:
            self._tables.run("{append}", _GAP)
        mark = _mark(self._tables) if isinstance(record, records.Published) and record.fresh else ""
        body = self._tables.seal.put(records.packed(record), LOG, record.jid, record.minion)
        self._tables.run("{append}", (record.jid, record.minion, mark, body), durable)

    def leave_gap(self) -> None:
        try:
            self._tables.run("{append}", _GAP)
        except OSError as exc:
            self.missed(exc)

    def appended(self) -> None:
        """Note that what was added is committed, and remove old records now and then."""
        self._unmarked = False
        self._appended += 1
        if self._appended % _SWEPT_AFTER == 0:
            self._sweep()

    def missed(self, exc: Exception) -> None:
        """Note that a record could not be written, so that readers know of the gap."""
        self._unmarked = not self._tables.note_gap()
        self._quiet.error(
            "append", "A record of the log could not be written, so the engines read the job cache: %s", exc
        )

    def _sweep(self) -> None:
        try:
            ((each,),) = self._tables.read(_BYTES)
            ((last,),) = self._tables.read(_OLD, (max(_LEAST, self._size // int(each or _MORE)),))
            if last is not None:
                self._tables.together(lambda: self._remove(last))
        except OSError as exc:
            self._quiet.warning("sweep", "Old records of the log could not be removed: %s", exc)

    def _remove(self, last: int) -> None:
        self._tables.run(_REMOVE, (last,))
        self._tables.run(_REMOVED, (last, last))


class Reader:
    """
    Reads the log from a position on, in order and each record once. Without a position it begins at the end, and with one
    in another log at the beginning: then it reports a gap, and also if records may have been lost since.
    """

    def __init__(self, tables: Tables, position: Position | None = None) -> None:
        self._tables, self.is_far = tables, tables.is_far
        self._gap, self._lost = "", 0
        self.there = False  # the log was reached
        self.position = position  # all before it has been read; until the log was reached, the given one
        with contextlib.suppress(OSError):
            self._begin()

    def read(self, most: int = _PART) -> News:
        """Return what was appended since, at most ``most``. Blocks. :raises OSError: when it cannot be read now."""
        at = self.position if self.there else None
        try:
            found = _entries(self._tables, _AFTER, (at.offset, most)) if at else []
            # after the records: it must cover what was removed, or could not be written, before these were read
            begins = self._begin()
        except OSError:
            if self.is_far:
                self._gap = AWAY
            raise
        gap, lost, self._gap, self._lost = self._gap, self._lost, "", 0
        if begins or at is None:
            return News([], gap, True, self.position, lost)
        if any(is_gap for _, _, is_gap in found):
            gap = "a record could not be written, or this version cannot read it"
        if found:
            self.position = self.position and self.position._replace(offset=found[-1][0])
        told = [record for _, record, _ in found if record is not None]
        return News(told, gap, len(found) == most, self.position, lost)

    def _begin(self) -> bool:
        """
        Note what the log may lack since the position, and tell whether it must be read from another place on. :raises
        OSError: if that cannot be told; then nothing is noted.
        """
        ((name, removed, last),) = self._tables.read(_STATE)
        at, boot, gaps, start = self.position, self._tables.boot(), self._tables.gaps(), int(removed)
        if at is None:
            why, start = "it is not known how far it was read", max(int(last), start)
        elif at.log != name:
            why = "it is another log than before"
        elif at.offset < start:
            why = "it was not read for so long that older records are gone"
            self._lost = 1 if self.is_far else start - at.offset  # places in PostgreSQL have gaps
        elif at.offset > max(int(last), start):
            why = "it is shorter than before"
        else:
            start, why = at.offset, ""
            if at.boot != boot:
                why = RESTARTED
            elif at.gaps != gaps:
                why = "a record could not be written"
        self.there, self._gap = True, why or self._gap
        self.position = Position(str(name), start, gaps, boot)
        return at is None or start != at.offset
