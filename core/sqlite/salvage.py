"""
Salvages a damaged database of the driver sqlite, row by row.

A new file begins with all readable records except jobs, and with the jobs that the retry queue still owes a minion, so no
reader sees the file without these. The other jobs may be many: the sweep of the job cache, or an operator, copies them
later. Records that exist already are not changed. It must never write to the damaged file.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import itertools
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol
from urllib.parse import quote

import salt.payload

from saltext.jobs.core import formats, lines
from saltext.jobs.core.banks import OWED, RETURNS, plain_bank
from saltext.jobs.core.errors import LaterVersion, StateError
from saltext.jobs.core.sqlite import rows, schema, stored

log = lines.logger(__name__)

_PART = 1000  # rows written at a time
_PROBED = 10_000  # ids in a row that are tried one by one when they cannot be read; then the steps grow
_JOBS = "jobs/"
#: The bank of the damaged files that are salvaged into this one. A key is a file's name; its value tells whether jobs are
#: still to come.
_BEGUN_WITH = f"{schema.HIDDEN}begun_with"
#: The columns that are read. With one wrong bit in its type, ``id`` is not the number by which SQLite finds a row.
_COLUMNS = {"banks": {"id", "name"}, "records": {"id", "bank", "key", "updated", "expires", "value"}}
#: What the first page says of pages, and where the two tables and their indexes begin.
_LAYOUT = (
    "PRAGMA page_size",
    """SELECT type, tbl_name, rootpage FROM sqlite_master WHERE tbl_name IN ('banks', 'records') AND rootpage
        ORDER BY rootpage LIMIT 4""",
)
_UNUSED = 20  # the byte of the first page that says how many bytes of each page are not used
#: Errors of the system that do not pass: the file was removed, or the disk cannot read it any more.
_LASTING = (errno.ENOENT, errno.EIO)
_OF_IT = "bank = (SELECT id FROM banks WHERE name = ?)"


class Unreadable(Exception):
    """Nothing in the damaged file can be read."""


class Banks(Protocol):
    """The banks in use: ``core/sqlite/banks.py``."""

    path: str

    def rows(self, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Return the rows that a query finds."""

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """All writes in the block happen together or not at all."""

    def add_rows(self, rows: Sequence[tuple[Any, ...]]) -> int:
        """Store rows where there is no value; return how many."""

    def give_way(self) -> None:
        """Let others write for a moment."""


class Part(enum.Enum):
    """Which records are wanted."""

    ALL = "all"
    FIRST = "first"  # all but jobs, and the jobs that the retry queue still owes a minion
    JOBS = "jobs"  # those in the banks of the job cache


class Remains:
    """:param path: of the damaged file."""

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)  # SQLite looks for -wal there
        #: How many records could be read.
        self.read = 0
        #: The earlier damaged files that this one began with, and whether their jobs were still to come.
        self.begun_with: dict[str, bool] = {}
        self._gaps: set[tuple[str, int]] = set()

    @property
    def gaps(self) -> int:
        """How many places could not be read."""
        return len(self._gaps)

    def rows(self, part: Part) -> Generator[tuple[Any, ...], None, None]:
        """
        Yield (bank, key, updated, expires, value) of each whole record.

        :raises Unreadable: if nothing can be read.
        :raises OSError: if it cannot be read now, for example because the disk is full.
        """
        try:
            with self._opened() as sql:
                for row in self._wanted(sql, part, self._names(sql)):
                    self.read += 1
                    yield row
        except sqlite3.Error as exc:
            raise Unreadable(str(exc)) from exc
        except OSError as exc:
            if exc.errno not in _LASTING:
                raise
            raise Unreadable(str(exc)) from exc

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """
        Yield a connection to the file or to a copy. The copy has the first page of a new file, whose tables begin in
        the same places. It is used if the file's own first page, which says where the tables are, is damaged. If that
        page only differs from a new file's, the one of the two is used that more can be read with.
        """
        if not os.path.isfile(self._path):
            raise Unreadable("there is no such file")
        with open(self._path, "rb") as stream:  # before SQLite opens it: closing it later would release SQLite's locks
            size, head = os.fstat(stream.fileno()).st_size, stream.read(_UNUSED + 1)
        with contextlib.closing(_connected(self._path)) as sql:
            error = _damage_of_head(sql)
            if not error and not _first_page_differs(sql, size, head[_UNUSED]):
                yield sql
                return
            least = 0 if error else self._count(sql)
        with self._copied() as sql:
            if self._count(sql) > least:
                yield sql
                return
        if error:
            raise Unreadable(error)
        with contextlib.closing(_connected(self._path)) as sql:
            yield sql

    def _count(self, sql: sqlite3.Connection) -> int:
        """Return how many records a connection can read."""
        other = Remains(self._path)
        return sum(1 for _ in other._whole(sql, other._names(sql)))

    @contextlib.contextmanager
    def _copied(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection to a copy with the first page of a new file."""
        place, name = os.path.split(self._path)
        folder = os.path.join(place, f".{name}.copy")
        with open(self._path, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
                os.mkdir(folder, 0o700)
                with contextlib.closing(self._copy(folder)) as sql:
                    yield sql
            finally:
                shutil.rmtree(folder, ignore_errors=True)
                fcntl.flock(lock, fcntl.LOCK_UN)  # a process that was forked meanwhile has it too

    def _copy(self, folder: str) -> sqlite3.Connection:
        path = os.path.join(folder, "copy")
        for end in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(self._path + end, path + end)
        try:
            with open(path, "r+b") as stream:
                stream.write(_new_head(os.path.join(folder, "new")))
            sql = _connected(path)
            sql.execute("SELECT 1 FROM sqlite_master").fetchone()  # makes -shm
        except sqlite3.OperationalError as exc:
            raise OSError(f"no copy can be made in {folder}: {exc}") from exc
        return sql

    def _wanted(self, sql: sqlite3.Connection, part: Part, names: dict[int, str]) -> Iterator[tuple[Any, ...]]:
        if part is Part.ALL:
            yield from self._whole(sql, names)
            return
        jobs = {number for number, name in names.items() if name.startswith(_JOBS)}
        if part is Part.JOBS:
            yield from self._whole(sql, names, lambda bank, _: bank in jobs)
            return
        owed: set[str] = set()
        for row in self._whole(sql, names, lambda bank, _: bank not in jobs):
            if row[0] == OWED:
                owed.add(row[1])
            yield row
        if owed:
            returns = {number for number in jobs if names[number].startswith(f"{RETURNS}/")}
            own = {number for number in returns if names[number][len(RETURNS) + 1 :] in owed}
            shared = jobs - returns
            yield from self._whole(sql, names, lambda bank, key: bank in own or (bank in shared and key in owed))

    def _whole(
        self, sql: sqlite3.Connection, names: dict[int, str], wanted: Callable[[int, str], bool] | None = None
    ) -> Iterator[tuple[Any, ...]]:
        value = "value"
        if wanted is not None:
            sql.create_function("wanted", 2, wanted)
            value = "CASE WHEN wanted(bank, key) THEN value END"  # other values are not read, but their rows are
        for number, bank, key, *rest in self._rows(sql, "records", f"id, bank, key, updated, expires, {value}"):
            name = names.get(bank, "")
            if name == _BEGUN_WITH and isinstance(key, str) and _is_whole(rest):
                self.begun_with[key] = bool(stored.loads(rest[-1]))
            if name.startswith(schema.HIDDEN) or (wanted is not None and rest[-1] is None):
                continue
            if _is_plain(name) and isinstance(key, str) and _is_whole(rest):
                yield (name, key, *rest)
            else:
                self._gaps.add(("records", number))

    def _names(self, sql: sqlite3.Connection) -> dict[int, str]:
        """Return the names of the banks, from the table and from its index, which lies elsewhere in the file."""
        names = {number: name for number, name in self._rows(sql, "banks", "id, name") if isinstance(name, str)}
        end = ""
        for start in ("", *sorted(names.values())):  # behind a gap of the index, go on from a name in the table
            if start and start <= end:
                continue
            below = [*_index(sql, "<", start, "DESC", end)]
            above = [*_index(sql, ">=", start, "ASC", "")]
            names.update((number, name) for name, number in (*below, *above))
            end = above[-1][0] if above else start
        return names

    def _rows(self, sql: sqlite3.Connection, table: str, columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield each readable row of a table once, also behind a gap. Damaged pages can lead SQLite in circles."""
        query = f"SELECT {columns} FROM {table} WHERE id >= ? ORDER BY id"
        single = f"SELECT {columns} FROM {table} WHERE id = ?"
        at, seen = 0, _Numbers()
        doubtful: dict[int, tuple[Any, ...]] = {}  # rows that may have the id of others
        while True:
            last: tuple[Any, ...] = (at - 1,)
            try:
                for row in sql.execute(query, (at,)):
                    if row[0] < at:
                        raise sqlite3.DatabaseError("it leads back to earlier pages")
                    is_new = seen.add(row[0])
                    if row[0] <= last[0]:  # a page is in the place of another one, or one of the two ids is damaged
                        self._gaps.add((table, last[0]))
                        doubtful[last[0]] = last
                        is_new = is_new or row not in self._single(sql, single, row[0])
                    if is_new or doubtful.get(row[0], row) != row:
                        yield row
                    last = row
                return
            except sqlite3.DatabaseError:
                gap = max(at, last[0] + 1)
            self._gaps.add((table, gap))
            found = self._after(sql, f"{query} LIMIT 1", gap)
            low = gap + _PROBED
            if found is not None:
                backward = f"SELECT {columns} FROM {table} WHERE id < ? AND id >= ? ORDER BY id DESC LIMIT 1"
                behind = [*self._back(sql, backward, gap, found[0]), found]
                yield from (row for row in behind if seen.add(row[0]))
                low = min(low, *(row[0] for row in behind))
            # Damage in the pages above can hide a row from a search for its neighbours.
            singles = itertools.chain.from_iterable(self._single(sql, single, number) for number in range(gap, low))
            yield from (row for row in singles if seen.add(row[0]))
            if found is None:
                return
            at = found[0] + 1

    @staticmethod
    def _after(sql: sqlite3.Connection, query: str, gap: int) -> tuple[Any, ...] | None:
        """Return the first row behind a gap that can be read, or a later one; None if there is none."""
        at, tries = gap, 0
        while at < 2**62:
            with contextlib.suppress(sqlite3.DatabaseError):
                found: tuple[Any, ...] | None = sql.execute(query, (at,)).fetchone()
                if found is None or found[0] >= at:
                    return found
            tries += 1
            at += 2 ** max(0, tries - _PROBED)
        return None

    @staticmethod
    def _single(sql: sqlite3.Connection, query: str, number: int) -> list[tuple[Any, ...]]:
        try:
            return [row for row in sql.execute(query, (number,)).fetchall() if row[0] == number]
        except sqlite3.DatabaseError:
            return []

    @staticmethod
    def _back(sql: sqlite3.Connection, query: str, low: int, high: int) -> Iterator[tuple[Any, ...]]:
        """Yield the rows before ``high``, backwards, up to the first that cannot be read."""
        try:
            while (row := sql.execute(query, (high, low)).fetchone()) is not None and row[0] < high:
                yield row
                high = row[0]
        except sqlite3.DatabaseError:
            return


def _index(sql: sqlite3.Connection, sign: str, start: str, order: str, end: str) -> Iterator[tuple[str, int]]:
    """Yield (name, number) of banks from the index of their names, up to its next gap, or to ``end``."""
    last = None
    with contextlib.suppress(sqlite3.DatabaseError):
        for name, number in sql.execute(
            f"SELECT name, id FROM banks WHERE name {sign} ? ORDER BY name {order}", (start,)
        ):
            is_next = isinstance(name, str) and (last is None or (name > last) == (order == "ASC"))
            if not is_next or name == last or (order == "DESC" and name <= end):
                return
            yield name, number
            last = name


def _connected(path: str) -> sqlite3.Connection:
    # A connection that may write would move -wal into the file when it ends. With ``immutable`` SQLite makes no -wal.
    has_log = os.path.exists(f"{path}-wal")
    name = f"file:{quote(path)}?mode=ro" + ("" if has_log else "&immutable=1")
    try:
        sql = sqlite3.connect(name, uri=True, isolation_level=None)
    except sqlite3.OperationalError as exc:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))  # its error says why
        raise OSError(f"{path} cannot be opened: {exc}") from exc
    sql.execute("PRAGMA writable_schema=ON")  # else SQLite refuses a file that was cut off
    return sql


def _damage_of_head(sql: sqlite3.Connection) -> str:
    """
    Return why the first page cannot be used; empty if it can.

    :raises Unreadable: if the file is empty, or of another program.
    """
    query = "SELECT name FROM pragma_table_info(?) WHERE name != 'id' OR (pk AND type = 'INTEGER')"
    try:
        is_whole = all({row[0] for row in sql.execute(query, (table,))} >= names for table, names in _COLUMNS.items())
        is_ours = sql.execute("PRAGMA application_id").fetchone()[0] == schema.APPLICATION
    except sqlite3.DatabaseError as exc:
        return str(exc)
    if not is_whole and not is_ours:
        raise Unreadable("it has no tables of this extension")
    return "" if is_whole else "its tables are missing or not known"


def _first_page_differs(sql: sqlite3.Connection, size: int, unused: int) -> bool:
    """
    Tell whether the first page describes pages and tables differently than that of a new file.

    :param size: of the file, in bytes.
    :param unused: bytes of each page that are not used, as the first page says.
    """
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as new:
        schema.begin(new)
        schema.create(new)
        wanted = [new.execute(query).fetchall() for query in _LAYOUT]
    try:
        found = [sql.execute(query).fetchall() for query in _LAYOUT]
        ((pages,),) = sql.execute("PRAGMA page_count")
    except sqlite3.DatabaseError:
        return True
    return found != wanted or unused > 0 or pages < size // schema.PAGE_BYTES


def _new_head(path: str) -> bytes:
    """Return the first page of a new file, which is made."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as sql:
        schema.begin(sql)
        sql.execute("PRAGMA journal_mode=WAL")
        sql.execute("BEGIN")
        schema.create(sql)
        sql.execute("COMMIT")
    with open(path, "rb") as stream:
        head = stream.read(schema.PAGE_BYTES)
    return head[:92] + bytes(4) + head[96:]  # so that the size of the file counts, and not the one in the page


class _Numbers:
    """A set of numbers, one bit each. It takes none that are so large that damage must have made them."""

    _MOST_BYTES = 64 << 20

    def __init__(self) -> None:
        self._bits = bytearray()

    def add(self, number: int) -> bool:
        """Add a number, and tell whether it is new."""
        at, bit = number >> 3, 1 << (number & 7)
        if at >= len(self._bits):
            if not 0 <= at < self._MOST_BYTES:
                return True
            self._bits.extend(bytes(at + 1 - len(self._bits)))
        is_new = not self._bits[at] & bit
        self._bits[at] |= bit
        return is_new


def _is_plain(name: str) -> bool:
    """Tell whether a name can be that of a bank that is not hidden."""
    try:
        return plain_bank(name) == name
    except StateError:
        return False


def _is_whole(rest: list[Any]) -> bool:
    updated, expires, value = rest
    if not isinstance(updated, int) or not isinstance(expires, (int, type(None))) or not isinstance(value, bytes):
        return False
    try:
        stored.loads(value)
    except Exception:  # msgpack raises many kinds for a broken value
        return False
    return True


def begin_with(sql: sqlite3.Connection, path: str) -> None:
    """
    Fill a new file with what can be read of a damaged one, except for most jobs, and note that these are still to come.

    Call it in the transaction that has made the tables.

    :raises sqlite3.Error: if the new file cannot be written.
    :raises OSError: if the damaged file cannot be read now.
    """
    remains = Remains(path)
    try:
        with contextlib.closing(remains.rows(Part.FIRST)) as found:
            count = rows.add(sql, found)
    except Unreadable as exc:
        log.error("Nothing of %s can be read, and the new file is begun empty: %s", path, exc)
        return
    earlier = dict.fromkeys(_set_aside_beside(path), False)  # also if what the damaged file says of them cannot be read
    for name, are_to_come in {**earlier, **remains.begun_with, os.path.basename(path): True}.items():
        note(sql, name, are_to_come)
    log.warning(
        "The new file begins with %d records of %s, in which %d places cannot be read. Jobs follow with the next sweep of "
        "the job cache",
        count,
        path,
        remains.gaps,
    )


def _set_aside_beside(path: str) -> list[str]:
    folder, name = os.path.split(path)
    start = name.rpartition(".damaged-")[0] + ".damaged-"
    return [other for other in os.listdir(folder) if other.startswith(start) and not other.endswith(("-wal", "-shm"))]


def to_come(banks: Banks) -> list[str]:
    """Return the damaged files whose jobs are still to come."""
    folder = os.path.dirname(banks.path)
    found = banks.rows(f"SELECT key, value FROM records WHERE {_OF_IT}", (_BEGUN_WITH,))
    return [os.path.join(folder, name) for name, value in found if stored.loads(value)]


def note(sql: sqlite3.Connection, path: str, to_come: bool) -> None:
    """Note whether the jobs of a damaged file are still to come into the one in use."""
    name, now = os.path.basename(path), int(time.time() * 1000)
    row = (rows.bank_id(sql, _BEGUN_WITH), name, now, salt.payload.dumps(to_come))
    sql.execute("INSERT OR REPLACE INTO records (bank, key, updated, value) VALUES (?, ?, ?, ?)", row)


class Salvage:
    """
    :param path: of the damaged file.
    :param banks: the banks in use.
    """

    def __init__(self, path: str, banks: Banks) -> None:
        self._path, self.banks, self._remains = path, banks, Remains(path)
        #: Records that were written, since they were missing.
        self.written = 0

    @property
    def read(self) -> int:
        """How many records could be read."""
        return self._remains.read

    @property
    def gaps(self) -> int:
        """How many places could not be read."""
        return self._remains.gaps

    def require_known_format(self) -> None:
        """:raises Unreadable: if a later version has written the damaged file."""
        try:
            with contextlib.closing(_connected(self._path)) as sql:
                version = sql.execute("PRAGMA user_version").fetchone()[0]
            formats.check(self._path, version, schema.VERSION, "nothing of it is read or written")
        except LaterVersion as exc:
            raise Unreadable(str(exc)) from exc
        except (sqlite3.Error, ValueError):
            return  # it is damaged

    def run(self) -> None:
        """
        Copy what can be read. If the file in use began with this damaged one, copy jobs only: it got everything else
        then, and what it lacks now was removed since.

        :raises Unreadable: if nothing of the damaged file can be read.
        :raises OSError: if it cannot be read now.
        :raises sqlite3.Error: if the file in use cannot be written.
        """
        values = (_BEGUN_WITH, os.path.basename(self._path))
        noted = bool(self.banks.rows(f"SELECT 1 FROM records WHERE {_OF_IT} AND key = ?", values))
        part: list[tuple[Any, ...]] = []
        with contextlib.closing(self._remains.rows(Part.JOBS if noted else Part.ALL)) as found:
            for row in found:
                part.append(row)
                if len(part) >= _PART:
                    self._write(part)
                    self.banks.give_way()
        self._write(part)
        self.conclude()
        if noted:
            with self.banks.transaction() as sql:
                note(sql, self._path, to_come=False)

    def _write(self, part: list[tuple[Any, ...]]) -> None:
        added = self.banks.add_rows(part)
        self.written += added
        if added < len(part):
            self.meet(part)
        part.clear()

    def meet(self, part: list[tuple[Any, ...]]) -> None:
        """Called if the places of some of these rows hold records: those were stored since the damage was found."""

    def conclude(self) -> None:
        """Called when each row has been written, or its place held a record."""
