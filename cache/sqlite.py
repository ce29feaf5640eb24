"""
Keeps everything of Salt's ``cache:`` in one SQLite file: jobs, minion data, the mine, tokens.

.. code-block:: yaml

    cache: sqlite
    # sqlite_cache_path: /var/cache/salt/master/cache.sqlite

Nothing needs to be installed: SQLite is a part of Python. Several processes may read and write at once. The file must be on
a local disk. It is private to the user that the master runs as, because it holds pillars and tokens.

These are short functions; ``core/ledger/values.py`` does the work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import salt.syspaths

# The options of the calling loader. All loaders of a process share the globals that they write into this module.
from saltext.jobs.core.compat import loader_opts as __opts__
from saltext.jobs.core.disk import stored
from saltext.jobs.core.ledger import values
from saltext.jobs.core.ledger.driver import errors as _errors
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.sqlite import tables

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
    with _errors("sqlite", "store", bank, key):
        values.store(_tables(cachedir), bank, key, data, expires=expires or None)


def fetch(bank: str, key: str, cachedir: str | None = None) -> Any:
    """Return the value; ``{}`` if there is none."""
    with _errors("sqlite", "fetch", bank, key):
        return values.fetch(_tables(cachedir), bank, key)


def updated(bank: str, key: str, cachedir: str | None = None) -> int | None:
    """Return the Unix time of the last write, in whole seconds; None if there is no value."""
    with _errors("sqlite", "updated", bank, key):
        found = values.updated(_tables(cachedir), bank, key)
    return None if found is None else int(found)


def flush(bank: str, key: str | None = None, cachedir: str | None = None) -> bool:
    """Remove a key; without a key, the bank and everything below it. Return whether anything was removed."""
    with _errors("sqlite", "flush", bank, key):
        return values.flush(_tables(cachedir), bank, key)


def list_(bank: str, cachedir: str | None = None) -> list[str]:
    """Return the names of the keys and the banks in ``bank``."""
    with _errors("sqlite", "list", bank):
        return values.names(_tables(cachedir), bank)


def list_all(bank: str, cachedir: str | None = None, include_data: bool = False) -> dict[str, Any]:
    """Return ``{key: value}`` of a bank. Values cost next to nothing, so ``include_data`` is ignored."""
    with _errors("sqlite", "list", bank):
        return {key: stored.loads(value) for key, value in values.items(_tables(cachedir), bank)}


def contains(bank: str, key: str | None = None, cachedir: str | None = None) -> bool:
    """Tell whether the key has a value; without a key, whether the bank exists."""
    with _errors("sqlite", "contains", bank, key):
        return values.contains(_tables(cachedir), bank, key)


def clean_expired(bank: str, cachedir: str | None = None) -> None:
    """Remove the expired values of a bank."""
    with _errors("sqlite", "clean", bank):
        values.clean_expired(_tables(cachedir), bank)


def _cachedir(given: str | None) -> str:
    return given or __opts__.get("cachedir") or salt.syspaths.CACHE_DIR


def _tables(cachedir: str | None) -> Tables:
    return tables.cache_of(__opts__, _cachedir(cachedir))
