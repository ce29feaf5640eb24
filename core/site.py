"""
What masters have in common if their engines work as one: a master alone with its cachedir, or all that share a database in
PostgreSQL.

Other modules must never bypass this one: they do not know where the tables are, nor how a process leads.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.ledger import log
from saltext.jobs.core.ledger.log import SIZE, Position
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.sqlite.tables import SqliteTables

Log = log.Reader
LogWriter = log.Writer

#: The option for masters that share a database, its value, and the other options that it needs.
_SITE, _POSTGRESQL = "saltext_jobs_site", "postgresql"
_NEEDED = {"master_job_cache": "salt_cache", "cache": _POSTGRESQL}


class Site:
    """``tables``: its database, which also tells who leads each engine."""

    def __init__(self, opts: Mapping[str, Any], tables: Tables) -> None:
        self.opts, self.tables = opts, tables
        self.lease, self.leader, self.lead, self.doubts = tables.lease, tables.leader, tables.lead, tables.doubts
        #: Seconds that a runner waits for an engine. Another master takes over within that time.
        self.patience = 45.0 if tables.is_far else 10.0

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return self.tables.place if self.tables.is_far else str(self.opts["cachedir"])

    def path(self, engine: str) -> pathlib.Path | None:
        """Return the directory of an engine's lock on this machine; None if there is none."""
        return None if self.tables.is_far else pathlib.Path(self.opts["cachedir"], "saltext_jobs", engine)

    def log(self, position: Position | None = None) -> Log:
        """Return the log of all masters, read from a position on; without one, from its end."""
        return Log(self.tables, position)

    def log_writer(self, size: int = SIZE) -> LogWriter:
        """Return the writer with which a process of this master appends to the log. :param size: most bytes of the log."""
        return LogWriter(self.tables, size)


def site_of(opts: Mapping[str, Any]) -> Site:
    """Return what this master shares. :raises SettingsError: if the option is wrong, or one that it needs is not set."""
    kind: Any = opts.get("saltext_jobs_site")
    if isinstance(kind, Site):  # a simulated one
        return kind
    if not kind:
        return Site(opts, SqliteTables(opts))
    if kind != _POSTGRESQL:
        raise SettingsError(
            f"{_SITE} is {kind!r}; accepted is {_POSTGRESQL}, or nothing: then the cachedir is the site"
        )
    lacking = [f"{name}: {value}" for name, value in _NEEDED.items() if opts.get(name) != value]
    if lacking:
        raise SettingsError(f"{_SITE} is {kind}, which needs {' and '.join(lacking)} too")
    from saltext.jobs.core.postgresql.tables import PostgresqlTables  # psycopg is an extra

    return Site(opts, PostgresqlTables(opts))
