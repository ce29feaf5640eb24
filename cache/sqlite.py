"""
Keeps everything of Salt's ``cache:`` in one SQLite file: jobs, minion data, the mine, tokens.

.. code-block:: yaml

    cache: sqlite
    # sqlite_cache_path: /var/cache/salt/master/cache.sqlite
    # sqlite_cache_synchronous: NORMAL    # or FULL: every write waits for the disk

Nothing needs to be installed: SQLite is a part of Python. Several processes may read and write at once. The file must be on
a local disk. It is private to the user that the master runs as, because it holds pillars and tokens.

These are short functions; ``core/sqlite/banks.py`` does the work.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

import salt.syspaths
from salt.exceptions import SaltCacheError

# The options of the calling loader. All loaders of a process share the globals that they write into this module.
from saltext.jobs.core.compat import loader_opts as __opts__
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.sqlite import banks, stored

__virtualname__ = "sqlite"
__func_alias__ = {"list_": "list"}


def __virtual__() -> str:
    return __virtualname__


def init_kwargs(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the additional arguments of each function."""
    return {"cachedir": _cachedir(kwargs.get("cachedir"))}


def get_storage_id(kwargs: Mapping[str, Any]) -> tuple[str, str]:
    """Return the identity of this storage, for Salt's cache in memory."""
    return ("sqlite", _cachedir(kwargs.get("cachedir")))


def store(bank: str, key: str, data: Any, cachedir: str | None = None, expires: float | None = None) -> None:
    """
    Store ``data``: anything that Salt's serializer takes.

    expires
        Seconds after which the value counts as absent; by default it never expires.
    """
    with _errors("store", bank, key):
        _banks(cachedir).store(bank, key, data, expires=expires or None)


def fetch(bank: str, key: str, cachedir: str | None = None) -> Any:
    """Return the value; ``{}`` if there is none."""
    with _errors("fetch", bank, key):
        return _banks(cachedir).fetch(bank, key)


def updated(bank: str, key: str, cachedir: str | None = None) -> int | None:
    """Return the Unix time of the last write, in whole seconds; None if there is no value."""
    with _errors("updated", bank, key):
        found = _banks(cachedir).updated(bank, key)
    return None if found is None else int(found)


def flush(bank: str, key: str | None = None, cachedir: str | None = None) -> bool:
    """Remove a key; without a key, the bank and everything below it. Return whether anything was removed."""
    with _errors("flush", bank, key):
        return _banks(cachedir).flush(bank, key)


def list_(bank: str, cachedir: str | None = None) -> list[str]:
    """Return the names of the keys and the banks in ``bank``."""
    with _errors("list", bank, None):
        return _banks(cachedir).list(bank)


def list_all(bank: str, cachedir: str | None = None, include_data: bool = False) -> dict[str, Any]:
    """Return ``{key: value}`` of a bank. Values cost next to nothing, so ``include_data`` is ignored."""
    with _errors("list", bank, None):
        return {key: stored.loads(value) for key, value in _banks(cachedir).items(bank)}


def contains(bank: str, key: str | None = None, cachedir: str | None = None) -> bool:
    """Tell whether the key has a value; without a key, whether the bank exists."""
    with _errors("contains", bank, key):
        return _banks(cachedir).contains(bank, key)


def clean_expired(bank: str, cachedir: str | None = None) -> None:
    """Remove the expired values of a bank."""
    with _errors("clean", bank, None):
        _banks(cachedir).clean_expired(bank)


def _cachedir(given: str | None) -> str:
    return given or __opts__.get("cachedir") or salt.syspaths.CACHE_DIR


def _banks(cachedir: str | None) -> banks.SqliteBanks:
    return banks.banks_of(__opts__, _cachedir(cachedir))


@contextlib.contextmanager
def _errors(what: str, bank: str, key: str | None) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, StateError, OSError, ValueError, TypeError, OverflowError) as exc:
        raise SaltCacheError(f"The cache driver sqlite could not {what} bank={bank!r} key={key!r}: {exc}") from exc
