"""
The database that masters have in common if their engines work as one: that of a master alone, or one in PostgreSQL that
several share.

Other modules must never bypass this one: they do not know where the tables are, nor how a process leads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.sqlite.tables import SqliteTables

#: The option for masters that share a database, its value, and the other options that it needs.
_SITE, _POSTGRESQL = "saltext_jobs_site", "postgresql"
_NEEDED = {"master_job_cache": "salt_cache", "cache": _POSTGRESQL}


def left_by(opts: Mapping[str, Any]) -> dict[str, Any] | None:
    """
    Return the options of this master from before `cache:` became sqlite, or was sqlite, if the file that it used then is
    still there; None if not. Nothing goes on in that file.
    """
    other = {**opts, "cache": "localfs" if opts.get("cache") == "sqlite" else "sqlite"}
    if opts.get(_SITE) or (there := site_of(other).place) == site_of(opts).place or not os.path.exists(there):
        return None
    return other


def site_of(opts: Mapping[str, Any]) -> Tables:
    """Return the tables of this master's site. :raises SettingsError: if the option is wrong, or lacks one that it needs."""
    kind: Any = opts.get("saltext_jobs_site")
    if isinstance(kind, Tables):  # a simulated one
        return kind
    if not kind:
        return SqliteTables(opts)
    if kind != _POSTGRESQL:
        raise SettingsError(f"{_SITE} is {kind!r}; accepted is {_POSTGRESQL}, or none: then the cachedir is the site")
    lacking = [f"{name}: {value}" for name, value in _NEEDED.items() if opts.get(name) != value]
    if lacking:
        raise SettingsError(f"{_SITE} is {kind}, which needs {' and '.join(lacking)} too")
    from saltext.jobs.core.postgresql.tables import PostgresqlTables  # psycopg is an extra

    return PostgresqlTables(opts)
