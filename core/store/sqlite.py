"""
The file of the driver sqlite (cache/sqlite.py), read and written by core/sqlite/banks.py without Salt's loader.

A publish stores everything in one transaction, and a job is removed in one. A job's lock is a transaction too, which
keeps the other processes of this machine out.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from salt.exceptions import SaltCacheError

from saltext.jobs.core.errors import StateError
from saltext.jobs.core.sqlite import OPTIONS, stored
from saltext.jobs.core.sqlite.banks import SqliteBanks, banks_of
from saltext.jobs.core.sqlite.file import damage_in
from saltext.jobs.core.sqlite.job_lookup import CHUNK, JobLookup
from saltext.jobs.core.store.calling import Outage, Undecodable
from saltext.jobs.core.store.drivers import ABSENT
from saltext.jobs.core.store.tabled import TableDriver

#: By how many pages the file shrinks at a time, and how often in one sweep.
PIECE_PAGES, PIECES = 200, 20
#: A Unix time that is later than any write.
_NEVER = 1e11
#: Bytes from which on the sweep does not check the whole file, which takes some seconds for each GB.
MOST_CHECKED = 4 << 30


class Sqlite(TableDriver[SqliteBanks]):
    """The file of the driver sqlite, without a server that could be away."""

    def __init__(self, opts: Mapping[str, Any]) -> None:
        # Salt's loader is not used. To copy all options would touch much memory that a forked process shares.
        super().__init__({name: opts[name] for name in OPTIONS if name in opts})
        self._made: SqliteBanks | None = None
        self._checked = 0  # the process that has checked the file

    def tables(self) -> SqliteBanks:
        return self.banks_file

    def lookup(self) -> JobLookup:
        return self.banks_file.index

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

    def read_all(self, items: Sequence[tuple[str, str]]) -> list[Any]:
        found = self.do(lambda banks: banks.values(items), "fetch", *items[0]) if items else {}
        return [self.decoded(*item, found[item], stored.loads) if item in found else ABSENT for item in items]

    def fetch_each(self, bank: str, keys: Iterable[str] | None = None) -> Iterator[tuple[str, Any]]:
        wanted = None if keys is None else list(keys)
        return self._decoded(bank, lambda banks: banks.items(bank) if wanted is None else banks.pick(bank, wanted))

    def _decoded(
        self, bank: str, ask: Callable[[SqliteBanks], Iterator[tuple[str, bytes]]]
    ) -> Iterator[tuple[str, Any]]:
        found = self.do(lambda banks: iter(ask(banks)), "fetch", bank)
        while some := self.do(lambda banks: list(itertools.islice(found, CHUNK)), "fetch", bank):
            yield from ((key, self.decoded(bank, key, data, stored.loads)) for key, data in some)

    def store(self, bank: str, key: str, value: Any, durable: bool = False) -> None:
        self.do(lambda banks: banks.store(bank, key, value, durable), "store", bank, key)

    def store_new(self, bank: str, key: str, value: Any, durable: bool = False) -> bool:
        return self.do(lambda banks: banks.store_new(bank, key, value, durable), "store", bank, key)

    def store_all(self, items: Sequence[tuple[str, str, Any]], durable: bool = False) -> None:
        def write(banks: SqliteBanks) -> None:
            with banks.transaction(durable):
                for item in items:
                    banks.store(*item)

        self.do(write, "store", *items[0][:2])

    def remove(self, banks: Sequence[str], parent: str, names: Sequence[str], than: float = _NEVER) -> None:
        self.do(lambda file: file.remove_older(banks, parent, names, min(than, _NEVER)), "flush", parent)

    def used_bytes(self) -> int:
        return self.do(lambda banks: banks.used_bytes(), "measure", "")

    def tidy(self) -> None:
        """
        Check the file, remove hidden records, and give some free space back to the disk.

        A process checks the file once, unless that would take long. Salt starts its maintenance process anew every hour.
        """
        if self._checked != os.getpid():
            self._checked = os.getpid()
            if self.banks_file.file_bytes() < MOST_CHECKED:
                self.do(lambda banks: banks.is_sound(), "check", "")
        while self.do(lambda banks: banks.tidy(), "flush", ""):
            self.banks_file.give_way()
        for _ in range(PIECES):
            if not self.do(lambda banks: banks.give_back(PIECE_PAGES), "shrink", ""):
                return
            self.banks_file.give_way()

    def damage(self) -> str | None:
        """As ``Database.damage``. :raises SaltCacheError: if the file cannot be checked."""
        return self.do(lambda banks: banks.damage(), "check", "")

    def error(self, name: str, bank: str, key: str | None, exc: Exception) -> SaltCacheError:
        found = super().error(name, bank, key, exc)
        if isinstance(exc, (StateError, sqlite3.OperationalError)) and not isinstance(found, Undecodable):
            return Outage(str(found))
        return found
