"""
A site on PostgreSQL: masters whose engines work as one.

One database is one site. A master remembers in its cachedir which site it belongs to. With another database, such as an old
copy, it would take all owed jobs for done (``core/postgresql/tables.py``).
"""

from __future__ import annotations

import functools
from typing import Any

from saltext.jobs.core.advice import Advice
from saltext.jobs.core.disk.lease import Leader, leader_of
from saltext.jobs.core.ledger.seal import Seal
from saltext.jobs.core.ledger.site import Lead, Site
from saltext.jobs.core.postgresql.connections import Connections
from saltext.jobs.core.postgresql.lease import TableLease
from saltext.jobs.core.postgresql.tables import LEASES, PostgresqlTables, asked, server_of

_LEADER = f"SELECT leader FROM {LEASES} WHERE engine = %s"
_LEAD = f"""SELECT leader, extract(epoch FROM clock_timestamp() - nullif(alive, '-infinity'))::float8,
    extract(epoch FROM until - clock_timestamp())::float8 FROM {LEASES} WHERE engine = %s AND until > clock_timestamp()"""
_SETTINGS = "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)"
_REPLICAS = "SELECT count(*) FROM pg_stat_replication"


class PostgresqlSite(Site):
    """
    All masters whose options name the same database.

    :raises SettingsError: by any method, naming an option.
    """

    #: Another process takes over within that time.
    patience = 45.0

    @functools.cached_property
    def _server(self) -> Connections:
        return server_of(self.opts, is_site=True)

    @functools.cached_property
    def tables(self) -> PostgresqlTables:  # type: ignore[override]
        return PostgresqlTables(self._server, Seal(self.opts))

    def doubts(self) -> list[str]:
        """Return how the server could lose what it has confirmed, one sentence each."""
        names = ("fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names")
        told = {str(name): str(value) for name, value in self._rows(_SETTINGS, list(names))}
        standbys = told.get("synchronous_standby_names", "")
        found = [
            f"{name} is off at PostgreSQL: a crash of the server can take what it has confirmed, or damage it; set it to on"
            for name in names[:3]
            if told.get(name) == "off"
        ]
        if standbys and told.get("synchronous_commit") in ("local", "remote_write"):
            found.append(
                f"synchronous_commit is {told['synchronous_commit']} at PostgreSQL, so a failover can lose what it has "
                "confirmed: set it to on"
            )
        if self._rows(_REPLICAS)[0][0] and not standbys:
            found.append(
                Advice(
                    "PostgreSQL does not wait for its replica, so a failover to it can lose the last writes: name the "
                    "replica in synchronous_standby_names"
                )
            )
        return found

    def lease(self, engine: str, run: str = "") -> TableLease:
        return TableLease(self._server, engine, self._master, run)

    def leader(self, engine: str) -> Leader | None:
        rows = self._rows(_LEADER, engine)
        return leader_of(bytes(rows[0][0])) if rows else None

    def lead(self, engine: str) -> Lead | None:
        rows = self._rows(_LEAD, engine)
        if not rows:
            return None
        line, silent, left = rows[0]
        return Lead(leader_of(bytes(line)), silent, left)

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = asked(
            self._server, lambda connection: connection.execute(query.encode(), values).fetchall()
        )
        return found
