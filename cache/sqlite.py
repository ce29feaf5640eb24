"""
Keeps everything of Salt's ``cache:`` in one SQLite file: jobs, minion data, the mine, tokens.

.. code-block:: yaml

    cache: sqlite
    # sqlite_cache_path: /var/cache/salt/master/cache.sqlite

Nothing needs to be installed: SQLite is a part of Python. Several processes may read and write at once. The file must be on
a local disk. It is private to the user that the master runs as, because it holds pillars and tokens.

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

__virtualname__ = "sqlite"
__func_alias__ = {"list_": "list"}


def __virtual__() -> str:
    return __virtualname__


def init_kwargs(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the additional arguments of each function."""
    return {"cachedir": kwargs.get("cachedir")}


def _tables(cachedir: str | None, _bank: str) -> Tables:
    return SqliteTables(__opts__, cachedir)


globals().update(_functions(__name__, __virtualname__, _tables))
