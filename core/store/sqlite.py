"""
The file of the driver sqlite (cache/sqlite.py), read and written by core/sqlite/banks.py without Salt's loader.

A publish stores everything in one transaction, and a job is removed in one. A job's lock is a transaction too, which
keeps the other processes of this machine out.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

from salt.exceptions import SaltCacheError

from saltext.jobs.core.errors import StateError
from saltext.jobs.core.sqlite import OPTIONS
from saltext.jobs.core.sqlite.banks import SqliteBanks, banks_of
from saltext.jobs.core.sqlite.file import damage_in
from saltext.jobs.core.store.calling import Outage, Undecodable
from saltext.jobs.core.store.tabled import TableDriver

#: Bytes from which on the sweep does not check the whole file, which takes some seconds for each GB.
MOST_CHECKED = 4 << 30


class Sqlite(TableDriver[SqliteBanks]):
    """The file of the driver sqlite, without a server that could be away."""

    def __init__(self, opts: Mapping[str, Any]) -> None:
        # Salt's loader is not used. To copy all options would touch much memory that a forked process shares.
        super().__init__({name: opts[name] for name in OPTIONS if name in opts})
        self._made: SqliteBanks | None = None
        self.folder = os.path.dirname(str(opts.get("sqlite_cache_path") or "")) or str(opts["cachedir"])
        self._checked = 0  # the process that has checked the file

    def tables(self) -> SqliteBanks:
        return self.banks_file

    @property
    def banks_file(self) -> SqliteBanks:
        """The file. :raises StateError: for an option that is not accepted."""
        if self._made is None:
            self._made = banks_of(self._opts)
        return self._made

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        try:
            with self.banks_file.transaction():
                yield
        except (sqlite3.Error, StateError, OSError) as exc:
            raise self.error("write", "jobs", None, exc) from exc

    def met_damage(self, error: SaltCacheError) -> bool:
        return bool(damage_in(error))

    def used_bytes(self) -> int:
        return self.do(lambda banks: banks.used_bytes(), "measure", "")

    def check(self) -> None:
        """
        Check the file, and set it aside if it is damaged.

        A process checks the file once, unless that would take long. Salt starts its maintenance process anew every hour.
        """
        if self._checked != os.getpid():
            self._checked = os.getpid()
            if self.banks_file.file_bytes() < MOST_CHECKED:
                self.do(lambda banks: banks.is_sound(), "check", "")

    def damage(self) -> str | None:
        """As ``Database.damage``. :raises SaltCacheError: if the file cannot be checked."""
        return self.do(lambda banks: banks.damage(), "check", "")

    def error(self, name: str, bank: str, key: str | None, exc: Exception) -> SaltCacheError:
        found = super().error(name, bank, key, exc)
        if isinstance(exc, (StateError, sqlite3.OperationalError)) and not isinstance(found, Undecodable):
            return Outage(str(found))
        return found
