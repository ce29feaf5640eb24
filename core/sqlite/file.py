"""
The file of a database: where it may be, how it is made, and set aside if it is damaged.

Only the owner of the directory may read the file, since it also holds pillars and tokens; a file that root makes is given
to that owner. This module must never touch a file that is not a database of this extension.
"""

from __future__ import annotations

import contextlib
import glob
import os
import sqlite3
import time

from saltext.jobs.core import lines
from saltext.jobs.core.disk.files import give, locked, make_folder
from saltext.jobs.core.errors import StateError, check_format
from saltext.jobs.core.ids import jid_at
from saltext.jobs.core.ledger.tables import FORMAT, SQLITE, statements

log = lines.logger(__name__)

BUSY_SECONDS = 30.0  # longest time that a process waits for others

APPLICATION = 0x53614A42  # in the header of the file: it is ours
#: SQLite writes whole pages, and rows of some hundred bytes would leave much of a smaller page empty.
PAGE_BYTES = 2048
_COMPANIONS = ("-wal", "-shm")
#: Connections and descriptors that must not be closed: that would release locks of the other connections of this process.
LEFT: list[sqlite3.Connection | int | None] = []


class Replaced(sqlite3.DatabaseError):
    """The file was damaged, and another one takes its place. Nothing was written."""


class DatabaseFile:
    """``chosen``: an operator chose the directory. It is not created then: its disk may not be mounted."""

    def __init__(self, path: str, chosen: bool = False) -> None:
        self.path = path
        self._chosen = chosen
        self._lock = f"{path}.lock"  # only its holder makes a file, or sets one aside

    def identity(self) -> tuple[int, int] | None:
        """Return the identity of the file, which a file that replaces it does not have; None if there is no file."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    # -- whether it can be used ------------------------------------------------------------------------------------

    def check_place(self) -> None:
        """Raise StateError unless a database may be at this path."""
        if self._chosen and not os.path.isdir(os.path.dirname(self.path)):
            raise StateError(
                f"the directory of sqlite_cache_path, {os.path.dirname(self.path)}, is not there: mount its disk, or make "
                "it for the user that the master runs as"
            )
        if os.path.islink(self.path):  # SQLite's -wal would be elsewhere
            raise StateError(f"{self.path} is a link: set sqlite_cache_path to the file that it leads to")

    def check_rights(self, exc: Exception) -> None:
        """Raise StateError if an error came because this user may not read the file."""
        if "unable to open" in str(exc) and os.path.exists(self.path) and not os.access(self.path, os.R_OK):
            raise StateError(
                f"{self.path} is private to the user that the master runs as (uid {os.stat(self.path).st_uid}); this "
                f"process is of another (uid {os.geteuid()}). If this is the master, chown the file to its user"
            ) from exc

    def check_format(self, sql: sqlite3.Connection) -> None:
        """Raise StateError unless it is a database of ours, in a format that this version reads."""
        application = sql.execute("PRAGMA application_id").fetchone()[0]
        if application != APPLICATION:
            raise StateError(f"{self.path} is a database of another program; set sqlite_cache_path to another file")
        check_format(self.path, sql.execute("PRAGMA user_version").fetchone()[0], FORMAT)

    # -- making it, and setting it aside ---------------------------------------------------------------------------

    def make(self) -> None:
        """Make the file, unless another process was faster. It is complete when it gets its name."""
        draft = f"{self.path}.new"
        with locked(self._lock):
            if self.identity() is not None:
                return
            for name in (draft, *(path + end for path in (draft, self.path) for end in _COMPANIONS)):
                with contextlib.suppress(FileNotFoundError):  # left by a process that was killed, or by a removed file
                    os.unlink(name)
            os.close(self.new_file(draft))
            with contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as sql:
                sql.execute(f"PRAGMA page_size={PAGE_BYTES}")
                if sql.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
                    raise StateError(f"{self.path}: this file system has no memory that processes share")
                sql.execute("BEGIN IMMEDIATE")
                for statement in statements(SQLITE):
                    sql.execute(statement)
                sql.execute(f"PRAGMA application_id={APPLICATION}")
                sql.execute(f"PRAGMA user_version={FORMAT}")
                sql.execute("COMMIT")
            os.rename(draft, self.path)

    def set_aside(self, identity: tuple[int, int] | None, reason: str) -> None:
        """
        Rename a damaged file, unless its ``identity`` shows that it was renamed already. The next process to open it makes a
        new one. :raises StateError: if it is the file of another program.
        """
        with locked(self._lock):
            if self.identity() != identity:
                return
            if self._is_foreign():
                raise StateError(f"{self.path} is no database and is left alone; see docs/operations.md")
            target = f"{self.path}.damaged-{jid_at(time.time())}"
            LEFT.append(sql := sqlite3.connect(self.path, timeout=0, isolation_level=None))
            with contextlib.suppress(sqlite3.Error):
                sql.execute("BEGIN IMMEDIATE")  # so that nothing is committed to it while it is renamed
            try:
                os.rename(self.path, target)
                for end in _COMPANIONS:
                    with contextlib.suppress(FileNotFoundError):
                        os.rename(self.path + end, target + end)
            finally:
                roll_back(sql)
        log.critical(
            "%s is damaged (%s) and was set aside as %s; a new file is begun. Check the disk. To bring back what can be "
            "read: salt-run job_cache.recover %s",
            self.path,
            reason,
            target,
            target,
        )

    def _is_foreign(self) -> bool:
        """Tell whether it is no database: not even one of ours with a damaged head, nor zeros that a power cut left."""
        LEFT.append(handle := os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
        head = os.pread(handle, 100, 0)
        is_marked = head[68:72] == APPLICATION.to_bytes(4, "big")
        return not is_marked and not head.startswith(b"SQLite format 3\0") and bool(head.strip(b"\0"))

    def damaged(self) -> list[str]:
        """Return the damaged files that have been set aside, oldest first."""
        found = glob.glob(f"{glob.escape(self.path)}.damaged-*")
        return sorted(name for name in found if not name.endswith(_COMPANIONS))

    def new_file(self, path: str) -> int:
        """Make an empty private file and return its descriptor."""
        folder = os.path.dirname(path)
        make_folder(folder)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        give(handle, folder)
        return handle


def roll_back(sql: sqlite3.Connection) -> None:
    if sql.in_transaction:  # after some errors SQLite has done so itself
        with contextlib.suppress(sqlite3.Error):
            sql.execute("ROLLBACK")


def is_damage(exc: BaseException) -> bool:
    """Tell whether an error of SQLite says that the file is damaged."""
    text = str(exc)
    return isinstance(exc, sqlite3.DatabaseError) and ("malformed" in text or "not a database" in text)
