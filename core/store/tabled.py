"""
The drivers whose values are in tables, sqlite and postgresql (``core/ledger/values.py``), without Salt's loader. A publish
stores everything in one transaction, and a job is removed in one. Both find jobs by an index.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from salt.exceptions import SaltCacheError

from saltext.jobs.core.banks import LOADS, RETURNS
from saltext.jobs.core.ledger import jobs, stored, values
from saltext.jobs.core.ledger.jobs import JobTally, Named
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.sqlite.tables import SqliteTables
from saltext.jobs.core.store.drivers import ABSENT, ALL, LAST, Driver, Undecodable, Wanted

Result = TypeVar("Result")

#: Values that are read at once.
_AT_ONCE = 25
#: Most pairs of function and user that are looked up one by one; if more match, all jobs of the searched time are read.
MOST_MARKS = 100


class Tabled(Driver):
    """A driver over the tables of a database."""

    is_plain, removes_safely = False, True

    @property
    def tables(self) -> Tables:
        raise NotImplementedError

    def do(self, name: str, bank: str, call: Callable[..., Result], *args: Any, key: str | None = None) -> Result:
        """Return what ``call`` returns for the tables. :raises SaltCacheError: if it fails, with ``name`` in the message."""
        try:
            return call(self.tables, *args)
        except SaltCacheError:
            raise
        except Exception as exc:  # a client, the disk, and msgpack raise many kinds
            raise self.error(name, bank, key, exc) from exc

    def together(self, work: Callable[[], Result]) -> Result:
        """As ``Tables.together``, but all errors are SaltCacheErrors. :raises SaltCacheError:"""
        found: Result = self.do("write", "jobs", lambda tables: tables.together(work))
        return found

    def _call(self, name: str, bank: str, *args: Any) -> Any:
        return self.do(name, bank, getattr(values, name), bank, *args, key=args[0] if args else None)

    def _each(self, found: Iterator[Result], name: str, bank: str) -> Iterator[Result]:
        """Yield from an iterator that reads the tables now and then. :raises SaltCacheError: as ``do``."""
        while part := self.do(name, bank, lambda _: list(itertools.islice(found, _AT_ONCE))):
            yield from part

    def read_all(self, items: Sequence[tuple[str, str]]) -> list[Any]:
        found = self.do("fetch", items[0][0], values.read_all, items, key=items[0][1])
        return [ABSENT if data is None else self._decoded(*item, data) for item, data in zip(items, found, strict=True)]

    def fetch_each(self, bank: str, keys: Iterable[str] | None = None) -> Iterator[tuple[str, Any]]:
        found = values.items(self.tables, bank) if keys is None else values.pick(self.tables, bank, keys)
        return ((key, self._decoded(bank, key, data)) for key, data in self._each(found, "fetch", bank))

    def _decoded(self, bank: str, key: str, data: bytes) -> Any:
        try:
            return stored.loads(data)
        except Exception as exc:  # msgpack raises many kinds
            return Undecodable(str(self.error("fetch", bank, key, exc)))

    def store_new(self, bank: str, key: str, value: Any) -> bool:
        return bool(self._call("store_new", bank, key, value))

    def store_all(self, items: Sequence[tuple[str, str, Any]]) -> None:
        self.do("store", items[0][0], values.store_all, items, key=items[0][1])

    def keys(self, bank: str) -> list[str]:
        return self.do("list", bank, values.keys, bank)

    # -- whole jobs, by their index ------------------------------------------------------------------------------------

    def remove(self, jids: Sequence[str], than: float) -> None:
        self.do("flush", RETURNS, values.remove_older, jids, than)

    def count_loads(self) -> int:
        return self.do("list", LOADS, jobs.count)

    def count_returns(self, jids: Iterable[str]) -> int:
        return self.do("list", RETURNS, values.count_below, RETURNS)

    def find(self, low: str = "", high: str = LAST, wanted: Wanted = ALL) -> Iterator[str]:
        return self._each(self.do("list", LOADS, _found, low, high, wanted), "list", LOADS)

    def oldest(self, count: int) -> list[str]:
        return self.do("list", LOADS, jobs.oldest, count)

    def outside(self, bank: str, low: str, high: str) -> list[str]:
        find = values.banks_outside if bank == RETURNS else values.outside
        return self.do("list", bank, find, bank, low, high)

    def tallies(self, jids: Sequence[str], named: Named | None) -> Mapping[str, JobTally]:
        return self.do("list", LOADS, jobs.tallies, jids, named)


def _found(tables: Tables, low: str, high: str, wanted: Wanted) -> Iterator[str]:
    fun, user = wanted.fun, wanted.user
    if wanted.minion is not None:
        return jobs.near(tables, low, high, wanted.minion)
    if wanted.failed:
        return jobs.failed(tables, low, high)
    if fun is None and user is None:
        return jobs.jids(tables, low, high)
    known = jobs.marks(tables)
    marks = [mark for mark, pair in known.items() if (not fun or fun(pair[0])) and (not user or user(pair[1]))]
    if len(marks) > MOST_MARKS:
        return jobs.jids(tables, low, high)
    return heapq.merge(*(jobs.jids(tables, low, high, mark) for mark in marks), reverse=True)


class Sqlite(Tabled):
    """The file of the driver sqlite."""

    def __init__(self, opts: Mapping[str, Any]) -> None:
        super().__init__(opts)
        self.folder = os.path.dirname(str(opts.get("sqlite_cache_path") or "")) or str(opts["cachedir"])

    @functools.cached_property
    def tables(self) -> SqliteTables:
        return SqliteTables(self._opts)

    def used_bytes(self) -> int:
        """Return how many bytes of the file are used. :raises SaltCacheError:"""
        return self.do("measure", "", lambda tables: int(tables.database.used_bytes()[0]))


class Postgresql(Tabled):
    """The tables of the driver postgresql. Several masters may share them."""

    @functools.cached_property
    def tables(self) -> Tables:
        try:
            from saltext.jobs.core.postgresql.tables import PostgresqlTables
        except ImportError as exc:
            raise SaltCacheError(
                f"cache: postgresql needs the Python module psycopg: pip install 'saltext-jobs[postgresql]' ({exc})"
            ) from exc
        return PostgresqlTables(self._opts)
