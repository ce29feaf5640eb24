"""
A driver of ``salt.cache`` as the job cache needs it: all is made of the six plain functions that every driver has. A driver
is loaded once, and a call is repeated while the driver's server is away. Every error is raised as a
:py:exc:`salt.exceptions.SaltCacheError` that names driver, bank and key.

The two drivers of this extension keep jobs in tables, and override what they find by an index (``store.py``).
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import math
import os
import shutil
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import salt.loader
import salt.payload
from salt.exceptions import NotImplemented, SaltCacheError, SaltDeserializationError

from saltext.jobs.core import loader
from saltext.jobs.core.banks import LOADS, NOCACHE, OF_JOBS, RETURNS
from saltext.jobs.core.disk.files import write_atomic
from saltext.jobs.core.errors import JobsError, RowRefused
from saltext.jobs.core.ids import jid_time
from saltext.jobs.core.ledger import stored
from saltext.jobs.core.ledger.jobs import JobTally, Named

ABSENT = object()  # what ``read_all`` returns if there is no value
LAST = "\U0010ffff"  # sorts after each jid, and after all that a jid has behind its time
#: Bytes of a file that are read at a time. Most files have less.
_PIECE = 16 << 10
_MISSING = (FileNotFoundError, NotADirectoryError)
OUTAGE_SECONDS = 3.0  # how long a server may be away before a call fails
SOON = 10.0  # seconds for which other calls do not wait again after that
RETRY_SECONDS = 0.2

# EtcdNotFile: another process was faster in making the directory that the driver keeps everything in.
_AWAY = frozenset(
    ("ConnectionError", "BusyLoadingError", "TimeoutError", "EtcdConnectionFailed", "MaxRetryError", "EtcdNotFile")
)
#: Options by which a client gives up on a frozen server, in seconds, unless operators set them.
_WAITS = {f"mysql.{what}_timeout": 3 for what in ("connect", "read", "write")} | {"etcd.read_timeout": 1}
_MYSQL_AWAY = frozenset((0, 1040, 1053, 2002, 2003, 2006, 2013, 2055))

_READS = ("fetch", "read")
#: What an error says for functions whose names are no verbs.
_WORDS = {"contains": "look for", "updated": "look for", "names": "list"}
_DAMAGE = frozenset(("UnpackException", "OutOfData", "StackError", "FormatError", "ExtraData"))

# One lock per process id: if another thread holds a lock during a fork, it is never released in the child.
_LOADING: dict[int, threading.Lock] = {}


class Outage(SaltCacheError, NotImplemented):  # type: ignore[misc]
    """
    The server behind the driver is away: it is useless to ask it for the next key. Salt's own runners, such as
    ``jobs.list_jobs``, let it through: see ``errors.Refused`` for why it is a NotImplemented.
    """


class Unavailable(Outage):
    """There is no such driver: it is misspelt, or lacks a Python module."""


class Undecodable(SaltCacheError):  # type: ignore[misc]
    """The record was read and is damaged: reading it again will not help."""


#: Tells whether a job's function, or its user, matches a search.
Matches = Callable[[str], bool]


class Wanted(NamedTuple):
    """Which jobs a search wants, for a driver with an index; others ignore it."""

    fun: Matches | None = None
    user: Matches | None = None
    minion: str | None = None  # one that the job is for, or that has returned
    failed: bool = False  # only jobs that failed on a minion


ALL = Wanted()


class Driver:
    """A driver that Salt loads: the one that ``cache:`` names."""

    is_plain = True  # ``store_new`` needs a lock, and it may not be known which jobs have returns
    removes_safely = False  # jobs are removed in transactions of the driver; else each is removed under its lock
    folder = ""  # the directory in which jobs are stored; empty if a server stores them
    patience = OUTAGE_SECONDS  # seconds for which a server may be away before a call fails

    def __init__(self, opts: Mapping[str, Any]) -> None:
        self._opts = opts
        self.name: str = opts.get("cache") or "localfs"
        self._given_up = -math.inf  # when a call last gave up waiting for the server
        self._opened: tuple[Any, dict[str, Any], dict[str, Any]] | None = None
        self._guard = threading.RLock()  # Salt 3008 stores returns from several threads, and mysql has one connection

    @functools.cached_property
    def _base(self) -> str:
        # Loaders share modules, with the options of the last loader.
        return loader.base_of(self)

    def _call(self, name: str, bank: str, *args: Any) -> Any:
        """Call a function of the driver, again and again while its server is away. :raises SaltCacheError:"""
        began = time.monotonic()
        until = began + (self.patience if began - self._given_up >= SOON else 0.0)
        while True:
            try:
                with self._guard:
                    modules, calls, fixed = self._opened or self._open()
                    return run(modules, calls[name], bank, *args, **fixed)
            except Unavailable:
                raise
            except Exception as exc:  # A driver raises anything that its client library raises.
                error = self.error(name, bank, args[0] if args else None, exc)
                if not isinstance(error, Undecodable):
                    self._opened = None  # some drivers never replace a broken connection
                if isinstance(error, Outage) and time.monotonic() < until:
                    time.sleep(RETRY_SECONDS)
                    continue
                if isinstance(error, Outage):
                    self._given_up = time.monotonic()
                raise error from None  # it says all, and Salt prints tracebacks to whoever runs a command

    def error(self, name: str, bank: str, key: object, exc: Exception) -> SaltCacheError:
        """Return the error that says that ``name`` failed: an Outage, Undecodable, or another SaltCacheError."""
        kind = SaltCacheError
        if any(map(_is_outage, _causes(exc))):
            kind = Outage
        elif name in _READS and any(map(_is_damage, _causes(exc))):
            kind = Undecodable
        elif isinstance(exc, (JobsError, sqlite3.Error)) and not isinstance(exc, RowRefused):  # of our own tables
            kind = Outage
        word = _WORDS.get(name, name)
        return kind(f"Cache driver {self.name} could not {word} bank={bank!r} key={key!r}: {_reason(exc)}")

    def _open(self) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """Load the driver: once, and again after it failed."""
        with loading():
            self._opened = self._opened or self._load()
            return self._opened

    def _load(self) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        # A copy, since Salt's loader would write the options of the next loader into the same dictionary.
        modules = salt.loader.cache({**_WAITS, **self._opts}, loaded_base_name=self._base)
        names = ("store", "fetch", "contains", "updated", "flush", "list")
        try:
            calls = {name: modules[f"{self.name}.{name}"].func for name in names}
        except KeyError:
            raise Unavailable(f"cache: {self.name} is unknown, or lacks its library: docs/installation.md") from None
        # As salt.cache.Cache does it.
        arguments = f"{self.name}.init_kwargs"
        fixed = modules[arguments]({"cachedir": self._opts["cachedir"]}) if arguments in modules else {}
        if self.name == "redis":  # whose driver has no option for it
            client = run(modules, calls["store"].__globals__["_get_redis_server"])
            if hasattr(client, "connection_pool"):  # a cluster has several
                client.connection_pool.connection_kwargs.update(socket_timeout=OUTAGE_SECONDS, retry=None)
        # The first call, in which a driver makes its client. No driver can do that in two threads at once.
        run(modules, calls["contains"], NOCACHE, "first", **fixed)
        return modules, calls, fixed

    # -- values ------------------------------------------------------------------------------------------------------

    def fetch(self, bank: str, key: str) -> Any:
        """Return the value; ``{}`` if there is none."""
        return self._call("fetch", bank, key)

    def contains(self, bank: str, key: str) -> bool:
        return bool(self._call("contains", bank, key))

    def store(self, bank: str, key: str, value: Any) -> None:
        self._call("store", bank, key, value)

    def flush(self, bank: str, key: str) -> None:
        self._call("flush", bank, key)

    def store_new(self, bank: str, key: str, value: Any) -> bool:
        """Store a value if there is none, and tell whether it was stored. See ``is_plain``."""
        if self.contains(bank, key):
            return False
        self.store(bank, key, value)
        return True

    def keys(self, bank: str) -> list[str]:
        """Return the keys in ``bank``, with its sub-banks if the driver lists them; none if the driver cannot tell."""
        return [name for name in self._call("list", bank) or () if isinstance(name, str)]

    def fetch_each(self, bank: str, keys: Iterable[str] | None = None) -> Iterator[tuple[str, Any]]:
        """Yield (key, value) of those of ``keys`` (default: all) that exist; a value that cannot be read is its error."""
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
        """Return values: ABSENT for a missing one, Undecodable for a damaged one. :raises SaltCacheError: for a failure."""
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

    # -- whole jobs: a driver with an index overrides this -------------------------------------------------------------

    def remove(self, jids: Sequence[str], than: float) -> None:
        """
        Remove those of some jobs that were last written before the Unix time ``than``. The load of a job goes last: if a
        sweep dies in between, the next one finds the job.
        """
        for jid in jids:
            if self._last_write(jid) < than:
                self._call("flush", f"{RETURNS}/{jid}")
                for bank in OF_JOBS[::-1]:
                    if self.contains(bank, jid):
                        self.flush(bank, jid)

    def _last_write(self, jid: str) -> float:
        """Return the Unix time of the last write to a job; if the driver cannot tell, the one in the jid, or infinity."""
        returns = f"{RETURNS}/{jid}"
        places = itertools.chain(((bank, jid) for bank in OF_JOBS), ((returns, key) for key in self.keys(returns)))
        times = (self._call("updated", *place) for place in places)
        return max((float(at) for at in times if at), default=jid_time(jid) or math.inf)

    def count_loads(self) -> int:
        return len(self.keys(LOADS))

    def count_returns(self, jids: Iterable[str]) -> int:
        """Return how many returns there are. ``jids``: the keys of all loads."""
        return sum(len(self.keys(f"{RETURNS}/{jid}")) for jid in jids)

    def find(self, low: str = "", high: str = LAST, wanted: Wanted = ALL) -> Iterator[str]:
        """Yield the keys of the loads from ``high`` down to ``low``."""
        yield from sorted((key for key in self.keys(LOADS) if low <= key <= high), reverse=True)

    def oldest(self, count: int) -> list[str]:
        """Return the keys of the oldest loads, oldest first."""
        return sorted(self.keys(LOADS))[:count]

    def outside(self, bank: str, low: str, high: str) -> list[str]:
        """Return the keys in a bank before ``low`` or after ``high``; of ``RETURNS`` its banks, but see ``is_plain``."""
        names = self._call("names", bank) if bank == RETURNS else self.keys(bank)
        return [name for name in names if not low <= name <= high]

    def tallies(self, jids: Sequence[str], named: Named | None) -> Mapping[str, JobTally]:
        """Return the tallies of those jobs for which they are known without a search; ``named`` is that of ``tally_of``."""
        return {}


def run(modules: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    """
    Call a function of the driver's loader in a context of its own. A loader keeps the context of its last call: that would
    keep the caller's loader alive until the interpreter exits, when Salt 3008 tears it down with a traceback.
    """
    return contextvars.Context().run(modules.run, function, *args, **kwargs)


def _causes(exc: BaseException | None) -> Iterator[BaseException]:
    while exc is not None:
        yield exc
        exc = exc.__cause__ or exc.__context__


def _is_outage(exc: BaseException) -> bool:
    name = type(exc).__name__
    if name in ("OperationalError", "InterfaceError") and exc.args and exc.args[0] in _MYSQL_AWAY:
        return True
    return isinstance(exc, (ConnectionError, TimeoutError, socket.gaierror)) or name in _AWAY


def _is_damage(exc: BaseException) -> bool:
    """Tell whether an error of ``fetch`` says that the record is damaged: msgpack raises a ValueError."""
    return isinstance(exc, (SaltDeserializationError, ValueError)) or type(exc).__name__ in _DAMAGE


def _reason(exc: BaseException) -> str:
    """Return an error's text, a long one without its middle: mysql's driver puts the value before the client's message."""
    text = repr(exc)
    return text if len(text) <= 500 else f"{text[:200]} … {text[-300:]}"


def loading() -> contextlib.AbstractContextManager[Any]:
    """Return the lock to hold while a driver or a store is made: two threads of a process must not do so at once."""
    return _LOADING.setdefault(os.getpid(), threading.Lock())


class Local(Driver):
    """
    localfs: a directory for each bank, a msgpack file ``<key>.p`` for each key. Others may read it if the umask allows it.
    It also keeps the jobs of mmap_cache, which takes up to 96 MB for each bank, and each job has one. Salt's own functions
    take 0.4 ms to write a value, list half-written files as keys, and before Salt 3008 cut names that end in ``p``; these
    files are the same. Unchecked ids must never come here: they become paths.
    """

    is_plain = False

    def __init__(self, opts: Mapping[str, Any]) -> None:
        super().__init__(opts)
        self.folder = opts["cachedir"]

    def store_new(self, bank: str, key: str, value: Any) -> bool:
        return bool(self._call("store_new", bank, key, value))

    def _read(self, bank: str, key: str) -> Any:
        try:
            return self._call("read", bank, key)
        except Undecodable as exc:
            return exc

    def fetch(self, bank: str, key: str) -> Any:
        value = self._call("read", bank, key)
        return {} if value is ABSENT else value

    def _call(self, name: str, bank: str, *args: Any) -> Any:
        try:
            return _CALLS[name](f"{self.folder}/{bank}", *args)
        except Exception as exc:  # msgpack raises many kinds for a broken file
            raise self.error(name, bank, args[0] if args else None, exc) from None


def _read(folder: str, key: str) -> Any:
    """Return a value, or ABSENT. A file object would take as long as all the rest."""
    try:
        handle = os.open(f"{folder}/{key}.p", os.O_RDONLY)
    except _MISSING:
        return ABSENT
    try:
        parts = [os.read(handle, _PIECE)]
        while len(parts[-1]) == _PIECE:
            parts.append(os.read(handle, _PIECE))
    finally:
        os.close(handle)
    return stored.loads(parts[0] if len(parts) == 1 else b"".join(parts))


def _store(folder: str, key: str, value: Any, new: bool = False) -> None:
    data = salt.payload.dumps(value, use_bin_type=True)
    write_atomic(f"{folder}/{key}.p", data, 0o644, 0o755, by_umask=True, new=new)


def _store_new(folder: str, key: str, value: Any) -> bool:
    try:
        _store(folder, key, value, new=True)
    except FileExistsError:
        return False
    return True


def _updated(folder: str, key: str) -> float | None:
    try:
        return os.stat(f"{folder}/{key}.p").st_mtime
    except _MISSING:
        return None


def _flush(folder: str, key: str | None = None) -> None:
    """Remove a key, and the bank with its last key; without a key the whole bank."""
    with contextlib.suppress(*_MISSING):
        if key is None:
            shutil.rmtree(folder)
            return
        os.unlink(f"{folder}/{key}.p")
    with contextlib.suppress(OSError):
        os.rmdir(folder)  # refused as long as there is anything in it


def _names(folder: str) -> list[str]:
    """Return all names in a bank's directory: keys with ``.p``, sub-banks, half-written files."""
    try:
        return os.listdir(folder)
    except _MISSING:
        return []


_CALLS: dict[str, Callable[..., Any]] = {
    "read": _read,
    "store": _store,
    "store_new": _store_new,
    "contains": lambda folder, key: os.path.isfile(f"{folder}/{key}.p"),
    "updated": _updated,
    "flush": _flush,
    "names": _names,
    "list": lambda folder: [name[:-2] for name in _names(folder) if name.endswith(".p")],
}
