"""
What the drivers with tables, sqlite and postgresql, have in common. Both index jobs.
"""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from saltext.jobs.core.banks import LOADS
from saltext.jobs.core.disk.job_summary import JobTally
from saltext.jobs.core.ids import jid_at
from saltext.jobs.core.store.drivers import Driver, JobIndex, Marks, Shown

Result = TypeVar("Result")

#: Most pairs of function and user that are looked up one by one; if more match, all jobs of the searched time are read.
MOST_MARKS = 100


class Lookup(Protocol):
    """Finds jobs in the tables: ``core/sqlite/job_lookup.py`` or ``core/postgresql/job_lookup.py``."""

    def marks(self) -> Sequence[tuple[Any, str, str]]:
        """Return (mark for ``jids``, function, user) for each pair of function and user that loads have."""

    def jids(self, low: str, high: str, mark: Any = None) -> Iterator[str]:
        """Yield the jids of loads from ``high`` down to ``low``."""

    def jids_near(self, low: str, high: str, minion: str) -> Iterator[str]:
        """As ``jids``, for jobs that are for a minion or have its return."""

    def jids_failed(self, low: str, high: str) -> Iterator[str]:
        """As ``jids``, for jobs with a return that tells of a failure."""

    def oldest(self, count: int) -> list[str]:
        """Return up to ``count`` jids of loads that begin with a date, oldest first."""

    def undated(self) -> dict[str, float]:
        """Return the jids of loads that do not begin with a date, with the Unix times of their last write."""

    def shown(self) -> Iterator[Shown]:
        """Yield what ``jobs.list_jobs`` shows of all loads, some at a time."""

    def tallies(self, jids: Sequence[str], minion: str | None) -> Mapping[str, JobTally]:
        """Return the tallies of some jobs."""


class TableDriver(Driver):
    """A driver whose records are in tables."""

    def fetch(self, bank: str, key: str) -> Any:
        return self.do(lambda banks: banks.fetch(bank, key), "fetch", bank, key)

    def contains(self, bank: str, key: str) -> bool:
        return self.do(lambda banks: bool(banks.contains(bank, key)), "contains", bank, key)

    def updated(self, bank: str, key: str) -> float | None:
        found: float | None = self.do(lambda banks: banks.updated(bank, key), "updated", bank, key)
        return found

    def flush(self, bank: str, key: str) -> None:
        self.do(lambda banks: banks.flush(bank, key), "flush", bank, key)

    def drop_bank(self, parent: str, name: str) -> None:
        self.do(lambda banks: banks.flush(f"{parent}/{name}"), "flush", f"{parent}/{name}")

    def keys(self, bank: str) -> list[str]:
        found: list[str] = self.do(lambda banks: banks.keys(bank), "list", bank)
        return found

    def banks(self, bank: str) -> list[str]:
        found: list[str] = self.do(lambda banks: banks.banks(bank), "list", bank)
        return found

    @abstractmethod
    def do(self, call: Callable[[Any], Result], name: str, bank: str, key: str | None = None) -> Result:
        """Return what ``call`` returns for the tables. :raises SaltCacheError: if it fails, with ``name`` in the message."""

    @abstractmethod
    def each(self, found: Iterator[Result], name: str, bank: str) -> Iterator[Result]:
        """Yield from an iterator that reads the tables now and then. :raises SaltCacheError: as ``do``."""

    @abstractmethod
    def lookup(self, banks: Any) -> Lookup:
        """Return the lookup of jobs in the tables."""


class TableIndex(JobIndex):
    """
    The index of jobs in the tables.

    :param driver: the driver with the tables.
    """

    orders_jids = True

    def __init__(self, driver: TableDriver) -> None:
        self._driver: TableDriver = driver

    def _look(self, call: Callable[[Lookup], Result]) -> Result:
        return self._driver.do(lambda banks: call(self._driver.lookup(banks)), "list", LOADS)

    def outside(self, bank: str, since: str, low: str, high: str, of_banks: bool) -> list[str] | None:
        return self._driver.do(
            lambda banks: list((banks.banks_outside if of_banks else banks.outside)(bank, since, low, high)),
            "list",
            bank,
        )

    def count_loads(self) -> int:
        return self._driver.do(lambda banks: int(banks.count(LOADS)), "list", LOADS)

    def count_returns(self, bank: str, jids: Iterable[str]) -> int:
        return self._driver.do(lambda banks: int(banks.count_below(bank)), "list", bank)

    def oldest_jids(self, count: int) -> list[str]:
        undated = [(jid_at(at), key) for key, at in self.undated_jids().items()]
        dated = [(key, key) for key in self._look(lambda look: look.oldest(count))]
        return [key for _, key in heapq.nsmallest(count, undated + dated)]

    def jids(self, low: str, high: str, marks: Marks, minion: str | None = None, failed: bool = False) -> Iterator[str]:
        rows = self._look(lambda look: _found(look, low, high, marks, minion, failed))
        return self._driver.each(rows, "list", LOADS)

    def shown(self) -> Iterator[Shown]:
        return self._driver.each(self._look(lambda look: look.shown()), "list", LOADS)

    def undated_jids(self) -> dict[str, float]:
        return self._look(lambda look: look.undated())

    def tallies(self, jids: Sequence[str], minion: str | None) -> Mapping[str, JobTally]:
        return self._look(lambda look: look.tallies(jids, minion))


def _found(look: Lookup, low: str, high: str, marks: Marks, minion: str | None, failed: bool) -> Iterator[str]:
    if minion is not None:
        return look.jids_near(low, high, minion)
    if failed:
        return look.jids_failed(low, high)
    fun, user = marks["fun"], marks["user"]
    if fun is None and user is None:
        return look.jids(low, high)
    wanted = [mark for mark, name, who in look.marks() if (not fun or fun(name)) and (not user or user(who))]
    if len(wanted) > MOST_MARKS:
        return look.jids(low, high)
    return heapq.merge(*(look.jids(low, high, mark) for mark in wanted), reverse=True)
