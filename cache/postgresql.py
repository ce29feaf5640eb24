"""
Keeps everything of Salt's ``cache:`` in one table of a PostgreSQL server: jobs, minion data, the mine, tokens.

.. code-block:: yaml

    cache: postgresql
    postgresql.host: db.example.com
    postgresql.user: salt
    postgresql.password: …
    postgresql.db: salt

Masters with the same server and database share one cache, whatever their ``cachedir``. Needs psycopg:
``pip install saltext-jobs[postgresql]``. All options are in ``docs/postgresql.md``.

These are short functions; ``core/ledger/values.py`` does the work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The options of the calling loader. All loaders of a process share the globals that they write into this module.
from saltext.jobs.core.compat import loader_opts as __opts__
from saltext.jobs.core.disk import stored
from saltext.jobs.core.ledger import values
from saltext.jobs.core.ledger.driver import errors as _errors
from saltext.jobs.core.ledger.tables import Tables

try:
    from saltext.jobs.core.postgresql import tables
except ImportError:
    tables = None  # type: ignore[assignment]  # psycopg is an extra

__virtualname__ = "postgresql"
__func_alias__ = {"list_": "list"}


def __virtual__() -> str | tuple[bool, str]:
    if tables is None:
        return False, "the Python module psycopg is missing: pip install 'saltext-jobs[postgresql]'"
    return __virtualname__


def init_kwargs(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the additional arguments of each function: none, since the options name the server."""
    return {}


def store(bank: str, key: str, data: Any, expires: float | None = None) -> None:
    """
    Store ``data``: anything that Salt's serializer takes.

    expires
        Seconds after which the value counts as absent; by default it never expires.
    """
    with _errors("postgresql", "store", bank, key):
        values.store(_tables(), bank, key, data, expires=expires or None)


def fetch(bank: str, key: str) -> Any:
    """Return the value; ``{}`` if there is none."""
    with _errors("postgresql", "fetch", bank, key):
        return values.fetch(_tables(), bank, key)


def updated(bank: str, key: str) -> int | None:
    """Return the Unix time of the last write, in whole seconds; None if there is no value."""
    with _errors("postgresql", "updated", bank, key):
        found = values.updated(_tables(), bank, key)
    return None if found is None else int(found)


def flush(bank: str, key: str | None = None) -> bool:
    """Remove a key; without a key, the bank and everything below it. Return whether anything was removed."""
    with _errors("postgresql", "flush", bank, key):
        return values.flush(_tables(), bank, key)


def list_(bank: str) -> list[str]:
    """Return the names of the keys and the banks in ``bank``."""
    with _errors("postgresql", "list", bank):
        return values.names(_tables(), bank)


def list_all(bank: str, include_data: bool = False) -> dict[str, Any]:
    """Return ``{key: value}`` of a bank; the values are always included."""
    with _errors("postgresql", "list", bank):
        return {key: stored.loads(value) for key, value in values.items(_tables(), bank)}


def contains(bank: str, key: str | None = None) -> bool:
    """Tell whether the key has a value; without a key, whether the bank exists."""
    with _errors("postgresql", "contains", bank, key):
        return values.contains(_tables(), bank, key)


def clean_expired(bank: str) -> None:
    """Remove the expired values of a bank."""
    with _errors("postgresql", "clean", bank):
        values.clean_expired(_tables(), bank)


def _tables() -> Tables:
    return tables.cache_of(__opts__)
