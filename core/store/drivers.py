"""
A driver of ``salt.cache`` as the job cache needs it: loaded once, asked again while its server is away, with errors that say
which driver, bank and key.

:py:class:`Driver` is any driver. What is different about one is in a module of its own beside this. An error leaves here
as :py:exc:`salt.exceptions.SaltCacheError`, never raw.
"""

from __future__ import annotations

import contextlib
import contextvars
import heapq
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import salt.loader
from salt.exceptions import SaltCacheError, SaltDeserializationError

from saltext.jobs.core.banks import ASIDE, LOADS, NOCACHE
from saltext.jobs.core.ids import jid_at
from saltext.jobs.core.sqlite.tally import Tally

if TYPE_CHECKING:  # Python may have been built without sqlite3
    from saltext.jobs.core.sqlite.banks import SqliteBanks

ABSENT = object()  # what ``read_all`` returns where there is no value
OUTAGE_SECONDS = 3.0  # how long a server may be away before the caller is told
RETRY_SECONDS = 0.2

# EtcdNotFile: another process was faster in making the directory that the driver keeps everything in.
_AWAY = frozenset(
    ("ConnectionError", "BusyLoadingError", "TimeoutError", "EtcdConnectionFailed", "MaxRetryError", "EtcdNotFile")
)
_MYSQL_AWAY = frozenset((0, 1040, 1053, 2002, 2003, 2006, 2013, 2055))

_DAMAGE = frozenset(("UnpackException", "OutOfData", "StackError", "FormatError", "ExtraData"))

#: Tells whether a function or user is one that is looked for.
Matches = Callable[[str], bool]
Marks = Mapping[str, Matches | None]
#: Of some loads, in the same order: their keys, in order; functions and users; lists of arguments, target, target type and,
#: where there is some, metadata.
Shown = tuple[Sequence[str], Sequence[tuple[str, str]], Sequence[list[Any] | None]]

_COUNT = itertools.count()
# One lock per process id: a lock that another thread held during a fork would never open in the child.
_LOADING: dict[int, threading.Lock] = {}


class Outage(SaltCacheError):  # type: ignore[misc]
    """The server behind the driver is away: there is no point in asking it for the next key."""


class Undecodable(SaltCacheError):  # type: ignore[misc]
    """The record was read, and is damaged: reading it again will not help."""


class Left(NamedTuple):
    """What was not removed of some jobs."""

    #: Those of which the driver cannot tell when they were written.
    unknown: list[str]
    #: A Unix time before which none of the others was last written; None where there is none.
    written: float | None


class Driver:
    """
    A driver with a server, or one that nobody here knows.

    :param opts: the master's options.
    """

    #: Whether the bank of the returns lists the jobs that have some.
    lists_banks = True
    #: How many jobs are removed at a time. Where that is one, under the job's lock; else the driver sees to it.
    removed_at_once = 1
    #: Whether ``shown`` tells what is shown of jobs, without reading their loads.
    keeps_shown = False
    #: Whether it gives the newest jids without looking at the others.
    orders_jids = False
    #: Whether it keeps its files where local_cache keeps its own: ``jobs`` in the cache directory.
    in_jobs_folder = False
    #: Seconds for which a server may be away before the caller is told.
    patience = OUTAGE_SECONDS
    #: The longest key in bytes that the driver's own settings allow.
    longest = 255
    #: The size in bytes of a bank's index, where a bank has one.
    bank_bytes: int | None = None

    def __init__(self, opts: Mapping[str, Any]) -> None:
        # A copy: the loader writes the options of the next loader into the same dictionary.
        self._opts = dict(opts)
        self.name: str = opts.get("cache") or "localfs"
        # Loaders of one process share a module under its name: it has the options of the last one to load it, and
        # mmap_cache then removes what it finds in a bank that was made with others.
        self._base = f"saltext_jobs.cache{next(_COUNT)}"
        self._opened: tuple[Any, dict[str, Any], dict[str, Any]] | None = None
        self._guard: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()

    @property
    def banks_file(self) -> SqliteBanks | None:
        """The one file of all banks; None where there is none. :raises StateError: where an option is not accepted."""
        return None

    def alone(self) -> contextlib.AbstractContextManager[None] | None:
        """Return what keeps others from writing and makes all that is written in it one; None where there is none."""
        return None

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

    def store_new(self, bank: str, key: str, value: Any, durable: bool = False) -> bool:
        """Store a value where there is none, and tell whether that was so. The caller holds a lock on it."""
        if self.contains(bank, key):
            return False
        self.store(bank, key, value, durable)
        return True

    def set_aside(self, bank: str, key: str) -> bool:
        """Keep a record that is of no use where nobody stumbles over it, and tell whether that could be done."""
        try:
            value = self.fetch(bank, key)
        except Undecodable:
            return False  # what cannot be decoded cannot be written again through salt.cache
        self.store(ASIDE, f"{bank.replace('/', '.')}.{key}"[:240], value)
        self.flush(bank, key)
        return True

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

    def fetch_all(self, bank: str) -> Iterator[tuple[str, Any]]:
        """Do what ``fetch_each`` does, for all keys of a bank."""
        return self.fetch_each(bank, self.keys(bank))

    def present(self, bank: str, keys: Iterable[str]) -> set[str]:
        """Return those of ``keys`` that have a value, without reading it."""
        return set(keys).intersection(self.keys(bank))

    def bank_updated(self, bank: str) -> float | None:
        """Return the Unix time of the last write of any key in ``bank``; None where there is none."""
        return max((at for at in (self.updated(bank, key) for key in self.keys(bank)) if at), default=None)

    def flush(self, bank: str, key: str) -> None:
        self._call("flush", bank, key)

    def drop_bank(self, parent: str, name: str) -> None:
        """Remove the bank ``parent/name`` with all that is in it."""
        self._call("flush", f"{parent}/{name}")

    def keys(self, bank: str) -> list[str]:
        """Return the keys in ``bank``; none where the driver cannot tell. Where it lists sub-banks, those too."""
        return [name for name in self._call("list", bank) or () if isinstance(name, str)]

    def changed_keys(self, bank: str, since: float) -> list[str] | None:
        """Return the keys that may have been written at or after a Unix time; None where that is not known at once."""
        return None

    def banks(self, bank: str) -> list[str]:
        """Return the names of the banks in ``bank``; none where the driver cannot tell."""
        return self.keys(bank)

    def outside(self, bank: str, since: str, low: str, high: str, of_banks: bool) -> list[str] | None:
        """
        Return the keys, or the banks, in a bank that are not between two names; None where that takes a list of all.

        :param since: where it is given, those from it on that are before ``low``.
        """
        return None

    def count_loads(self) -> int:
        """Return how many loads there are."""
        return len(self.raw_keys(LOADS))

    def count_returns(self, bank: str, jids: Iterable[str]) -> int:
        """
        Return how many returns there are.

        :param bank: in which each job has its bank of returns.
        :param jids: the keys of all loads.
        """
        return sum(len(self.keys(f"{bank}/{jid}")) for jid in jids)

    def oldest_jids(self, count: int) -> list[str]:
        """Return the keys of the oldest loads, oldest first."""
        undated = self.undated_jids()
        keys = self.keys(LOADS)
        return heapq.nsmallest(count, keys, lambda key: (jid_at(undated[key]) if key in undated else key, key))

    def used_bytes(self) -> int | None:
        """Return what all that is stored takes; None where that is not known at once."""
        return None

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
        yield from sorted((key for key in self.keys(LOADS) if has_date(key) and low <= key <= high), reverse=True)

    def undated_jids(self) -> dict[str, float]:
        """Return the keys of the loads that do not begin with a date, with the Unix times of their last write."""
        found = {}
        for key in self.keys(LOADS):
            if not has_date(key):
                try:
                    found[key] = self.updated(LOADS, key) or 0.0
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

    def tidy(self) -> None:
        """Do what a storage needs now and then; the sweep calls it. It keeps no writer waiting for long."""

    def damage(self) -> str | None:
        """Return what a check of all that is stored finds; None where all is well, or where there is no such check."""
        return None

    def raw_keys(self, bank: str) -> list[str]:
        """Return what ``keys`` does or, where that is faster, names that compare with other text as the keys do."""
        return self.keys(bank)

    # -- several at once: a driver with a server may need one round trip for all of them ---------------------------

    def read_all(self, items: Sequence[tuple[str, str]]) -> list[Any]:
        """Return the values of (bank, key) pairs: ABSENT where there is none, an Undecodable where it is damaged."""
        return [self._read(bank, key) for bank, key in items]

    def _read(self, bank: str, key: str) -> Any:
        try:
            value = self.fetch(bank, key)
        except Undecodable as exc:
            return exc
        return value if value != {} or self.contains(bank, key) else ABSENT

    def store_all(self, items: Sequence[tuple[str, str, Any]], durable: bool = False) -> None:
        """Store (bank, key, value) triples, in this order."""
        for bank, key, value in items:
            self.store(bank, key, value, durable)

    def last_updated(self, items: Sequence[tuple[str, str]], bank: str) -> float | None:
        """Return the Unix time of the last write of any of (bank, key) pairs, or in a bank; None for none of them."""
        times = [self.updated(*item) for item in items if self.contains(*item)]
        return max((at for at in (*times, self.bank_updated(bank)) if at), default=None)

    def give_way(self) -> None:
        """Let others write, who had to wait for this process."""

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

    def remove(self, items: Sequence[tuple[str, str]], parent: str, name: str) -> None:
        """Remove the bank ``parent/name`` and then (bank, key) pairs, in this order."""
        self.drop_bank(parent, name)
        for bank, key in items:
            if self.contains(bank, key):
                self.flush(bank, key)

    # -- calling the driver ---------------------------------------------------------------------------------------

    def _call(self, name: str, bank: str, *args: Any) -> Any:
        """Call a function of the driver. :raises SaltCacheError: naming driver, bank and key."""

        def work(modules: Any, calls: dict[str, Any], fixed: dict[str, Any]) -> Any:
            return run(modules, calls[name], bank, *args, **fixed)

        return self._try(name, bank, args[0] if args else None, work)

    def _try(
        self, name: str, bank: str, key: str | None, work: Callable[[Any, dict[str, Any], dict[str, Any]], Any]
    ) -> Any:
        """Do ``work`` with the driver. While its server is away it is tried again, for ``patience``."""
        began, tries = time.monotonic(), 0
        while True:
            try:
                with self._guard:
                    return work(*(self._opened or self._open()))
            except Exception as exc:  # A driver raises whatever its client library raises.
                error, tries = self.error(name, bank, key, exc), tries + 1
                if not isinstance(error, Undecodable):
                    self._opened = None  # some go on failing on a broken connection
                if not isinstance(error, Outage) or time.monotonic() - began >= self.patience:
                    raise error from exc
                if tries > 1 and self._is_refusal(name):
                    raise SaltCacheError(f"{error}: the server is up and refuses just this") from exc
            time.sleep(RETRY_SECONDS)

    def _is_refusal(self, name: str) -> bool:
        """Tell whether the server is up after all, so that ``name`` failed for what it was asked to do."""
        return False

    def error(self, name: str, bank: str, key: str | None, exc: Exception) -> SaltCacheError:
        """Return the error that says that ``name`` failed: an Outage, Undecodable, or another SaltCacheError."""
        kind = Outage if _is_outage(exc) else Undecodable if name == "fetch" and _is_damage(exc) else SaltCacheError
        return kind(f"Cache driver {self.name} could not {name} bank={bank!r} key={key!r}: {_reason(exc)}")

    def _open(self) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """Load the driver: once, and again after it failed."""
        with loading():
            if self._opened is None:
                self._opened = self._load()
            return self._opened

    def _load(self) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        modules = salt.loader.cache(self._opts, loaded_base_name=self._base)
        names = ("store", "fetch", "contains", "updated", "flush", "list")
        try:
            calls = {name: modules[f"{self.name}.{name}"].func for name in names}
        except KeyError as exc:
            raise SaltCacheError(f"The cache driver {self.name!r} is not available: {exc} is missing") from exc
        # As salt.cache.Cache does it.
        arguments = f"{self.name}.init_kwargs"
        fixed = modules[arguments]({"cachedir": self._opts["cachedir"]}) if arguments in modules else {}
        self._prepare(modules, calls, fixed)
        return modules, calls, fixed

    def _prepare(self, modules: Any, calls: dict[str, Any], fixed: dict[str, Any]) -> None:
        """Make the first call, in which a driver sets its client up: no driver can do that in two threads at once."""
        run(modules, calls["contains"], NOCACHE, "first", **fixed)

    @staticmethod
    def own(calls: dict[str, Any]) -> dict[str, Any]:
        """Return the names of the driver's module."""
        names: dict[str, Any] = getattr(calls["store"], "__globals__", {})
        return names


def has_date(key: str) -> bool:
    """Tell whether a jid begins with a date, so that it tells when the job was published."""
    return key[:8].isdigit() and len(key) > 7 and key[:8].isascii()


def run(modules: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    """
    Call a function of the driver's loader in a context of its own.

    A loader keeps the context of its last call, and this one outlives its caller: the context would keep the caller's
    loader alive, which Salt 3008 then tears down, with a traceback, when the interpreter is half gone already.
    """
    return contextvars.Context().run(modules.run, function, *args, **kwargs)


def _is_outage(exc: BaseException | None) -> bool:
    while exc is not None:
        name = type(exc).__name__
        if isinstance(exc, (ConnectionError, TimeoutError, socket.timeout, socket.gaierror)) or name in _AWAY:
            return True
        if name in ("OperationalError", "InterfaceError") and exc.args and exc.args[0] in _MYSQL_AWAY:
            return True
        exc = exc.__cause__ or exc.__context__
    return False


def _is_damage(exc: BaseException | None) -> bool:
    """Tell whether an error of ``fetch`` is about what the record holds: what msgpack raises is a ValueError."""
    while exc is not None:
        if isinstance(exc, (SaltDeserializationError, ValueError)) or type(exc).__name__ in _DAMAGE:
            return True
        exc = exc.__cause__ or exc.__context__
    return False


def _reason(exc: BaseException) -> str:
    """What the client library said comes last: mysql's driver puts the value, of any size, before it."""
    text = repr(exc)
    return text if len(text) <= 500 else f"{text[:200]} … {text[-300:]}"


def loading() -> contextlib.AbstractContextManager[Any]:
    """Hold while a driver or a store is made: two threads of a process must not both do so."""
    return _LOADING.setdefault(os.getpid(), threading.Lock())
