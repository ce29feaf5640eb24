"""The tables of a master in an SQLite file: what ``core/ledger/tables.py`` asks of a database."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from saltext.jobs.core.boot import boot
from saltext.jobs.core.disk import files
from saltext.jobs.core.disk.lease import FileLease, Lead, Leader, Lease, leader_of
from saltext.jobs.core.errors import SiteAway, StateError
from saltext.jobs.core.ledger.tables import SQLITE, Result, Tables
from saltext.jobs.core.sqlite.database import Database, database_at
from saltext.jobs.core.sqlite.file import Replaced

#: The file of ``cache: sqlite``, and the one if the job cache is elsewhere.
CACHE, FILE = "cache.sqlite", "saltext_jobs/jobs.sqlite"
#: Seconds between two transactions of a bulk removal or copy, in which others can write.
_PAUSE = 0.03


class SqliteTables(Tables):
    """
    With ``cache: sqlite`` they are in the file of the job cache, so that one transaction writes both. If an option is not
    accepted, each method raises StateError or SiteAway.

    :param cachedir: that of a caller of ``salt.cache``, whose values are in a file as that of the job cache. The option for
        the path does not apply to another directory than the master's own.
    """

    dialect = SQLITE

    def __init__(self, opts: Mapping[str, Any], cachedir: str | None = None) -> None:
        self.opts, self._cachedir = opts, cachedir
        self._name = CACHE if cachedir is not None or opts.get("cache") == "sqlite" else FILE

    @property
    def database(self) -> Database:
        """The file, which all threads of this process use by one connection. :raises StateError: as ``_where``."""
        return database_at(*self._where)

    @functools.cached_property
    def _where(self) -> tuple[str, bool]:
        """The path, and whether an operator chose it. :raises StateError: for an option that is not accepted."""
        home, path = str(self.opts.get("cachedir") or ""), self.opts.get("sqlite_cache_path")
        if path is not None and (not isinstance(path, str) or not os.path.isabs(path)):
            raise StateError(f"sqlite_cache_path is {path!r}; accepted is the absolute path of a file")
        chosen = path is not None and self._cachedir in (None, home)
        if not chosen:
            path = os.path.join(self._cachedir or home, self._name)
        return os.path.normpath(str(path)), chosen

    @property
    def place(self) -> str:
        return self._where[0]

    def open(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # it may pass
            self.database.read("SELECT 1")

    def read(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._do(lambda database: database.read(_spoken(query), tuple(values)))

    def changed(self, query: str, values: Sequence[Any] = (), durable: bool = False) -> int:
        return self._do(lambda database: database.run(_spoken(query), values, durable))

    def together(self, work: Callable[[], Result], lease: Lease | None = None, durable: bool = False) -> Result:
        def in_one(database: Database) -> Result:
            with database.transaction(durable):
                return work()

        return self._do(in_one)

    def _do(self, work: Callable[[Database], Result]) -> Result:
        try:
            with contextlib.suppress(Replaced):
                return work(self.database)
            return work(self.database)
        except (sqlite3.Error, StateError) as exc:
            told = str(exc) if isinstance(exc, StateError) else f"{self.place} cannot be used: {exc}"
            raise SiteAway(told) from exc

    def give_way(self) -> None:
        time.sleep(_PAUSE)

    def boot(self) -> str:
        return boot()

    @functools.cached_property
    def _mark(self) -> str:
        """The file that processes touch to note a gap, which works even on a full disk."""
        return f"{self.place}.lock"

    def gaps(self) -> int:
        if not os.path.exists(self._mark):
            self.name()  # a new database is made, and its file
        try:
            return os.stat(self._mark).st_mtime_ns
        except FileNotFoundError:
            return 0

    def note_gap(self) -> bool:
        with contextlib.suppress(OSError, StateError):
            before = self.gaps()
            at = max(before + 1, time.time_ns())
            os.utime(self._mark, ns=(at, at))
            return self.gaps() != before  # some file systems keep only whole seconds
        return False

    # -- who leads: a process holds a lock, and another master may go on with the same cachedir when it has ended ------

    def folder(self, engine: str) -> pathlib.Path:
        return pathlib.Path(self.opts["cachedir"], "saltext_jobs", engine)

    def _lock(self, engine: str) -> pathlib.Path:
        """Return the file that the leader has locked, and that says who leads. Its time is when the leader was alive."""
        return self.folder(engine) / "lock"

    def lease(self, engine: str, run: str = "") -> FileLease:
        return FileLease(self._lock(engine), str(self.opts.get("id") or ""), run, self.place)

    def leader(self, engine: str) -> Leader | None:
        try:
            return leader_of(self._lock(engine).read_bytes())
        except FileNotFoundError:
            return None

    def lead(self, engine: str) -> Lead | None:
        path = self._lock(engine)
        if not files.is_held(path):
            return None
        return Lead(self.leader(engine), max(0.0, time.time() - path.stat().st_mtime))


_spoken = functools.lru_cache(maxsize=300)(SQLITE.of)
