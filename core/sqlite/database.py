"""
One SQLite file that many processes and threads use at once: their connections, and how these read and write.

All threads of a process share one connection, and use it one after the other. It is closed before a fork: to SQLite, a
forked process has the locks of each connection that it inherits, and to the system it has none. A connection to a file that
was replaced since must never be used again, nor closed, because that could remove the ``-wal`` of the new one.

Beside the database lie SQLite's ``-wal`` and ``-shm``, and ``.lock``, held while a file is made or set aside (``file.py``).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

from saltext.jobs.core.sqlite.file import BUSY_SECONDS, LEFT, DatabaseFile, Replaced, is_damage, roll_back

CACHE_KB = 2048  # the most that a connection's page cache takes; each write by others makes the cache useless
#: Seconds between two attempts while others write, and the attempts after which they come three times as often: SQLite
#: itself tries less and less often, and can miss every pause of a busy writer.
LOOK, LONG = 0.005, 5
#: Sizes of -wal: the bytes that it keeps after a checkpoint; the pages above which each commit checkpoints it, while others
#: write; and the bytes above which others may not write meanwhile, because the checkpoint might never end otherwise.
LOG_KEPT, LARGE_LOG, LARGEST_LOG = 8 << 20, 6000, 64 << 20
#: Most seconds for which such a checkpoint keeps others from writing, and seconds between two looks at the size of -wal.
LOG_WAIT, LOG_LOOK = 0.1, 10.0
#: Most seconds for which a fork waits for other threads.
FORK_WAIT = 10.0

Result = TypeVar("Result")

_MOST_DATABASES = 8
_DATABASES: dict[tuple[str, bool], Database] = {}
#: Held by the thread that uses SQLite. A fork waits for it: a forked process does not have the other threads, so what one of
#: them had locked within SQLite would stay locked there.
_LOCK = threading.RLock()
_FORK = threading.local()


def _before_fork() -> None:
    _FORK.has_lock = _LOCK.acquire(timeout=FORK_WAIT)
    for database in list(_DATABASES.values()) if _FORK.has_lock else ():
        database.close()


def _after_fork() -> None:
    if _FORK.has_lock:
        _LOCK.release()


def _were_forked() -> None:
    global _LOCK
    _LOCK = threading.RLock()
    for database in list(_DATABASES.values()):
        database.leave()  # what could not be closed


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_were_forked)


def database_at(path: str, chosen: bool = False) -> Database:
    """Return this process's database at an absolute path; the parameters are those of ``Database``."""
    found = _DATABASES.get((path, chosen))
    if found is None:
        found = _DATABASES.setdefault((path, chosen), Database(path, chosen))
        for old in list(_DATABASES)[:-_MOST_DATABASES]:
            if ended := _DATABASES.pop(old, None):
                ended.close()
    return found


class Database:
    """``chosen``: an operator chose the directory of the absolute ``path``, which is then not created."""

    def __init__(self, path: str, chosen: bool = False) -> None:
        self.path = path
        self._file = DatabaseFile(path, chosen)
        self.damaged = self._file.damaged
        self._log, self._log_at = f"{path}-wal", 0.0
        self._sql: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None  # that of the file to which the connection is open
        self._damage = ""  # what shows that it is damaged
        self._busy = self._durable = False  # a transaction is open; its writes must survive a power cut

    # -- using it --------------------------------------------------------------------------------------------------

    def read(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """
        Return the rows that a query finds. :raises StateError: if the file cannot be used. :raises sqlite3.Error: as SQLite
        does, Replaced where the file was damaged; but not in a transaction.
        """
        with _LOCK:
            try:
                return patiently(lambda: self._connection().execute(query, values).fetchall(), _let_others_in)
            except Exception as exc:
                self._met(exc)
                raise

    def run(self, query: str, values: Sequence[Any], durable: bool = False) -> int:
        """As ``transaction``, for one statement, which costs half. Returns how many rows it has changed."""
        with _LOCK:
            try:
                if self._is_within(durable):
                    return self._connection().execute(query, values).rowcount
                done = self._begin(query, values)
            except Exception as exc:
                self._met(exc)
                raise
            self._see_to_log(done.connection)
        if durable:
            self._sync()
        return done.rowcount

    @contextlib.contextmanager
    def transaction(self, durable: bool = False) -> Iterator[None]:
        """
        Write all or nothing, while nobody else writes. Within another transaction of this thread it is a part of that one.
        ``durable``: it must survive a power cut when this returns. Raises as ``read``, and nothing was written then.
        """
        with _LOCK:
            if self._is_within(durable):
                yield
                return
            try:
                sql = self._begin("BEGIN IMMEDIATE").connection
                self._busy, self._durable = True, durable
                yield
                sql.execute("COMMIT")
            except BaseException as exc:
                self._busy = False
                if self._sql is not None:
                    roll_back(self._sql)
                self._met(exc)
                raise
            self._busy = False
            self._see_to_log(sql)
            durable = self._durable  # the next transaction, of another thread, changes it
        if durable:
            self._sync()

    def _is_within(self, durable: bool) -> bool:
        """Tell whether this thread is in a transaction, which then becomes durable if ``durable`` says so."""
        self._durable |= durable
        return self._busy

    def _begin(self, query: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Carry out the first statement that writes, on the file that is in place by then."""

        def begin() -> sqlite3.Cursor:
            sql = self._connection(looks=False)  # another one after a wait: a thread may have forked meanwhile
            roll_back(sql)  # a transaction that was interrupted just after it began
            return sql.execute(query, values)

        while True:
            try:
                done = patiently(begin, _let_others_in)
                if self._identity == self._file.identity():
                    return done
            except sqlite3.DatabaseError:
                if self._identity == self._file.identity():
                    raise
            self._connection()

    def close(self) -> None:
        """Close the connection, unless it is in use."""
        with _LOCK:
            if self._sql is not None and not self._busy:
                if self._identity != self._file.identity():
                    self.leave()
                    return
                self._sql.close()
                self._sql = None

    def leave(self) -> None:
        """Never use the connection again, nor close it."""
        LEFT.append(self._sql)
        self._sql, self._busy = None, False

    def _met(self, exc: BaseException) -> None:
        """
        If an error has shown that the file is damaged, set it aside, but not in a transaction, whose statements may have
        turned it into any other error. :raises Replaced: then.
        """
        self._damage = str(exc) if is_damage(exc) else self._damage
        if self._damage and not self._busy:
            self.leave()
            self._file.set_aside(self._identity, self._damage)
            raise Replaced(self._damage) from exc

    def _see_to_log(self, sql: sqlite3.Connection) -> None:
        """
        Have -wal begin anew if it is very large. A checkpoint after a commit moves it into the file, and the next writer
        begins it anew, but only if nobody has written meanwhile: among many writers somebody always has.
        """
        now = time.monotonic()
        if now < self._log_at:
            return
        self._log_at = now + LOG_LOOK
        with contextlib.suppress(OSError, sqlite3.Error):
            if os.stat(self._log).st_size > LARGEST_LOG:
                sql.execute(f"PRAGMA busy_timeout={LOG_WAIT * 1000:.0f}")
                sql.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
                sql.execute("PRAGMA busy_timeout=0")

    def _sync(self) -> None:
        """
        Sync what has been committed. SQLite itself has synced what it moved from -wal into the file meanwhile: all of it,
        where -wal is gone since another thread forked. It holds no lock on -wal, so closing -wal here releases none.
        """
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(self._log, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    # -- opening it ------------------------------------------------------------------------------------------------

    def _connection(self, looks: bool = True) -> sqlite3.Connection:
        """Return the connection. ``looks``: it is to the file that is in place now."""
        if self._sql is not None:
            if self._busy or not looks or self._identity == self._file.identity():
                return self._sql
            self.leave()
        return self._open()

    def _open(self) -> sqlite3.Connection:
        self._file.check_place()
        while True:
            identity = self._file.identity()
            if identity is None:
                self._file.make()
                continue
            sql: sqlite3.Connection | None = None
            try:
                # It must not make a file, if this one is being set aside.
                at = f"file:{quote(self.path)}?mode=rw"
                sql = sqlite3.connect(at, timeout=0, isolation_level=None, check_same_thread=False, uri=True)
                patiently(lambda: self._prepare(sql))  # noqa: B023 (called at once)
                if identity == self._file.identity():
                    self._sql, self._identity, self._damage = sql, identity, ""
                    return sql
                LEFT.append(sql)
            except Exception as exc:
                if is_damage(exc):
                    LEFT.append(sql)
                    self._file.set_aside(identity, str(exc))
                    continue
                if sql is not None:
                    sql.close()
                if identity != self._file.identity():
                    continue
                self._file.check_rights(exc)
                raise

    def _prepare(self, sql: sqlite3.Connection) -> None:
        if not os.path.getsize(self.path):
            raise sqlite3.DatabaseError("it is empty: malformed")
        self._file.check_format(sql)
        # Debian has secure_delete on: it overwrites removed data, which doubles the cost of a sweep. The file is private.
        # As one script: single statements would take longer, and each would stay in the cache of statements.
        sql.executescript(
            f"""PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;
            PRAGMA journal_size_limit={LOG_KEPT}; PRAGMA wal_autocheckpoint={LARGE_LOG}; PRAGMA temp_store=MEMORY;
            PRAGMA cache_size=-{CACHE_KB}; PRAGMA secure_delete=OFF"""
        )

    # -- all of it -------------------------------------------------------------------------------------------------

    def file_bytes(self) -> int:
        """Return the size of the file, with that of its log."""
        return sum(os.stat(name).st_blocks * 512 for name in (self.path, self._log) if os.path.exists(name))

    def used_bytes(self) -> tuple[int, int]:
        """Return how many bytes of the file are used, and how many are free for new rows."""
        names = ("page_count", "freelist_count", "page_size")
        pages, free, size = (self.read(f"PRAGMA {name}")[0][0] for name in names)
        return (pages - free) * size, free * size

    def damage(self) -> str | None:
        """Read all, and return what is wrong with the file, which stays; None if it is sound or missing."""
        if self._file.identity() is None:
            return None
        try:  # not with the connection of this process, which would set the file aside
            with contextlib.closing(sqlite3.connect(f"file:{quote(self.path)}?mode=ro", uri=True)) as sql:
                found = str(sql.execute("PRAGMA quick_check(1)").fetchone()[0])
        except sqlite3.DatabaseError as exc:
            if not is_damage(exc):
                raise
            found = str(exc)
        return None if found == "ok" else found

    def backup(self, path: str) -> None:
        """Copy the file to an absolute path as it is now, while others write. :raises OSError: also if the path exists."""
        draft = f"{path}.part"
        os.close(self._file.new_file(draft))
        try:
            with _LOCK, contextlib.closing(sqlite3.connect(draft)) as copy:
                self._connection().backup(copy)
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))  # since a rename replaces what is there
            os.rename(draft, path)
        finally:
            for name in (draft, f"{draft}-journal", f"{draft}-wal", f"{draft}-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)


def _let_others_in(seconds: float) -> None:
    """Wait, and let other threads use SQLite meanwhile; but not in a transaction, in which the lock is held twice."""
    _LOCK.release()
    try:
        time.sleep(seconds)
    finally:
        _LOCK.acquire()


def patiently(call: Callable[[], Result], wait: Callable[[float], object] = time.sleep) -> Result:
    """Call again and again while others lock the file. :raises sqlite3.OperationalError: after ``BUSY_SECONDS``."""
    deadline, tries = 0.0, 0
    while True:
        try:
            return call()
        except sqlite3.OperationalError as exc:
            deadline = deadline or time.monotonic() + BUSY_SECONDS
            if "locked" not in str(exc) or time.monotonic() > deadline:
                raise
        tries += 1
        wait(LOOK if tries < LONG else LOOK / 3)
