"""
Which masters work as one: a master alone with its cachedir, or all that share a database in PostgreSQL.

Other modules must never bypass this one: they do not know where the tables are, nor how a process leads.
"""

from __future__ import annotations

import functools
import pathlib
import time
from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.disk import files
from saltext.jobs.core.disk.lease import FileLease, Leader, leader_of
from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.ledger import log
from saltext.jobs.core.ledger.site import Lead, Site
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.sqlite.tables import SqliteTables

Log = log.Reader
LogWriter = log.Writer

#: The option for masters that share a database, its value, and the other options that it needs.
_SITE, _POSTGRESQL = "saltext_jobs_site", "postgresql"
_NEEDED = {"master_job_cache": "salt_cache", "cache": _POSTGRESQL}


class FileSite(Site):
    """One master, with one database file. Another one may go on with the same cachedir when this one has ended."""

    @property
    def place(self) -> str:
        return str(self.opts["cachedir"])

    @functools.cached_property
    def tables(self) -> Tables:  # type: ignore[override]
        return SqliteTables(self.opts)

    def path(self, engine: str) -> pathlib.Path:
        return pathlib.Path(self.opts["cachedir"], "saltext_jobs", engine)

    def lock_path(self, engine: str) -> pathlib.Path:
        """Return the file that the leader has locked, and that says who leads. Its time is when the leader was alive."""
        return self.path(engine) / "lock"

    def lease(self, engine: str, run: str = "") -> FileLease:
        return FileLease(self.lock_path(engine), self._master, run)

    def leader(self, engine: str) -> Leader | None:
        try:
            return leader_of(self.lock_path(engine).read_bytes())
        except FileNotFoundError:
            return None

    def lead(self, engine: str) -> Lead | None:
        path = self.lock_path(engine)
        if not files.is_held(path):
            return None
        return Lead(self.leader(engine), max(0.0, time.time() - path.stat().st_mtime))


def site_of(opts: Mapping[str, Any]) -> Site:
    """
    Return what this master has in common with others.

    :raises SettingsError: if the value of ``saltext_jobs_site`` is not accepted, or an option that it needs is not set.
    """
    kind: Any = opts.get("saltext_jobs_site")
    if isinstance(kind, Site):  # a simulated one
        return kind
    if not kind:
        return FileSite(opts)
    if kind != _POSTGRESQL:
        raise SettingsError(
            f"{_SITE} is {kind!r}; accepted is {_POSTGRESQL}, or nothing: then the cachedir is the site"
        )
    lacking = [f"{name}: {value}" for name, value in _NEEDED.items() if opts.get(name) != value]
    if lacking:
        raise SettingsError(f"{_SITE} is {kind}, which needs {' and '.join(lacking)} too")
    from saltext.jobs.core.postgresql.site import PostgresqlSite  # psycopg is an extra

    return PostgresqlSite(opts)
