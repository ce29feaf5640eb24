"""
One SQLite file that many processes and threads use at once: their connections, and how these read and write.

Each thread of each process has a connection of its own. A connection from before a fork, or to a file that was replaced
since, is never used again, and never closed, because closing it would release the locks of the connections in use. A
forked process takes the locks of the connections that it has inherited, because SQLite assumes that it has them.

Three files lie beside the database. ``-wal`` and ``-shm`` belong to SQLite. ``.lock`` is held while a file is made or
set aside (``core/sqlite/file.py``).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from saltext.jobs.core.sqlite.file import (
    BUSY_SECONDS,
    LEFT,
    DatabaseFile,
    damage_in,
    is_damage,
    roll_back,
)

CACHE_KB = 2048  # the most that a connection's page cache takes; each write by others makes the cache useless
#: Seconds between two attempts while others write. SQLite itself tries less and less often, down to ten times a second, and
#: can miss every pause of a busy writer.
LOOK = 0.005
#: Seconds between two transactions of a bulk removal or copy, in which others can write: about as long as one takes.
PAUSE = 0.03
#: Sizes of -wal: the bytes that it keeps after a checkpoint; the pages above which each commit checkpoints it, while others
#: write; and the bytes above which others may not write meanwhile, because the checkpoint might never end otherwise.
LOG_KEPT, LARGE_LOG, LARGEST_LOG = 8 << 20, 6000, 64 << 20
#: Most seconds for which a checkpoint keeps others from writing, and seconds until the next one by the same process; and
#: seconds between two looks at the size of -wal.
LOG_WAIT, LOG_AGAIN, LOG_LOOK = 0.1, 10.0, 0.1
#: Most seconds for which a fork waits for other threads.
FORK_WAIT = 1.0

Result = TypeVar("Result")

_DATABASES: dict[tuple[str, bool], Database] = {}
_ALL: weakref.WeakSet[Database] = weakref.WeakSet()


class Connection:
    """The open connection of one thread of one process, and the identity of its file."""

    def __init__(self, sql: sqlite3.Connection, identity: tuple[int, int]) -> None:
        self.sql, self.identity = sql, identity
        #: Whether a transaction is open, and whether its writes must survive a power cut.
        self.busy = self.durable = False


class _Threads:
    """
    The threads of this process that are using SQLite. A fork waits for them: the forked process does not have these
    threads, so whatever they had locked within SQLite would stay locked there.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew in a forked process."""
        self._changed = threading.Condition()
        self._inside: set[int] = set()
        self._forks = 0

    def enter(self) -> bool:
        """Begin to use SQLite, once no other thread is about to fork. If this returns True, you must ``leave``."""
        own = threading.get_ident()
        if own in self._inside:
            return False
        with self._changed:
            while self._forks:
                self._changed.wait()
            self._inside.add(own)
        return True

    def leave(self) -> None:
        """End the use."""
        with self._changed:
            self._inside.discard(threading.get_ident())
            if self._forks:
                self._changed.notify_all()

    def before_fork(self) -> None:
        """Wait until no other thread is inside, and let none in."""
        self._changed.acquire()
        self._forks += 1
        self._changed.wait_for(lambda: self._inside <= {threading.get_ident()}, FORK_WAIT)

    def after_fork(self) -> None:
        """Let the threads of the process that has forked go on."""
        self._forks -= 1
        self._changed.notify_all()
        self._changed.release()


_THREADS = _Threads()


def _were_forked() -> None:
    _THREADS.forget()
    for database in list(_ALL):
        database.was_forked()


os.register_at_fork(before=_THREADS.before_fork, after_in_parent=_THREADS.after_fork, after_in_child=_were_forked)


def database_at(path: str, chosen: bool = False) -> Database:
    """Return this process's database at an absolute path; the parameters are those of ``Database``."""
    found = _DATABASES.get((path, chosen))
    return found or _DATABASES.setdefault((path, chosen), Database(path, chosen))


def close_below(folder: str) -> None:
    """Close this process's databases below a folder that is no longer used, but not under threads that run."""
    for wanted in [wanted for wanted in list(_DATABASES) if wanted[0].startswith(os.path.join(folder, ""))]:
        _DATABASES.pop(wanted).close()


class Database:
    """
    :param path: of the file; absolute.
    :param chosen: whether an operator chose the directory, which is then not created.
    """

    def __init__(self, path: str, chosen: bool = False) -> None:
        self.path = path
        self._file = DatabaseFile(path, chosen)
        self.damaged = self._file.damaged
        self._log, self._log_at = f"{path}-wal", 0.0
        #: By the number of the thread. A new thread with the number of an ended one takes over its connection.
        self._open_ones: dict[int, Connection] = {}
        self._was_left = False  # whether connections to the file in use were left without being closed
        _ALL.add(self)

    # -- using it --------------------------------------------------------------------------------------------------

    def read(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """
        Return the rows that a query finds.

        :raises sqlite3.Error: as SQLite does. If the file is damaged, it has been set aside, but not in a transaction.
        :raises StateError: if the file cannot be used.
        """
        with self._using():
            sql = self._connection().sql
            return patiently(lambda: sql.execute(query, values).fetchall())

    def run(self, query: str, values: Sequence[Any], durable: bool = False) -> int:
        """As ``transaction``, for one statement, which costs half. Returns how many rows it has changed."""
        outer = self._outer()
        if outer is not None:
            outer.durable |= durable
            return outer.sql.execute(query, values).rowcount
        with self._using():
            connection, done = self._begin(query, values)
            self._end(connection, durable)
            return done.rowcount

    @contextlib.contextmanager
    def transaction(self, durable: bool = False) -> Iterator[None]:
        """
        Write all or nothing, while nobody else writes. Within another transaction of this thread it is a part of that one.

        :param durable: whether it must survive a power cut when this returns.
        :raises Exception: as ``read``. Nothing was written then. A damaged file has been set aside.
        """
        outer = self._outer()
        if outer is not None:
            outer.durable |= durable
            yield
            return
        with self._using():
            connection, _ = self._begin("BEGIN IMMEDIATE")
            connection.busy, connection.durable = True, durable
            try:
                yield
                connection.sql.execute("COMMIT")
            except BaseException:
                roll_back(connection.sql)
                raise
            finally:
                connection.busy = False
            self._end(connection, connection.durable)

    def _outer(self) -> Connection | None:
        """Return the connection of this thread if it is in a transaction."""
        found = self._open_ones.get(threading.get_ident())
        return found if found is not None and found.busy else None

    def _begin(self, query: str, values: Sequence[Any] = ()) -> tuple[Connection, sqlite3.Cursor]:
        """Carry out the first statement that writes, on the file that is in place by then."""
        connection = self._connection(looks=False)
        while True:
            roll_back(connection.sql)  # of a transaction that was interrupted just after it began, or of another file
            try:
                done = patiently(lambda: connection.sql.execute(query, values))  # noqa: B023 (called at once)
                if connection.identity == self._file.identity():
                    return connection, done
            except sqlite3.DatabaseError:
                if connection.identity == self._file.identity():
                    raise
            connection = self._connection()

    def _end(self, connection: Connection, durable: bool) -> None:
        """Something was committed."""
        if durable:
            self._sync()
        self._see_to_log(connection)

    def close(self) -> None:
        """Close the connections of this thread, and of threads that have ended."""
        self._close_those_of_dead_threads(also=threading.get_ident())

    def give_way(self) -> None:
        """Pause, so that others can write."""
        time.sleep(PAUSE)

    @contextlib.contextmanager
    def _using(self) -> Iterator[None]:
        """Use the file in the block. If that shows that it is damaged, it is set aside, but not in a transaction."""
        is_first = _THREADS.enter()
        try:
            yield
        except Exception as exc:
            met, connection = damage_in(exc), self._open_ones.get(threading.get_ident())
            if met and connection is not None and not connection.busy:
                self._leave(connection)
                self._file.set_aside(connection.identity, met)
            raise
        finally:
            if is_first:
                _THREADS.leave()

    def _see_to_log(self, connection: Connection) -> None:
        """
        Have -wal begin anew if it is very large.

        A checkpoint after a commit moves it into the file, and the next writer begins it anew, but only if nobody has
        written meanwhile: among many writers somebody always has.
        """
        now = time.monotonic()
        if now < self._log_at:
            return
        self._log_at = now + LOG_LOOK
        with contextlib.suppress(OSError, sqlite3.Error):
            if os.stat(self._log).st_size > LARGEST_LOG:
                self._log_at = now + LOG_AGAIN
                connection.sql.execute(f"PRAGMA busy_timeout={LOG_WAIT * 1000:.0f}")
                connection.sql.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
                connection.sql.execute("PRAGMA busy_timeout=0")

    def _sync(self) -> None:
        """
        Sync what has been committed to the disk.

        SQLite itself has synced what it moved from -wal into the file meanwhile. It holds no lock on -wal, so closing
        -wal here releases none.
        """
        handle = os.open(self._log, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    # -- opening it ------------------------------------------------------------------------------------------------

    def was_forked(self) -> None:
        """Leave the connections that this process has inherited, and hold their locks until this process ends."""
        self._was_left |= bool(self._open_ones)
        for connection in list(self._open_ones.values()):
            self._leave(connection)
        if self._was_left:
            self._file.hold()

    def _connection(self, looks: bool = True) -> Connection:
        found = self._open_ones.get(threading.get_ident())
        if found is not None:
            if found.busy or not looks or found.identity == self._file.identity():
                return found
            self._leave(found)
        self._close_those_of_dead_threads()
        self._open_ones[threading.get_ident()] = found = self._open()
        return found

    def _leave(self, connection: Connection) -> None:
        LEFT.append(connection.sql)
        for thread in [thread for thread, one in list(self._open_ones.items()) if one is connection]:
            self._open_ones.pop(thread, None)

    def _close_those_of_dead_threads(self, also: int = 0) -> None:
        alive = sys._current_frames().keys() - {also}
        for thread in [thread for thread in list(self._open_ones) if thread not in alive]:
            connection = self._open_ones.pop(thread, None)
            if connection is not None:
                connection.sql.close()

    def _open(self) -> Connection:
        self._file.check_place()
        while True:
            identity = self._file.identity()
            if identity is None:
                self._file.make()
                continue
            sql: sqlite3.Connection | None = None
            try:
                sql = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
                patiently(lambda: self._prepare(sql))  # noqa: B023 (called at once)
                if identity == self._file.identity():
                    return Connection(sql, identity)
                LEFT.append(sql)
            except Exception as exc:
                if is_damage(exc):
                    LEFT.append(sql)
                    self._file.set_aside(identity, str(exc))
                    continue
                if sql is not None:
                    sql.close()
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
        """
        Read the whole file, and return what is wrong with it; None if it is sound or missing. Others can write.

        :raises Exception: as ``read``, which sets the file aside if nothing of it can be read.
        """
        found = "ok" if self._file.identity() is None else str(self.read("PRAGMA quick_check(1)")[0][0])
        return None if found == "ok" else found

    def backup(self, path: str) -> None:
        """
        Copy the file as it is at this moment, while others go on writing.

        :param path: of the copy; absolute.
        :raises OSError: also if the path exists.
        """
        draft = f"{path}.part"
        os.close(self._file.new_file(draft))
        try:
            with self._using(), contextlib.closing(sqlite3.connect(draft)) as copy:
                self._connection().sql.backup(copy)
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))  # since a rename replaces what is there
            os.rename(draft, path)
        finally:
            for name in (draft, f"{draft}-journal", f"{draft}-wal", f"{draft}-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)


def patiently(call: Callable[[], Result]) -> Result:
    """
    Call a function again and again while others keep the file locked.

    :raises sqlite3.OperationalError: if it stays locked for ``BUSY_SECONDS``.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return call()
        except sqlite3.OperationalError as exc:
            if "locked" not in str(exc) or time.monotonic() > deadline:
                raise
        time.sleep(LOOK)
