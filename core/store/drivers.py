"""
A driver of ``salt.cache`` as the job cache needs it: all is made of the six plain functions that every driver has.

The two drivers of this extension keep jobs in tables, and override what they find by an index (``tabled.py``).
"""

from __future__ import annotations

import contextlib
import heapq
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import salt.payload
import salt.utils.msgpack
from salt.exceptions import SaltCacheError

from saltext.jobs.core.banks import LOADS
from saltext.jobs.core.disk.job_summary import JobTally
from saltext.jobs.core.ids import jid_at, jid_time
from saltext.jobs.core.store.calling import Calls, Outage, Undecodable

ABSENT = object()  # what ``read_all`` returns if there is no value
NEVER = 1e11  # a Unix time that is later than any write
#: A job may be published again under its jid within this many seconds.
_AGAIN_WITHIN = 2 * 86400.0
#: Most bytes that mmap_cache may take for a bank: each job has one.
_MOST_BANK_BYTES = 10_000_000

#: Tells whether a job's function, or its user, matches a search.
Matches = Callable[[str], bool]
Marks = Mapping[str, Matches | None]
#: Some loads, as three sequences in the order of their keys: keys; (function, user) pairs; and lists of arguments,
#: target, target type and, if there is any, metadata.
Shown = tuple[Sequence[str], Sequence[tuple[str, str]], Sequence[list[Any] | None]]


class Driver(Calls):
    """
    A driver that Salt loads.

    :param opts: the master's options.
    """

    #: Whether ``banks`` lists the jobs that have returns.
    lists_banks = False
    #: The longest key in bytes, if the driver's settings limit it.
    longest = 255
    #: How many jobs are removed at a time. One is removed under the job's lock; several by the driver, in a transaction.
    removed_at_once = 1
    #: The directory in which jobs are stored; empty if a server stores them.
    folder = ""

    # -- single values -----------------------------------------------------------------------------------------------

    def fetch(self, bank: str, key: str) -> Any:
        """Return the value; ``{}`` if there is none."""
        return self._call("fetch", bank, key)

    def contains(self, bank: str, key: str) -> bool:
        return bool(self._call("contains", bank, key))

    def updated(self, bank: str, key: str) -> float | None:
        """Return the Unix time of the last write; None if there is no value or the driver cannot tell."""
        found: float | None = self._call("updated", bank, key)
        return found

    def store(self, bank: str, key: str, value: Any) -> None:
        self._call("store", bank, key, value)

    def flush(self, bank: str, key: str) -> None:
        self._call("flush", bank, key)

    def store_new(self, bank: str, key: str, value: Any) -> bool:
        """Store a value if there is none, and tell whether it was stored. The caller holds the lock of the value."""
        if self.contains(bank, key):
            return False
        self.store(bank, key, value)
        return True

    # -- many values -------------------------------------------------------------------------------------------------

    def keys(self, bank: str) -> list[str]:
        """Return the keys in ``bank``, with its sub-banks if the driver lists them; none if the driver cannot tell."""
        return [name for name in self._call("list", bank) or () if isinstance(name, str)]

    def banks(self, bank: str) -> list[str]:
        """Return the names of the banks in ``bank``; none if the driver cannot tell."""
        return self.keys(bank)

    def present(self, bank: str, keys: Iterable[str]) -> set[str]:
        """Return those of ``keys`` that have a value, without reading the values."""
        return set(keys).intersection(self.keys(bank))

    def fetch_each(self, bank: str, keys: Iterable[str] | None = None) -> Iterator[tuple[str, Any]]:
        """
        Yield (key, value) for each of ``keys`` that has a value, by default for all of the bank; a SaltCacheError in place
        of a value that cannot be read.
        """
        for key in self.keys(bank) if keys is None else keys:
            try:
                value = self._read(bank, key)
            except Outage:
                raise
            except SaltCacheError as exc:
                value = exc
            if value is not ABSENT:
                yield key, value

    def read_all(self, items: Sequence[tuple[str, str]]) -> list[Any]:
        """
        Return the values of (bank, key) pairs; ABSENT for a missing one, an Undecodable for a damaged one.

        :raises SaltCacheError: if one of them cannot be read.
        """
        return [self._read(bank, key) for bank, key in items]

    def _read(self, bank: str, key: str) -> Any:
        try:
            value = self.fetch(bank, key)
        except Undecodable as exc:
            return exc
        return value if value != {} or self.contains(bank, key) else ABSENT

    def store_all(self, items: Sequence[tuple[str, str, Any]]) -> None:
        """Store (bank, key, value) triples, in this order."""
        for bank, key, value in items:
            self.store(bank, key, value)

    # -- whole jobs --------------------------------------------------------------------------------------------------

    def remove(self, banks: Sequence[str], parent: str, names: Sequence[str], than: float = NEVER) -> None:
        """
        Remove those of the jobs ``names`` that were last written before the Unix time ``than``, by default all.

        For each job the bank ``parent/name`` is removed first, then the key ``name`` in each of ``banks``, in this order.
        """
        for name in names:
            if than < NEVER and self._last_write(banks, parent, name) >= than:
                continue
            self.drop_bank(f"{parent}/{name}")
            for bank in banks:
                if self.contains(bank, name):
                    self.flush(bank, name)

    def _last_write(self, banks: Sequence[str], parent: str, name: str) -> float:
        """Return the Unix time of the last write to a job; if the driver cannot tell, the one in the jid, or infinity."""
        returns = f"{parent}/{name}"
        places = [*((bank, name) for bank in banks), *((returns, key) for key in self.keys(returns))]
        return max((at for at in (self.updated(*place) for place in places) if at), default=jid_time(name) or math.inf)

    def drop_bank(self, bank: str) -> None:
        """Remove a bank with all that is in it."""
        self._call("flush", bank)

    # -- finding jobs: a driver with an index overrides this ---------------------------------------------------------

    def count_loads(self) -> int:
        """Return how many loads there are."""
        return len(self.keys(LOADS))

    def count_returns(self, bank: str, jids: Iterable[str]) -> int:
        """
        Return how many returns there are.

        :param bank: the bank in which each job has its bank of returns.
        :param jids: the keys of all loads.
        """
        return sum(len(self.keys(f"{bank}/{jid}")) for jid in jids)

    def oldest_jids(self, count: int) -> list[str]:
        """Return the keys of the oldest loads, oldest first."""
        undated = self.undated_jids()
        return heapq.nsmallest(
            count, self.keys(LOADS), lambda key: (jid_at(undated[key]) if key in undated else key, key)
        )

    def shown(self) -> Iterator[Shown] | None:
        """
        Yield what ``jobs.list_jobs`` shows of all loads, some at a time, with None for a load that must be read. Return None
        if all loads must be read.
        """
        return None

    def jids(self, low: str, high: str, marks: Marks, minion: str | None = None, failed: bool = False) -> Iterator[str]:
        """
        Yield the load keys that begin with a date, from ``high`` down to ``low``.

        Each parameter narrows the result if the driver has an index for it; otherwise it is ignored.

        :param marks: tests of the function (``fun``) and of the user, or None.
        :param minion: a minion that the job is for, or that has returned.
        :param failed: only jobs that failed on a minion.
        """
        yield from sorted((key for key in self.keys(LOADS) if has_date(key) and low <= key <= high), reverse=True)

    def written_since(self, bank: str, since: float) -> list[str]:
        """Return the jids in a bank that may have been written at or after a Unix time."""
        return [key for key in self.keys(bank) if (jid_time(key) or math.inf) >= since - _AGAIN_WITHIN]

    def undated_jids(self) -> dict[str, float]:
        """Return the keys of loads that do not begin with a date, with the Unix times of their last write."""
        return {key: self.updated(LOADS, key) or 0.0 for key in self.keys(LOADS) if not has_date(key)}

    def tallies(self, jids: Sequence[str], minion: str | None) -> Mapping[str, JobTally]:
        """
        Return the tallies of those jobs for which they are known without a search.

        :param minion: the minion of ``JobTally.of_minion``.
        """
        return {}

    def outside(self, bank: str, low: str, high: str, of_banks: bool) -> list[str]:
        """
        Return the keys in a bank that are before ``low`` or after ``high``.

        :param of_banks: whether to return the names of the banks in the bank, in place of its keys.
        """
        return [key for key in (self.banks if of_banks else self.keys)(bank) if not low <= key <= high]


class Mmap(Driver):
    """
    mmap_cache of Salt 3008. It makes a bank when it is first asked about, keeps each open for ever, shows the writes of
    other processes up to 0.25 s late, and cannot read a mapping with keys that are not texts.
    """

    def __init__(self, opts: Mapping[str, Any]) -> None:
        super().__init__(opts)
        self._root: str = opts["cachedir"]
        self.folder = self._root
        self.longest = opts.get("mmap_cache_key_size", 64)

    def _load(self) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        size = self._opts.get("mmap_cache_size", 1_000_000) * self._opts.get("mmap_cache_slot_size", 96)
        if size > _MOST_BANK_BYTES:
            raise SaltCacheError(
                f"cache: mmap_cache would take {size // 10**6} MB for each job: set mmap_cache_size, for example to 20000"
            )
        return super()._load()

    def fetch(self, bank: str, key: str) -> Any:
        value = super().fetch(bank, key)
        if not isinstance(value, bytes):
            return value
        try:
            return salt.payload.loads(value)
        except Exception as exc:
            raise self.error("fetch", bank, key, exc) from exc

    def store(self, bank: str, key: str, value: Any) -> None:
        packed = salt.payload.dumps(value)
        try:
            value = salt.utils.msgpack.unpackb(packed, raw=False, strict_map_key=True)
        except Exception:  # msgpack raises many kinds
            value = packed
        super().store(bank, key, value)

    def drop_bank(self, bank: str) -> None:
        super().drop_bank(bank)
        with contextlib.suppress(OSError):
            os.rmdir(f"{self._root}/{bank}")

    def _call(self, name: str, bank: str, *args: Any) -> Any:
        if self._opened is None:
            self._open()
        if name != "store" and not os.path.exists(f"{self._root}/{bank}/.mmap_cache.idx"):
            return {"fetch": {}, "list": []}.get(name)
        with self._guard:
            try:
                return super()._call(name, bank, *args)
            finally:
                opened = self._opened[1]["fetch"].__globals__["_caches"] if self._opened else {}
                for _, file in opened.values():
                    file.close()
                opened.clear()


def has_date(key: str) -> bool:
    """Tell whether a jid begins with a date, and so tells when the job was published."""
    return key[:8].isdigit() and len(key) > 7 and key[:8].isascii()
