"""
A site on PostgreSQL: masters whose engines work as one. ``FileSite`` in ``core/site.py`` says what each method does.

One database is one site. A master remembers in its cachedir which site it belongs to. With another database, such as an old
copy, it would take all owed jobs for done (``core/postgresql/tables.py``).
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.advice import Advice
from saltext.jobs.core.disk.lease import Leader, leader_of_line
from saltext.jobs.core.ledger.folder import Folder
from saltext.jobs.core.ledger.log import SIZE, Position, Reader, Writer, writers
from saltext.jobs.core.ledger.seal import Seal
from saltext.jobs.core.postgresql.connections import Connections
from saltext.jobs.core.postgresql.lease import TableLease
from saltext.jobs.core.postgresql.tables import LEASES, PostgresqlTables, asked, server_of

_LEADER = f"SELECT leader, epoch FROM {LEASES} WHERE engine = %s".encode()
_NOW = b"SELECT extract(epoch FROM clock_timestamp())::float8"
_SETTINGS = b"SELECT name, setting FROM pg_settings WHERE name = ANY(%s)"
_REPLICAS = b"SELECT EXISTS (SELECT FROM pg_stat_replication)"
_LEFT = f"""SELECT greatest(0, extract(epoch FROM until - clock_timestamp()))::float8 FROM {LEASES}
    WHERE engine = %s AND until > '-infinity'""".encode()
_IS_LED = f"SELECT until > clock_timestamp() FROM {LEASES} WHERE engine = %s".encode()
_ALIVE = f"""SELECT extract(epoch FROM alive)::float8 FROM {LEASES}
    WHERE engine = %s AND alive > '-infinity'""".encode()


class PostgresqlSite:
    """
    All masters whose options name the same database.

    :param opts: the master's options.
    :raises SettingsError: naming an option.
    """

    #: Seconds for which a runner waits: another process takes over within that time.
    patience = 45.0

    def __init__(self, opts: Mapping[str, Any]) -> None:
        self.opts, self._master = opts, str(opts.get("id") or "")
        self._masters: frozenset[str] = frozenset()
        self._seal = Seal(opts)

    @functools.cached_property
    def _server(self) -> Connections:
        return server_of(self.opts, is_site=True)

    @property
    def place(self) -> str:
        """The server and the database."""
        return f"PostgreSQL at {self._server.place}"

    def now(self) -> float:
        """Return the time of the server."""
        row = asked(self._server, lambda connection: connection.execute(_NOW).fetchone())
        return float(row[0])

    def lease_left(self, engine: str) -> float:
        """Return for how many seconds the leader still has its lease."""
        return float(self._one(_LEFT, engine) or 0.0)

    def doubts(self) -> list[str]:
        """Return how the server could lose what it has confirmed, one sentence each."""
        names = ("fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names")
        rows = asked(self._server, lambda connection: connection.execute(_SETTINGS, (list(names),)).fetchall())
        told = {str(name): str(value) for name, value in rows}
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
        has_replica = asked(self._server, lambda connection: connection.execute(_REPLICAS).fetchone())[0]
        if has_replica and not standbys:
            found.append(
                Advice(
                    "PostgreSQL does not wait for its replica, so a failover to it can lose the last writes: name the "
                    "replica in synchronous_standby_names"
                )
            )
        return found

    def path(self, engine: str) -> None:
        """Return None: the engine's files are in the database."""

    def lease(self, engine: str, run: str = "") -> TableLease:
        """Return the lead of an engine."""
        seen = pathlib.Path(self.opts["cachedir"], "saltext_jobs", f"{engine}.epoch")
        return TableLease(self._server, engine, self._master, run, seen=seen)

    def leader(self, engine: str) -> Leader | None:
        """Return who took the lead last."""
        line = self._one(_LEADER, engine)
        return leader_of_line(bytes(line)) if line else None

    def is_led(self, engine: str) -> bool:
        """Tell whether a process has the lead now."""
        return bool(self._one(_IS_LED, engine))

    def alive_at(self, engine: str) -> float | None:
        """Return when the leader last said that it is alive."""
        found: float | None = self._one(_ALIVE, engine)
        return found

    @property
    def tables(self) -> PostgresqlTables:
        """The tables of the site."""
        return PostgresqlTables(self._server, self._seal)

    def folder(self, engine: str, lease: Any = None) -> Folder:
        """Return the files of an engine."""
        return Folder(self.tables, engine, lease)

    def log(self, position: Position | None = None) -> Reader:
        """Return the log of all masters."""
        return Reader(self.tables, position)

    def shares(self, master: str) -> bool:
        """Tell whether another master writes to the log."""
        return master in self._masters or self._is_new(master)

    def _is_new(self, master: str) -> bool:
        self._masters = writers(self.tables)
        return master in self._masters

    def log_writer(self, size: int = SIZE) -> Writer:
        """Return the writer with which a process of this master appends to the log."""
        return Writer(self.tables, self._master, size)

    def _one(self, query: bytes, engine: str) -> Any:
        row = asked(self._server, lambda connection: connection.execute(query, (engine,)).fetchone())
        return row[0] if row else None
