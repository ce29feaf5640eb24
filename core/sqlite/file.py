"""
The file of a database: where it may be, how it is made, upgraded, and set aside if it is damaged.

Only the owner of the directory may read the file, since it also holds pillars and tokens; a file that root makes is given
to that owner. This module must never touch a file that is not a database of this extension.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import glob
import os
import shutil
import sqlite3
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO
from urllib.parse import quote

from saltext.jobs.core import lines
from saltext.jobs.core.disk.local_banks import make_folder, owner_for_root
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.sqlite import schema
from saltext.jobs.core.sqlite.mounts import mounts as mounted
from saltext.jobs.core.sqlite.mounts import remote_file_system
from saltext.jobs.core.sqlite.salvage import begin_with
from saltext.jobs.core.sqlite.turns import LONGEST, first_of, ticket, wake

log = lines.logger(__name__)

BUSY_SECONDS = 30.0  # longest time that a writer waits for others
#: Seconds between two attempts of a waiting writer: in the first second, and after it.
LOOK, LATER_LOOK = 0.004, 0.02
#: Seconds after which a waiting writer no longer relies on the first one in the queue.
PATIENCE = 1.0
#: Seconds for which a process may have the file open without its -shm: while it opens or closes it.
PASSING = 5.0
#: The first version with INSERT … ON CONFLICT DO UPDATE, the newest feature that is used here.
LEAST_SQLITE = (3, 24, 0)

_COMPANIONS = ("-wal", "-shm")
#: Layout of .lock: it begins with the name of the caller whose check was last (bytes). Then comes the list of the -wal files
#: that were removed and saved (offset, bytes, most entries).
_CHECKED_BYTES, _SAVED, _SAVED_BYTES, _MOST_SAVED = 200, 256, 1024, 16
#: Offset and bytes of the time at which a checkpoint last waited in vain for readers.
_WAITED, _WAITED_BYTES = 2048, 12
#: Offset and bytes of the name of the damaged file whose records go into the next one.
_DAMAGED, _DAMAGED_BYTES = 3072, 512
#: Ranges of bytes (first byte, count) of the file and of its -shm: SQLite keeps some of these bytes locked while it has the
#: two open. The third is C's struct flock.
_SHARED, _MEMORY, _LOCK = (0x40000002, 510), (128, 1), "hhqqi"
#: The byte of -shm that SQLite keeps locked while it writes.
_WRITER = (120, 1)
#: The errors of file systems without hard links.
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK)

#: Connections that must not be closed.
LEFT: list[sqlite3.Connection] = []
#: Descriptors of files, by device and inode.
_HANDLES: dict[tuple[int, int], int] = {}


class DatabaseFile:
    """
    :param path: absolute.
    :param mounts: returns the mounts in the format of ``/proc/self/mounts``; by default that file.
    :param chosen: whether an operator chose the directory. Then it is not created: if it is missing, its disk may not be
        mounted.
    """

    def __init__(self, path: str, mounts: Callable[[], str] | None = None, chosen: bool = False) -> None:
        self.path = path
        self._chosen = chosen
        self._mounts = mounts or mounted
        self._log = f"{path}-wal"

    def identity(self, filled: bool = False) -> tuple[int, int] | None:
        """
        Return the identity of the file, which a file that replaces it does not have; None if there is no file.

        :param filled: return None for an empty file too: its making has just begun, or something has emptied it.
        """
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return None
        return None if filled and not found.st_size else (found.st_dev, found.st_ino)

    def was_emptied(self) -> bool:
        """Tell whether the file was in use and is empty now; also True while it is made, for which ``set_aside`` waits."""
        if self.identity(filled=True) is not None:
            return False
        with contextlib.suppress(FileNotFoundError):
            return self._user() is not None or os.stat(self._log).st_size > 0
        return False

    def log_identity(self) -> tuple[int, int] | None:
        """As ``identity``, for -wal."""
        return _place_of(self._log)

    def memory_identity(self) -> tuple[int, int] | None:
        """As ``identity``, for -shm."""
        return _place_of(f"{self.path}-shm")

    def hold(self, identity: tuple[int, int], memory: tuple[int, int] | None) -> None:
        """
        Hold the locks by which other processes see that this one has the file and its -shm open, until this process ends.

        A forked process inherits the connections of its parent, but not the locks. SQLite assumes that it has both, and
        takes no locks for a further connection. So once the parent has ended, other processes would remove -wal and -shm
        while this one uses them.

        :param identity: of the file that it has inherited.
        :param memory: as ``identity``, for -shm.
        """
        for path, wanted, (start, count) in (
            (self.path, identity, _SHARED),
            (f"{self.path}-shm", memory, _MEMORY),
        ):
            with contextlib.suppress(OSError):  # it was removed
                if _place_of(path) == wanted:
                    fcntl.lockf(handle_of(path), fcntl.LOCK_SH | fcntl.LOCK_NB, count, start)

    def rescue(self, sql: sqlite3.Connection, used: tuple[int, int]) -> None:
        """
        Move the content of a removed -wal into the file. When the last process closes that -wal, its content is lost.

        :param sql: a connection that has that -wal open. Do not use it again: the next -wal is another one.
        :param used: the identity of the removed -wal.
        :raises StateError: if that fails.
        """
        with self.alone() as handle:
            saved, now = self._saved(handle), self.log_identity()
            if used in saved or now == used:
                return  # another process was faster
            # An empty -wal in its place belongs to a process that came just now and has written nothing.
            is_another = now is not None and os.stat(self._log).st_size
            error = "another one is in its place" if is_another else self._moved(sql)
            if error:
                log.critical(
                    "%s-wal was removed while it was in use, and what was in it could not be saved (%s): restart the "
                    "master, and look for jobs that are missing",
                    self.path,
                    error,
                )
                raise StateError(f"{self.path}-wal was removed, and what was in it could not be saved: {error}")
            self._note_saved(handle, [used, *saved])
            with contextlib.suppress(FileExistsError):  # a process that comes now sees that it is another one
                os.close(self.new_file(self._log))
        self._report_saved()

    def begin_log(self, used: tuple[int, int]) -> None:
        """Note that a -wal is in use, in case it has the inode of one that was removed and saved."""
        try:
            with open(f"{self.path}.lock", "rb", buffering=0) as stream:
                if used not in self._saved(stream.fileno()):
                    return  # without the lock, for a process that may not write, and for a read-only disk
        except OSError:
            return
        with self.alone() as handle:
            saved = self._saved(handle)
            if used in saved:
                self._note_saved(handle, [other for other in saved if other != used])

    @staticmethod
    def _saved(handle: int) -> list[tuple[int, int]]:
        """Return the identities of the -wal that were removed and saved, newest first."""
        words = os.pread(handle, _SAVED_BYTES, _SAVED).rstrip(b"\0").split()
        numbers = [int(word) for word in words if word.isdigit() and word.isascii()]
        return list(zip(numbers[::2], numbers[1::2], strict=False))

    @staticmethod
    def _note_saved(handle: int, saved: list[tuple[int, int]]) -> None:
        text = b" ".join(b"%d %d" % one for one in saved[:_MOST_SAVED])
        os.pwrite(handle, text.ljust(_SAVED_BYTES, b"\0"), _SAVED)

    def _moved(self, sql: sqlite3.Connection) -> str:
        """Have SQLite move the whole -wal of a connection into the file. Return why that failed; empty if it succeeded."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                busy = sql.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            except sqlite3.Error as exc:
                return str(exc)
            if not busy:
                return ""
            if time.monotonic() > deadline:
                return "another process never stops reading or writing"
            time.sleep(LOOK)

    def wait_for_log(self) -> None:
        """
        Wait until a removed -wal is back: a process that has it open moves its content into the file, or a copy of it is put
        in its place here.

        :raises StateError: if neither happens. If no process has it open any more, a line in the log says what is lost.
        """
        deadline, is_passing = time.monotonic() + BUSY_SECONDS, True
        while self.log_identity() is None:
            user = self._user()
            # The last process that closes the file removes -wal too, and is gone a moment later.
            if (user is None or not is_passing) and self._put_back():
                return
            is_passing = False
            if user is None:
                _, lost, _ = self._log_in_memory()
                if lost:
                    log.critical(
                        "%s-wal was removed, and its last %d pages, which were not in the file yet, are lost: look for jobs "
                        "that are missing, and find out what removes it",
                        self.path,
                        lost,
                    )
                return
            if time.monotonic() > deadline:
                error = f"{self._log} was removed while others, such as process {user}, use it, and they do not save it"
                log.critical("%s: restart the master, and end that process if it is still there", error)
                raise StateError(f"{error}: restart the master, and end that process if it is still there")
            time.sleep(LATER_LOOK)

    def _put_back(self) -> bool:
        """
        Put a copy of a removed -wal in its place, if a process still has that -wal open; one that was forked may have it
        without using it. Tell whether there is a -wal then.
        """
        if self.memory_identity() is None or self.is_apart():
            return False
        removed = f"{os.path.realpath(self._log)} (deleted)"
        for name in glob.iglob("/proc/[0-9]*/fd/*"):
            # The descriptor may be closed by now, or be another user's; or another process writes.
            with contextlib.suppress(OSError):
                if os.readlink(name) == removed and self.log_identity() is None:
                    with open(name, "rb") as source, self.alone() as handle, self._without_writer():
                        pages, _, last = self._log_in_memory()
                        # The -wal in use has the last frame that -shm knows; without frames, it was not saved earlier.
                        is_it = _frame_in(source, pages) == last if pages else not self._was_saved(source, handle)
                        if is_it and self.log_identity() is None:
                            self._copy_log(source, handle, pages)
        return self.log_identity() is not None

    @contextlib.contextmanager
    def _without_writer(self) -> Iterator[None]:
        """Keep others from writing. :raises BlockingIOError: if another process writes now."""
        # It is not closed: that would release the locks of this process's connections.
        memory = os.open(f"{self.path}-shm", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        fcntl.fcntl(memory, fcntl.F_OFD_SETLK, struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, *_WRITER, 0))
        try:
            yield
        finally:
            fcntl.fcntl(memory, fcntl.F_OFD_SETLK, struct.pack(_LOCK, fcntl.F_UNLCK, os.SEEK_SET, *_WRITER, 0))

    def _was_saved(self, source: BinaryIO, handle: int) -> bool:
        found = os.fstat(source.fileno())
        return (found.st_dev, found.st_ino) in self._saved(handle)

    def _copy_log(self, source: BinaryIO, handle: int, pages: int) -> None:
        draft = f"{self._log}.part"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
        source.seek(0)
        with open(self.new_file(draft), "wb") as copy:
            if pages:  # else it may have old frames, which SQLite would read after a crash
                shutil.copyfileobj(source, copy)
            copy.flush()
            os.fsync(copy.fileno())
        os.rename(draft, self._log)
        found = os.fstat(source.fileno())
        self._note_saved(handle, [(found.st_dev, found.st_ino), *self._saved(handle)])
        self._report_saved()

    def _log_in_memory(self) -> tuple[int, int, tuple[int, ...]]:
        """
        Return what -shm tells of -wal: how many pages it has, how many of these are not in the file yet, and the checksum of
        the last one. Without a -shm: 0, 0, ().
        """
        with contextlib.suppress(OSError):
            head = os.pread(handle_of(f"{self.path}-shm"), 100, 0)
            if len(head) == 100:
                pages, moved = struct.unpack_from("=I", head, 16)[0], struct.unpack_from("=I", head, 96)[0]
                return pages, max(0, pages - moved), struct.unpack_from("=II", head, 24)
        return 0, 0, ()

    def _report_saved(self) -> None:
        log.critical(
            "%s-wal was removed while it was in use. What was in it has been saved, and nothing is lost: find out what "
            "removes it",
            self.path,
        )

    def was_replaced(self, identity: tuple[int, int]) -> None:
        """Report that the file in use is not in its place any more, unless it was set aside because it is damaged."""
        if identity not in map(_place_of, glob.iglob(f"{glob.escape(self.path)}.damaged-*")):
            log.critical(
                "%s was removed or replaced while it was in use, and what was stored in it is no longer in use: look for "
                "jobs that are missing, and stop the master before you replace it",
                self.path,
            )

    def wait_for_memory(self) -> bool:
        """
        Wait until the processes that have the file open use the -shm that is in place.

        Only the locks in -shm keep two processes from writing at the same time. If -shm was removed, SQLite would make
        another one here, and this process would not see the locks of processes that use the removed one.

        :returns: False if this process has the removed -shm open too, and so shares it with the others.
        :raises StateError: if the others still use another -shm after ``PASSING``.
        """
        deadline = time.monotonic() + PASSING
        while self.is_apart():
            if self._has_memory():
                return False
            if time.monotonic() > deadline:
                error = f"{self.path}-shm was removed while others, such as process {self._user()}, use it"
                log.critical(
                    "%s. To open the file beside them would damage it: restart the master, end that process if it is still "
                    "there, and find out what removes it",
                    error,
                )
                raise StateError(f"{error}: restart the master, and end that process if it is still there")
            time.sleep(LATER_LOOK)
        return True

    def is_apart(self) -> bool:
        """Tell whether another process has the file open, but none has the -shm open that is in place."""
        return self._user() is not None and _user_of(f"{self.path}-shm", _MEMORY) is None

    def _has_memory(self) -> bool:
        """Tell whether this process has a -shm of the file open. SQLite uses it until the process's last connection ends."""
        name = os.path.realpath(f"{self.path}-shm")
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as stream:
            return any(line.rstrip("\n").removesuffix(" (deleted)").endswith(f" {name}") for line in stream)

    def _user(self) -> int | None:
        """Return the number of another process that has the file open; None if the system names none."""
        return _user_of(self.path, _SHARED)

    def check_rights(self, exc: sqlite3.Error) -> None:
        """:raises StateError: if the cause is that this user may not read the file, or that the disk takes no new file."""
        if "unable to open" not in str(exc) or not os.path.exists(self.path):
            return
        disk = os.statvfs(self.path)
        if disk.f_flag & os.ST_RDONLY and self.log_identity() is None:
            raise StateError(
                f"{self.path} is on a disk that may only be read, and SQLite needs a -wal and a -shm beside it: look at a "
                "copy of the file, or mount the disk for writing"
            ) from exc
        if disk.f_files and not disk.f_ffree:
            raise StateError(
                f"{self.path} is on a disk that has no free inodes, and SQLite needs a -wal and a -shm beside it: "
                "remove other files"
            ) from exc
        if not os.access(self.path, os.R_OK):
            raise StateError(
                f"{self.path} is private to the user that the master runs as (uid {os.stat(self.path).st_uid}); this "
                f"process is of another (uid {os.geteuid()}). If this is the master, chown the file to its user"
            ) from exc

    def check_place(self) -> None:
        """:raises StateError: if no database may be at this path."""
        if sqlite3.sqlite_version_info < LEAST_SQLITE:
            raise StateError(f"cache: sqlite needs SQLite 3.24 or later, and this Python has {sqlite3.sqlite_version}")
        for name in ("", *_COMPANIONS):
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISREG(os.lstat(self.path + name).st_mode):
                    raise StateError(f"{self.path}{name} is a link or no file: remove it, or set sqlite_cache_path")
        if self._chosen and not os.path.isdir(os.path.dirname(self.path)):
            raise StateError(
                f"the directory of sqlite_cache_path, {os.path.dirname(self.path)}, is not there: mount its disk, or make "
                "it for the user that the master runs as"
            )
        kind = remote_file_system(os.path.dirname(self.path), self._mounts())
        if kind is not None:
            raise StateError(
                f"{self.path} is on a network file system ({kind}), where SQLite cannot work: set sqlite_cache_path to a "
                "file on a local disk"
            )

    def is_copy(self) -> bool:
        """
        Tell whether the file is a backup that was put here and not opened since.

        A backup has no -wal of its own yet, so a -wal beside it belongs to another file. SQLite would use that -wal as
        the backup's.
        """
        try:
            head = head_of(self.path)
        except OSError:
            return False
        return head[18:20] == b"\1\1" and _is_marked(head)

    def take_up_copy(self) -> None:
        """Begin to use a backup that was put here, and keep a -wal beside it under another name."""
        with self.alone():
            if not self.is_copy():
                return  # another process was faster
            target = free_name(f"{self.path}.replaced-{_now()}-wal")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self.path}-shm")
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{self.path}-wal", target)
                log.warning(
                    "%s is a backup that was put back: what was left of the file before it is kept as %s",
                    self.path,
                    target,
                )
            with contextlib.closing(self._plain_connection()) as sql:
                self._keep_a_log(sql)

    def make(self) -> None:
        """
        Make the file, or complete one whose making was interrupted. If an earlier file was set aside, the new one begins
        with what can be read of that one.
        """
        with self.alone() as handle:
            if self.identity() is None:
                for name in _COMPANIONS:  # left by a file that is gone: SQLite would use them as the new one's
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(self.path + name)
                os.close(self.new_file(self.path))
            sql = self._plain_connection()
            try:
                if sql.execute("PRAGMA application_id").fetchone()[0] == schema.APPLICATION:
                    return  # another process was faster
                if sql.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    raise StateError(
                        f"{self.path} is a database of another program; set sqlite_cache_path to another file"
                    )
                schema.begin(sql)
                self._keep_a_log(sql)
                sql.execute("BEGIN IMMEDIATE")
                schema.create(sql)
                damaged = self._damaged(handle)
                if damaged:
                    begin_with(sql, os.path.join(os.path.dirname(self.path), damaged))
                sql.execute("COMMIT")
                if damaged:
                    self._note_damaged(handle, "")
            finally:
                sql.close()

    @staticmethod
    def _damaged(handle: int) -> str:
        """Return the name of the damaged file whose records are still to go into the next one; empty if there is none."""
        return os.fsdecode(os.pread(handle, _DAMAGED_BYTES, _DAMAGED).rstrip(b"\0"))

    @staticmethod
    def _note_damaged(handle: int, name: str) -> None:
        os.pwrite(handle, os.fsencode(name)[:_DAMAGED_BYTES].ljust(_DAMAGED_BYTES, b"\0"), _DAMAGED)
        os.fsync(handle)

    def _keep_a_log(self, sql: sqlite3.Connection) -> None:
        if sql.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
            raise StateError(f"{self.path}: this file system has no memory that processes share")

    def upgrade(self) -> None:
        """Bring the tables up to this version, all or nothing, while others wait."""
        with self.alone(), contextlib.closing(self._plain_connection()) as sql:
            sql.execute("BEGIN IMMEDIATE")
            try:
                log.info("Bringing %s up to version %d of its tables", self.path, schema.VERSION)
                schema.upgrade(sql)
                sql.execute("COMMIT")
            except BaseException:
                roll_back(sql)
                raise

    def _plain_connection(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)

    def existing(self, patience: float = 0) -> sqlite3.Connection:
        """
        Return a connection that creates no file.

        :param patience: seconds for which it waits for others.
        :raises sqlite3.Error: also if there is no file.
        """
        return sqlite3.connect(f"file:{quote(self.path)}?mode=rw", uri=True, timeout=patience, isolation_level=None)

    def may_wait_again(self, seconds: float) -> bool:
        """Tell whether the last call of ``has_waited_in_vain`` on this machine was at least ``seconds`` ago."""
        with self.alone() as handle:
            at = os.pread(handle, _WAITED_BYTES, _WAITED)
        return not (at.isascii() and at.isdigit()) or not 0 <= time.time() - int(at) < seconds

    def has_waited_in_vain(self) -> None:
        """Note that a checkpoint kept others from writing and failed, since readers did not end in time."""
        with self.alone() as handle:
            os.pwrite(handle, b"%0*d" % (_WAITED_BYTES, time.time()), _WAITED)

    def new_file(self, path: str) -> int:
        """Make an empty private file and return its descriptor."""
        folder = os.path.dirname(path)
        owner = owner_for_root(folder)
        make_folder(folder, owner)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if owner:
            os.fchown(handle, *owner)
        return handle

    @contextlib.contextmanager
    def alone(self) -> Iterator[int]:
        """
        Hold ``.lock``, and yield its descriptor. Only its holder makes a file, or sets one aside.

        A process must never wait for it within a transaction.
        """
        with self._lock() as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield handle

    @contextlib.contextmanager
    def _lock(self) -> Iterator[int]:
        """Yield a descriptor of ``.lock``; afterwards it is not held."""
        path, mode = f"{self.path}.lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            handle = os.open(path, mode)  # usually it is there
        except FileNotFoundError:
            try:
                handle = self.new_file(path)
            except FileExistsError:
                handle = os.open(path, mode)
        try:
            yield handle
        finally:
            # Closing is not enough: a child process that was forked meanwhile has the descriptor too.
            fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    def queue(self, has_begun: Callable[[], bool]) -> None:
        """
        Wait until a transaction has begun. The writer that has waited longest tries; the others sleep.

        If that one does not go on, for example because it is frozen, the others try too after ``PATIENCE``.

        :param has_begun: tries to begin it.
        :raises sqlite3.OperationalError: if it waits for longer than ``BUSY_SECONDS``.
        """
        began, waited = time.monotonic(), 0.0
        with self._lock() as handle, ticket(handle) as (sleep, is_next):
            is_first = is_next()
            while waited < BUSY_SECONDS:
                sleep(LOOK if is_first else LONGEST)
                waited = time.monotonic() - began
                is_first = is_first or is_next()
                if (is_first or waited > PATIENCE) and has_begun():
                    return
        raise sqlite3.OperationalError("database is locked: other processes write all the time, or one does not go on")

    def pass_turn(self) -> bool:
        """Wake the first of the waiting writers, give it a moment, and tell whether it has begun."""
        with self._lock() as handle:
            first = first_of(handle)
            if not wake(first):
                return False
            time.sleep(LOOK)
            return first_of(handle) != first

    def checked_for(self) -> str:
        """Return what ``note_check`` was last called with."""
        with self.alone() as handle:
            return os.pread(handle, _CHECKED_BYTES, 0).rstrip(b"\0").decode("utf-8", "replace")

    def note_check(self, caller: str) -> None:
        """Note for which caller the whole file was checked."""
        with self.alone() as handle:
            os.pwrite(handle, caller.encode()[:_CHECKED_BYTES].ljust(_CHECKED_BYTES, b"\0"), 0)

    def set_aside(self, identity: tuple[int, int], reason: str) -> None:
        """Rename a damaged file, unless it is sound or was renamed already. The next process to open it makes a new one."""
        with self.alone() as handle:
            if self.identity() != identity:
                return
            sql = self._plain_connection()
            try:
                is_filled = self.identity(filled=True) is not None  # to SQLite an empty file is sound
                found = sql.execute("PRAGMA integrity_check(1)").fetchone()[0] if is_filled else "it is empty"
                if found == "ok":
                    sql.close()
                    return
            except sqlite3.DatabaseError as exc:
                if not is_damage(exc):
                    sql.close()
                    raise
                found = str(exc)
            LEFT.append(sql)
            with contextlib.suppress(sqlite3.Error):
                sql.execute("BEGIN IMMEDIATE")  # so that nothing is committed to it while it is renamed
            try:
                target = free_name(f"{self.path}.damaged-{_now()}")
                # If this one is empty and a damaged one is noted, its making was interrupted: the noted one counts.
                if is_filled or not self._damaged(handle):
                    self._note_damaged(handle, os.path.basename(target))
                self._rename(target)
            finally:
                with contextlib.suppress(sqlite3.Error):
                    sql.execute("ROLLBACK")
        log.error(
            "%s is damaged (%s; %s). It is kept as %s, and a new one begins with what can be read of it",
            self.path,
            reason,
            found,
            target,
        )

    def _rename(self, target: str) -> None:
        # Even if this process is killed, the damaged file must not lose its -wal, nor a new file get it: ``make``
        # removes a -wal that was left in place.
        with contextlib.suppress(FileNotFoundError):
            _link(self._log, f"{target}-wal")
        for old, new in ((self.path, target), (f"{self.path}-shm", f"{target}-shm")):
            with contextlib.suppress(FileNotFoundError):
                os.rename(old, new)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._log)


def has_begun(sql: sqlite3.Connection) -> bool:
    """Begin a transaction that writes, and tell whether nobody else was writing."""
    try:
        sql.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as exc:
        if "locked" not in str(exc):
            raise
        return False
    return True


def patiently(call: Callable[[], Any]) -> Any:
    """
    Call a function again and again while the file is locked.

    SQLite itself tries less and less often while it waits, down to ten times a second, and can miss every pause of a
    sweep.

    :raises sqlite3.OperationalError: if the file stays locked for ``BUSY_SECONDS``.
    """
    began = time.monotonic()
    while True:
        try:
            return call()
        except sqlite3.OperationalError as exc:
            waited = time.monotonic() - began
            if "locked" not in str(exc) or waited > BUSY_SECONDS:
                raise
        time.sleep(LOOK if waited < 1 else LATER_LOOK)


def _user_of(path: str, span: tuple[int, int]) -> int | None:
    """
    Return the number of another process that has locked a byte in a range of a file; None if the system does not tell.

    ``/proc/locks`` cannot be used: it is read in pieces, and can lack locks while others come and go.
    """
    if sys.platform != "linux":
        return None
    wanted = struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, *span, 0)
    try:
        kind, _, _, _, user = struct.unpack(_LOCK, fcntl.fcntl(handle_of(path), fcntl.F_GETLK, wanted))
    except OSError:
        return None
    return None if kind == fcntl.F_UNLCK else int(user)


def _frame_in(log_file: BinaryIO, number: int) -> tuple[int, ...]:
    """Return the checksum of a page in a -wal, counted from 1; () if it has fewer pages."""
    head = log_file.read(32)
    if number < 1 or len(head) < 32:
        return ()
    log_file.seek(32 + (number - 1) * (24 + struct.unpack_from(">I", head, 8)[0]))
    found = log_file.read(24)
    return struct.unpack(">16xII", found) if len(found) == 24 else ()


def roll_back(sql: sqlite3.Connection) -> None:
    """Roll back a transaction that has failed."""
    if sql.in_transaction:  # after some errors SQLite has done so itself
        with contextlib.suppress(sqlite3.Error):
            sql.execute("ROLLBACK")


def _now() -> str:
    return time.strftime("%Y%m%d%H%M%S", time.gmtime())


def rename_without_replacing(draft: str, path: str) -> None:
    """Rename a draft to its final name. :raises OSError: also if that name is taken."""
    try:
        os.link(draft, path)  # unlike a rename it replaces nothing
    except OSError as exc:
        if exc.errno not in _NO_LINKS:
            raise
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        os.rename(draft, path)
    else:
        os.unlink(draft)


def _link(path: str, target: str) -> None:
    """Give a file a second name; where the file system has no links, rename it."""
    try:
        os.link(path, target)
    except OSError as exc:
        if exc.errno not in _NO_LINKS:
            raise
        os.rename(path, target)


def free_name(path: str) -> str:
    """Return the path if it, and a -wal and -shm of it, do not exist yet; else the path with a number appended."""
    number, found = 1, path
    while any(os.path.lexists(found + name) for name in ("", *_COMPANIONS)):
        number += 1
        found = f"{path}-{number}"
    return found


def is_damage(exc: BaseException) -> bool:
    """Tell whether an error of SQLite says that the file is damaged."""
    text = str(exc)
    return isinstance(exc, sqlite3.DatabaseError) and ("malformed" in text or "not a database" in text)


def damage_in(exc: BaseException | None) -> str:
    """Return SQLite's message if damage of the file caused an error; else an empty text."""
    while exc is not None:
        if is_damage(exc):
            return str(exc)
        exc = exc.__cause__ or exc.__context__
    return ""


def head_of(path: str) -> bytes:
    """Return the first 100 bytes of a file."""
    return os.pread(handle_of(path), 100, 0)


def _place_of(path: str) -> tuple[int, int] | None:
    """Return device and inode of a file; None if there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def handle_of(path: str) -> int:
    """
    Return a descriptor of a file for reading.

    It stays open until SQLite has closed the file: closing it would release all locks that SQLite holds on the file in this
    process.
    """
    found = os.stat(path)
    handle = _HANDLES.get((found.st_dev, found.st_ino))
    if handle is None:
        _close_unused()
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        opened = os.fstat(handle)
        _HANDLES[opened.st_dev, opened.st_ino] = handle
    return handle


def _close_unused() -> None:
    """Close the descriptors of removed files that SQLite has closed. Nothing can open such a file again."""
    gone = {place: handle for place, handle in list(_HANDLES.items()) if not os.fstat(handle).st_nlink}
    if not gone:
        return
    with contextlib.suppress(FileNotFoundError):  # a system without /proc
        used = collections.Counter(map(_place, os.listdir("/proc/self/fd")))
        for place, handle in gone.items():
            if used[place] == 1 and _HANDLES.pop(place, None) is not None:
                os.close(handle)


def _place(descriptor: str) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):  # closed meanwhile
        found = os.fstat(int(descriptor))
        return found.st_dev, found.st_ino
    return None


def is_foreign(path: str) -> bool:
    """
    Tell whether a file was never a database of SQLite, nor one of ours whose first bytes are damaged. Zeros at its beginning
    do not count: a power cut leaves them.
    """
    head = head_of(path)
    is_known = head.startswith(b"SQLite format 3\0") or _is_marked(head)
    return not is_known and bool(head.strip(b"\0"))


def _is_marked(head: bytes) -> bool:
    """Tell whether the first bytes of a file have the number of this extension."""
    return head[68:72] == schema.APPLICATION.to_bytes(4, "big")
