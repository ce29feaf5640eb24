"""
What masters have in common if their engines work as one: who leads each engine, its files, and the log of what the
masters did.

A *site* is all masters that share a cachedir or a database; usually it is one master alone. Other modules must never
bypass this one: they do not know where these files are, nor whether they are files.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import salt.payload

from saltext.jobs.core import formats
from saltext.jobs.core.disk import files
from saltext.jobs.core.disk.folder import FileFolder
from saltext.jobs.core.disk.journal import Content
from saltext.jobs.core.disk.lease import Leader, leader_in
from saltext.jobs.core.disk.lease import Lease as FileLease
from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.log import checkpoints
from saltext.jobs.core.log.checkpoints import Position
from saltext.jobs.core.log.masters import LogOfAll, shares
from saltext.jobs.core.log.reader import News
from saltext.jobs.core.log.records import Record
from saltext.jobs.core.log.segments import folder_of
from saltext.jobs.core.log.writer import SIZE, Writer

#: The option for masters that share a database in place of a cachedir, its value, and the other options that it needs.
_SITE, _POSTGRESQL = "saltext_jobs_site", "postgresql"
#: The engine that works for its own master alone, with that master's bus.
_ALONE = "job_recorder"
#: The file in an engine's folder with the number of their format.
_FORMAT = "format"
_NEEDED = {"master_job_cache": "salt_cache", "cache": _POSTGRESQL}


class Lease(Protocol):
    """The lead of an engine, which one process of the site has. After ``take`` has returned True you must ``release`` it."""

    #: The process that led before; None if that is not known.
    predecessor: Leader | None
    #: This process, once it leads.
    leader: Leader | None
    #: How often something was refused because this process did not lead, or could not tell.
    refused: int
    #: Which history the site's database has; empty without a database. After a change the last writes may be missing.
    history: str
    #: Called in any thread, once it is noticed that another process leads.
    on_lost: Callable[[], None]
    #: Called in any thread when there may be a request of a runner, if the bus does not announce requests.
    on_request: Callable[[], None]

    @property
    def epoch(self) -> int:
        """The epoch of this process, higher than all earlier epochs; 0 until it leads."""

    @property
    def is_takeover(self) -> bool:
        """Whether another master led before, or may have led. That master may have ended in the middle of anything."""

    @property
    def left(self) -> float | None:
        """Seconds for which this process leads without a further renewal; None if it leads until it ends."""

    def take(self) -> bool:
        """Take the lead if no process has it, and tell whether this process has it now. :raises OSError, StateError:"""

    def check(self) -> None:
        """
        Make sure that this process still leads.

        :raises Superseded: when it does not; then ``on_lost`` was called. :raises OSError: when that cannot be told now.
        """

    def beat(self) -> None:
        """Say that this process is alive; called every ten seconds. :raises OSError: as ``check``."""

    def release(self) -> None:
        """Let another process lead."""


class Journal(Protocol):
    """As ``core.disk.journal.Journal``, which says what each method does and which thread may call it."""

    @property
    def whole(self) -> bool:
        """Whether it has all records. If not, further ones are refused until a rewrite has begun."""

    @property
    def behind(self) -> bool:
        """Whether records would be lost if this process ended now, without a ``sync``."""

    @property
    def size(self) -> int:
        """Its size in bytes."""

    @property
    def overgrown(self) -> bool:
        """Whether it is time to rewrite it."""

    def read(self) -> Content:
        """Return what it holds. :raises FileNotFoundError, OSError, StateError:"""

    def open(self, content: Content) -> None:
        """Open it to append after ``content``, which it holds. :raises OSError:"""

    def copy(self, content: Content) -> None:
        """Replace it by a copy and go on with the copy, to which a former leader cannot append. :raises OSError:"""

    def append(self, record: Any) -> None:
        """Add a record, which is durable after ``sync``. Never blocks. :raises OSError: when it is written nowhere."""

    def begin_rewrite(self, snapshot: Any) -> None:
        """Begin anew with ``snapshot``; then you must call ``finish_rewrite``. :raises OSError:"""

    def finish_rewrite(self) -> None:
        """Replace the old journal by the new one, durably. Blocks. :raises OSError:"""

    def rewrite(self, snapshot: Any) -> None:
        """Begin and finish a rewrite. :raises OSError:"""

    def sync(self) -> None:
        """Make all records durable. Blocks. :raises OSError: when that is not certain, or this process does not lead."""

    def close(self) -> None:
        """Release it."""


class Folder(Protocol):
    """
    The files of an engine, by names such as ``requests/<id>.request``.

    With a lease, a method that changes something raises OSError if this process does not lead, or cannot tell.
    After any other OSError it is not known whether the file is there.
    """

    def where(self, name: str = "") -> str:
        """Return how messages name a file, or the folder: where an operator finds it."""

    def read(self, name: str) -> bytes:
        """Return the content of a file. :raises FileNotFoundError: when it is not there. :raises OSError:"""

    def write(self, name: str, data: bytes, durable: bool = False) -> None:
        """
        Replace a file as a whole: a reader sees the old content or the new one.

        :param durable: whether it must survive a power cut when this returns.
        :raises OSError: the old content stays. If only durability is uncertain, a power cut may leave either content.
        """

    def names(self, below: str) -> list[str]:
        """Return the names of the files in ``below``, each with ``below/`` before it, sorted. :raises OSError:"""

    def modified(self, name: str) -> float:
        """Return when a file was last written, in Unix time. :raises FileNotFoundError, OSError:"""

    def rename(self, old: str, new: str) -> None:
        """Rename a file; it replaces a file that has the new name. :raises FileNotFoundError, OSError:"""

    def set_aside(self, name: str) -> str:
        """
        Rename an unusable file to ``<name>.corrupt``, set its time to now, and return where it is. If there is no file,
        do nothing. :raises OSError:
        """

    def remove(self, name: str) -> bool:
        """Remove a file, and tell whether it was there. :raises OSError:"""

    def exists(self, *names: str) -> bool:
        """Tell whether one of these is there. :raises OSError: when that cannot be told."""

    def sweep(self, below: str) -> None:
        """Remove unfinished files in ``below``, which a killed process has left. :raises OSError:"""

    def journal(self, name: str) -> Journal:
        """Return the journal of that name, whether or not there is one."""


class Log(Protocol):
    """What the masters did: see ``core/log/masters.py``."""

    @property
    def there(self) -> bool:
        """Whether there was a log at the last look."""

    @property
    def positions(self) -> dict[str, Position]:
        """The position up to which each master's log was read; empty if there is no log."""

    def read(self) -> News:
        """Return what was appended after ``positions``, or a part. :raises OSError: when nothing can be read now."""

    def sync(self, positions: Mapping[str, Position]) -> None:
        """Make all before ``positions`` durable. It blocks; any thread may call it. :raises OSError:"""

    def look(self) -> Callable[[], bool]:
        """Begin a look at the log. Returns a function: whether ``read`` has all that was appended before ``look``."""

    def close(self) -> None:
        """Release it."""


class LogWriter(Protocol):
    """Writes what this master does: see ``core/log/writer.py``."""

    def append(self, record: Record) -> bool:
        """Append a record. Returns whether that succeeded; if not, the log has a gap."""


class Site(Protocol):
    """What the masters have in common."""

    #: Seconds that a runner waits for an engine.
    patience: float

    @property
    def place(self) -> str:
        """Where it is, for people."""

    def now(self) -> float:
        """Return Unix time by the clock that dates files and beats. :raises OSError:"""

    def lease_left(self, engine: str) -> float | None:
        """Return for how many seconds the leader still has its lease; None if it leads until it ends. :raises OSError:"""

    def doubts(self) -> list[str]:
        """Return a sentence for each thing about the site that an operator should change. :raises OSError:"""

    def path(self, engine: str) -> pathlib.Path | None:
        """Return the directory of an engine's files on this machine; None if they are not on a disk."""

    def lease(self, engine: str, run: str = "") -> Lease:
        """
        Return the lead of an engine, for this process.

        :param run: an id of this run of the master, which changes with a restart; empty if it is not known.
        """

    def leader(self, engine: str) -> Leader | None:
        """Return the process that took the lead last, even if it has lost it; None if that is not known. :raises OSError:"""

    def is_led(self, engine: str) -> bool:
        """Tell whether a process has the lead now. :raises OSError: when that cannot be told. :raises StateError:"""

    def alive_at(self, engine: str) -> float | None:
        """Return when the leader last said that it is alive, in Unix time; None if no leader has. :raises OSError:"""

    def folder(self, engine: str, lease: Lease | None = None) -> Folder:
        """
        Return the files of an engine.

        :param lease: the lease of the engine's process; None for a runner, which may write at any time.
        """

    def log(self, positions: Mapping[str, Position] | None = None) -> Log:
        """Return the log of all masters. Each master's log is read from its position on; without one, from its end."""

    def log_writer(self, size: int = SIZE) -> LogWriter:
        """
        Return the writer with which a process of this master appends to the log.

        :param size: most bytes of the log, if its storage lets us limit it.
        """

    def shares(self, master: str) -> bool:
        """Tell whether the master with this id writes to the log, so that what it did is known. :raises OSError:"""

    def banks(self, lease: Lease) -> Any:
        """Return the banks of ``cache:``, which only the leader may write; None if Salt's driver is used instead."""

    def keep_log(self, reader: str, positions: Mapping[str, Position]) -> None:
        """Keep the log from these positions on, for an engine that will begin there. :raises OSError:"""


class FileSite:
    """
    All masters that share this one's cachedir.

    :param opts: the master's options.
    """

    patience = 10.0

    def __init__(self, opts: Mapping[str, Any]) -> None:
        self._cachedir, self._master = opts["cachedir"], str(opts.get("id") or "")

    @property
    def place(self) -> str:
        """The directory."""
        return str(self._cachedir)

    def now(self) -> float:
        """Return the time of this machine."""
        return time.time()

    def lease_left(self, engine: str) -> None:
        """Return None: a lock is held until its process ends."""

    def doubts(self) -> list[str]:
        """Return no doubts: the doctors look at the disk themselves."""
        return []

    def path(self, engine: str) -> pathlib.Path:
        """Return the directory of an engine's files."""
        return pathlib.Path(self._cachedir, "saltext_jobs", engine)

    def lock_path(self, engine: str) -> pathlib.Path:
        """Return the file that the leader has locked, and that says who leads."""
        return self.path(engine) / "lock"

    def lease(self, engine: str, run: str = "") -> FileLease:
        """Return the lead of an engine."""
        return FileLease(self.lock_path(engine), self._master, run)

    def leader(self, engine: str) -> Leader | None:
        """Return who took the lead last."""
        return leader_in(self.lock_path(engine))

    def is_led(self, engine: str) -> bool:
        """Tell whether a process has the lead now."""
        return files.is_held(self.lock_path(engine))

    def alive_at(self, engine: str) -> float | None:
        """Return when the leader last said that it is alive."""
        try:
            return self.lock_path(engine).stat().st_mtime
        except FileNotFoundError:
            return None

    def folder(self, engine: str, lease: Lease | None = None) -> FileFolder:
        """Return the files of an engine."""
        return FileFolder(self.path(engine), *([lease.check] if lease is not None else []))

    def log(self, positions: Mapping[str, Position] | None = None) -> LogOfAll:
        """Return the log of all masters."""
        return LogOfAll(self._cachedir, self._master, positions)

    def log_writer(self, size: int = SIZE) -> Writer:
        """Return what writes this master's log."""
        return Writer(folder_of(self._cachedir, self._master), size)

    def shares(self, master: str) -> bool:
        """Tell whether another master writes to the log."""
        return shares(self._cachedir, master)

    def banks(self, lease: Lease) -> None:
        """Return None."""

    def keep_log(self, reader: str, positions: Mapping[str, Position]) -> None:
        """Have the log kept."""
        logs = folder_of(self._cachedir, self._master).parent
        for name, position in positions.items():
            checkpoints.write(logs / name, reader, position)


def site_of(opts: Mapping[str, Any], engine: str = "") -> Site:
    """
    Return what this master has in common with others.

    :param engine: the engine that asks, if one does: ``job_recorder`` works for its own master alone, whatever the options.
    :raises SettingsError: if the value of ``saltext_jobs_site`` is not accepted, or an option that it needs is not set.
    """
    kind = opts.get("saltext_jobs_site")
    if not kind or engine == _ALONE:
        return FileSite(opts)
    if kind != _POSTGRESQL:
        raise SettingsError(
            f"{_SITE} is {kind!r}; accepted is {_POSTGRESQL}, or nothing: then the cachedir is the site"
        )
    lacking = [f"{name}: {value}" for name, value in _NEEDED.items() if opts.get(name) != value]
    if lacking:
        raise SettingsError(f"{_SITE} is {kind}, which needs {' and '.join(lacking)} too")
    from saltext.jobs.core.postgresql.site import PostgresqlSite  # psycopg is an extra

    return PostgresqlSite(opts)


def check_format(folder: Folder) -> bool:
    """
    Compare the format of an engine's files with that of this version, and tell whether it is noted there.

    :raises StateError: when it is another one, with what to do. :raises OSError: when it cannot be read.
    """
    try:
        text = folder.read(_FORMAT).decode(errors="replace").strip()
    except FileNotFoundError:
        return False
    formats.check(folder.where(), text, str(formats.FORMAT))
    return True


def note_format(folder: Folder) -> None:
    """Note the format of an engine's files, once. :raises StateError, OSError: as ``check_format``."""
    if not check_format(folder):
        folder.write(_FORMAT, b"%d\n" % formats.FORMAT, durable=True)


def read_msgpack(folder: Folder, name: str) -> Any:
    """
    Return the content of a msgpack file, or None if there is none.

    :raises StateError: when it is damaged.
    :raises OSError: when it cannot be read at this moment; it may be whole.
    """
    try:
        return files.unpacked(folder.read(name), folder.where(name))
    except FileNotFoundError:
        return None


def write_msgpack(folder: Folder, name: str, value: Any, durable: bool = False) -> None:
    """Replace a file by the msgpack form of ``value``. :raises OSError: as ``Folder.write``."""
    folder.write(name, salt.payload.dumps(value), durable)
