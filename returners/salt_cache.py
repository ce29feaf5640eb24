"""
Master job cache over :py:class:`salt.cache.Cache`, on Salt 3006, 3007 and 3008.

Set ``master_job_cache: salt_cache`` and every job goes to the storage that ``cache:`` names: localfs (the
default), redis, mysql, etcd, consul, or mmap_cache on Salt 3008. The layout is that of Salt 3008's own
``salt_cache``, which its ``cluster`` runners know:

=====================  =====  ==========================================================
bank                   key    value
=====================  =====  ==========================================================
``jobs/loads``         jid    the load, without its secrets
``jobs/minions``       jid    sorted list of minion ids
``jobs/returns/<jid>`` minion ``{"return", "retcode", "success", "out"}``, what there is
``jobs/endtimes``      jid    end time (with ``job_cache_store_endtime``)
``jobs/nocache``       jid    True: returns of this job are not stored
``jobs/published``     jid    ``{"at", "by", "added"}``: a publish wrote the load (ours alone)
=====================  =====  ==========================================================

Whoever calls :py:func:`save_load` with ``minions`` is this master's publish. Its first load is kept as it is:
nothing that a minion or a syndic sends may replace it, and the later publishes of a batch or a replay only add
their minions. ``jobs/published`` records that, with the time, the master's id and those minions of ``jobs/minions`` that
no publish named, where there are any: an accepted minion can have some added. It must never be made on any other path.

A jid or minion id that is not one plain path component is refused with a warning and must never reach the
driver. An error of the driver leaves here as :py:exc:`salt.exceptions.SaltCacheError`, never raw.

This file must import nothing else of the extension: the loader reads it before anything else is there.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import gc
import heapq
import logging
import os
import re
import socket
import tempfile
import threading
import time
import zlib

import salt.cache
import salt.payload
import salt.utils.jid
import salt.utils.job
import salt.utils.minions
from salt.exceptions import SaltCacheError

try:
    import msgpack
except ImportError:  # only the mmap_cache driver needs it, which needs it itself
    msgpack = None

log = logging.getLogger(__name__)

__virtualname__ = "salt_cache"

LOADS = "jobs/loads"
MINIONS = "jobs/minions"
RETURNS = "jobs/returns"
ENDTIMES = "jobs/endtimes"
NOCACHE = "jobs/nocache"
PUBLISHED = "jobs/published"
BANKS = (LOADS, MINIONS, PUBLISHED, NOCACHE, ENDTIMES)  # a job's load first

# Whatever authenticates somebody. "tok" is what a minion proves itself with on its returns.
SECRETS = frozenset(("token", "password", "key", "tok"))
RECORD = ("return", "retcode", "success", "out")
JID_TRIES = 5  # new tries after a collision
OUTAGE_SECONDS = 3.0  # how long a server may be away before the caller is told
LOCKS = 64  # lock files; a fixed number, so that they never pile up
CLOCK_SKEW = 86400  # a jid further in the future says nothing about its age
LARGE_BANK = 1000  # names; a smaller one is listed by every sweep
MMAP_OPEN_BANKS = 64  # open banks of mmap_cache per process, four file descriptors each

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_LOCK_FILE = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW

# Kept when the loader executes this file again for another loader of the same process.
_STORES = globals().get("_STORES", {})
# One lock per process id: a lock that another thread held during a fork would never open in the child.
_LOADING = globals().get("_LOADING", {})


def __virtual__():
    return __virtualname__


# ---------------------------------------------------------------------------------------------------------
# Ids: from the outside to a key that the driver neither confuses nor loses
# ---------------------------------------------------------------------------------------------------------


def _plain(value):
    """``value`` as a str that is one plain path component, or None. Numbers come from YAML on the command line."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    try:
        text = value.decode() if isinstance(value, bytes) else value
        size = len(text.encode()) if isinstance(text, str) else 0
    except UnicodeError:
        return None
    if not 0 < size <= 255 or text in (".", "..") or any(char in text for char in "/\\\0"):
        return None
    return text


def _escape(unsafe):
    return lambda text: re.sub(unsafe, lambda m: "".join(f"={byte:02x}" for byte in m[0].encode()), text)


def _unescape(text):
    if "=" not in text:
        return text
    return re.sub(rb"=([0-9a-f]{2})", lambda m: bytes((int(m[1], 16),)), text.encode()).decode(errors="replace")


# mysql compares without case and accents, and pads with blanks. etcd and consul take keys as a piece of a URL,
# keep the time of a key in a second one with a suffix, and etcd hides what begins with an underscore.
_ENCODERS = {
    "mysql": _escape(r"[^0-9a-z_.@:+~-]"),
    "etcd": _escape(r"^_|[^0-9A-Za-z_.@:+-]|p$(?<=\.tstamp)"),
    "consul": _escape(r"[^0-9A-Za-z_.@:+-]|p$(?<=\.tstamp)"),
}
# Longest key in bytes: the file name with its ".p", and the columns for "jobs/returns/<jid>".
_LONGEST = {"localfs": 253, "mysql": 242}


# ---------------------------------------------------------------------------------------------------------
# The driver
# ---------------------------------------------------------------------------------------------------------


def _owner(cachedir):
    """Whom to give new files to: root's would be closed to a master that runs as another user. None for nobody."""
    try:
        found = os.stat(cachedir)
    except OSError:
        return None
    return (found.st_uid, found.st_gid) if os.geteuid() == 0 and found.st_uid != 0 else None


class Outage(SaltCacheError):
    """The server behind the driver is away: there is no point in asking it for the next key."""


class Store:
    """One cache driver, loaded once, used by one process. Keys are what :py:meth:`key` made of an id."""

    def __init__(self, opts):
        self.opts = dict(opts)  # the loader writes the options of the next loader into the same dictionary
        self.settings = _settings(opts)
        self.pid = os.getpid()
        self.driver = opts.get("cache") or "localfs"
        self.cachedir = opts["cachedir"]
        self.owner = _owner(self.cachedir)
        self.encode = _ENCODERS.get(self.driver, str)
        self.longest = opts.get("mmap_cache_key_size", 64) if self.driver == "mmap_cache" else 255
        self.longest = _LONGEST.get(self.driver, self.longest)
        # The client of the mysql driver is one connection, and Salt 3008 stores returns from several threads.
        self.guard = threading.RLock() if self.driver == "mysql" else contextlib.nullcontext()
        self.bank_bytes = opts.get("mmap_cache_size", 1_000_000) * opts.get("mmap_cache_slot_size", 96)
        self.banks = set()
        self.listed = {}
        self.opened = None

    def key(self, value, what):
        """The driver's key for the jid or minion id ``value``; None, after a warning, where it is refused."""
        text = _plain(value)
        key = None if text is None else self.encode(text)
        if key is None or len(key.encode()) > self.longest:
            log.warning("Refusing %s %.300r: the driver %s cannot take it as a key", what, value, self.driver)
            return None
        return key

    def decode(self, key):
        return _unescape(key) if self.driver in _ENCODERS else key

    def _open(self):
        """Load the driver: once, and again after it failed, since some go on failing on a broken connection."""
        with _loading():
            return self.opened or self._load_driver()

    def _load_driver(self):
        cache = salt.cache.Cache(self.opts)
        names = ("store", "fetch", "contains", "updated", "flush", "list")
        try:
            calls = {name: cache.modules[f"{self.driver}.{name}"].func for name in names}
        except KeyError as exc:
            raise SaltCacheError(f"The cache driver {self.driver!r} is not available: {exc} is missing") from exc
        fixed = cache.kwargs if hasattr(cache, "kwargs") else cache._kwargs
        if self.driver not in ("localfs", "mmap_cache"):
            # The first call of a driver sets its client up, which none does in a way that two threads could.
            cache.modules.run(calls["contains"], NOCACHE, "first", **fixed)
        self.opened = cache.modules, calls, fixed
        return self.opened

    def call(self, name, bank, *args, **kwargs):
        """
        Call the driver. A server that is away is tried again for OUTAGE_SECONDS.

        :raises SaltCacheError: naming driver, bank and key.
        """
        began = time.monotonic()
        if self.driver == "mmap_cache":
            self._bound_open_banks(bank)
        while True:
            try:
                with self.guard:
                    modules, calls, fixed = self.opened or self._open()
                    return modules.run(calls[name], bank, *args, **kwargs, **fixed)
            except Exception as exc:
                self.opened = None
                outage = _is_outage(exc)
                if not outage or time.monotonic() - began >= OUTAGE_SECONDS:
                    key = args[0] if args else kwargs.get("key")
                    error = Outage if outage else SaltCacheError
                    raise error(
                        f"Cache driver {self.driver} could not {name} bank={bank!r} key={key!r}: {exc!r:.500}"
                    ) from exc
            time.sleep(0.2)

    def contains(self, bank, key):
        return bool(self.call("contains", bank, key))

    def updated(self, bank, key):
        return self.call("updated", bank, key)

    def fetch(self, bank, key):
        """The value; ``{}`` where there is none."""
        value = self.call("fetch", bank, key)
        return salt.payload.loads(value) if self.driver == "mmap_cache" and isinstance(value, bytes) else value

    def store(self, bank, key, value):
        if self.driver == "mmap_cache":
            self._make_mmap_bank(bank)
            value = _mmap_value(value)
        if self.driver == "localfs":
            self._write(bank, key, value)
        else:
            self.call("store", bank, key, value)

    def _write(self, bank, key, value):
        """
        What ``localfs.store`` does, in a third of its time: the same file, written aside and renamed.

        Unlike the driver of some releases it leaves no temporary file behind when the disk is full.
        """
        folder = os.path.join(self.cachedir, bank)
        draft = os.path.join(folder, f".{self.pid}-{threading.get_ident()}")
        try:
            data = memoryview(salt.payload.dumps(value, use_bin_type=True))
            try:
                handle = os.open(draft, _NEW_FILE, 0o600)
            except FileNotFoundError:
                self._make_folder(folder)
                handle = os.open(draft, _NEW_FILE, 0o600)
            except FileExistsError:  # left by a process that was killed, with the same number
                os.unlink(draft)
                handle = os.open(draft, _NEW_FILE, 0o600)
            try:
                if self.owner:
                    os.fchown(handle, *self.owner)
                while data:
                    data = data[os.write(handle, data) :]
                os.rename(draft, os.path.join(folder, f"{key}.p"))
            except BaseException:
                os.unlink(draft)
                raise
            finally:
                os.close(handle)
        except Exception as exc:
            raise SaltCacheError(
                f"Cache driver localfs could not store bank={bank!r} key={key!r}: {exc!r:.500}"
            ) from exc

    def _make_folder(self, folder):
        """Make ``folder`` for the owner of the cache directory: salt-ssh runs as root where the master may not."""
        missing = []
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for folder in reversed(missing):
            try:
                os.mkdir(folder, 0o700)
            except FileExistsError:
                continue  # somebody else was faster
            if self.owner:
                os.chown(folder, *self.owner, follow_symlinks=False)

    def flush(self, bank, key=None):
        self.call("flush", bank, key=key)

    def flush_bank(self, parent, key):
        """Remove the bank ``parent/key``, and what some drivers leave of it behind."""
        bank = f"{parent}/{key}"
        self.flush(bank)
        if self.driver == "redis":
            self.flush(parent, key)  # before Salt 3008 the parent goes on listing it
        elif self.driver == "mmap_cache":
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(self.cachedir, bank))

    def names(self, bank):
        """
        The keys and sub-banks in ``bank``; none where the driver cannot tell.

        The directories are read here for localfs, whose ``list`` names half-written files and, before Salt
        3008, cuts every ``p`` and dot off the end of a name; and for the sub-banks of mmap_cache, which lists none.
        """
        if self.driver == "localfs" and bank != RETURNS:
            return [name[:-2] for name in self._files(bank) if name.endswith(".p")]
        if self.driver in ("localfs", "mmap_cache") and bank == RETURNS:
            return self._files(bank)
        if self.driver == "mmap_cache" and not self.contains(bank, None):
            return []  # to list a missing bank would create its directory
        return [name for name in self.call("list", bank) or () if isinstance(name, str)]

    def outside(self, bank, low, high, keep):
        """
        The names in ``bank`` before ``low`` or after ``high``. As a rule there are none, and many names.

        A large bank is not listed again while no name in it can have become older than ``keep`` seconds: neither one
        that was there the last time, nor one that was written since.
        """
        now = time.time()
        at, first, last = self.listed.pop(bank, (0, low, high))
        if now - at >= keep or first < low or last > high:
            names = self._files(bank) if self.driver == "localfs" else self.names(bank)
            at, first, last = now, min(names, default=low), max(names, default=high)
            if first < low or last > high:
                return [name for name in self.names(bank) if not low <= name <= high]
            if len(names) < LARGE_BANK:
                return []
        self.listed[bank] = (at, first, last)
        return []

    def _files(self, bank):
        try:
            return os.listdir(os.path.join(self.cachedir, bank))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as exc:
            raise SaltCacheError(f"Cache driver {self.driver} could not list bank={bank!r} key=None: {exc}") from exc

    def _bound_open_banks(self, bank):
        """mmap_cache keeps every bank open for ever. Loading the driver anew is the way to let go of them."""
        if bank not in self.banks and len(self.banks) >= MMAP_OPEN_BANKS:
            self.banks.clear()
            self.opened = None
            gc.collect()
        self.banks.add(bank)

    def _make_mmap_bank(self, bank):
        """
        Create the index of a bank of mmap_cache as a sparse file.

        The driver would fill mmap_cache_size times mmap_cache_slot_size bytes with zeros, 94 MB for every jid.
        A file of the same size with holes reads the same, to the driver and to the cluster runners, and takes
        a few pages.
        """
        folder = os.path.join(self.cachedir, bank)
        index = os.path.join(folder, ".mmap_cache.idx")
        if os.path.exists(index):
            return
        try:
            self._make_folder(folder)
            handle, draft = tempfile.mkstemp(dir=folder)
            try:
                if self.owner:
                    os.fchown(handle, *self.owner)
                os.ftruncate(handle, self.bank_bytes)
                with contextlib.suppress(FileExistsError):
                    os.link(draft, index)  # unlike a rename it never replaces the index of somebody faster
            finally:
                os.close(handle)
                os.unlink(draft)
        except OSError as exc:
            raise SaltCacheError(f"Cache driver mmap_cache could not create bank={bank!r} key=None: {exc}") from exc

    @staticmethod
    def without_secrets(load):
        """A copy: publish goes on using the load that it handed over."""
        stored = {name: value for name, value in load.items() if name not in SECRETS}
        if isinstance(stored.get("kwargs"), dict):
            stored["kwargs"] = {name: value for name, value in stored["kwargs"].items() if name not in SECRETS}
        return stored

    def last_written(self, jid):
        """When anything of the job was last written, in unix seconds; None where the driver cannot tell."""
        times = [self._written(bank, jid) for bank in BANKS]
        if not times[0]:
            bank = f"{RETURNS}/{jid}"
            times.extend(self._written(bank, minion) for minion in self.names(bank))
        return max((seconds for seconds in times if seconds), default=None)

    def _written(self, bank, key):
        try:
            return self.updated(bank, key) if self.contains(bank, key) else None
        except Outage:
            raise
        except SaltCacheError as exc:
            log.debug("No time known: %s", exc)
            return None

    def drop(self, jid):
        """Remove all of a job. Its load goes last: a sweep that dies in between finds the job again."""
        self.flush_bank(RETURNS, jid)
        for bank in reversed(BANKS):
            if self.contains(bank, jid):
                self.flush(bank, jid)

    def add_minions(self, jid, minions, always=False):
        """Merge the set ``minions`` into those of the job, and return that of before. The caller holds the job's lock."""
        stored = self.fetch(MINIONS, jid) or []
        before = set(stored)
        merged = sorted(before | minions)
        if always or merged != stored:
            self.store(MINIONS, jid, merged)
        return before

    @staticmethod
    def plain_minions(jid, minions):
        """The usable ids among ``minions``; of others a warning tells."""
        minions = [minions] if isinstance(minions, str) else list(minions or ())
        refused = [minion for minion in minions if not isinstance(minion, str) or _plain(minion) is None]
        if refused:
            log.warning("Refusing %d minion ids of jid %s, such as %.300r", len(refused), jid, refused[0])
        return {minion for minion in minions if isinstance(minion, str) and _plain(minion)}

    @contextlib.contextmanager
    def lock(self, *names):
        """
        Nobody else on this master is in here with the same names: salt.cache has no compare-and-set.

        Never take two: different names may share a lock file.
        """
        handle = self._lock_file(zlib.crc32("\0".join(names).encode()) % LOCKS)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            # Closing is not enough: a process forked meanwhile has the file open too.
            fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    def _lock_file(self, number):
        folder = os.path.join(self.cachedir, "salt_cache.locks")
        path = os.path.join(folder, f"{number:02x}")
        try:
            with contextlib.suppress(FileNotFoundError):
                return os.open(path, _LOCK_FILE)
            self._make_folder(folder)
            try:
                handle = os.open(path, _LOCK_FILE | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                return os.open(path, _LOCK_FILE)
            if self.owner:
                os.fchown(handle, *self.owner)
            return handle
        except OSError as exc:
            raise SaltCacheError(f"Job cache lock {path} cannot be opened: {exc}") from exc


# EtcdNotFile: another process was faster in making the directory that the driver keeps everything in.
_AWAY = frozenset(
    ("ConnectionError", "BusyLoadingError", "TimeoutError", "EtcdConnectionFailed", "MaxRetryError", "EtcdNotFile")
)
_MYSQL_AWAY = frozenset((0, 1040, 1053, 2002, 2003, 2006, 2013, 2055))


def _is_outage(exc):
    while exc is not None:
        name = type(exc).__name__
        if isinstance(exc, (ConnectionError, TimeoutError, socket.timeout, socket.gaierror)) or name in _AWAY:
            return True
        if name in ("OperationalError", "InterfaceError") and exc.args and exc.args[0] in _MYSQL_AWAY:
            return True
        exc = exc.__cause__ or exc.__context__
    return False


def _mmap_value(value):
    """
    ``value`` as mmap_cache gives it back unharmed: its reader refuses keys that are not text, and it cannot write
    all that Salt's own serializer can. Such a value is stored as the bytes that Salt's serializer makes of it.
    """
    packed = salt.payload.dumps(value)
    try:
        return msgpack.unpackb(packed, raw=False, strict_map_key=True)
    except Exception:
        return packed


def _store():
    """The store of this process for these options."""
    opts = __opts__.value() if hasattr(__opts__, "value") else __opts__
    known = _STORES.get(id(opts))
    pid = os.getpid()
    if known is not None and known[0] is opts and known[1].pid == pid:
        store = known[1]
        if store.driver == (opts.get("cache") or "localfs") and store.cachedir == opts["cachedir"]:
            return store
    with _loading():
        # Not across a fork: two processes must not talk over one connection.
        wanted = _settings(opts)
        same = (kept for _, kept in _STORES.values() if kept.pid == pid and kept.settings == wanted)
        store = next(same, None) or Store(opts)
        while len(_STORES) >= 8:
            del _STORES[next(iter(_STORES))]
        _STORES[id(opts)] = (opts, store)
        return store


def _loading():
    return _LOADING.setdefault(os.getpid(), threading.Lock())


def _settings(opts):
    """What of the options decides which driver is loaded and where it keeps its data."""
    kinds = ("cache", "redis", "mysql", "etcd", "consul", "mmap_cache", "extension_modules", "module_dirs")
    return {name: value for name, value in opts.items() if name.startswith(kinds)}


# ---------------------------------------------------------------------------------------------------------
# What the master writes
# ---------------------------------------------------------------------------------------------------------


def prep_jid(nocache=False, passed_jid=None, recurse_count=0):
    """
    The jid for a new job: ``passed_jid`` as it is, or a new one that no stored job has.

    nocache
        Store no returns of this job.

    Returns None, after a warning, where ``passed_jid`` is refused.
    Raises SaltCacheError when five new tries all collided, or the driver fails.
    """
    store = _store()
    if passed_jid:
        key = store.key(passed_jid, "jid")
        jid = None if key is None else _plain(passed_jid)
    else:
        jid = key = _new_jid(store, recurse_count)
    if nocache and key is not None:
        store.store(NOCACHE, key, True)
    return jid


def _new_jid(store, tries):
    jid = None
    for _ in range(1 + JID_TRIES if tries < JID_TRIES else 0):
        jid = salt.utils.jid.gen_jid(__opts__)
        if not store.contains(LOADS, jid):
            return jid
    raise SaltCacheError(f"No free jid after {JID_TRIES} new tries (driver {store.driver}, bank={LOADS!r} key={jid!r})")


def returner(load):
    """
    Store the return of one minion. The first one is kept.

    load
        ``jid``, ``id`` and what there is of ``return``, ``retcode``, ``success`` and ``out``. The jid ``req`` is
        replaced, in ``load``, by a new one.

    Returns None; False where the minion has returned already or an id is refused.
    """
    if load["jid"] == "req":
        load["jid"] = prep_jid(nocache=load.get("nocache", False))
    store = _store()
    jid = store.key(load["jid"], "jid")
    minion = store.key(load.get("id"), "minion id")
    if jid is None or minion is None:
        return False
    if store.contains(NOCACHE, jid):
        return None
    bank = f"{RETURNS}/{jid}"
    record = {name: load[name] for name in RECORD if name in load}
    with store.lock(jid, minion):
        if not store.contains(bank, minion):
            _index_returns(store, jid, load["id"])
            store.store(bank, minion, record)
            return None
    _report_second_return(store, bank, minion, load, record)
    return False


def _index_returns(store, jid, minion):
    """
    Where the driver cannot list the returns banks, leave a trace that the sweep finds.

    Without it, returns that came without a load would stay for ever.
    """
    if store.driver == "mysql" and not store.contains(LOADS, jid) and not store.contains(MINIONS, jid):
        store.store(MINIONS, jid, [_plain(minion)])


def _report_second_return(store, bank, minion, load, record):
    try:
        first = store.fetch(bank, minion)
        again = salt.payload.loads(salt.payload.dumps(record))
    except Outage:
        raise
    except Exception as exc:
        log.warning("Minion %s returned again for jid %s, which cannot be compared: %s", load["id"], load["jid"], exc)
        return
    if not isinstance(first, dict):
        first = {"return": first}
    differing = [name for name in RECORD if first.get(name) != again.get(name)]
    if not differing:
        log.debug("Minion %s returned the same again for jid %s", load["id"], load["jid"])
        return
    log.warning(
        "Minion %s returned again for jid %s, and differently in %s. The first return is kept. Either two minions "
        "share the id, or somebody plays an old return back",
        load["id"],
        load["jid"],
        ", ".join(differing),
    )


def save_load(jid, clear_load, minions=None, recurse_count=0):
    """
    Store the load of a job, without its secrets.

    minions
        The matched minions, where the caller is this master's publish. The first such load is kept as it is,
        and later calls with ``minions`` only add theirs. A call without ``minions`` comes from a return, a
        syndic, salt-ssh or a runner: it is kept only while the jid has no load yet.
    """
    store = _store()
    if recurse_count >= JID_TRIES:
        raise SaltCacheError(f"Gave up (driver {store.driver}, bank={LOADS!r} key={jid!r}) after {recurse_count} tries")
    key = store.key(jid, "jid")
    if key is None:
        return
    if not isinstance(clear_load, dict):
        log.warning("Refusing the load of jid %s: it is a %s and no dictionary", jid, type(clear_load).__name__)
        return
    if minions is not None:
        _save_published(store, key, clear_load, minions)
    elif not store.contains(PUBLISHED, key):
        _save_reported(store, key, clear_load)


def _save_published(store, key, load, minions):
    named = store.plain_minions(key, minions)
    with store.lock(key):
        known = _publication(store, key)
        # A load that a cluster shed or that was cleaned away is stored again with its next publish.
        if known is None or not store.contains(LOADS, key):
            store.store(LOADS, key, store.without_secrets(load))
        # Written even if nothing is added: a replay starts the time that the job is kept anew.
        before = store.add_minions(key, named, always=True)
        added = set(known.get("added", ()) if known else before)
        _note_publication(store, key, known or {}, added.difference(named))


def _publication(store, key):
    """What is noted of the publish of a job; None where none is, ``{}`` where the note is spoilt."""
    if not store.contains(PUBLISHED, key):
        return None
    known = _read(store, PUBLISHED, key)
    return known if isinstance(known, dict) else {}


def _note_publication(store, key, known, added):
    """Note a publish, unless just that is ``known``. ``added`` are the minions of the job that none named."""
    note = {"at": known.get("at", time.time()), "by": known.get("by", __opts__.get("id"))}
    if added:
        note["added"] = sorted(added)
    if note != known:
        store.store(PUBLISHED, key, note)


def _save_reported(store, key, load):
    minions = store.plain_minions(key, _reported_minions(load))
    with store.lock(key):
        if store.contains(PUBLISHED, key) or store.contains(LOADS, key):
            return
        stored = store.without_secrets(load)
        stored.pop("Minions", None)  # a syndic's master adds it; kept in its own bank
        stored.setdefault("arg", _reported_arguments(load))
        store.store(LOADS, key, stored)
        if minions:
            store.add_minions(key, minions)


def _reported_arguments(load):
    """A return, and the return of a runner, carries its arguments as fun_args."""
    for source in (load, load.get("return")):
        if isinstance(source, dict) and isinstance(source.get("fun_args"), list):
            return source["fun_args"]
    return []


def _reported_minions(load):
    """Whom a load that did not come from publish was meant for, as far as this master can know."""
    if isinstance(load.get("Minions"), (list, tuple)):
        return load["Minions"]
    # salt-ssh targets its roster, of which the accepted keys say nothing
    if not load.get("tgt") or ("argv" in __opts__ and "tgt" in __opts__):
        return []
    try:
        found = salt.utils.minions.CkMinions(__opts__).check_minions(load["tgt"], load.get("tgt_type", "glob"))
        return found["minions"]
    except Exception as exc:
        log.warning("Cannot tell which minions the target %.200r means: %s", load["tgt"], exc)
        return []


def save_minions(jid, minions, syndic_id=None):
    """Add ``minions`` to those of the job. ``syndic_id`` is the syndic that reports them."""
    store = _store()
    key = store.key(jid, "jid")
    if key is None or (syndic_id is not None and store.key(syndic_id, "syndic id") is None):
        return
    reported = store.plain_minions(key, minions)
    with store.lock(key):
        known = _publication(store, key)
        if known:
            added = reported.difference(store.fetch(MINIONS, key) or ())
            _note_publication(store, key, known, added.union(known.get("added", ())))
        store.add_minions(key, reported)


def update_endtime(jid, the_time):
    """Store when the job ended."""
    store = _store()
    key = store.key(jid, "jid")
    if key is not None:
        store.store(ENDTIMES, key, the_time)


# ---------------------------------------------------------------------------------------------------------
# What operators read
# ---------------------------------------------------------------------------------------------------------


def get_load(jid):
    """The load of the job, with its minions as ``Minions``; ``{}`` where there is none."""
    store = _store()
    key = store.key(jid, "jid")
    load = {} if key is None else store.fetch(LOADS, key)
    if not load or not isinstance(load, dict):
        return {}
    # Nobody could tell whom the job was meant for: those who answered, then
    minions = store.fetch(MINIONS, key) or [store.decode(name) for name in store.names(f"{RETURNS}/{key}")]
    if minions:
        load["Minions"] = sorted(minions)
    return load


def get_jid(jid):
    """``{minion: {"return": …, "retcode": …, "success": …, "out": …}}`` of the job, with what there is."""
    store = _store()
    key = store.key(jid, "jid")
    if key is None:
        return {}
    bank = f"{RETURNS}/{key}"
    returns = {}
    for minion in store.names(bank):
        record = _read(store, bank, minion)
        if not record and (record is None or not store.contains(bank, minion)):
            continue
        if not isinstance(record, dict) or "return" not in record:
            record = {"return": record}
        returns[store.decode(minion)] = record
    return returns


def _read(store, bank, key):
    """One of many: None, after an error in the log, where this one cannot be read."""
    try:
        return store.fetch(bank, key)
    except Outage:
        raise
    except SaltCacheError as exc:
        log.error("Skipped in the job cache: %s", exc)
        return None


def get_jids():
    """``{jid: description}`` of every job, as ``jobs.list_jobs`` shows it."""
    store = _store()
    with_end = __opts__.get("job_cache_store_endtime")
    jobs = {}
    for key in store.names(LOADS):
        load = _read(store, LOADS, key)
        if not load or not isinstance(load, dict):
            continue
        jid = store.decode(key)
        jobs[jid] = _describe(salt.utils.jid.format_jid_instance, jid, load)
        end = _read(store, ENDTIMES, key) if with_end else None
        if end:
            jobs[jid]["EndTime"] = end
    return jobs


def get_jids_filter(count, filter_find_job=True):
    """
    Descriptions of the newest ``count`` jobs, oldest of them first.

    filter_find_job
        Leave ``saltutil.find_job`` out.
    """
    store = _store()
    found = []
    for key in _newest_first(store, int(count)) if int(count) > 0 else ():
        load = _read(store, LOADS, key)
        if not load or not isinstance(load, dict):
            continue
        if filter_find_job and load.get("fun") == "saltutil.find_job":
            continue
        jid = store.decode(key)
        found.append(_describe(salt.utils.jid.format_jid_instance_ext, jid, load))
        if len(found) == int(count):
            break
    return found[::-1]


def _newest_first(store, count):
    """
    The keys of the loads, newest first.

    Few are asked for, as a rule, so the first ones are picked without sorting all of them. A jid with no time in
    it has its place by when it was written.
    """
    names = store.names(LOADS)
    picked = heapq.nlargest(4 * count, names)
    if all(_has_date(name) for name in picked):
        yield from picked
        rest = set(names).difference(picked)
    else:
        rest = names
    yield from sorted(rest, key=lambda name: (name if _has_date(name) else _written(store, name), name), reverse=True)


def _has_date(jid):
    return jid[:8].isdigit() and jid.isascii()


def _written(store, key):
    """When the load was written, in the form of a jid, so that the two compare."""
    try:
        return _jid_at(store.updated(LOADS, key) or 0)
    except Outage:
        raise
    except SaltCacheError:
        return ""


def _jid_at(seconds):
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y%m%d%H%M%S%f")


def _describe(form, jid, load):
    """What is in a load may come from a minion, and a custom jid of 20 characters has no month."""
    try:
        return form(jid, load)
    except Exception as exc:
        log.debug("Job %s has no regular description: %s", jid, exc)
        shown = {"Function": str(load.get("fun", "unknown-function")), "Arguments": [], "Target": "unknown-target"}
        shown.update({"Target-type": "list", "User": str(load.get("user", "root")), "StartTime": "", "JID": jid})
        with contextlib.suppress(Exception):
            shown.update(salt.utils.jid.format_job_instance(load))
        if form is salt.utils.jid.format_jid_instance:
            del shown["JID"]
        return shown


def get_endtime(jid):
    """When the job ended; None where it was not stored."""
    store = _store()
    key = store.key(jid, "jid")
    return (store.fetch(ENDTIMES, key) or None) if key is not None else None


# ---------------------------------------------------------------------------------------------------------
# Retention
# ---------------------------------------------------------------------------------------------------------


def clean_old_jobs():
    """
    Remove the jobs older than ``keep_jobs_seconds`` (0 keeps all), and what is left of jobs without a load.

    Salt's maintenance process would die of an error, so a driver that fails is logged; the next sweep goes on.
    """
    keep = salt.utils.job.get_keep_jobs_seconds(__opts__)
    if not keep:
        return
    store = _store()
    try:
        for jid in _perhaps_old(store, LOADS, keep):
            _drop_if_old(store, jid, keep)
        for bank in (*BANKS[1:], RETURNS):
            for jid in _perhaps_old(store, bank, keep):
                if not store.contains(LOADS, jid):
                    _drop_if_old(store, jid, keep)
    except SaltCacheError as exc:
        log.error("The job cache could not be cleaned: %s", exc)


def _perhaps_old(store, bank, keep):
    """The jids in ``bank`` whose own time does not tell that they are fresh: compared as text, nothing is read."""
    now = time.time()
    return store.outside(bank, _jid_at(max(0, now - keep)), _jid_at(now + CLOCK_SKEW), keep)


def _drop_if_old(store, jid, keep):
    with store.lock(jid):
        last = store.last_written(jid) or _time_of(jid)
        if last is None or time.time() - last <= keep:
            return
        try:
            store.drop(jid)
        except Outage:
            raise
        except SaltCacheError as exc:
            log.error("Job %s could not be removed from the job cache: %s", jid, exc)


def _time_of(jid):
    try:
        parsed = datetime.datetime.strptime(jid[:20], "%Y%m%d%H%M%S%f")
    except ValueError:
        return None
    return parsed.replace(tzinfo=datetime.timezone.utc).timestamp()
