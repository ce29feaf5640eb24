"""
One SQLite file that many processes and threads use at once: made, opened, checked, and set aside where it is damaged.

Each thread of each process has a connection of its own. One that was opened before a fork, or on a file that has been
replaced since, is never used again, nor closed: closing it would touch the files of whoever uses them now. Only the owner
of the directory may read the file, which holds pillars and tokens as well; what root makes is given to that owner.

Besides this file there are its ``-wal`` and ``-shm``, which belong to SQLite, and ``.lock``, held while a file is made or
set aside. It must never touch a file that is not its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from saltext.jobs.core.disk import schema
from saltext.jobs.core.disk.local_banks import make_folder, owner_for_root
from saltext.jobs.core.disk.mounts import mounts as mounted
from saltext.jobs.core.disk.mounts import remote_file_system
from saltext.jobs.core.errors import StateError

log = logging.getLogger(__name__)

BUSY_SECONDS = 30.0  # how long a writer waits for the others
CACHE_KB = 8192  # of pages that a connection keeps, at most: those that a sweep changes in one transaction
LARGEST_LOG = 64 * 1024 * 1024  # bytes that -wal may keep after its content has gone into the file

_COMPANIONS = ("-wal", "-shm")

#: Connections that must not be closed.
_LEFT: list[sqlite3.Connection] = []
_DATABASES: dict[tuple[str, bool], Database] = {}

Moment = tuple[sqlite3.Connection, int]


class Connection:
    """What one thread of one process has open."""

    def __init__(self, sql: sqlite3.Connection, identity: tuple[int, int]) -> None:
        self.sql, self.identity = sql, identity
        #: Whether a transaction is open, and whether what it stores must survive a power cut.
        self.busy = self.durable = False


def database_at(path: str, full_sync: bool = False) -> Database:
    """Return this process's database at an absolute path."""
    found = _DATABASES.get((path, full_sync))
    return found or _DATABASES.setdefault((path, full_sync), Database(path, full_sync))


class Database:
    """
    :param path: of the file; absolute.
    :param full_sync: whether every transaction must survive a power cut; otherwise those that ask for it.
    :param mounts: returns what is mounted where, as ``/proc/self/mounts``; that file, where none is given.
    """

    def __init__(self, path: str, full_sync: bool = False, mounts: Callable[[], str] | None = None) -> None:
        self.path = path
        self._mounts = mounts or mounted
        self._full_sync = full_sync
        self._pid = os.getpid()
        #: By thread. A thread that has the number of one that has ended takes its connection over.
        self._open_ones: dict[int, Connection] = {}

    # -- using it --------------------------------------------------------------------------------------------------

    def read(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """
        Return the rows that a query finds.

        :raises sqlite3.Error: as SQLite does; a damaged file has been set aside then.
        :raises StateError: where the file cannot be used.
        """
        with self._watched() as connection:
            return connection.sql.execute(query, values).fetchall()

    def moment(self) -> Moment:
        """
        Return what is another value once anybody else has written.

        A transaction that begins later can compare it: what was read since then still holds in it where it is the same.
        """
        with self._watched() as connection:
            return moment(connection.sql)

    @contextlib.contextmanager
    def transaction(self, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """
        Write, as the only one, all or nothing. Within another transaction of this thread it is a part of that one.

        :param durable: whether it must survive a power cut when this returns.
        :raises Exception: as ``read``. Nothing was written then.
        """
        with self._watched() as connection:
            if connection.busy:
                connection.durable |= durable
                yield connection.sql
                return
            connection = self._begin(connection)
            connection.busy, connection.durable = True, durable
            try:
                yield connection.sql
                connection.sql.execute("COMMIT")
            except BaseException:
                _roll_back(connection.sql)
                raise
            finally:
                connection.busy = False
            if connection.durable and not self._full_sync:
                self._sync()

    def _begin(self, connection: Connection) -> Connection:
        """Begin a transaction, on the file that is there once all who came first have ended theirs."""
        while True:
            connection.sql.execute("BEGIN IMMEDIATE")
            if connection.identity == self._identity():
                return connection
            _roll_back(connection.sql)
            connection = self._connection()

    def shrink(self, pages: int) -> None:
        """Cut free pages off the file, in a transaction of its own."""
        with self._watched() as connection:
            # Each page is a row without columns, of which ``execute`` takes one only.
            connection.sql.executescript(f"PRAGMA incremental_vacuum({pages})")

    @contextlib.contextmanager
    def _watched(self) -> Iterator[Connection]:
        connection = self._connection()
        try:
            yield connection
        except sqlite3.DatabaseError as exc:
            if is_damage(exc) and not connection.busy:
                self._leave(connection)
                self._set_aside(connection.identity, str(exc))
            raise

    def _sync(self) -> None:
        """
        Have the disk take what has been committed.

        Whatever has gone from -wal into the file meanwhile was synced by SQLite. SQLite holds no lock on -wal, so that
        closing it here releases none.
        """
        try:
            handle = os.open(f"{self.path}-wal", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return  # the last one that had it open has moved it all into the file
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    # -- opening it ------------------------------------------------------------------------------------------------

    def _connection(self) -> Connection:
        if self._pid != os.getpid():
            _LEFT.extend(connection.sql for connection in self._open_ones.values())
            self._open_ones, self._pid = {}, os.getpid()
        found = self._open_ones.get(threading.get_ident())
        if found is not None:
            if found.busy or found.identity == self._identity():
                return found
            self._leave(found)
        self._close_those_of_dead_threads()
        self._open_ones[threading.get_ident()] = found = self._open()
        return found

    def _leave(self, connection: Connection) -> None:
        _LEFT.append(connection.sql)
        self._open_ones.pop(threading.get_ident(), None)

    def _close_those_of_dead_threads(self) -> None:
        alive = sys._current_frames().keys()
        for thread in [thread for thread in list(self._open_ones) if thread not in alive]:
            connection = self._open_ones.pop(thread, None)
            if connection is not None:
                connection.sql.close()

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _open(self) -> Connection:
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            self._check_place()
            identity = self._identity()
            try:
                if identity is None:
                    self._make()
                    continue
                connection = self._connect(identity)
            except sqlite3.OperationalError as exc:  # as when another process closes the file at this moment
                self._check_rights(exc)
                if "locked" not in str(exc) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
                continue
            if connection is not None:
                return connection

    def _check_rights(self, exc: sqlite3.Error) -> None:
        if "unable to open" in str(exc) and os.path.exists(self.path) and not os.access(self.path, os.R_OK):
            raise StateError(
                f"{self.path} is private to the user that the master runs as (uid {os.stat(self.path).st_uid}); this "
                f"process is of another (uid {os.geteuid()})"
            ) from exc

    def _connect(self, identity: tuple[int, int]) -> Connection | None:
        """Return a connection; None where the file is another one by now."""
        sql = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            application = sql.execute("PRAGMA application_id").fetchone()[0]
            version = sql.execute("PRAGMA user_version").fetchone()[0]
            if identity != self._identity():
                _LEFT.append(sql)
                return None
            if application != schema.APPLICATION:  # of something else, or whoever makes it has not come to the end
                sql.close()
                self._make()
                return None
            if not 0 < version <= schema.VERSION:
                raise StateError(
                    f"{self.path} has version {version} of its tables; this version of saltext-jobs knows {schema.VERSION}"
                )
            if version < schema.VERSION:
                sql.close()
                self._upgrade()
                return None
            self._prepare(sql)
        except sqlite3.DatabaseError as exc:
            if not is_damage(exc):
                sql.close()
                raise
            _LEFT.append(sql)
            if _is_foreign(self.path):
                raise StateError(f"{self.path} is no database; set sqlite_cache_path to another file") from exc
            self._set_aside(identity, str(exc))
            return None
        except StateError:
            sql.close()
            raise
        return Connection(sql, identity)

    def _prepare(self, sql: sqlite3.Connection) -> None:
        sql.execute(f"PRAGMA synchronous={'FULL' if self._full_sync else 'NORMAL'}")
        sql.execute(f"PRAGMA journal_size_limit={LARGEST_LOG}")
        sql.execute("PRAGMA temp_store=MEMORY")
        sql.execute(f"PRAGMA cache_size=-{CACHE_KB}")
        # Debian has it on: whatever is removed is written over, which doubles what a sweep costs. The file is private.
        sql.execute("PRAGMA secure_delete=OFF")

    def _check_place(self) -> None:
        for name in ("", *_COMPANIONS):
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISREG(os.lstat(self.path + name).st_mode):
                    raise StateError(f"{self.path}{name} is a link or no file: remove it, or set sqlite_cache_path")
        kind = remote_file_system(os.path.realpath(os.path.dirname(self.path)), self._mounts())
        if kind is not None:
            raise StateError(
                f"{self.path} is on a network file system ({kind}), where SQLite cannot work: set sqlite_cache_path to a "
                "file on a local disk"
            )

    def _make(self) -> None:
        """Make the file, or what is missing in one that somebody has begun."""
        with self._alone():
            if self._identity() is None:
                for name in _COMPANIONS:  # of a file that is gone: they would be taken for those of the new one
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(self.path + name)
                os.close(self._new_file(self.path))
            sql = self._plain_connection()
            try:
                if sql.execute("PRAGMA application_id").fetchone()[0] == schema.APPLICATION:
                    return  # somebody was faster
                if sql.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    raise StateError(
                        f"{self.path} is a database of something else; set sqlite_cache_path to another file"
                    )
                sql.execute(f"PRAGMA page_size={schema.PAGE_BYTES}")
                sql.execute("PRAGMA auto_vacuum=INCREMENTAL")
                if sql.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
                    raise StateError(f"{self.path}: this file system has no memory that processes share")
                sql.execute("BEGIN IMMEDIATE")
                schema.create(sql)
                sql.execute("COMMIT")
            finally:
                sql.close()

    def _upgrade(self) -> None:
        """Bring the tables up to this version. It is all done or not at all, and others wait meanwhile."""
        with self._alone(), contextlib.closing(self._plain_connection()) as sql:
            sql.execute("BEGIN IMMEDIATE")
            try:
                log.info("Bringing %s up to version %d of its tables", self.path, schema.VERSION)
                schema.upgrade(sql)
                sql.execute("COMMIT")
            except BaseException:
                _roll_back(sql)
                raise

    def _plain_connection(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)

    def _new_file(self, path: str) -> int:
        """Make an empty private file and return its descriptor."""
        folder = os.path.dirname(path)
        owner = owner_for_root(folder)
        make_folder(folder, owner)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if owner:
            os.fchown(handle, *owner)
        return handle

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else makes a file or sets one aside."""
        path = f"{self.path}.lock"
        try:
            handle = self._new_file(path)
        except FileExistsError:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    # -- damage ----------------------------------------------------------------------------------------------------

    def check(self) -> bool:
        """Read the whole file and tell whether it is sound; where it is not, set it aside. Writers are not kept waiting."""
        with self._watched() as connection:
            found = connection.sql.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found == "ok":
            return True
        self._leave(connection)
        self._set_aside(connection.identity, str(found))
        return False

    def backup(self, path: str) -> None:
        """
        Make a copy of this moment, while others go on writing.

        :param path: of the copy; absolute.
        :raises OSError: also where there is something.
        """
        draft = f"{path}.part"
        os.close(self._new_file(draft))
        try:
            with self._watched() as connection, contextlib.closing(sqlite3.connect(draft)) as copy:
                connection.sql.backup(copy)
            os.link(draft, path)  # unlike a rename it replaces nothing
        finally:
            os.unlink(draft)

    def _set_aside(self, identity: tuple[int, int], reason: str) -> None:
        """Rename a damaged file, unless somebody has done so or it is sound; the next who opens it begins a new one."""
        with self._alone():
            if self._identity() != identity:
                return
            sql = self._plain_connection()
            try:
                found = sql.execute("PRAGMA integrity_check(1)").fetchone()[0]
                if found == "ok":
                    sql.close()
                    return
            except sqlite3.DatabaseError as exc:
                if not is_damage(exc):
                    sql.close()
                    raise
                found = str(exc)
            _LEFT.append(sql)
            with contextlib.suppress(sqlite3.Error):
                sql.execute("BEGIN IMMEDIATE")  # nobody commits to it while it is renamed
            target = free_name(f"{self.path}.damaged-{time.strftime('%Y%m%d%H%M%S', time.gmtime())}")
            # The file itself goes last: a new one must never find the log of the old one beside it.
            for name in (*_COMPANIONS, ""):
                with contextlib.suppress(FileNotFoundError):
                    os.rename(self.path + name, target + name)
            with contextlib.suppress(sqlite3.Error):
                sql.execute("ROLLBACK")
        log.error(
            "%s is damaged (%s; %s). It is kept as %s and a new one is begun, empty: salt-run job_cache.recover brings over "
            "what can be read",
            self.path,
            reason,
            found,
            target,
        )


def moment(sql: sqlite3.Connection) -> Moment:
    """As ``Database.moment``, of the connection of a transaction."""
    return sql, sql.execute("PRAGMA data_version").fetchone()[0]


def _roll_back(sql: sqlite3.Connection) -> None:
    if sql.in_transaction:  # on some errors SQLite has done so itself
        with contextlib.suppress(sqlite3.Error):
            sql.execute("ROLLBACK")


def free_name(path: str) -> str:
    """Return the path, or it with a number after it, that nothing has."""
    number, found = 1, path
    while os.path.lexists(found):
        number += 1
        found = f"{path}-{number}"
    return found


def is_damage(exc: BaseException) -> bool:
    """Tell whether an error of SQLite is about what the file holds."""
    text = str(exc)
    return isinstance(exc, sqlite3.DatabaseError) and ("malformed" in text or "not a database" in text)


def _is_foreign(path: str) -> bool:
    """Tell whether a file that SQLite cannot read has never been one of its own; zeros are what a power cut leaves."""
    with open(path, "rb") as stream:
        head = stream.read(100)
    return not head.startswith(b"SQLite format 3\0") and bool(head.strip(b"\0"))
