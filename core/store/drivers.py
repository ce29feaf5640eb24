"""
A driver of ``salt.cache`` as the job cache needs it: loaded once, asked again while its server is away, with errors that say
which driver, bank and key.

:py:class:`Driver` is any driver. What is different about one is in a class of its own: here, in ``local.py`` and in
``mmap.py``. An error leaves here as :py:exc:`salt.exceptions.SaltCacheError`, never raw.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

import salt.cache
from salt.exceptions import SaltCacheError

OUTAGE_SECONDS = 3.0  # how long a server may be away before the caller is told
RETRY_SECONDS = 0.2

# EtcdNotFile: another process was faster in making the directory that the driver keeps everything in.
_AWAY = frozenset(
    ("ConnectionError", "BusyLoadingError", "TimeoutError", "EtcdConnectionFailed", "MaxRetryError", "EtcdNotFile")
)
_MYSQL_AWAY = frozenset((0, 1040, 1053, 2002, 2003, 2006, 2013, 2055))

# One lock per process id: a lock that another thread held during a fork would never open in the child.
_LOADING: dict[int, threading.Lock] = {}


class Outage(SaltCacheError):  # type: ignore[misc]
    """The server behind the driver is away: there is no point in asking it for the next key."""


class Driver:
    """
    A driver with a server, or one that nobody here knows.

    :param opts: the master's options.
    """

    #: Whether the bank of the returns lists the jobs that have some.
    lists_banks = True
    #: The longest key in bytes that the driver's own settings allow.
    longest = 255
    #: The size in bytes of a bank's index, where a bank has one.
    bank_bytes: int | None = None

    def __init__(self, opts: Mapping[str, Any]) -> None:
        # A copy: the loader writes the options of the next loader into the same dictionary.
        self._opts = dict(opts)
        self.name: str = opts.get("cache") or "localfs"
        self._opened: tuple[Any, dict[str, Any], dict[str, Any]] | None = None
        self._guard: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()

    def fetch(self, bank: str, key: str) -> Any:
        """Return the value; ``{}`` where there is none."""
        return self._call("fetch", bank, key)

    def contains(self, bank: str, key: str) -> bool:
        return bool(self._call("contains", bank, key))

    def updated(self, bank: str, key: str) -> float | None:
        """Return the Unix time of the last write; None where there is no value or the driver cannot tell."""
        found: float | None = self._call("updated", bank, key)
        return found

    def store(self, bank: str, key: str, value: Any) -> None:
        self._call("store", bank, key, value)

    def flush(self, bank: str, key: str) -> None:
        self._call("flush", bank, key)

    def drop_bank(self, parent: str, name: str) -> None:
        """Remove the bank ``parent/name`` with all that is in it."""
        self._call("flush", f"{parent}/{name}")

    def keys(self, bank: str) -> list[str]:
        """Return the keys in ``bank``; none where the driver cannot tell. Where it lists sub-banks, those too."""
        return [name for name in self._call("list", bank) or () if isinstance(name, str)]

    def banks(self, bank: str) -> list[str]:
        """Return the names of the banks in ``bank``; none where the driver cannot tell."""
        return self.keys(bank)

    def raw_keys(self, bank: str) -> list[str]:
        """Return what ``keys`` does or, where that is faster, names that compare with other text as the keys do."""
        return self.keys(bank)

    # -- calling the driver ---------------------------------------------------------------------------------------

    def _call(self, name: str, bank: str, *args: Any) -> Any:
        """
        Call the driver. A server that is away is tried again for OUTAGE_SECONDS.

        :raises SaltCacheError: naming driver, bank and key.
        """
        began = time.monotonic()
        while True:
            try:
                with self._guard:
                    modules, calls, fixed = self._opened or self._open()
                    return _run(modules, calls[name], bank, *args, **fixed)
            except Exception as exc:  # A driver raises whatever its client library raises.
                self._opened = None
                outage = _is_outage(exc)
                if not outage or time.monotonic() - began >= OUTAGE_SECONDS:
                    raise self.error(name, bank, args[0] if args else None, exc, outage) from exc
            time.sleep(RETRY_SECONDS)

    def error(self, name: str, bank: str, key: str | None, exc: Exception, outage: bool = False) -> SaltCacheError:
        """Return the error that says that ``name`` failed."""
        kind = Outage if outage else SaltCacheError
        return kind(f"Cache driver {self.name} could not {name} bank={bank!r} key={key!r}: {exc!r:.500}")

    def _open(self) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """Load the driver: once, and again after it failed, since some go on failing on a broken connection."""
        with loading():
            if self._opened is None:
                self._opened = self._load()
            return self._opened

    def _load(self) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        cache = salt.cache.Cache(self._opts)
        names = ("store", "fetch", "contains", "updated", "flush", "list")
        try:
            calls = {name: cache.modules[f"{self.name}.{name}"].func for name in names}
        except KeyError as exc:
            raise SaltCacheError(f"The cache driver {self.name!r} is not available: {exc} is missing") from exc
        fixed = cache.kwargs if hasattr(cache, "kwargs") else cache._kwargs
        self._prepare(cache.modules, calls, fixed)
        return cache.modules, calls, fixed

    def _prepare(self, modules: Any, calls: dict[str, Any], fixed: dict[str, Any]) -> None:
        """The first call of a driver sets its client up, which none does in a way that two threads could."""
        _run(modules, calls["contains"], "jobs/nocache", "first", **fixed)


class Redis(Driver):
    """Before Salt 3008 a parent goes on listing a bank that was flushed."""

    def drop_bank(self, parent: str, name: str) -> None:
        super().drop_bank(parent, name)
        self.flush(parent, name)


class Mysql(Driver):
    """The driver's client is one connection, and Salt 3008 stores returns from several threads. It lists no banks."""

    lists_banks = False

    def __init__(self, opts: Mapping[str, Any]) -> None:
        super().__init__(opts)
        self._guard = threading.RLock()


def _run(modules: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
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


def loading() -> contextlib.AbstractContextManager[Any]:
    """Hold while a driver or a store is made: two threads of a process must not both do so."""
    return _LOADING.setdefault(os.getpid(), threading.Lock())
