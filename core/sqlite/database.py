"""
One SQLite file that many processes and threads use at once: their connections, and how these read and write.

Each thread of each process has a connection of its own. A connection from before a fork, or to a file that was replaced
since, is never used again, and never closed, because closing it would release the locks of the connections in use. A
forked process takes the locks of the connections that it has inherited, because SQLite assumes that it has them.

Three files lie beside the database. ``-wal`` and ``-shm`` belong to SQLite. ``.lock`` is held while a file is made or
set aside (``core/sqlite/file.py``), and has the tickets of the writers that wait (``core/sqlite/turns.py``).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from saltext.jobs.core import formats
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.sqlite import schema
from saltext.jobs.core.sqlite.file import (
    BUSY_SECONDS,
    LEFT,
    LOOK,
    DatabaseFile,
    damage_in,
    has_begun,
    is_damage,
    is_foreign,
    patiently,
    rename_without_replacing,
    roll_back,
)

CACHE_KB = 2048  # the most that a connection's page cache takes; each write by others makes the cache useless
#: Seconds of writing after which a process lets those that wait go first. Shorter turns would take more CPU time, as each
#: process has to read again what the others have changed.
TURN = 0.01
#: Shortest and longest pause in seconds between two transactions of a bulk removal or copy, in which others can write. A
#: waiting writer tries at least every 20 ms, so it does not miss a pause.
PAUSE, LONGEST_PAUSE = 0.03, 1.0
#: Sizes of -wal in bytes: what it keeps after a checkpoint; above which a process checkpoints it while others may
#: write; and above which others may not write meanwhile, because the checkpoint might never end otherwise. And seconds
#: between two checkpoints by one process.
LOG_KEPT, LARGE_LOG, LARGEST_LOG, LOG_PAUSE = 8 << 20, 12 << 20, 64 << 20, 1.0
#: Most seconds for which a checkpoint keeps others from writing, and seconds until the next attempt if it failed.
LOG_WAIT, LOG_AGAIN = 1.0, 10.0
#: After this many pauses a bulk removal or copy makes the checkpoint itself, so that others need not wait for the disk.
LOG_TURNS = 8

#: Most seconds for which a fork waits for other threads.
FORK_WAIT = 1.0

_DATABASES: dict[tuple[str, bool, bool], Database] = {}
_ALL: weakref.WeakSet[Database] = weakref.WeakSet()


class Connection:
    """The open connection of one thread of one process."""

    def __init__(
        self, sql: sqlite3.Connection, identity: tuple[int, int], log: tuple[int, int], memory: tuple[int, int] | None
    ) -> None:
        #: The ``identity`` of the file, that of its -wal, and that of its -shm; None if the -shm was removed.
        self.sql, self.identity, self.log, self.memory = sql, identity, log, memory
        #: Whether a transaction is open, and whether its writes must survive a power cut.
        self.busy = self.durable = False
        #: For how many seconds the last transaction kept others from writing, and the bytes of -wal when it began.
        self.held, self.log_bytes = 0.0, 0
        #: For how many seconds it has kept others from writing since it last waited for its turn.
        self.used = 0.0
        #: How often it has paused, when it may checkpoint again, and whether -wal was above LARGEST_LOG at the last look.
        self.pauses, self.log_at, self.was_huge = 0, 0.0, False


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

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Use SQLite, once no other thread is about to fork."""
        own = threading.get_ident()
        if own in self._inside:
            yield
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._forks)
            self._inside.add(own)
        try:
            yield
        finally:
            with self._changed:
                self._inside.discard(own)
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


def database_at(path: str, full_sync: bool = False, chosen: bool = False) -> Database:
    """Return this process's database at an absolute path; the parameters are those of ``Database``."""
    wanted = (path, full_sync, chosen)
    found = _DATABASES.get(wanted)
    return found or _DATABASES.setdefault(wanted, Database(path, full_sync, chosen=chosen))


class Database:
    """
    :param path: of the file; absolute.
    :param full_sync: whether every transaction must survive a power cut; otherwise only those that ask for it.
    :param mounts: returns the mounts in the format of ``/proc/self/mounts``; by default that file.
    :param chosen: whether an operator chose the directory, which is then not created.
    """

    def __init__(
        self, path: str, full_sync: bool = False, mounts: Callable[[], str] | None = None, chosen: bool = False
    ) -> None:
        self.path = path
        self._file = DatabaseFile(path, mounts, chosen)
        self._full_sync = full_sync
        self._log = f"{path}-wal"
        #: By the number of the thread. A new thread with the number of an ended one takes over its connection.
        self._open_ones: dict[int, Connection] = {}
        #: The file and the -shm of connections that were left without being closed.
        self._left: set[tuple[tuple[int, int], tuple[int, int] | None]] = set()
        _ALL.add(self)

    # -- using it --------------------------------------------------------------------------------------------------

    def read(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """
        Return the rows that a query finds. If the file is damaged, it is set aside, and the next one is asked: then a caller
        that reads in several steps gets the rest from that one.

        :raises sqlite3.Error: as SQLite does; also for damage that is met in a transaction.
        :raises StateError: if the file cannot be used.
        """
        try:
            return self._read(query, values)
        except sqlite3.DatabaseError as exc:
            outer = self._open_ones.get(threading.get_ident())
            if not is_damage(exc) or (outer is not None and outer.busy):
                raise
        return self._read(query, values)

    def _read(self, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        with self._watched() as connection:
            rows: list[tuple[Any, ...]] = patiently(lambda: connection.sql.execute(query, values).fetchall())
            return rows

    def committed(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """As ``read``, but without what this thread has not committed yet. Empty if the read fails."""
        with (
            _THREADS.inside(),
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(self._file.existing()) as other,
        ):
            return other.execute(query, values).fetchall()
        return []

    def transaction(self, durable: bool = False) -> AbstractContextManager[sqlite3.Connection]:
        """
        Write all or nothing, while nobody else writes. Within another transaction of this thread it is a part of that one.

        :param durable: whether it must survive a power cut when this returns.
        :raises Exception: as ``read``. Nothing was written then. A damaged file has been set aside.
        """
        outer = self._open_ones.get(threading.get_ident())
        if outer is None or not outer.busy:
            return self._transaction(durable)
        outer.durable |= durable
        return contextlib.nullcontext(outer.sql)

    @contextlib.contextmanager
    def _transaction(self, durable: bool) -> Iterator[sqlite3.Connection]:
        with _THREADS.inside(), self._written(durable) as sql:
            yield sql

    @contextlib.contextmanager
    def _written(self, durable: bool) -> Iterator[sqlite3.Connection]:
        connection = self._connection(is_to_begin=True)
        try:
            roll_back(connection.sql)  # of a transaction that was interrupted just after it began
            connection = self._begin(connection)
            connection.busy, connection.durable, began = True, durable, time.monotonic()
            try:
                yield connection.sql
                connection.sql.execute("COMMIT")
            except BaseException:
                roll_back(connection.sql)
                raise
            finally:
                connection.busy, connection.held = False, time.monotonic() - began
                connection.used += connection.held
            if self._full_sync:
                if not self._is_current(connection):
                    self._give_up(connection)
            elif connection.durable:
                self._sync(connection)
            self._see_to_log(connection)
        except Exception as exc:
            self._has_met(exc, connection)
            raise

    def _begin(self, connection: Connection) -> Connection:
        """Begin a transaction, on the file that is in place when it is this thread's turn."""
        while True:
            try:
                self._wait_for_turn(connection)
                # Another version of this extension may have changed the tables since the connection was opened.
                version = connection.sql.execute("PRAGMA user_version").fetchone()[0]
                if version == schema.VERSION and self._is_current(connection):
                    return connection
            except sqlite3.DatabaseError:
                # If -wal was replaced, this connection cannot read what others write, or takes it for damage.
                if self._is_current(connection):
                    raise
            roll_back(connection.sql)
            self._give_up(connection)
            connection = self._connection()

    def _wait_for_turn(self, connection: Connection) -> None:
        """
        Begin a transaction. Writers that wait do so in the order in which they came (``core/sqlite/turns.py``).

        A writer that comes when nobody writes may go first, so that the file is never idle. A writer that has used up
        its ``TURN`` lets the first of those that wait begin.
        """
        has_passed = False
        if connection.used > TURN:
            connection.used, has_passed = 0.0, self._file.pass_turn()
        if has_passed or not has_begun(connection.sql):
            self._file.queue(lambda: has_begun(connection.sql))
            connection.used = 0.0

    def shrink(self, pages: int) -> None:
        """Cut free pages off the file, in a transaction of its own."""
        with self._watched() as connection:
            # The pragma returns a row without columns for each page, and ``execute`` would take the first one only.
            patiently(lambda: connection.sql.executescript(f"PRAGMA incremental_vacuum({pages})"))

    @property
    def held(self) -> float:
        """Seconds for which this thread's last transaction kept others from writing."""
        connection = self._open_ones.get(threading.get_ident())
        return connection.held if connection else 0.0

    def give_way(self) -> None:
        """
        Pause for as long as this thread's last transaction kept others from writing, so that they can write.

        Waiting writers try only now and then, and less often on a busy machine.
        """
        connection = self._open_ones.get(threading.get_ident())
        if connection is not None:
            connection.pauses += 1
            if connection.pauses % LOG_TURNS == 0:
                self._empty_log(blocking=False)
        time.sleep(min(LONGEST_PAUSE, max(PAUSE, self.held)))

    @contextlib.contextmanager
    def _watched(self) -> Iterator[Connection]:
        with _THREADS.inside():
            connection = self._connection()
            try:
                yield connection
            except sqlite3.DatabaseError as exc:
                self._has_met(exc, connection)
                raise

    def _has_met(self, exc: Exception, connection: Connection) -> None:
        """Set the file aside if an error, or its cause, says that the file is damaged."""
        met = damage_in(exc)
        if met and not connection.busy:
            # A transaction may have opened a newer connection.
            connection = self._open_ones.get(threading.get_ident(), connection)
            self._leave(connection)
            self._file.set_aside(connection.identity, met)

    def _see_to_log(self, connection: Connection) -> None:
        """Checkpoint -wal if it was large when the transaction began. What the transaction added counts next time."""
        size = connection.log_bytes
        is_huge, was_huge = size > LARGEST_LOG, connection.was_huge
        connection.was_huge = is_huge
        if size > LARGE_LOG and (time.monotonic() >= connection.log_at or (is_huge and not was_huge)):
            if not self._is_current(connection):  # the checkpoint would begin a new -wal before the old one is saved
                self._give_up(connection)
                return
            self._empty_log(is_huge)
            connection.log_at = time.monotonic() + LOG_PAUSE

    def _empty_log(self, blocking: bool) -> None:
        """
        Checkpoint: move what is in -wal into the file. If nobody writes meanwhile, the next writer starts -wal from its
        beginning.

        By default SQLite tries that after each transaction once -wal has 1,000 pages. But with many writers one of them
        is always writing: then -wal keeps growing, and every writer waits for the disk.

        :param blocking: whether to keep others from writing until the last pages are on the disk and earlier readers have
            ended, for at most ``LOG_WAIT``.
        """
        with (
            _THREADS.inside(),
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(self._file.existing(LOG_WAIT)) as other,
        ):
            ((is_busy, _, _),) = other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # while others write
            if blocking and not is_busy and self._file.may_wait_again(LOG_AGAIN):
                ((is_busy, _, _),) = other.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
                if is_busy:  # for example while a copy is made
                    self._file.has_waited_in_vain()

    def _sync(self, connection: Connection) -> None:
        """
        Sync what has been committed to the disk.

        SQLite itself has synced what it moved from -wal into the file meanwhile. It holds no lock on -wal, so closing
        -wal here releases none.
        """
        try:
            handle = os.open(self._log, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            self._give_up(connection)  # -wal was removed: its content is moved into the file
            return
        try:
            os.fsync(handle)
            found = os.fstat(handle)
        finally:
            os.close(handle)
        if (found.st_dev, found.st_ino) != connection.log:
            self._give_up(connection)

    # -- opening it ------------------------------------------------------------------------------------------------

    def was_forked(self) -> None:
        """Leave the connections that this process has inherited, and hold their locks until this process ends."""
        for connection in list(self._open_ones.values()):
            self._leave(connection)
        for identity, memory in self._left:
            self._file.hold(identity, memory)

    def _connection(self, is_to_begin: bool = False) -> Connection:
        """:param is_to_begin: whether a transaction begins next, which itself checks that file and -wal are in place."""
        found = self._open_ones.get(threading.get_ident())
        if found is not None:
            if found.busy or is_to_begin or self._is_current(found):
                return found
            self._give_up(found)
        self._close_those_of_dead_threads()
        self._open_ones[threading.get_ident()] = found = self._open()
        return found

    def _is_current(self, connection: Connection) -> bool:
        """Tell whether file and -wal are still the ones that a connection has open, and note the bytes of -wal."""
        if connection.identity != self._file.identity(filled=True):
            return False
        try:
            found = os.stat(self._log)
        except FileNotFoundError:
            return False
        connection.log_bytes = found.st_size
        return connection.log == (found.st_dev, found.st_ino)

    def _give_up(self, connection: Connection) -> None:
        """
        Leave a connection whose file or -wal was removed or replaced.

        :raises StateError: if the content of a removed -wal could not be moved into the file.
        """
        self._leave(connection)
        if connection.identity == self._file.identity(filled=True):
            self._file.rescue(connection.sql, connection.log)
        elif connection.identity == self._file.identity():
            self._file.set_aside(connection.identity, "it was emptied")
        else:
            self._file.was_replaced(connection.identity)

    def _rescued(self) -> bool:
        """Save a removed -wal that another thread of this process has open, because that thread may never run again."""
        identity = self._file.identity(filled=True)
        others = [other for other in list(self._open_ones.values()) if other.identity == identity]
        if not others or self._file.log_identity() is not None:
            return False
        self._file.rescue(others[0].sql, others[0].log)
        return True

    def _leave(self, connection: Connection) -> None:
        LEFT.append(connection.sql)
        self._left.add((connection.identity, connection.memory))
        for thread in [thread for thread, one in list(self._open_ones.items()) if one is connection]:
            self._open_ones.pop(thread, None)

    def _close_those_of_dead_threads(self) -> None:
        alive = sys._current_frames().keys()
        for thread in [thread for thread in list(self._open_ones) if thread not in alive]:
            connection = self._open_ones.pop(thread, None)
            if connection is not None:
                connection.sql.close()

    def _open(self) -> Connection:
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            self._file.check_place()
            identity = self._file.identity()
            try:
                if identity is None:
                    self._file.make()
                    continue
                if self._file.was_emptied():
                    self._file.set_aside(identity, "it was emptied")
                    continue
                if self._file.is_copy():
                    self._file.take_up_copy()
                    continue
                if self._rescued():
                    continue
                self._file.wait_for_log()
                if self._file.log_identity() is None and any(one == identity for one, _ in self._left):
                    raise StateError(f"{self._log} was removed before this forked process used it: start it again")
                in_place = self._file.wait_for_memory()
                if in_place and self._is_parted(identity):
                    raise StateError(f"{self.path}-shm was replaced while this process was forked: start it again")
                connection = self._connect(identity, in_place)
            except sqlite3.OperationalError as exc:  # for example while another process closes the file
                self._file.check_rights(exc)
                if "locked" not in str(exc) or time.monotonic() > deadline:
                    raise
                time.sleep(LOOK)
                continue
            if connection is not None:
                return connection

    def _is_parted(self, identity: tuple[int, int]) -> bool:
        """Tell whether SQLite would use the -shm of a connection that was left here, and other processes another one."""
        now = self._file.memory_identity() if self._left else None
        return now is not None and any(one == identity and memory not in (None, now) for one, memory in self._left)

    def _connect(self, identity: tuple[int, int], in_place: bool) -> Connection | None:
        """
        Return a connection; None if the file, its -wal or its -shm was replaced meanwhile.

        :param in_place: whether it must use the -shm that is in place.
        """
        before = self._file.log_identity()
        sql = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            application = sql.execute("PRAGMA application_id").fetchone()[0]
            if in_place and self._file.is_apart():
                sql.close()  # if it stayed open, this process would use a -shm of its own
                return None
            version = sql.execute("PRAGMA user_version").fetchone()[0]
            if identity != self._file.identity():
                LEFT.append(sql)
                return None
            if application != schema.APPLICATION:  # of something else, or not completely made yet
                sql.close()
                self._file.make()
                return None
            try:
                formats.check(self.path, version, schema.VERSION, "nothing of it is read or written")
            except ValueError as exc:
                raise StateError(str(exc)) from exc
            if version < schema.VERSION:
                sql.close()
                self._file.upgrade()
                return None
            self._prepare(sql)
            used = self._file.log_identity()
            if used is None or before not in (used, None):
                LEFT.append(sql)
                return None
            self._file.begin_log(used)
        except sqlite3.DatabaseError as exc:
            if not is_damage(exc):
                sql.close()
                raise
            LEFT.append(sql)
            if is_foreign(self.path):
                raise StateError(f"{self.path} is no database; set sqlite_cache_path to another file") from exc
            self._file.set_aside(identity, str(exc))
            return None
        except StateError:
            sql.close()
            raise
        return Connection(sql, identity, used, self._file.memory_identity() if in_place else None)

    def _prepare(self, sql: sqlite3.Connection) -> None:
        # Debian has secure_delete on: it overwrites removed data, which doubles the cost of a sweep. The file is private.
        # As one script: single statements would take longer, and each would stay in the cache of statements.
        sql.executescript(
            f"""PRAGMA synchronous={"FULL" if self._full_sync else "NORMAL"}; PRAGMA journal_size_limit={LOG_KEPT};
            PRAGMA wal_autocheckpoint=0; PRAGMA temp_store=MEMORY; PRAGMA cache_size=-{CACHE_KB};
            PRAGMA secure_delete=OFF"""
        )

    # -- all of it -------------------------------------------------------------------------------------------------

    def check(self) -> bool:
        """Read the whole file, and tell whether it is sound; set it aside if not. Others can write meanwhile."""
        with self._watched() as connection:
            found = patiently(lambda: connection.sql.execute("PRAGMA quick_check(1)").fetchone()[0])
        if found == "ok":
            return True
        self._leave(connection)
        self._file.set_aside(connection.identity, str(found))
        return False

    def check_for(self, caller: str) -> None:
        """As ``check``, but not if the last check was for the same caller. With an empty name it always checks."""
        if not caller or self._file.checked_for() != caller:
            self.check()
            self._file.note_check(caller)

    def backup(self, path: str) -> None:
        """
        Copy the file as it is at this moment, while others go on writing.

        :param path: of the copy; absolute.
        :raises OSError: also if the path exists.
        """
        draft = f"{path}.part"
        os.close(self._file.new_file(draft))
        try:
            with self._watched() as connection, contextlib.closing(sqlite3.connect(draft)) as copy:
                connection.sql.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")  # all in one file; this mode marks it as a copy
            rename_without_replacing(draft, path)
        except BaseException:
            for name in (draft, f"{draft}-journal"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)
            raise
