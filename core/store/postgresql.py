"""
The table of the driver postgresql (cache/postgresql.py), read and written by core/postgresql/banks.py without Salt's loader.

A publish stores everything in one statement or transaction, and a job is removed in one. Several masters may share a
table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from salt.exceptions import SaltCacheError

from saltext.jobs.core.disk import packed
from saltext.jobs.core.errors import JobsError
from saltext.jobs.core.postgresql.banks import Banks, banks_of
from saltext.jobs.core.postgresql.job_lookup import JobLookup
from saltext.jobs.core.postgresql.trouble import Rejected
from saltext.jobs.core.store.calling import Outage
from saltext.jobs.core.store.drivers import ABSENT
from saltext.jobs.core.store.tabled import TableDriver


class Postgresql(TableDriver[Banks]):
    """The table of the driver postgresql, safe with a frozen server and with concurrent writers."""

    _banks: Banks | None = None

    def tables(self) -> Banks:
        if self._banks is None:
            self._banks = banks_of(self._opts)
        return self._banks

    def lookup(self) -> JobLookup:
        return JobLookup(self.tables())

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

    def store(self, bank: str, key: str, value: Any, durable: bool = False) -> None:
        self._call("store", bank, key, value)

    def store_new(self, bank: str, key: str, value: Any, durable: bool = False) -> bool:
        return self.do(lambda banks: banks.store_new(bank, key, value), "store", bank, key)

    def store_all(self, items: Sequence[tuple[str, str, Any]], durable: bool = False) -> None:
        self.do(lambda banks: banks.store_all(items), "store", *items[0][:2])

    def remove(self, banks: Sequence[str], parent: str, names: Sequence[str], than: float = math.inf) -> None:
        self.do(lambda table: table.remove_older(banks, parent, names, than), "flush", parent)

    def error(self, name: str, bank: str, key: str | None, exc: Exception) -> SaltCacheError:
        if isinstance(exc, JobsError) and not isinstance(exc, Rejected):
            self._banks = None  # they may have been closed: a process keeps those of a few servers
            return Outage(f"Cache driver {self.name} could not {name} bank={bank!r} key={key!r}: {exc}")
        return super().error(name, bank, key, exc)
