"""
What masters have in common if their engines work as one: who leads each engine, its files, and the log of what the
masters did. All but the lead of a single master is in tables (``core/ledger/``).

A *site* is one master with its cachedir, or all masters that share a database. Other modules must never bypass this one:
they do not know where these files are, nor whether they are files.
"""

from __future__ import annotations

import functools
import pathlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import salt.payload

from saltext.jobs.core.disk import files
from saltext.jobs.core.disk.lease import FileLease, Leader, Lease, leader_in
from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.ledger import log
from saltext.jobs.core.ledger.folder import Folder as Folder  # also for modules that import it from here
from saltext.jobs.core.ledger.log import SIZE, Position
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.sqlite.tables import SqliteTables

if TYPE_CHECKING:
    from saltext.jobs.core.postgresql.site import PostgresqlSite

Log: TypeAlias = log.Reader
LogWriter: TypeAlias = log.Writer
#: Both forms. The one of a single master says what each method does.
Site: TypeAlias = "FileSite | PostgresqlSite"

#: The option for masters that share a database, its value, and the other options that it needs.
_SITE, _POSTGRESQL = "saltext_jobs_site", "postgresql"
_NEEDED = {"master_job_cache": "salt_cache", "cache": _POSTGRESQL}


class FileSite:
    """
    One master, with one database file. Another one may go on with the same cachedir when this one has ended.

    :param opts: the master's options.
    """

    #: Seconds that a runner waits for an engine.
    patience = 10.0

    def __init__(self, opts: Mapping[str, Any]) -> None:
        self._opts, self._cachedir, self._master = opts, opts["cachedir"], str(opts.get("id") or "")
        self._masters: frozenset[str] = frozenset()

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return str(self._cachedir)

    @functools.cached_property
    def tables(self) -> Tables:
        """The tables of this master."""
        return SqliteTables(self._opts)

    def now(self) -> float:
        """Return Unix time by the clock that dates files and beats. :raises OSError:"""
        return time.time()

    def lease_left(self, engine: str) -> None:
        """Return for how many seconds the leader still has its lease; None if it leads until it ends. :raises OSError:"""

    def doubts(self) -> list[str]:
        """Return a sentence for each thing about the site that an operator should change. :raises OSError:"""
        return []  # the doctors look at the disk themselves

    def path(self, engine: str) -> pathlib.Path:
        """Return the directory of an engine's lock on this machine; None if it is not on a disk."""
        return pathlib.Path(self._cachedir, "saltext_jobs", engine)

    def lock_path(self, engine: str) -> pathlib.Path:
        """Return the file that the leader has locked, and that says who leads."""
        return self.path(engine) / "lock"

    def lease(self, engine: str, run: str = "") -> FileLease:
        """
        Return the lead of an engine, for this process.

        :param run: an id of this run of the master, which changes with a restart; empty if it is not known.
        """
        return FileLease(self.lock_path(engine), self._master, run)

    def leader(self, engine: str) -> Leader | None:
        """Return the process that took the lead last, even if it has lost it; None if that is not known. :raises OSError:"""
        return leader_in(self.lock_path(engine))

    def is_led(self, engine: str) -> bool:
        """Tell whether a process has the lead now. :raises OSError: when that cannot be told. :raises StateError:"""
        return files.is_held(self.lock_path(engine))

    def alive_at(self, engine: str) -> float | None:
        """Return when the leader last said that it is alive, in Unix time; None if no leader has. :raises OSError:"""
        try:
            return self.lock_path(engine).stat().st_mtime
        except FileNotFoundError:
            return None

    def folder(self, engine: str, lease: Lease | None = None) -> Folder:
        """
        Return the files of an engine.

        :param lease: the lease of the engine's process; None for a runner, which may write at any time.
        """
        return Folder(self.tables, engine, lease)

    def log(self, position: Position | None = None) -> Log:
        """Return the log of all masters, read from a position on; without one, from its end."""
        return Log(self.tables, position)

    def log_writer(self, size: int = SIZE) -> LogWriter:
        """
        Return the writer with which a process of this master appends to the log.

        :param size: most bytes of the log.
        """
        return LogWriter(self.tables, self._master, size)

    def shares(self, master: str) -> bool:
        """Tell whether the master with this id has written to the log of the site. :raises OSError:"""
        if master not in self._masters:
            self._masters = log.writers(self.tables)
        return master in self._masters


def site_of(opts: Mapping[str, Any]) -> Site:
    """
    Return what this master has in common with others.

    :raises SettingsError: if the value of ``saltext_jobs_site`` is not accepted, or an option that it needs is not set.
    """
    kind: Any = opts.get("saltext_jobs_site")
    if hasattr(kind, "log_writer"):  # a simulated one
        return cast("Site", kind)
    if not kind:
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
