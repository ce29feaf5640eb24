"""
A driver of ``salt.cache`` as the job cache needs it.

What a driver has to do is :py:class:`Port`; Salt's own drivers do it, and what is different about one is in a module of its
own beside this. Whatever else the job cache wants of a driver has a form here that needs no more than that: a driver with a
faster way, or an index of its own, has one in place of it.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from salt.exceptions import SaltCacheError

from saltext.jobs.core.banks import ASIDE, LOADS, OWED
from saltext.jobs.core.disk.tally import Tally
from saltext.jobs.core.ids import jid_at
from saltext.jobs.core.store.calling import Calls, Outage, Undecodable

if TYPE_CHECKING:  # Python may have been built without sqlite3
    from saltext.jobs.core.sqlite.banks import SqliteBanks

ABSENT = object()  # what ``read_all`` returns where there is no value

#: Tells whether a function or user is one that is looked for.
Matches = Callable[[str], bool]
Marks = Mapping[str, Matches | None]
#: Of some loads, in the same order: their keys, in order; functions and users; lists of arguments, target, target type and,
#: where there is some, metadata.
Shown = tuple[Sequence[str], Sequence[tuple[str, str]], Sequence[list[Any] | None]]


class Left(NamedTuple):
    """What was not removed of some jobs."""

    #: Those of which the driver cannot tell when they were written.
    unknown: list[str]
    #: A Unix time before which none of the others was last written; None where there is none.
    written: float | None


class Port(Calls):
    """What a driver has to do: eight functions over banks and keys. Here they are those of the driver that Salt loads."""

    #: Whether the bank of the returns lists the jobs that have some.
    lists_banks = True
    #: Whether it keeps its files where local_cache keeps its own: ``jobs`` in the cache directory.
    in_jobs_folder = False
    #: The longest key in bytes that the driver's own settings allow.
    longest = 255
    #: The size in bytes of a bank's index, where a bank has one.
    bank_bytes: int | None = None

    def fetch(self, bank: str, key: str) -> Any:
        """Return the value; ``{}`` where there is none."""
        return self._call("fetch", bank, key)

    def contains(self, bank: str, key: str) -> bool:
        return bool(self._call("contains", bank, key))

    def updated(self, bank: str, key: str) -> float | None:
        """Return the Unix time of the last write; None where there is no value or the driver cannot tell."""
        found: float | None = self._call("updated", bank, key)
        return found

    def store(self, bank: str, key: str, value: Any, durable: bool = False) -> None:
        """:param durable: whether it must survive a power cut when this returns; only a driver with files looks at it."""
        self._call("store", bank, key, value)

    def flush(self, bank: str, key: str) -> None:
        self._call("flush", bank, key)

    def keys(self, bank: str) -> list[str]:
        """Return the keys in ``bank``; none where the driver cannot tell. Where it lists sub-banks, those too."""
        return [name for name in self._call("list", bank) or () if isinstance(name, str)]

    def banks(self, bank: str) -> list[str]:
        """Return the names of the banks in ``bank``; none where the driver cannot tell."""
        return self.keys(bank)

    def drop_bank(self, parent: str, name: str) -> None:
        """Remove the bank ``parent/name`` with all that is in it."""
        self._call("flush", f"{parent}/{name}")


class Driver(Port):
    """
    A driver with a server, or one that nobody here knows.

    :param opts: the master's options.
    """

    #: How many jobs are removed at a time. Where that is one, under the job's lock; else the driver sees to it.
    removed_at_once = 1

    def __init__(self, opts: Mapping[str, Any]) -> None:
        super().__init__(opts)
        #: What is found of jobs by more than their keys.
        self.index = JobIndex(self)

    # -- several at once: a driver with a server may need one round trip for all of them ---------------------------

    def raw_keys(self, bank: str) -> list[str]:
        """Return what ``keys`` does or, where that is faster, names that compare with other text as the keys do."""
        return self.keys(bank)

    def present(self, bank: str, keys: Iterable[str]) -> set[str]:
        """Return those of ``keys`` that have a value, without reading it."""
        return set(keys).intersection(self.keys(bank))

    def owed(self, keys: Iterable[str]) -> set[str]:
        """Return those of some jobs, by the keys of their jids, that the retry queue owes somebody."""
        return self.present(OWED, keys)

    def fetch_each(self, bank: str, keys: Iterable[str]) -> Iterator[tuple[str, Any]]:
        """Yield (key, value) for those of ``keys`` that have one; the value is a SaltCacheError where it cannot be read."""
        for key in keys:
            try:
                value = self.fetch(bank, key)
                if value != {} or self.contains(bank, key):
                    yield key, value
            except Outage:
                raise
            except SaltCacheError as exc:
                yield key, exc

    def fetch_in_parts(self, bank: str, keys: Iterable[str], most: int) -> Iterator[tuple[str, Any]]:
        """Do what ``fetch_each`` does by ``read_all``, for at most so many values at a time."""
        wanted = list(keys)
        for start in range(0, len(wanted), most):
            part = wanted[start : start + most]
            values = self.read_all([(bank, key) for key in part])
            yield from ((key, value) for key, value in zip(part, values, strict=True) if value is not ABSENT)

    def fetch_all(self, bank: str) -> Iterator[tuple[str, Any]]:
        """Do what ``fetch_each`` does, for all keys of a bank."""
        return self.fetch_each(bank, self.keys(bank))

    def read_all(self, items: Sequence[tuple[str, str]]) -> list[Any]:
        """Return the values of (bank, key) pairs: ABSENT where there is none, an Undecodable where it is damaged."""
        return [self._read(bank, key) for bank, key in items]

    def _read(self, bank: str, key: str) -> Any:
        try:
            value = self.fetch(bank, key)
        except Undecodable as exc:
            return exc
        return value if value != {} or self.contains(bank, key) else ABSENT

    def store_new(self, bank: str, key: str, value: Any, durable: bool = False) -> bool:
        """Store a value where there is none, and tell whether that was so. The caller holds a lock on it."""
        if self.contains(bank, key):
            return False
        self.store(bank, key, value, durable)
        return True

    def store_all(self, items: Sequence[tuple[str, str, Any]], durable: bool = False) -> None:
        """Store (bank, key, value) triples, in this order."""
        for bank, key, value in items:
            self.store(bank, key, value, durable)

    def set_aside(self, bank: str, key: str) -> bool:
        """Keep a record that is of no use where nobody stumbles over it, and tell whether that could be done."""
        try:
            value = self.fetch(bank, key)
        except Undecodable:
            return False  # what cannot be decoded cannot be written again through salt.cache
        self.store(ASIDE, f"{bank.replace('/', '.')}.{key}"[:240], value)
        self.flush(bank, key)
        return True

    def bank_updated(self, bank: str) -> float | None:
        """Return the Unix time of the last write of any key in ``bank``; None where there is none."""
        return max((at for at in (self.updated(bank, key) for key in self.keys(bank)) if at), default=None)

    def last_updated(self, items: Sequence[tuple[str, str]], bank: str) -> float | None:
        """Return the Unix time of the last write of any of (bank, key) pairs, or in a bank; None for none of them."""
        times = [self.updated(*item) for item in items if self.contains(*item)]
        return max((at for at in (*times, self.bank_updated(bank)) if at), default=None)

    def changed_keys(self, bank: str, since: float) -> list[str] | None:
        """Return the keys that may have been written at or after a Unix time; None where that is not known at once."""
        return None

    def remove(self, items: Sequence[tuple[str, str]], parent: str, name: str) -> None:
        """Remove the bank ``parent/name`` and then (bank, key) pairs, in this order."""
        self.drop_bank(parent, name)
        for bank, key in items:
            if self.contains(bank, key):
                self.flush(bank, key)

    def remove_older(self, banks: Sequence[str], parent: str, names: Sequence[str], than: float) -> Left:
        """
        Remove what ``remove`` does of each of some jobs, if the last write of any of it was before the Unix time ``than``.

        :param banks: in which the names of the jobs are keys.
        """
        last = {name: self._remove_older([(bank, name) for bank in banks], parent, name, than) for name in names}
        kept = [at for at in last.values() if at is not None and at >= than]
        return Left([name for name in names if last[name] is None], min(kept, default=None))

    def _remove_older(self, items: Sequence[tuple[str, str]], parent: str, name: str, than: float) -> float | None:
        """Remove one job, if it is old, and return when it was last written."""
        last = self.last_updated(items, f"{parent}/{name}")
        if last is not None and last < than:
            self.remove(items, parent, name)
        return last

    # -- upkeep ---------------------------------------------------------------------------------------------------

    @property
    def banks_file(self) -> SqliteBanks | None:
        """The one file of all banks; None where there is none. :raises StateError: where an option is not accepted."""
        return None

    def alone(self) -> contextlib.AbstractContextManager[None] | None:
        """Return what keeps others from writing and makes all that is written in it one; None where there is none."""
        return None

    def give_way(self) -> None:
        """Let others write, who had to wait for this process."""

    def tidy(self) -> None:
        """Do what a storage needs now and then; the sweep calls it. It keeps no writer waiting for long."""

    def used_bytes(self) -> int | None:
        """Return what all that is stored takes; None where that is not known at once."""
        return None

    def damage(self) -> str | None:
        """Return what a check of all that is stored finds; None where all is well, or where there is no such check."""
        return None


class JobIndex:
    """
    Finds and counts jobs. Without an index their keys are listed, and their records read.

    :param driver: where they are.
    """

    #: Whether ``shown`` tells what is shown of jobs, without reading their loads.
    keeps_shown = False
    #: Whether it gives the newest jids without looking at the others.
    orders_jids = False

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def count_loads(self) -> int:
        """Return how many loads there are."""
        return len(self._driver.raw_keys(LOADS))

    def count_returns(self, bank: str, jids: Iterable[str]) -> int:
        """
        Return how many returns there are.

        :param bank: in which each job has its bank of returns.
        :param jids: the keys of all loads.
        """
        return sum(len(self._driver.keys(f"{bank}/{jid}")) for jid in jids)

    def oldest_jids(self, count: int) -> list[str]:
        """Return the keys of the oldest loads, oldest first."""
        undated = self.undated_jids()
        keys = self._driver.keys(LOADS)
        return heapq.nsmallest(count, keys, lambda key: (jid_at(undated[key]) if key in undated else key, key))

    def shown(self) -> Iterator[Shown]:
        """Yield what is shown of all loads, some at a time; None for a list where the load is to be read."""
        raise NotImplementedError

    def jids(self, low: str, high: str, marks: Marks, minion: str | None = None, failed: bool = False) -> Iterator[str]:
        """
        Yield the keys of the loads from ``high`` down to ``low``, of those that begin with a date.

        :param marks: what function (``fun``) and user are to be, or None. A driver that cannot tell yields all.
        :param minion: for whom they are to be, or who is to have returned; likewise.
        :param failed: whether one of their returns is to tell of a failure; likewise.
        """
        yield from sorted(
            (key for key in self._driver.keys(LOADS) if has_date(key) and low <= key <= high), reverse=True
        )

    def undated_jids(self) -> dict[str, float]:
        """Return the keys of the loads that do not begin with a date, with the Unix times of their last write."""
        found = {}
        for key in self._driver.keys(LOADS):
            if not has_date(key):
                try:
                    found[key] = self._driver.updated(LOADS, key) or 0.0
                except Outage:
                    raise
                except SaltCacheError:
                    found[key] = 0.0
        return found

    def with_minion(self, jids: Sequence[str], minion: str) -> set[str]:
        """Return those of some jobs that may be for the minion, or have its return; all where that is not known at once."""
        return set(jids)

    def tallies(self, jids: Sequence[str], minion: str | None) -> Mapping[str, Tally]:
        """
        Return the tallies of those jobs of which it is known at once how many have returned.

        :param minion: of whom they tell besides.
        """
        return {}

    def outside(self, bank: str, since: str, low: str, high: str, of_banks: bool) -> list[str] | None:
        """
        Return the keys, or the banks, in a bank that are not between two names; None where that takes a list of all.

        :param since: where it is given, those from it on that are before ``low``.
        """
        return None


def has_date(key: str) -> bool:
    """Tell whether a jid begins with a date, so that it tells when the job was published."""
    return key[:8].isdigit() and len(key) > 7 and key[:8].isascii()
