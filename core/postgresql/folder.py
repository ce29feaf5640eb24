"""
The files of an engine in PostgreSQL, and the journals of batches there. ``core/disk`` says what each method does.

The leader writes in transactions that first renew the lease (``core/postgresql/lease.py``), so a former leader can no
longer write anything. A runner, which only writes requests, needs no lease.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

from saltext.jobs.core.disk.journal import Content, content_of, framed, is_overgrown
from saltext.jobs.core.postgresql.connections import Connections, Patient
from saltext.jobs.core.postgresql.lease import CHANNEL, TableLease, asked
from saltext.jobs.core.postgresql.site_tables import FILES

#: Most bytes of a journal's records that wait for the server.
_MOST = 64 << 20
_OF = "engine = %s AND name = %s"
_READ = f"SELECT string_agg(body, '' ORDER BY part) FROM {FILES} WHERE {_OF}".encode()
_DELETE = f"DELETE FROM {FILES} WHERE {_OF}".encode()
_INSERT = f"INSERT INTO {FILES} (engine, name, part, body) VALUES (%s, %s, %s, %s)".encode()
# This does no harm if it is run twice, as after a lost answer.
_ADD = f"""INSERT INTO {FILES} (engine, name, part, body) SELECT %s, %s, %s, %s
    WHERE EXISTS (SELECT FROM {FILES} WHERE {_OF} AND part = 0)
    ON CONFLICT (engine, name, part) DO UPDATE SET body = EXCLUDED.body""".encode()
_MAKE_ROOM = f"""DELETE FROM {FILES} WHERE {_OF} AND name <> %s
    AND EXISTS (SELECT FROM {FILES} WHERE {_OF})""".encode()
_RENAME = f"UPDATE {FILES} SET name = %s WHERE {_OF}".encode()
_TOUCH = f"UPDATE {FILES} SET modified = clock_timestamp() WHERE {_OF}".encode()
_NAMES = f"SELECT DISTINCT name FROM {FILES} WHERE engine = %s AND name >= %s AND name < %s ORDER BY name".encode()
_MODIFIED = f"SELECT extract(epoch FROM max(modified))::float8 FROM {FILES} WHERE {_OF}".encode()
_EXISTS = f"SELECT EXISTS (SELECT FROM {FILES} WHERE engine = %s AND name = ANY(%s))".encode()
_LAST = f"SELECT max(part) FROM {FILES} WHERE {_OF}".encode()


class TableFolder:
    """
    :param server: with the site's tables.
    :param engine: whose files they are.
    :param lease: by which this process leads; None for a runner.
    """

    def __init__(self, server: Connections, engine: str, lease: TableLease | None = None) -> None:
        self._server, self._engine, self._lease = server, engine, lease

    def where(self, name: str = "") -> str:
        """Return how messages name a file."""
        return f"{name or 'the files'} of {self._engine} in PostgreSQL at {self._server.place}"

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        found = self._one(_READ, name)
        if found is None:
            raise self._absent(name)
        return bytes(found)

    def write(self, name: str, data: bytes, durable: bool = False) -> None:
        """Replace a file as a whole, durably."""

        def work(connection: Patient) -> None:
            connection.execute(_DELETE, (self._engine, name))
            connection.execute(_INSERT, (self._engine, name, 0, data))
            connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, self._engine))

        self._do(work)

    def names(self, below: str) -> list[str]:
        """Return the names of the files."""
        values = (self._engine, f"{below}/", f"{below}0")
        return [row[0] for row in asked(self._server, lambda connection: connection.execute(_NAMES, values).fetchall())]

    def modified(self, name: str) -> float:
        """Return when a file was last written, by the server's clock."""
        found = self._one(_MODIFIED, name)
        if found is None:
            raise self._absent(name)
        return float(found)

    def rename(self, old: str, new: str) -> None:
        """Rename a file."""
        if not self._do(lambda connection: self._move(connection, old, new)):
            raise self._absent(old)

    def set_aside(self, name: str) -> str:
        """Rename a file that cannot be used, and return where it is."""
        aside = f"{name}.corrupt"

        def work(connection: Patient) -> None:
            self._move(connection, name, aside)
            connection.execute(_TOUCH, (self._engine, aside))

        self._do(work)
        return self.where(aside)

    def remove(self, name: str) -> bool:
        """Remove a file, and tell whether it was there."""
        return bool(self._do(lambda connection: connection.execute(_DELETE, (self._engine, name)).rowcount))

    def exists(self, *names: str) -> bool:
        """Tell whether one of these is there."""
        values = (self._engine, list(names))
        row = asked(self._server, lambda connection: connection.execute(_EXISTS, values).fetchone())
        return bool(row and row[0])

    def sweep(self, below: str) -> None:
        """Do nothing: unfinished files are in no table."""

    def journal(self, name: str) -> TableJournal:
        """Return the journal of that name."""
        return TableJournal(self, name)

    # -- for journals -------------------------------------------------------------------------------------------------

    def put(self, name: str, part: int, data: bytes) -> None:
        """Add a part to a file, durably; part 0 replaces all that the file has. :raises FileNotFoundError, OSError:"""
        place = (self._engine, name)

        def work(connection: Patient) -> int:
            if part:
                return int(connection.execute(_ADD, (*place, part, data, *place)).rowcount)
            connection.execute(_DELETE, place)
            return int(connection.execute(_INSERT, (*place, part, data)).rowcount)

        if not self._do(work):
            raise self._absent(name)

    def last_part(self, name: str) -> int:
        """Return the number of a file's last part, -1 if there is none. :raises OSError:"""
        found = self._one(_LAST, name)
        return -1 if found is None else int(found)

    def renew(self) -> None:
        """Make sure that this process still leads. :raises OSError:"""
        self._do(lambda connection: None)

    # -- asking the server --------------------------------------------------------------------------------------------

    def _move(self, connection: Patient, old: str, new: str) -> int:
        place, other = (self._engine, old), (self._engine, new)
        connection.execute(_MAKE_ROOM, (*other, old, *place))
        return int(connection.execute(_RENAME, (new, *place)).rowcount)

    def _absent(self, name: str) -> FileNotFoundError:
        return FileNotFoundError(f"There is no {self.where(name)}")

    def _one(self, query: bytes, name: str) -> Any:
        values: Sequence[Any] = (self._engine, name)
        row = asked(self._server, lambda connection: connection.execute(query, values).fetchone())
        return row[0] if row else None

    def _do(self, work: Callable[[Patient], Any]) -> Any:
        def in_lead(connection: Patient) -> Any:
            with connection.transaction():
                if self._lease is not None:
                    self._lease.renewed(connection)
                return work(connection)

        return asked(self._server, in_lead)


class TableJournal:
    """
    Behaves as ``core.disk.journal.Journal``, but what was not synced is lost with the process.

    :param folder: where it is.
    :param name: its name there.
    """

    def __init__(self, folder: TableFolder, name: str) -> None:
        self._folder, self.name = folder, name
        self._lock = threading.Lock()  # guards what is below
        self._is_open = self._has_gap = False
        self._part = self._length = self._begin = self._unsent = 0
        self._waiting: list[bytes] = []  # not sent yet
        self._rewrite: list[bytes] | None = None  # the records of a rewrite that is under way

    def read(self) -> Content:
        """Return what it holds. :raises FileNotFoundError, OSError, StateError:"""
        return content_of(self._folder.read(self.name), self._folder.where(self.name))

    def open(self, content: Content) -> None:
        """Go on after what it holds. :raises OSError:"""
        self._part = self._folder.last_part(self.name)
        self._is_open, self._length, self._begin = True, content.length, content.begin

    @property
    def whole(self) -> bool:
        """Whether it has all records. If not, further ones are refused until a rewrite has begun."""
        return self._is_open and not self._has_gap

    @property
    def behind(self) -> bool:
        """Whether records wait for a ``sync``, without which they are lost with the process."""
        return bool(self._waiting)

    @property
    def size(self) -> int:
        """Its bytes."""
        return self._length

    @property
    def overgrown(self) -> bool:
        """Whether it is time to rewrite it, which keeps its size below a multiple of its snapshot's."""
        return self._rewrite is None and is_overgrown(self._length, self._begin)

    def append(self, record: Any) -> None:
        """
        Add a record, which is durable after ``sync``.

        :raises OSError: when it is not open, lacks a record, or too many wait. All further records are then refused until
            a rewrite has begun.
        """
        data = framed(record)
        with self._lock:
            self._has_gap = self._has_gap or self._unsent > _MOST
            if self._rewrite is not None:
                self._rewrite.append(data)
            elif not self.whole:
                raise OSError(self._trouble())
            self._waiting.append(data)
            self._unsent += len(data)
            self._length += len(data)

    def begin_rewrite(self, snapshot: Any) -> None:
        """Begin to replace it by one that begins with ``snapshot``. After this you must call ``finish_rewrite``."""
        with self._lock:
            self._rewrite = [framed(snapshot)]

    def finish_rewrite(self) -> None:
        """
        Put the new one in the old one's place, durably.

        :raises OSError: then the old one stays, and the journal is not ``whole``.
        """
        with self._lock:
            if self._rewrite is None:
                raise OSError(f"{self._folder.where(self.name)} is not being rewritten")
            parts, self._rewrite, self._waiting = self._rewrite, None, []
            self._has_gap, self._is_open = False, True
            self._begin, self._length, self._part, self._unsent = len(parts[0]), sum(map(len, parts)), 0, 0
        self._send(0, b"".join(parts))

    def rewrite(self, snapshot: Any) -> None:
        """Replace it by one that holds the snapshot only, durably. :raises OSError: as ``finish_rewrite``."""
        self.begin_rewrite(snapshot)
        self.finish_rewrite()

    def sync(self) -> None:
        """Make all records durable. :raises OSError: when that is not certain, or this process does not lead."""
        with self._lock:
            if not self.whole:
                raise OSError(self._trouble())
            data, self._waiting, self._unsent = b"".join(self._waiting), [], 0
            self._part += bool(data)
        if data:
            self._send(self._part, data)
        else:
            self._folder.renew()

    def _send(self, part: int, data: bytes) -> None:
        try:
            self._folder.put(self.name, part, data)
        except OSError:
            with self._lock:
                self._has_gap = True
            raise

    def _trouble(self) -> str:
        return f"{self._folder.where(self.name)} {'lacks a record' if self._has_gap else 'is not open'}"

    def close(self) -> None:
        """Send the records that wait, if that is possible, and release it."""
        with contextlib.suppress(OSError):
            if self._waiting:
                self.sync()
        with self._lock:
            self._is_open = False
