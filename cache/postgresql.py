"""
Keeps everything of Salt's ``cache:`` in one table of a PostgreSQL server: jobs, minion data, the mine; but not tokens.

.. code-block:: yaml

    cache: postgresql
    postgresql.host: db.example.com
    postgresql.user: salt
    postgresql.password: …
    postgresql.db: salt

Masters with the same server and database share one cache, whatever their ``cachedir``. Needs psycopg:
``pip install saltext-jobs[postgresql]``. All options are in ``docs/postgresql.md``.

The functions that Salt calls are those of ``core/ledger/driver.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The options of the calling loader. All loaders of a process share the globals that they write into this module.
from saltext.jobs.core.compat import loader_opts as __opts__
from saltext.jobs.core.ledger.driver import functions as _functions
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.sqlite.tables import SqliteTables

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


def _tables(_cachedir: str | None, bank: str) -> Tables:
    # Salt 3008 keeps tokens here. Whoever reads or writes one is its user, which the database's password must not make.
    return SqliteTables(__opts__) if bank == "tokens" else tables.PostgresqlTables(__opts__)


globals().update(_functions(__name__, __virtualname__, _tables))
