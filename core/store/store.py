"""
One process's access to the storage of jobs: the driver, its keys and the locks.

A jid or minion id that is not one plain path component is refused with a warning. It must never reach the driver.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import salt.payload
from salt.exceptions import SaltCacheError

from saltext.jobs.core import compat, lines
from saltext.jobs.core.disk.files import locked
from saltext.jobs.core.disk.surroundings import why_closed
from saltext.jobs.core.errors import SettingsError, StateError
from saltext.jobs.core.ledger.log import Writer
from saltext.jobs.core.ledger.records import Record
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.lines import Quiet
from saltext.jobs.core.options import read_settings
from saltext.jobs.core.options.engines import JobCacheSettings
from saltext.jobs.core.site import site_of
from saltext.jobs.core.store.drivers import Driver, Local, loading
from saltext.jobs.core.store.keys import Keys, are_plain, plain
from saltext.jobs.core.store.tabled import Postgresql, Sqlite, Tabled

log = lines.logger(__name__)

Result = TypeVar("Result")

_DRIVERS: dict[str, type[Driver]] = {
    "localfs": Local,
    "mmap_cache": Local,
    "sqlite": Sqlite,
    "postgresql": Postgresql,
}
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
        self.limits = JobCacheSettings()
        try:
            self.limits = read_settings(JobCacheSettings, "salt_cache", opts.get("salt_cache"))
        except SettingsError as exc:
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
        usable = {minion for minion in named if isinstance(minion, str) and plain(minion)}
        refused = [minion for minion in named if not isinstance(minion, str) or minion not in usable]
        if refused:
            told = "Refusing %d minion ids of jid %s, such as %.300r"
            self.quiet.warning("minion ids", told, len(refused), jid, refused[0])
        return sorted(usable)

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
