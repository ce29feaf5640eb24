"""
The log of a site: what its masters did, in one order. Behaves as the files of ``core/log``.

A record gets its place under a lock that lasts to the end of its transaction. So places become visible in order: a reader
that is past a place has seen everything before it. Appending does not wait for the disk. But the job cache's records of a
publish do, and then everything that was written before them is on the disk too.

A reader queries the server in a thread of its own. It must never hide that it may have missed something: after an error
it reports a gap.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from saltext.jobs.core import lines
from saltext.jobs.core.log import framing, records
from saltext.jobs.core.log.checkpoints import Position
from saltext.jobs.core.log.reader import News
from saltext.jobs.core.postgresql.connections import Connections, Patient
from saltext.jobs.core.postgresql.lease import asked
from saltext.jobs.core.postgresql.site_tables import LOG, SITE
from saltext.jobs.core.quiet import Quiet

log = lines.logger(__name__)

#: Seconds for which records are kept, and after how many records of a process it removes older ones.
KEPT, _SWEPT_AFTER = 2 * 3600.0, 2000
#: Records that are read at once, and most that wait to be taken.
_PART, _MOST = 1000, 20_000
#: Seconds between two looks.
_EVERY = 0.25
_APPEND = f"""WITH given AS (
        UPDATE {SITE} SET last = greatest(last + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
        RETURNING last)
    INSERT INTO {LOG} (place, body) SELECT last, %s FROM given"""
_REMOVE = f"""WITH gone AS (
        DELETE FROM {LOG} WHERE place < (extract(epoch FROM clock_timestamp()) - %s) * 1000000 RETURNING place)
    UPDATE {SITE} SET removed = greatest(removed, coalesce((SELECT max(place) FROM gone), 0))"""
_READ = f"SELECT place, body FROM {LOG} WHERE place > %s ORDER BY place LIMIT {_PART}"
_STATE = f"SELECT id, last, removed FROM {SITE}"


class SiteWriter:
    """
    Appends, in each of the masters' processes. Behaves as ``core.log.writer.Writer``.

    :param server: with the site's tables; the sessions need not wait for the disk.
    """

    def __init__(self, server: Connections) -> None:
        self._server = server
        self._appended = 0
        self._unmarked = False  # a record is missing, and readers could not be told
        self._quiet = Quiet(log)

    def append(self, record: records.Record) -> bool:
        """Append a record. Returns whether that succeeded; if not, the log has a gap."""
        try:
            if self._unmarked:
                self._write(None)
                self._unmarked = False
            self._write(framing.pack(record.fields()))
        except (OSError, ValueError) as exc:
            self._unmarked = True
            self._quiet.error(
                "append", "A record of the log could not be written, so the engines read the job cache: %s", exc
            )
            return False
        self._appended += 1
        if self._appended % _SWEPT_AFTER == 0:
            self._sweep()
        return True

    def _write(self, body: bytes | None) -> None:
        asked(self._server, lambda connection: connection.execute(_APPEND.encode(), (body,)))

    def _sweep(self) -> None:
        try:
            asked(self._server, lambda connection: connection.execute(_REMOVE.encode(), (KEPT,)))
        except OSError as exc:
            self._quiet.warning("sweep", "Old records of the log could not be removed: %s", exc)


class SiteReader:
    """
    Behaves as ``core.log.reader.Reader``.

    :param server: with the site's tables.
    :param position: where to go on. Without a position it begins at the end; if the log does not go on at the position, at
        the beginning. In both cases it reports a gap.
    """

    def __init__(self, server: Connections, position: Position | None = None) -> None:
        self._server, self._position = server, position
        self._lock = threading.Lock()  # guards what is below
        self._found: list[tuple[int, bytes | None]] = []
        self._gap = self._trouble = self._site = ""
        self._asked_to = self._told_to = 0
        self._quiet = Quiet(log)
        self._is_over, self._is_wanted = threading.Event(), threading.Event()
        self._begun = self._ended = 0  # how many looks began, and how many ended
        self._look()
        threading.Thread(target=self._ask, name="site log", daemon=True).start()

    @property
    def there(self) -> bool:
        """Whether there was a log at the last look."""
        return bool(self._site)

    @property
    def position(self) -> Position | None:
        """The place before which everything has been returned; until the server was reached, the given one, if any."""
        return Position(self._site, 0, self._told_to, 0, "") if self._site else self._position

    def read(self) -> News:
        """Return what was appended since, or a part of it. :raises OSError: when it cannot be read at this moment."""
        with self._lock:
            found, self._found = self._found[:_PART], self._found[_PART:]
            gap, self._gap = self._gap, ""
            more, trouble = bool(self._found), self._trouble
        if trouble and not found:
            with self._lock:
                self._gap = gap
            raise OSError(trouble)
        told = [_record_of(body) for _, body in found]
        if None in told:
            gap = "a record could not be written, or this version cannot read it"
        self._told_to = found[-1][0] if found else self._told_to
        return News([record for record in told if record is not None], gap, more)

    def sync(self, position: Position) -> None:
        """Do nothing: once a write is on the server's disk, all earlier writes are there too."""

    def look(self) -> Callable[[], bool]:
        """Begin a look at the log. Returns a function: whether ``read`` has all that was appended before ``look``."""
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
            rows = asked(self._server, self._next) if self._site else []
            # read after the records: ``removed`` must cover what was removed before these were read
            site, last, removed = asked(self._server, lambda connection: connection.execute(_STATE.encode()).fetchone())
        except OSError as exc:
            with self._lock:
                self._trouble, self._gap = str(exc), "the server was away"
            return True
        with self._lock:
            self._trouble = ""
            if not self._site:
                self._begin(site, last, removed)
            elif self._asked_to < removed:
                self._gap = "it was not read for so long that older records are gone"
            self._found += rows
            self._asked_to = rows[-1][0] if rows else self._asked_to
        return len(rows) < _PART

    def _next(self, connection: Patient) -> list[tuple[int, bytes | None]]:
        found: list[tuple[int, bytes | None]] = connection.execute(_READ.encode(), (self._asked_to,)).fetchall()
        return found

    def _begin(self, site: str, last: int, removed: int) -> None:
        wanted = self._position
        refusal = ""
        if wanted is None:
            refusal = "it is not known how far it was read"
        elif wanted.log != site:
            refusal = "it is another log than before"
        elif wanted.offset < removed:
            refusal = "it was not read for so long that older records are gone"
        elif wanted.offset > last:
            refusal = "it is shorter than before"
        self._site, self._gap = site, refusal or self._gap
        # If the log does not go on at the position, all that it has may be new.
        self._asked_to = self._told_to = last if wanted is None else removed if refusal else wanted.offset


def _record_of(body: bytes | None) -> records.Record | None:
    """Return a record; None if it is missing or cannot be read."""
    framed = framing.scan(body or b"").records
    try:
        return records.read(framed[0].body) if framed else None
    except Exception:  # msgpack raises many kinds
        return None
