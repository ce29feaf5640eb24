"""
The file of the driver sqlite (cache/sqlite.py), read and written by core/sqlite/banks.py without Salt's loader.

A publish stores everything in one transaction, and a job is removed in one. A job's lock is a transaction too, which
keeps the other processes of this machine out.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from salt.exceptions import SaltCacheError

from saltext.jobs.core.errors import StateError
from saltext.jobs.core.sqlite import OPTIONS, stored
from saltext.jobs.core.sqlite.banks import SqliteBanks, banks_of
from saltext.jobs.core.sqlite.file import damage_in
from saltext.jobs.core.sqlite.job_lookup import CHUNK, JobLookup
from saltext.jobs.core.store.calling import Outage, Undecodable
from saltext.jobs.core.store.drivers import ABSENT, Left, OneFile
from saltext.jobs.core.store.tabled import TableDriver, TableIndex

Result = TypeVar("Result")

#: By how many pages the file shrinks at a time, and how often in one sweep.
PIECE_PAGES, PIECES = 200, 20
#: Bytes from which on the sweep does not check the whole file, which takes some seconds for each GB.
MOST_CHECKED = 4 << 30


class Sqlite(TableDriver):
    """The file of the driver sqlite, without a server that could be away."""

    removed_at_once = 500

    def __init__(self, opts: Mapping[str, Any]) -> None:
        # Salt's loader is not used. To copy all options would touch much memory that a forked process shares.
        super().__init__({name: opts[name] for name in OPTIONS if name in opts})
        self.index = SqliteIndex(self)
        self._made: SqliteBanks | None = None
        self._checked = 0  # the process that has checked the file

    @property
    def one_file(self) -> OneFile:
        return self

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

    def present(self, bank: str, keys: Iterable[str]) -> set[str]:
        return self.do(lambda banks: banks.present(bank, keys), "contains", bank)

    def _last_in(self, bank: str) -> float | None:
        return self.do(lambda banks: banks.bank_updated(bank), "updated", bank)

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

    def remove(self, banks: Sequence[str], parent: str, names: Sequence[str], than: float = math.inf) -> Left:
        def write(file: SqliteBanks) -> None:
            with file.transaction():
                for name in names:
                    file.flush(f"{parent}/{name}")
                    for bank in banks:
                        file.flush(bank, name)

        if than < math.inf:
            return Left([], self.do(lambda file: file.remove_older(banks, parent, names, than), "flush", parent))
        self.do(write, "flush", parent)
        return Left([], None)

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
        """Return what a check of the whole file finds, or why it cannot be made; None if the file is sound."""
        try:
            return self.do(lambda banks: banks.damage(), "check", "")
        except SaltCacheError as exc:
            return str(exc)

    def do(self, call: Callable[[SqliteBanks], Result], name: str, bank: str, key: str | None = None) -> Result:
        """Return what ``call`` returns for the file. :raises SaltCacheError: if it fails, with ``name`` in the message."""
        try:
            return call(self.banks_file)
        except SaltCacheError:
            raise
        except Exception as exc:  # SQLite, the disk, and msgpack raise many kinds
            raise self.error(name, bank, key, exc) from exc

    def each(self, found: Iterator[Result], name: str, bank: str) -> Iterator[Result]:
        end = object()
        while (one := self.do(lambda _: next(found, end), name, bank)) is not end:
            yield one  # type: ignore[misc]

    def lookup(self, banks: SqliteBanks) -> JobLookup:
        return banks.index

    def error(self, name: str, bank: str, key: str | None, exc: Exception) -> SaltCacheError:
        found = super().error(name, bank, key, exc)
        if isinstance(exc, (StateError, sqlite3.OperationalError)) and not isinstance(found, Undecodable):
            return Outage(str(found))
        return found


class SqliteIndex(TableIndex):
    """An index that finds the jobs of a minion by its returns too."""

    def with_minion(self, jids: Sequence[str], minion: str) -> set[str]:
        return self._driver.do(lambda banks: set(banks.with_minion(jids, minion)), "list", "")
