"""
The table of the driver postgresql (cache/postgresql.py), read and written by core/postgresql/banks.py without Salt's loader.

A publish stores everything in one statement or transaction, and a job is removed in one. Several masters may share a
table.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from salt.exceptions import SaltCacheError

from saltext.jobs.core.disk import packed
from saltext.jobs.core.errors import JobsError
from saltext.jobs.core.postgresql.banks import Banks, banks_of
from saltext.jobs.core.postgresql.job_lookup import JobLookup
from saltext.jobs.core.postgresql.trouble import Rejected
from saltext.jobs.core.store.calling import Outage
from saltext.jobs.core.store.drivers import ABSENT, Left
from saltext.jobs.core.store.tabled import TableDriver, TableIndex

Result = TypeVar("Result")


class Postgresql(TableDriver):
    """The table of the driver postgresql, safe with a frozen server and with concurrent writers."""

    removed_at_once = 500
    #: Zero, since ``core/postgresql/connections.py`` already waits for the server.
    patience = 0.0

    def __init__(self, opts: Mapping[str, Any]) -> None:
        super().__init__(opts)
        self.index = TableIndex(self)

    def _load(self) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        return banks_of(self._opts), {}, {}

    def read_all(self, items: Sequence[tuple[str, str]]) -> list[Any]:
        if not items:
            return []
        found = self.do(lambda banks: banks.read_all(items), "fetch", *items[0])
        return [
            ABSENT if data is None else self.decoded(*item, data, packed.loads)
            for item, data in zip(items, found, strict=True)
        ]

    def fetch_each(self, bank: str, keys: Iterable[str] | None = None) -> Iterator[tuple[str, Any]]:
        wanted = None if keys is None else list(keys)
        found = self.do(lambda banks: banks.items(bank) if wanted is None else banks.pick(bank, wanted), "fetch", bank)
        for key, data in self.each(found, "fetch", bank):
            yield key, self.decoded(bank, key, data, packed.loads)

    def present(self, bank: str, keys: Iterable[str]) -> set[str]:
        wanted = list(keys)
        return self.do(lambda banks: banks.present(bank, wanted), "contains", bank)

    def last_updated(self, items: Sequence[tuple[str, str]], bank: str) -> float | None:
        return self.do(lambda banks: banks.last_updated(items, bank), "updated", bank)

    def store(self, bank: str, key: str, value: Any, durable: bool = False) -> None:
        self.do(lambda banks: banks.store(bank, key, value), "store", bank, key)

    def store_new(self, bank: str, key: str, value: Any, durable: bool = False) -> bool:
        tries = itertools.count()
        return self.do(lambda banks: banks.store_new(bank, key, value, next(tries) > 0), "store", bank, key)

    def store_all(self, items: Sequence[tuple[str, str, Any]], durable: bool = False) -> None:
        self.do(lambda banks: banks.store_all(items), "store", *items[0][:2])

    def remove(self, banks: Sequence[str], parent: str, names: Sequence[str], than: float = math.inf) -> Left:
        return Left([], self.do(lambda table: table.remove_older(banks, parent, names, than), "flush", parent))

    def do(self, call: Callable[[Banks], Result], name: str, bank: str, key: str | None = None) -> Result:
        """Return what ``call`` returns for the table. :raises SaltCacheError: if it fails, with ``name`` in the message."""
        found: Result = self._try(name, bank, key, lambda banks, *_: call(banks))
        return found

    def lookup(self, banks: Banks) -> JobLookup:
        return JobLookup(banks)

    def each(self, found: Iterator[Result], name: str, bank: str) -> Iterator[Result]:
        """Yield from an iterator that queries the server now and then. :raises SaltCacheError: at the first failure."""
        end = object()
        while True:
            try:
                one = next(found, end)
            except Exception as exc:
                raise self.error(name, bank, None, exc) from exc
            if one is end:
                return
            yield one  # type: ignore[misc]

    def error(self, name: str, bank: str, key: str | None, exc: Exception) -> SaltCacheError:
        if isinstance(exc, JobsError) and not isinstance(exc, Rejected):
            return Outage(f"Cache driver {self.name} could not {name} bank={bank!r} key={key!r}: {exc}")
        return super().error(name, bank, key, exc)
