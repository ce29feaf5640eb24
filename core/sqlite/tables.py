"""The tables of a site in the SQLite file of a master: what ``core/ledger/tables.py`` asks of a database."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from saltext.jobs.core.errors import SiteAway, StateError
from saltext.jobs.core.ledger.seal import NoSeal
from saltext.jobs.core.ledger.tables import NAME, SQLITE, Execute, Result
from saltext.jobs.core.sqlite.banks import SqliteBanks, database_of
from saltext.jobs.core.sqlite.database import Database

#: The file below ``saltext_jobs`` if the job cache is elsewhere.
FILE = "jobs.sqlite"
_BOOT = pathlib.Path("/proc/sys/kernel/random/boot_id")


class SqliteTables:
    """
    What the methods do is said in ``Tables``. With ``cache: sqlite`` they are in the file of the job cache, so that one
    transaction writes both.

    :param opts: the master's options. If one of them is not accepted, each method raises StateError or SiteAway.
    """

    dialect = SQLITE
    is_far = False
    seal = NoSeal()

    def __init__(self, opts: Mapping[str, Any]) -> None:
        self._opts = opts

    @functools.cached_property
    def _database(self) -> Database:
        shared = self._opts.get("cache") == "sqlite"
        return database_of(self._opts) if shared else database_of(self._opts, os.path.join("saltext_jobs", FILE))

    @property
    def banks(self) -> SqliteBanks:
        """The banks of the job cache in the same file; empty with another ``cache``."""
        return SqliteBanks(self._database)

    @property
    def place(self) -> str:
        return self._database.path

    @functools.cached_property
    def _mark(self) -> str:
        """The file that processes touch to note a gap, which works even on a full disk."""
        return f"{self.place}.lock"

    def name(self) -> str:
        return str(self.read(NAME)[0][0])

    def open(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # it may pass
            self._database.read("SELECT 1")

    def read(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._database.read(query, tuple(values))
        except (sqlite3.Error, StateError) as exc:
            raise self._told(exc) from exc

    def run(self, query: str, values: Sequence[Any] = (), durable: bool = False) -> None:
        try:
            self._database.run(query, values, durable)
        except (sqlite3.Error, StateError) as exc:
            raise self._told(exc) from exc

    def write(self, work: Callable[[Execute], Result], lease: Any = None, durable: bool = True) -> Result:
        try:
            with self._database.transaction(durable) as sql:
                return work(sql.execute)
        except (sqlite3.Error, StateError) as exc:
            raise self._told(exc) from exc

    def tell(self, execute: Execute, engine: str) -> None:
        """Do nothing: the master's bus tells an engine of this master."""

    def boot(self) -> str:
        try:
            return _BOOT.read_text().strip()
        except OSError:
            return ""

    def gaps(self) -> int:
        try:
            return os.stat(self._mark).st_mtime_ns
        except FileNotFoundError:
            return 0

    def note_gap(self) -> bool:
        try:
            before = self.gaps()
            at = max(before + 1, time.time_ns())
            for later in (0, 1, 2):  # some file systems keep only whole or even seconds
                os.utime(self._mark, ns=(at + later * 10**9,) * 2)
                if self.gaps() != before:
                    return True
        except (OSError, StateError):
            pass
        return False

    def _told(self, exc: Exception) -> SiteAway:
        return SiteAway(str(exc) if isinstance(exc, StateError) else f"{self.place} cannot be used: {exc}")
