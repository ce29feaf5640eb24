"""
Calls to a driver of ``salt.cache``: the driver is loaded once, and a call is repeated while the driver's server is away.
Every error is raised as a :py:exc:`salt.exceptions.SaltCacheError` that names driver, bank and key.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import math
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import salt.loader
import salt.payload
from salt.exceptions import NotImplemented, SaltCacheError, SaltDeserializationError

from saltext.jobs.core import loader
from saltext.jobs.core.banks import NOCACHE
from saltext.jobs.core.errors import JobsError, RowRefused

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


class Calls:
    """The driver that ``cache:`` names, as Salt's loader gives it."""

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
        except KeyError as exc:
            raise Unavailable(f"cache: {self.name} is not available: {exc} is missing") from None
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
