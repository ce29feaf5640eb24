"""
The log of a site: what its masters did, in one order.

It must never prevent a publish or a return, and never hide that it may lack something: a record that cannot be written is
noted as a gap, and the reader reports it once, so that the engine reads the job cache.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

from saltext.jobs.core import lines
from saltext.jobs.core.ledger.tables import LOG, MASTERS, SITE, Execute, Tables
from saltext.jobs.core.log import records
from saltext.jobs.core.quiet import Quiet

log = lines.logger(__name__)

#: Bytes of the log by default.
SIZE = 128 << 20
#: Records that always stay, for readers that lag; after how many records a process removes older ones, at most how many at
#: once; and how many records tell how large one is. Each takes about so many bytes more than its body.
_LEAST, _SWEPT_AFTER, _SWEPT, _SAMPLE, _MORE = 20_000, 2000, 5000, 500, 100
#: Records that are read at once, and most that wait to be taken.
_PART, _MOST = 1000, 20_000
#: Seconds between two looks at a server.
_EVERY = 0.25
_ENTER = f"INSERT INTO {MASTERS} VALUES (?) ON CONFLICT DO NOTHING"
_READ = f"SELECT place, jid, minion, body FROM {LOG} WHERE place > ? ORDER BY place LIMIT {_PART}"
_PUBLISHES = f"SELECT place, jid, minion, body FROM {LOG} WHERE jid = ? AND minion = '' ORDER BY place"
_RETURNS = f"SELECT place, jid, minion, body FROM {LOG} WHERE jid = ? AND minion <> ''"
_FIRST = f"SELECT place, mark FROM {LOG} WHERE jid = ? AND minion = '' ORDER BY place LIMIT 1"
_GAP_AFTER = f"SELECT 1 FROM {LOG} WHERE body IS NULL AND place > ? LIMIT 1"
#: Minions that are looked up at once; for more, all returns of the job are read.
_FEW = 200
_STATE = f"SELECT id, removed FROM {SITE}"
_LAST = f"SELECT coalesce(max(place), 0) FROM {LOG}"
_BYTES = (
    f"SELECT avg(length(body)) + {_MORE} FROM (SELECT body FROM {LOG} ORDER BY place DESC LIMIT {_SAMPLE}) AS newest"
)
_BEFORE = f"SELECT place FROM {LOG} ORDER BY place DESC LIMIT 1 OFFSET ?"
_OLD = f"SELECT max(place) FROM (SELECT place FROM {LOG} WHERE place <= ? ORDER BY place LIMIT {_SWEPT}) AS old"
_REMOVE = f"DELETE FROM {LOG} WHERE place <= ?"
_REMOVED = f"UPDATE {SITE} SET removed = ? WHERE removed < ?"


class Position(NamedTuple):
    """
    A place in a log. ``log``: which log; ``offset``: the place; ``gaps``: the last known gap; ``boot``: the boot of the
    machine. A later boot may have lost records.
    """

    log: str
    offset: int
    gaps: int
    boot: str

    @classmethod
    def from_record(cls, record: Any) -> Position:
        """Return the place in a record. :raises ValueError: when the record is not valid."""
        try:
            position = cls(**{name: record[name] for name in cls._fields})
        except (KeyError, TypeError) as exc:
            raise ValueError(f"it is no place in a log: {exc!r}") from exc
        if not all(type(number) is int and number >= 0 for number in position[1:3]):
            raise ValueError(f"it is no place in a log: {position}")
        return position


class News(NamedTuple):
    """
    What was read. ``gap``: why records may be missing, or empty. ``more``: whether more can be read at once.
    """

    records: list[records.Record]
    gap: str
    more: bool


def writers(tables: Tables) -> frozenset[str]:
    """Return the ids of the masters that have written to the log. :raises OSError:"""
    return frozenset(str(row[0]) for row in tables.read(f"SELECT id FROM {MASTERS}"))


def publishes(tables: Tables, jid: str) -> list[records.Published]:
    """Return the publishes of a job, in order. :raises OSError:"""
    found = _genuine(tables, tables.read(_PUBLISHES, (jid,)))
    return [record for _, record in found if isinstance(record, records.Published)]


def returns(tables: Tables, jid: str, minions: Collection[str]) -> dict[str, records.Returned]:
    """Return the returns of a job by some minions. :raises OSError:"""
    if not minions:
        return {}
    few = len(minions) <= _FEW
    query = f"{_RETURNS} AND minion IN ({', '.join('?' * len(minions))})" if few else _RETURNS
    found = _genuine(tables, tables.read(query, (jid, *minions) if few else (jid,)))
    by_minion = {record.minion: record for _, record in found if isinstance(record, records.Returned)}
    return {minion: by_minion[minion] for minion in minions if minion in by_minion}


def is_whole(tables: Tables, jid: str) -> bool:
    """Tell whether the log has the job's first publish, and surely all that came after it. :raises OSError:"""
    found = tables.read(_FIRST, (jid,))
    return bool(found) and found[0][1] == _mark(tables) and not tables.read(_GAP_AFTER, (found[0][0],))


def _mark(tables: Tables) -> str:
    """Return what changes when records may be missing and no row says so."""
    return f"{tables.boot()}/{tables.gaps()}"


class Writer:
    """
    Appends, in each of the masters' processes.

    :param master: the id of this process's master.
    :param size: bytes of the log; beyond it the oldest records are removed. Until then they tell who has returned a job.
    """

    def __init__(self, tables: Tables, master: str, size: int = SIZE) -> None:
        self._tables, self._master, self._size = tables, master, size
        self._appended = 0
        self._is_entered = False
        self._unmarked = False  # a record is missing, and readers could not be told
        self._quiet = Quiet(log)

    def append(self, record: records.Record, durable: bool = False) -> bool:
        """
        Append a record; a second return of a job by a minion is left out. Returns whether that succeeded; if not, the log
        has a gap.

        :param durable: whether it must survive a power cut when this returns.
        """
        try:
            self.add(record, durable)
        except (OSError, ValueError) as exc:
            self.missed(exc)
            return False
        self.appended()
        return True

    def publishes(self, jid: str) -> list[records.Published]:
        """As the function of this module; none if the log cannot be read now."""
        try:
            return publishes(self._tables, jid)
        except OSError as exc:
            self._quiet.error("publishes", "The log cannot be read now: %s", exc)
            return []

    def add(self, record: records.Record, durable: bool = False) -> None:
        """As ``append``, as a part of this thread's transaction. After that, call ``appended``. :raises OSError:"""
        if not self._is_entered:
            self._tables.run(_ENTER, (self._master,))
        if self._unmarked:
            self._tables.run(self._tables.dialect.append, ("", "", "", None))
        mark = _mark(self._tables) if isinstance(record, records.Published) and record.fresh else ""
        body = self._tables.seal.put(records.packed(record), LOG, record.jid, record.minion)
        self._tables.run(self._tables.dialect.append, (record.jid, record.minion, mark, body), durable)

    def leave_gap(self) -> None:
        """Have readers know that something is missing."""
        try:
            self._tables.run(self._tables.dialect.append, ("", "", "", None))
        except OSError as exc:
            self.missed(exc)

    def appended(self) -> None:
        """What was added is there."""
        self._is_entered, self._unmarked = True, False
        self._appended += 1
        if self._appended % _SWEPT_AFTER == 0:
            self._sweep()

    def missed(self, exc: Exception) -> None:
        """A record is missing."""
        self._unmarked = not self._tables.note_gap()
        self._quiet.error(
            "append", "A record of the log could not be written, so the engines read the job cache: %s", exc
        )

    def _sweep(self) -> None:
        """Remove what is beyond ``size``."""
        try:
            until = self._first(_BEFORE, max(_LEAST, self._size // max(1, int(self._first(_BYTES) or 1))))
            last = None if until is None else self._first(_OLD, until)
            if last is not None:
                self._tables.write(lambda execute: _remove(execute, last), durable=False)
        except OSError as exc:
            self._quiet.warning("sweep", "Old records of the log could not be removed: %s", exc)

    def _first(self, query: str, *values: Any) -> Any:
        found = self._tables.read(query, values)
        return found[0][0] if found else None


def _remove(execute: Execute, last: int) -> None:
    execute(_REMOVE, (last,))
    execute(_REMOVED, (last, last))


class Reader:
    """
    Reads the log from a position on, in order and each record once. It queries a server in a thread of its own.

    :param position: where to go on. Without a position it begins at the end; if it is a place in another log, at the
        beginning. In these cases it reports a gap; also if records may have been lost since.
    """

    def __init__(self, tables: Tables, position: Position | None = None) -> None:
        self._tables, self._position = tables, position
        self._lock = threading.Lock()  # guards what is below
        self._found: list[tuple[int, records.Record | None]] = []
        self._gap = self._trouble = self._log = ""
        self._asked_to = self._told_to = self._gaps = 0
        self._is_over, self._is_wanted = threading.Event(), threading.Event()
        self._begun = self._ended = 0  # how many looks began, and how many ended
        self._look()
        if tables.is_far:
            threading.Thread(target=self._ask, name="site log", daemon=True).start()

    @property
    def there(self) -> bool:
        """Whether there was a log at the last look."""
        return bool(self._log)

    @property
    def position(self) -> Position | None:
        """The place before which everything has been returned; until the log was reached, the given one, if any."""
        if not self._log:
            return self._position
        return Position(self._log, self._told_to, self._gaps, self._tables.boot())

    def read(self) -> News:
        """Return what was appended since, or a part of it. :raises OSError: when it cannot be read at this moment."""
        if not self._tables.is_far and not self._found and not self._look() and not self._found:
            self._look()  # it has just begun with another log
        with self._lock:
            found, self._found = self._found[:_PART], self._found[_PART:]
            gap, self._gap = self._gap, ""
            trouble = self._trouble
            more = bool(self._found) or (len(found) == _PART and not self._tables.is_far)
        if trouble and not found:
            with self._lock:
                self._gap = gap
            raise OSError(trouble)
        told = [record for _, record in found]
        if None in told:
            gap = "a record could not be written, or this version cannot read it"
        self._told_to = found[-1][0] if found else self._told_to
        return News([record for record in told if record is not None], gap, more)

    def look(self) -> Callable[[], bool]:
        """Begin a look at the log. Returns a function: whether ``read`` has all that was appended before ``look``."""
        if not self._tables.is_far:
            return lambda: True
        wanted = self._begun + 1  # the look that is under way may have begun too early
        self._is_wanted.set()
        return lambda: self._ended >= wanted

    def close(self) -> None:
        """Stop reading."""
        self._is_over.set()
        self._is_wanted.set()

    def _ask(self) -> None:
        while not self._is_over.is_set():
            self._begun += 1
            if self._look():
                self._ended = self._begun
                self._is_wanted.wait(_EVERY)
            self._is_wanted.clear()

    def _look(self) -> bool:
        """Read a part of what is new, and tell whether it was the last part."""
        if len(self._found) >= _MOST:
            self._is_over.wait(_EVERY)
            return False
        try:
            rows = self._tables.read(_READ, (self._asked_to,)) if self._log else []
            found = list(_genuine(self._tables, rows))
            # read after the records: it must cover what was removed, or could not be written, before these were read
            ((name, removed),) = self._tables.read(_STATE)
            gaps = self._tables.gaps()
            last = 0 if name == self._log else int(self._tables.read(_LAST)[0][0])
        except OSError as exc:
            with self._lock:
                self._trouble = str(exc)
                if self._tables.is_far:
                    self._gap = "the server was away"
            return True
        with self._lock:
            self._trouble = ""
            if name != self._log:
                self._begin(str(name), last, int(removed), gaps)
                return False
            if self._asked_to < removed:
                self._gap = "it was not read for so long that older records are gone"
            if gaps != self._gaps:
                self._gap, self._gaps = "a record could not be written", gaps
            self._found += found
            self._asked_to = rows[-1][0] if rows else self._asked_to
        return len(rows) < _PART

    def _begin(self, name: str, last: int, removed: int, gaps: int) -> None:
        wanted = self.position
        refusal, at = "", removed
        if wanted is None:
            refusal, at = "it is not known how far it was read", last
        elif wanted.log != name:
            refusal = "it is another log than before"
        elif wanted.offset < removed:
            refusal = "it was not read for so long that older records are gone"
        elif wanted.offset > last:
            refusal = "it is shorter than before"
        else:
            at = wanted.offset
            if wanted.boot != self._tables.boot():
                refusal = "the machine was restarted since it was read"
            elif wanted.gaps != gaps:
                refusal = "a record could not be written"
        self._log, self._gap, self._gaps = name, refusal or self._gap, gaps
        self._found.clear()
        self._asked_to = self._told_to = at


def _genuine(tables: Tables, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[int, records.Record | None]]:
    """Yield place and record of the rows that the masters of the site have written; None for what is missing."""
    for place, jid, minion, body in rows:
        found = None if body is None else tables.seal.take(bytes(body), LOG, jid, minion)
        if body is None or found is not None:
            yield place, _record_of(jid, minion, found)


def _record_of(jid: str, minion: str, body: bytes | None) -> records.Record | None:
    """Return a record; None if it is missing or cannot be read."""
    try:
        return None if body is None else records.read(jid, minion, body)
    except Exception:  # msgpack raises many kinds
        return None
