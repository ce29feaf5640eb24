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

These are short functions; ``core/postgresql/banks.py`` does the work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from salt.exceptions import SaltCacheError

# The options of the calling loader. All loaders of a process share the globals that they write into this module.
from saltext.jobs.core.compat import loader_opts as __opts__
from saltext.jobs.core.disk import packed
from saltext.jobs.core.errors import JobsError

try:
    from saltext.jobs.core.postgresql import banks
except ImportError:
    banks = None  # type: ignore[assignment]  # psycopg is an extra

__virtualname__ = "postgresql"
__func_alias__ = {"list_": "list"}


def __virtual__() -> str | tuple[bool, str]:
    if banks is None:
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
    with _errors("store", bank, key):
        _banks().store(bank, key, data, expires=expires or None)


def fetch(bank: str, key: str) -> Any:
    """Return the value; ``{}`` if there is none."""
    with _errors("fetch", bank, key):
        return _banks().fetch(bank, key)


def updated(bank: str, key: str) -> int | None:
    """Return the Unix time of the last write, in whole seconds; None if there is no value."""
    with _errors("updated", bank, key):
        found = _banks().updated(bank, key)
    return None if found is None else int(found)


def flush(bank: str, key: str | None = None) -> bool:
    """Remove a key; without a key, the bank and everything below it. Return whether anything was removed."""
    with _errors("flush", bank, key):
        return _banks().flush(bank, key)


def list_(bank: str) -> list[str]:
    """Return the names of the keys and the banks in ``bank``."""
    with _errors("list", bank, None):
        return _banks().list(bank)


def list_all(bank: str, include_data: bool = False) -> dict[str, Any]:
    """Return ``{key: value}`` of a bank; the values are always included."""
    with _errors("list", bank, None):
        return {key: packed.loads(value) for key, value in _banks().items(bank)}


def contains(bank: str, key: str | None = None) -> bool:
    """Tell whether the key has a value; without a key, whether the bank exists."""
    with _errors("contains", bank, key):
        return _banks().contains(bank, key)


def clean_expired(bank: str) -> None:
    """Remove the expired values of a bank."""
    with _errors("clean", bank, None):
        _banks().clean_expired(bank)


def _banks() -> banks.Banks:
    return banks.banks_of(__opts__)


@contextlib.contextmanager
def _errors(what: str, bank: str, key: str | None) -> Iterator[None]:
    try:
        yield
    except (JobsError, ValueError, TypeError, OverflowError) as exc:
        # The retry queue looks at the cause, which tells whether the record is refused for good.
        raise SaltCacheError(f"The cache driver postgresql could not {what} bank={bank!r} key={key!r}: {exc}") from exc
