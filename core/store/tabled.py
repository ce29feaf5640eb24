"""
What the drivers with tables, sqlite and postgresql, have in common. Both index jobs.
"""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from salt.exceptions import SaltCacheError

from saltext.jobs.core.banks import LOADS
from saltext.jobs.core.disk.job_lookup import JobLookup
from saltext.jobs.core.disk.job_summary import JobTally
from saltext.jobs.core.ids import jid_at
from saltext.jobs.core.store.calling import Undecodable
from saltext.jobs.core.store.drivers import ABSENT, NEVER, Driver, Marks, Shown

Tables = TypeVar("Tables", bound=Any)
Result = TypeVar("Result")

#: Most pairs of function and user that are looked up one by one; if more match, all jobs of the searched time are read.
MOST_MARKS = 100


class TableDriver(Driver, Generic[Tables]):
    """A driver whose records are in tables. Salt's loader is not used."""

    lists_banks = True
    removed_at_once = 500

    @abstractmethod
    def tables(self) -> Tables:
        """Return the tables: those of ``core/sqlite/banks.py`` or ``core/postgresql/banks.py``."""

    def do(self, call: Callable[[Tables], Result], name: str, bank: str, key: str | None = None) -> Result:
        """Return what ``call`` returns for the tables. :raises SaltCacheError: if it fails, with ``name`` in the message."""
        try:
            return call(self.tables())
        except SaltCacheError:
            raise
        except Exception as exc:  # a client, the disk, and msgpack raise many kinds
            raise self.error(name, bank, key, exc) from exc

    def _each(self, found: Iterator[Result], name: str, bank: str) -> Iterator[Result]:
        """Yield from an iterator that reads the tables now and then. :raises SaltCacheError: as ``do``."""
        end = object()
        while (one := self.do(lambda _: next(found, end), name, bank)) is not end:
            yield one  # type: ignore[misc]

    def read_all(self, items: Sequence[tuple[str, str]]) -> list[Any]:
        found = self.do(lambda tables: tables.read_all(items), "fetch", *items[0]) if items else []
        return [ABSENT if data is None else self._decoded(*item, data) for item, data in zip(items, found, strict=True)]

    def fetch_each(self, bank: str, keys: Iterable[str] | None = None) -> Iterator[tuple[str, Any]]:
        wanted = None if keys is None else list(keys)
        found = self.do(
            lambda tables: tables.items(bank) if wanted is None else tables.pick(bank, wanted), "fetch", bank
        )
        return ((key, self._decoded(bank, key, data)) for key, data in self._each(found, "fetch", bank))

    def _decoded(self, bank: str, key: str, data: bytes) -> Any:
        try:
            return self.tables().loads(data)
        except Exception as exc:  # msgpack raises many kinds
            return Undecodable(str(self.error("fetch", bank, key, exc)))

    def store(self, bank: str, key: str, value: Any, durable: bool = False) -> None:
        self._call("store", bank, key, value, durable)

    def store_new(self, bank: str, key: str, value: Any, durable: bool = False) -> bool:
        return bool(self._call("store_new", bank, key, value, durable))

    def store_all(self, items: Sequence[tuple[str, str, Any]], durable: bool = False) -> None:
        self.do(lambda tables: tables.store_all(items, durable), "store", *items[0][:2])

    def remove(self, banks: Sequence[str], parent: str, names: Sequence[str], than: float = NEVER) -> None:
        self.do(lambda tables: tables.remove_older(banks, parent, names, than), "flush", parent)

    def _call(self, name: str, bank: str, *args: Any) -> Any:
        key = args[0] if args and isinstance(args[0], str) else None
        return self.do(lambda tables: getattr(tables, name)(bank, *args), name, bank, key)

    def updated(self, bank: str, key: str) -> float | None:
        found: float | None = self._call("updated", bank, key)
        return found

    def keys(self, bank: str) -> list[str]:
        found: list[str] = self._call("keys", bank)
        return found

    def banks(self, bank: str) -> list[str]:
        found: list[str] = self._call("banks", bank)
        return found

    def present(self, bank: str, keys: Iterable[str]) -> set[str]:
        found: set[str] = self._call("present", bank, list(keys))
        return found

    # -- the index of jobs -------------------------------------------------------------------------------------------

    def _look(self, call: Callable[[JobLookup], Result]) -> Result:
        return self.do(lambda tables: call(tables.index), "list", LOADS)

    def outside(self, bank: str, low: str, high: str, of_banks: bool) -> list[str]:
        found: list[str] = self._call("banks_outside" if of_banks else "outside", bank, low, high)
        return found

    def count_loads(self) -> int:
        return int(self._call("count", LOADS))

    def count_returns(self, bank: str, jids: Iterable[str]) -> int:
        return int(self._call("count_below", bank))

    def oldest_jids(self, count: int) -> list[str]:
        undated = [(jid_at(at), key) for key, at in self.undated_jids().items()]
        dated = [(key, key) for key in self._look(lambda look: look.oldest(count))]
        return [key for _, key in heapq.nsmallest(count, undated + dated)]

    def jids(self, low: str, high: str, marks: Marks, minion: str | None = None, failed: bool = False) -> Iterator[str]:
        rows = self._look(lambda look: _found(look, low, high, marks, minion, failed))
        return self._each(rows, "list", LOADS)

    def shown(self) -> Iterator[Shown]:
        return self._each(self._look(lambda look: look.shown()), "list", LOADS)

    def undated_jids(self) -> dict[str, float]:
        return self._look(lambda look: look.undated())

    def tallies(self, jids: Sequence[str], minion: str | None) -> Mapping[str, JobTally]:
        return self._look(lambda look: look.tallies(jids, minion))


def _found(look: JobLookup, low: str, high: str, marks: Marks, minion: str | None, failed: bool) -> Iterator[str]:
    found: Iterator[str]
    fun, user = marks["fun"], marks["user"]
    if minion is not None:
        found = look.jids_near(low, high, minion)
    elif failed:
        found = look.jids_failed(low, high)
    elif fun is None and user is None:
        found = look.jids(low, high)
    else:
        wanted = [mark for mark in look.marks() if (not fun or fun(mark[0])) and (not user or user(mark[1]))]
        several = heapq.merge(*(look.jids(low, high, mark) for mark in wanted[:MOST_MARKS]), reverse=True)
        found = several if len(wanted) <= MOST_MARKS else look.jids(low, high)
    return found
