"""
A driver of ``salt.cache`` as the job cache needs it.

:py:class:`Port` is what a driver must do, and what Salt's own drivers do. A driver that differs has its own module in
this folder. All else that the job cache needs is written here on top of ``Port``. A driver overrides what it can do
faster, or with its own index. What only a driver with one file of its own can do is in ``OneFile``.
"""

from __future__ import annotations

import contextlib
import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from salt.exceptions import SaltCacheError

from saltext.jobs.core.banks import LOADS
from saltext.jobs.core.disk.job_summary import JobTally
from saltext.jobs.core.ids import jid_at, jid_time
from saltext.jobs.core.store.calling import Calls, Outage, Undecodable

if TYPE_CHECKING:  # Python may have been built without sqlite3
    from saltext.jobs.core.sqlite.banks import SqliteBanks

ABSENT = object()  # what ``read_all`` returns if there is no value
#: A job may be published again under its jid within this many seconds.
_AGAIN_WITHIN = 2 * 86400.0

#: Tells whether a job's function, or its user, matches a search.
Matches = Callable[[str], bool]
Marks = Mapping[str, Matches | None]
#: Some loads, as three sequences in the order of their keys: keys; (function, user) pairs; and lists of arguments,
#: target, target type and, if there is any, metadata.
Shown = tuple[Sequence[str], Sequence[tuple[str, str]], Sequence[list[Any] | None]]


class Left(NamedTuple):
    """The jobs that were not removed."""

    #: Those whose last write the driver cannot tell.
    unknown: list[str]
    #: A Unix time that is not later than the last write of any other job. None if there are no others.
    written: float | None


class Port(Calls):
    """What a driver must do: eight functions over banks and keys. Here they call the driver that Salt loads."""

    #: Whether the bank of the returns lists the jobs that have returns.
    lists_banks = True
    #: Whether it keeps its files where local_cache keeps its own: ``jobs`` in the cache directory.
    in_jobs_folder = False
    #: The longest key in bytes, if the driver's settings limit it.
    longest = 255
    #: The size in bytes of a bank's index, if banks have one.
    bank_bytes: int | None = None

    def fetch(self, bank: str, key: str) -> Any:
        """Return the value; ``{}`` if there is none."""
        return self._call("fetch", bank, key)

    def contains(self, bank: str, key: str) -> bool:
        return bool(self._call("contains", bank, key))

    def updated(self, bank: str, key: str) -> float | None:
        """Return the Unix time of the last write; None if there is no value or the driver cannot tell."""
        found: float | None = self._call("updated", bank, key)
        return found

    def store(self, bank: str, key: str, value: Any, durable: bool = False) -> None:
        """:param durable: whether it must survive a power cut when this returns; drivers with a server ignore it."""
        self._call("store", bank, key, value)

    def flush(self, bank: str, key: str) -> None:
        self._call("flush", bank, key)

    def keys(self, bank: str) -> list[str]:
        """Return the keys in ``bank``, with its sub-banks if the driver lists them; none if the driver cannot tell."""
        return [name for name in self._call("list", bank) or () if isinstance(name, str)]

    def banks(self, bank: str) -> list[str]:
        """Return the names of the banks in ``bank``; none if the driver cannot tell."""
        return self.keys(bank)

    def drop_bank(self, parent: str, name: str) -> None:
        """Remove the bank ``parent/name`` with all that is in it."""
        self._call("flush", f"{parent}/{name}")


class OneFile(Protocol):
    """What a driver does in addition if it keeps all banks in one file of its own."""

    @property
    def banks_file(self) -> SqliteBanks:
        """The file. :raises StateError: for an option that is not accepted."""

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Return a transaction that keeps others from writing."""

    def tidy(self) -> None:
        """Do the regular upkeep. No writer waits long for it."""

    def used_bytes(self) -> int:
        """Return how many bytes of the file are in use."""

    def damage(self) -> str | None:
        """Return what a check of the whole file finds; None if it is sound."""


class Driver(Port):
    """
    A driver with a server, or one that is not known here.

    :param opts: the master's options.
    """

    #: How many jobs are removed at a time. One is removed under the job's lock; several by the driver, in a transaction.
    removed_at_once = 1

    def __init__(self, opts: Mapping[str, Any]) -> None:
        super().__init__(opts)
        #: Finds jobs by more than their keys.
        self.index = JobIndex(self)

    @property
    def one_file(self) -> OneFile | None:
        """The driver itself, if it keeps all banks in one file of its own."""
        return None

    def met_damage(self, error: SaltCacheError) -> bool:
        """Tell whether a write failed on a damaged file that has been replaced since."""
        return False

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
                value = self.fetch(bank, key)
                if value != {} or self.contains(bank, key):
                    yield key, value
            except Outage:
                raise
            except SaltCacheError as exc:
                yield key, exc

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

    def store_new(self, bank: str, key: str, value: Any, durable: bool = False) -> bool:
        """Store a value if there is none, and tell whether it was stored. The caller holds the lock of the value."""
        if self.contains(bank, key):
            return False
        self.store(bank, key, value, durable)
        return True

    def store_all(self, items: Sequence[tuple[str, str, Any]], durable: bool = False) -> None:
        """Store (bank, key, value) triples, in this order."""
        for bank, key, value in items:
            self.store(bank, key, value, durable)

    def last_updated(self, items: Sequence[tuple[str, str]], bank: str) -> float | None:
        """Return the Unix time of the last write to ``items``, (bank, key) pairs, or in ``bank``; None if none."""
        times = [self.updated(*item) for item in items]
        return max((at for at in (*times, self._last_in(bank)) if at), default=None)

    def _last_in(self, bank: str) -> float | None:
        """Return the Unix time of the last write of any key in a bank; None if there is no key."""
        return max((at for at in (self.updated(bank, key) for key in self.keys(bank)) if at), default=None)

    def remove(self, banks: Sequence[str], parent: str, names: Sequence[str], than: float = math.inf) -> Left:
        """
        Remove the jobs ``names`` that were last written before the Unix time ``than``, by default all. Returns the others.

        For each job the bank ``parent/name`` is removed first, then the key ``name`` in each of ``banks``, in this order.
        """
        last = {name: self._remove_one([(bank, name) for bank in banks], parent, name, than) for name in names}
        kept = [at for at in last.values() if at is not None and at >= than]
        return Left([name for name in names if last[name] is None], min(kept, default=None))

    def _remove_one(self, items: Sequence[tuple[str, str]], parent: str, name: str, than: float) -> float | None:
        """Remove one job if it is old. Return when it was last written: None if not known, -inf if ``than`` is infinite."""
        last = self.last_updated(items, f"{parent}/{name}") if than < math.inf else -math.inf
        if last is not None and last < than:
            self.drop_bank(parent, name)
            for item in items:
                self._flush_if_there(*item)
        return last

    def _flush_if_there(self, bank: str, key: str) -> None:
        if self.contains(bank, key):
            self.flush(bank, key)


class InParts(Driver):
    """A driver that reads many values in one round trip, by ``read_all``."""

    #: Most values that are read at a time.
    chunk = 500

    def fetch_each(self, bank: str, keys: Iterable[str] | None = None) -> Iterator[tuple[str, Any]]:
        wanted = list(self.keys(bank) if keys is None else keys)
        for start in range(0, len(wanted), self.chunk):
            part = wanted[start : start + self.chunk]
            values = self.read_all([(bank, key) for key in part])
            yield from ((key, value) for key, value in zip(part, values, strict=True) if value is not ABSENT)


class JobIndex:
    """
    Finds and counts jobs. This one has no index: it lists keys and reads records.

    :param driver: the driver with the jobs.
    """

    #: Whether the newest jids are found without listing the others.
    orders_jids = False

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def count_loads(self) -> int:
        """Return how many loads there are."""
        return len(self._driver.keys(LOADS))

    def count_returns(self, bank: str, jids: Iterable[str]) -> int:
        """
        Return how many returns there are.

        :param bank: the bank in which each job has its bank of returns.
        :param jids: the keys of all loads.
        """
        return sum(len(self._driver.keys(f"{bank}/{jid}")) for jid in jids)

    def oldest_jids(self, count: int) -> list[str]:
        """Return the keys of the oldest loads, oldest first."""
        undated = self.undated_jids()
        keys = self._driver.keys(LOADS)
        return heapq.nsmallest(count, keys, lambda key: (jid_at(undated[key]) if key in undated else key, key))

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
        yield from sorted(
            (key for key in self._driver.keys(LOADS) if has_date(key) and low <= key <= high), reverse=True
        )

    def written_since(self, bank: str, since: float) -> list[str]:
        """Return the jids in a bank that may have been written at or after a Unix time."""
        return [key for key in self._driver.keys(bank) if not _is_surely_before(key, since)]

    def undated_jids(self) -> dict[str, float]:
        """Return the keys of loads that do not begin with a date, with the Unix times of their last write."""
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
        """Return the jobs that may be for the minion or may have its return; all of them if only a search can tell."""
        return set(jids)

    def tallies(self, jids: Sequence[str], minion: str | None) -> Mapping[str, JobTally]:
        """
        Return the tallies of those jobs for which they are known without a search.

        :param minion: the minion of ``JobTally.of_minion``.
        """
        return {}

    def outside(self, bank: str, since: str, low: str, high: str, of_banks: bool) -> list[str] | None:
        """
        Return the keys in a bank that are before ``low`` or after ``high``; None if all keys must be listed for that.

        :param since: if it is not empty, only keys from ``since`` on and before ``low``.
        :param of_banks: whether to return the names of the banks in the bank, in place of its keys.
        """
        return None


def has_date(key: str) -> bool:
    """Tell whether a jid begins with a date, and so tells when the job was published."""
    return key[:8].isdigit() and len(key) > 7 and key[:8].isascii()


def _is_surely_before(jid: str, since: float) -> bool:
    """Tell whether a jid's last publish was before ``since``: a job may be published again long after its first time."""
    at = jid_time(jid)
    return at is not None and at < since - _AGAIN_WITHIN
