"""
The files of an engine, by names, and the journals of batches among them.

The leader writes in transactions that first make sure that it still leads (``core/postgresql/lease.py``). A runner, which
only writes requests, needs no lease. A failure to look must never be reported as a missing file.
"""

from __future__ import annotations

import contextlib
import datetime
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import msgpack

from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.ledger.tables import FILES, Execute, Tables

#: Most bytes of a journal's records that wait for the database.
_MOST = 64 << 20
#: A journal is rewritten when its records are larger than its snapshot by this factor, but not below this many bytes.
_GROWTH, _LEAST = 2, 256 << 10
#: How Salt packs a time or a date among the arguments of a job (``salt.payload``): its msgpack type, and its form.
_TIME, _TIME_FORM = 78, "%Y%m%dT%H:%M:%S.%f"
_OF = "engine = ? AND name = ?"
_READ = f"SELECT part, body FROM {FILES} WHERE {_OF} ORDER BY part"
_DELETE = f"DELETE FROM {FILES} WHERE {_OF}"
_RENAME = f"UPDATE {FILES} SET name = ? WHERE {_OF}"
_NAMES = f"SELECT name FROM {FILES} WHERE engine = ? AND name >= ? AND name < ? AND part = 0 ORDER BY name"
_MODIFIED = f"SELECT max(modified) FROM {FILES} WHERE {_OF}"
_LAST = f"SELECT max(part) FROM {FILES} WHERE {_OF}"
_IS_THERE = f"SELECT 1 FROM {FILES} WHERE {_OF} AND part = 0"


class Folder:
    """
    After an OSError other than FileNotFoundError it is not known whether the file is there.

    :param engine: whose files they are.
    :param lease: by which this process leads; None for a runner.
    """

    def __init__(self, tables: Tables, engine: str, lease: Lease | None = None) -> None:
        self.tables, self._engine, self._lease = tables, engine, lease
        now = tables.dialect.now
        self._insert = f"INSERT INTO {FILES} (engine, name, part, body, modified) VALUES (?, ?, ?, ?, {now})"
        # This does no harm if it is run twice, as after a lost answer.
        self._add = f"{self._insert} ON CONFLICT (engine, name, part) DO UPDATE SET body = excluded.body"
        self._touch = f"UPDATE {FILES} SET modified = {now} WHERE {_OF}"

    def where(self, name: str = "") -> str:
        """Return how messages name a file, or the folder."""
        return f"{name or 'the files'} of {self._engine} in {self.tables.place}"

    def read(self, name: str) -> bytes:
        """
        Return the content of a file.

        :raises FileNotFoundError: when it is not there. :raises OSError: :raises StateError: when others have written it.
        """
        found = self.tables.read(_READ, (self._engine, name))
        if not found:
            raise self._absent(name)
        parts = [self.tables.seal.take(bytes(body), *self._sealed(name, part)) for part, body in found]
        if None in parts:
            raise StateError(f"{self.where(name)} is not sealed by a master of this site")
        return b"".join(part for part in parts if part is not None)

    def write(self, name: str, data: bytes, durable: bool = False) -> None:
        """
        Replace a file as a whole.

        :param durable: whether it must survive a power cut when this returns.
        :raises OSError: the old content stays. If only durability is uncertain, a power cut may leave either content.
        """

        def work(execute: Execute) -> None:
            self._replace(execute, name, data)
            self.tables.tell(execute, self._engine)

        self._do(work, durable)

    def names(self, below: str) -> list[str]:
        """Return the names of the files in ``below``, each with ``below/`` before it, sorted. :raises OSError:"""
        return [str(row[0]) for row in self.tables.read(_NAMES, (self._engine, f"{below}/", f"{below}0"))]

    def modified(self, name: str) -> float:
        """Return when a file was last written, in Unix time. :raises FileNotFoundError, OSError:"""
        found = self._one(_MODIFIED, name)
        if found is None:
            raise self._absent(name)
        return float(found)

    def rename(self, old: str, new: str) -> None:
        """Rename a file; it replaces a file that has the new name. :raises FileNotFoundError, OSError:"""
        if not self._do(lambda execute: self._move(execute, old, new)):
            raise self._absent(old)

    def set_aside(self, name: str) -> str:
        """
        Rename an unusable file to ``<name>.corrupt``, set its time to now, and return where it is. If there is no file,
        do nothing. :raises OSError:
        """
        aside = f"{name}.corrupt"

        def work(execute: Execute) -> None:
            if self._move(execute, name, aside):
                execute(self._touch, (self._engine, aside))

        self._do(work)
        return self.where(aside)

    def remove(self, name: str) -> bool:
        """Remove a file, and tell whether it was there. :raises OSError:"""
        return bool(self._do(lambda execute: execute(_DELETE, (self._engine, name)).rowcount, durable=False))

    def exists(self, *names: str) -> bool:
        """Tell whether one of these is there. :raises OSError: when that cannot be told."""
        return any(self._one(_IS_THERE, name) for name in names)

    def journal(self, name: str) -> Journal:
        """Return the journal of that name, whether or not there is one."""
        return Journal(self, name)

    # -- for journals -------------------------------------------------------------------------------------------------

    def put(self, name: str, part: int, data: bytes) -> None:
        """Add a part to a file, durably; part 0 replaces all that the file has. :raises FileNotFoundError, OSError:"""

        def work(execute: Execute) -> bool:
            if not part:
                self._replace(execute, name, data)
                return True
            if not execute(_IS_THERE, (self._engine, name)).fetchone():
                return False
            self._store(execute, self._add, name, part, data)
            return True

        if not self._do(work):
            raise self._absent(name)

    def last_part(self, name: str) -> int:
        """Return the number of a file's last part, -1 if there is none. :raises OSError:"""
        found = self._one(_LAST, name)
        return -1 if found is None else int(found)

    def renew(self) -> None:
        """Make sure that this process still leads, and that all it has written is durable. :raises OSError:"""
        self._do(lambda execute: None)

    # -- asking the database ------------------------------------------------------------------------------------------

    def _replace(self, execute: Execute, name: str, data: bytes) -> None:
        execute(_DELETE, (self._engine, name))
        self._store(execute, self._insert, name, 0, data)

    def _store(self, execute: Execute, statement: str, name: str, part: int, data: bytes) -> None:
        execute(statement, (self._engine, name, part, self.tables.seal.put(data, *self._sealed(name, part))))

    def _sealed(self, name: str, part: int) -> tuple[object, ...]:
        """Return what a part is sealed for. A file keeps its seals when it gets another suffix."""
        return FILES, self._engine, name.partition(".")[0], part

    def _move(self, execute: Execute, old: str, new: str) -> bool:
        if not execute(_IS_THERE, (self._engine, old)).fetchone():
            return False
        if old != new:
            execute(_DELETE, (self._engine, new))
            execute(_RENAME, (new, self._engine, old))
        return True

    def _absent(self, name: str) -> FileNotFoundError:
        return FileNotFoundError(f"There is no {self.where(name)}")

    def _one(self, query: str, name: str) -> Any:
        found = self.tables.read(query, (self._engine, name))
        return found[0][0] if found else None

    def _do(self, work: Callable[[Execute], Any], durable: bool = True) -> Any:
        return self.tables.write(work, self._lease, durable)


class Content(NamedTuple):
    """The content of a journal. ``length``: its bytes; ``begin``: where the records begin."""

    snapshot: Any
    records: list[Any]
    length: int
    begin: int


def packed(value: Any) -> bytes:
    """Return a record in the form that it has in a journal."""
    body: bytes = msgpack.packb(value, use_bin_type=True, default=_packed_time)
    return body


def _packed_time(value: Any) -> msgpack.ExtType:
    if not isinstance(value, datetime.date):
        raise TypeError(f"a {type(value).__name__} cannot be kept: {value!r:.200}")
    return msgpack.ExtType(_TIME, value.strftime(_TIME_FORM).encode())


def _time_of(kind: int, data: bytes) -> Any:
    return datetime.datetime.strptime(data.decode(), _TIME_FORM) if kind == _TIME else msgpack.ExtType(kind, data)


def content_of(data: bytes, where: object) -> Content:
    """
    Return the content of a journal's bytes.

    :param where: how a message names the journal.
    :raises StateError: when it is damaged; the message says where.
    """
    unpacker = msgpack.Unpacker(raw=False, strict_map_key=False, ext_hook=_time_of, max_buffer_size=len(data) or 1)
    unpacker.feed(data)
    values, begin = [], 0
    try:
        for value in unpacker:
            if not isinstance(value, (list, dict)):
                raise ValueError("there is no record")
            values.append(value)
            begin = begin or unpacker.tell()
    except Exception as exc:  # msgpack raises many kinds
        raise StateError(f"{where} is damaged at byte {unpacker.tell()}: {type(exc).__name__}: {exc}") from exc
    if unpacker.tell() != len(data):
        raise StateError(f"{where} is damaged at byte {unpacker.tell()}")
    if not values:
        raise StateError(f"{where} holds no snapshot")
    return Content(values[0], values[1:], len(data), begin)


class Journal:
    """
    A snapshot, and the facts since. What was not synced is lost with the process.

    One thread appends, and never waits for the database. The calls that wait (``sync``, ``finish_rewrite``, ``close``) may
    be made in one other thread.

    :param folder: where it is.
    :param name: its name there.
    """

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder, self.name = folder, name
        self._lock = threading.Lock()  # guards what is below
        self._is_open = self._has_gap = False
        self._part = self._length = self._begin = self._unsent = 0
        self._waiting: list[bytes] = []  # not sent yet
        self._rewrite: list[bytes] | None = None  # the records of a rewrite that is under way

    def read(self) -> Content:
        """
        Return what it holds.

        :raises FileNotFoundError: when there is none.
        :raises OSError: when it cannot be read at this moment; it may be whole.
        :raises StateError: when it is damaged.
        """
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
        return self._rewrite is None and self._length - self._begin > max(_LEAST, _GROWTH * self._begin)

    def append(self, record: Any) -> None:
        """
        Add a record, which is durable after ``sync``.

        :raises OSError: when it is not open, lacks a record, or too many wait. All further records are then refused until
            a rewrite has begun.
        """
        data = packed(record)
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
            self._rewrite = [packed(snapshot)]

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
