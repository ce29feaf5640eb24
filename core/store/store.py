"""
One process's access to the storage of jobs: the driver, its keys and the locks. First come the two drivers of this
extension, whose values are in tables (``core/ledger/values.py``). They need no loader of Salt; a publish stores everything
in one transaction, a job is removed in one, and jobs are found by an index.

A jid or minion id that is not one plain path component is refused with a warning. It must never reach the driver.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import operator
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import salt.payload
from salt.exceptions import SaltCacheError

from saltext.jobs.core import compat, lines
from saltext.jobs.core.banks import LOADS, RETURNS
from saltext.jobs.core.disk.files import locked
from saltext.jobs.core.disk.surroundings import why_closed
from saltext.jobs.core.errors import SettingsError, StateError
from saltext.jobs.core.ids import Keys, are_plain, is_plain
from saltext.jobs.core.ledger import jobs, stored, values
from saltext.jobs.core.ledger.jobs import JobTally, Named
from saltext.jobs.core.ledger.log import Writer
from saltext.jobs.core.ledger.records import Record
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.lines import Quiet
from saltext.jobs.core.options import read_settings
from saltext.jobs.core.options.engines import JobCacheSettings
from saltext.jobs.core.site import site_of
from saltext.jobs.core.sqlite.tables import SqliteTables
from saltext.jobs.core.store.drivers import ABSENT, ALL, LAST, Driver, Local, Undecodable, Wanted, loading

log = lines.logger(__name__)

Result = TypeVar("Result")

#: Values that are read at once.
_AT_ONCE = 25
#: Most pairs of function and user that are looked up one by one; if more match, all jobs of the searched time are read.
MOST_MARKS = 100
#: The stores of this process by what makes them different, and by the ``id()`` of options: Salt has several copies of these.
_STORES: dict[tuple[int, bytes], Store] = {}
_KNOWN: dict[int, tuple[Any, Store]] = {}
_MOST_STORES = 8
#: Set in the options of the recorder's returners: what they store was stored in the job cache before, and is no news.
COPY = "__saltext_jobs_copy"
#: What the options begin with that decide which driver is loaded and where it keeps its data.
_DECISIVE = (
    *("salt_cache", "cache", "id", "__role", COPY, "extension_modules", "module_dirs"),
    *("sqlite", "postgresql", "redis", "mysql", "etcd", "consul"),
)
#: How many files are locks: a fixed number, so that files never pile up.
FILES = 64
#: The file of the jids that were taken last, how many it holds, and the bytes of each.
_TAKEN, _LAST, _JID_BYTES = "taken", 64, 64


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


_DRIVERS: dict[str, type[Driver]] = {"localfs": Local, "mmap_cache": Local, "sqlite": Sqlite, "postgresql": Postgresql}


class Store:
    """The storage that ``cache:`` names. Its methods take keys, which :py:meth:`key` makes of ids."""

    def __init__(self, opts: Mapping[str, Any]) -> None:
        self.pid = os.getpid()
        self.cachedir: str = opts["cachedir"]
        self.master = str(opts.get("id"))  # whose publishes and returns are stored
        self._opts = opts
        name = opts.get("cache") or "localfs"
        self.driver = _DRIVERS.get(name, Driver)(opts)
        # The driver itself, if it keeps all banks in one file of its own.
        self.file = self.driver if isinstance(self.driver, Sqlite) else None
        self.limits, self.ignored = JobCacheSettings(), ""  # why its options are ignored
        try:
            self.limits = read_settings(JobCacheSettings, "salt_cache", opts.get("salt_cache"))
        except SettingsError as exc:
            self.ignored = str(exc)
            log.error("The option salt_cache is ignored: %s", exc)
        self._has_log = opts.get("__role") != "minion" and not opts.get(COPY)
        self._keys = Keys(name)
        self.key_of, self.decode = self._keys.key, self._keys.decode
        self.fetch, self.contains, self.keys = self.driver.fetch, self.driver.contains, self.driver.keys
        self.store = self.driver.store
        self._publishing = threading.local()
        self.works: dict[str, Any] = {}  # what jobs run, by the key of the jid: see ``records.work``

    # Made when they are first used: most processes only read.

    @functools.cached_property
    def quiet(self) -> Quiet:
        """For lines of the log that a minion can cause at will."""
        return Quiet(log)

    @functools.cached_property
    def site(self) -> Tables:
        try:
            return site_of(self._opts)
        except SettingsError as exc:  # no publish may fail because of it; the engines wait
            log.error("This master cannot join its site: %s", exc)
            return site_of({**self._opts, "saltext_jobs_site": None})

    @functools.cached_property
    def log(self) -> Writer | None:
        """The log of what this master does; None in a copy, and on a minion, which may store its own returns."""
        return Writer(self.site, self.limits.log_size) if self._has_log else None

    @functools.cached_property
    def _tables(self) -> Tabled | None:
        """The driver, if the log is in its tables."""
        is_one = isinstance(self.driver, Tabled) and self.driver.tables.place == self.site.place
        return self.driver if is_one else None  # type: ignore[return-value]

    @property
    def writes_together(self) -> bool:
        """Whether a record of the log and what the job cache has of it become visible at once."""
        return self._tables is not None

    def together(self, write: Callable[[], Result], record: Record | None = None, durable: bool = False) -> Result:
        """
        Add a record to the log, and call ``write``, which writes to the job cache: in one transaction if one database has
        both. ``write`` may be called again if nothing of it was written. The log gets the record even if ``write`` fails:
        the job cache must never have what the log lacks. ``durable``: the record must then survive a power cut.
        """
        log, driver = self.log, self._tables
        if log is None or record is None or driver is None:
            if log is not None and record is not None:
                log.append(record, durable)
            return write() if self.file is None else self.file.together(write)

        def both() -> Result:
            found = write()
            log.add(record, durable)  # last, since it locks the log for other masters
            return found

        try:
            found = driver.together(both)
        except SaltCacheError:
            log.append(record, durable)
            raise
        log.appended()
        return found

    def key(self, value: Any, what: str) -> str | None:
        """Return the driver's key for the jid or minion id ``value``; None, after a warning, if it is refused."""
        key = self.key_of(value)
        if key is None:
            refused = "Refusing %s %.300r: the driver %s cannot take it as a key"
            self.quiet.warning(what, refused, what, value, self.driver.name)
        return key

    def plain_minions(self, jid: str, minions: Iterable[Any] | None) -> list[str]:
        """Return the valid ids among ``minions``, sorted, each once; warn of the others."""
        named = [minions] if isinstance(minions, str) else list(minions or ())
        if are_plain(named):
            # Usually they are in order, each once, and can be returned as they are.
            return named if all(map(operator.lt, named, itertools.islice(named, 1, None))) else sorted(set(named))
        if refused := [minion for minion in named if not is_plain(minion)]:
            told = "Refusing %d minion ids of jid %s, such as %.300r"
            self.quiet.warning("minion ids", told, len(refused), jid, refused[0])
        return sorted(set(filter(is_plain, named)))

    def readable(self, bank: str, keys: Iterable[str] | None = None) -> Iterator[tuple[str, Any]]:
        """Yield (key, value) of some keys of a bank, or of all. Values that cannot be read are logged and skipped."""
        for key, value in self.driver.fetch_each(bank, keys):
            if isinstance(value, SaltCacheError):
                self.quiet.error((bank, key), "Skipped in the job cache: %s", value)
            else:
                yield key, value

    def loads(self, keys: Iterable[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
        """As ``readable``, for loads."""
        return ((key, load) for key, load in self.readable(LOADS, keys) if load and isinstance(load, dict))

    def publishes_for(self, jid: str | None, engine: str, fresh: bool = False) -> None:
        """Remember for which engine this thread publishes, and whether the jid is new, until the load is stored."""
        self._publishing.now = (jid, engine, fresh)

    def published_for(self, jid: str) -> tuple[str, bool]:
        """Return for which engine this thread publishes a job (empty if for none), whether its jid is new; and forget it."""
        known, engine, fresh = getattr(self._publishing, "now", ("", "", False))
        self._publishing.now = ("", "", False)
        return (engine, fresh) if known == jid else ("", False)

    def why_closed(self) -> str:
        """Return why the disk takes no job: it is ``full``, or ``read-only``; empty if it takes some."""
        return why_closed(self.driver.folder)

    # -- locks, which are files: ``salt.cache`` has no compare-and-set ---------------------------------------------------

    def lock(self, *names: str) -> contextlib.AbstractContextManager[Any]:
        """
        Hold the lock of these names: only one process of this master at a time changes a job. Hold one lock at a time:
        different names may share a file. With sqlite all that changes a job is ``together``. :raises SaltCacheError:
        """
        if self.file is not None:
            return contextlib.nullcontext()
        return self._held(f"{zlib.crc32(chr(0).join(names).encode()) % FILES:02x}")

    def takes(self, jid: str) -> bool:
        """Take a jid; False if another publish of this master has just taken it. True if that is not known."""
        wanted = jid.encode()[-_JID_BYTES:].ljust(_JID_BYTES, b"\0")
        try:
            with self._held(_TAKEN) as handle:
                known = os.pread(handle, _LAST * _JID_BYTES, 0)
                if any(known.startswith(wanted, at) for at in range(0, len(known), _JID_BYTES)):
                    return False
                os.pwrite(handle, (wanted + known)[: _LAST * _JID_BYTES], 0)
        except (SaltCacheError, OSError) as exc:
            self.quiet.warning("takes", "Two publishes at one moment may get the same jid: %s", exc)
        return True

    @contextlib.contextmanager
    def _held(self, name: str) -> Iterator[int]:
        path = f"{self.cachedir}/salt_cache.locks/{name}"
        with contextlib.ExitStack() as stack:
            try:
                handle = stack.enter_context(locked(path))
            except (StateError, OSError) as exc:  # as on a network file system without locks
                raise SaltCacheError(f"Job cache lock {path} cannot be held: {exc}") from exc
            yield handle


def store_of(opts: Any) -> Store:
    """Return this process's store for options from Salt's loader: the same object at each call, or one with the same."""
    opts, pid = compat.plain_opts(opts), os.getpid()
    known, store = _KNOWN.get(id(opts), (None, None))
    if known is opts and store is not None and store.pid == pid:
        return store
    # Some releases have immutable lists, which are equal to no list, but packed like one.
    settings: bytes = salt.payload.dumps({name: opts[name] for name in sorted(opts) if name.startswith(_DECISIVE)})
    with loading():
        # Not shared across a fork: two processes must not use one connection.
        store = _STORES.get((pid, settings)) or Store(opts)
        _remember(_STORES, (pid, settings), store)
        _remember(_KNOWN, id(opts), (opts, store))
        return store


def _remember(stores: dict[Any, Any], key: object, value: object) -> None:
    while len(stores) >= _MOST_STORES:
        del stores[next(iter(stores))]
    stores[key] = value
