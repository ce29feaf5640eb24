"""The tables of a site on a server: what ``core/ledger/tables.py`` asks of a database, and the table of leases."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from saltext.jobs.core import formats
from saltext.jobs.core.errors import SiteAway, StateError
from saltext.jobs.core.ledger.seal import NoSeal
from saltext.jobs.core.ledger.tables import NAME, POSTGRESQL, SITE, Execute, Result, statements
from saltext.jobs.core.postgresql.connections import LONG, Connections, Patient

#: The format of the tables: see ``core/formats.py``.
FORMAT = 3
#: One row per engine: which process leads, in which epoch, and until when. Only the server's clock decides that.
LEASES = "saltext_jobs_leases"
#: The channel on which engines are told of requests.
CHANNEL = "saltext_jobs"
#: The number of the advisory lock under which the tables are made: several masters may start at once.
_LOCK = 7305805923
_LEASES = f"""CREATE TABLE {LEASES} (
    engine text PRIMARY KEY, session text NOT NULL, epoch bigint NOT NULL, leader bytea NOT NULL,
    until timestamptz NOT NULL, alive timestamptz NOT NULL)"""


class PostgresqlTables:
    """
    What the methods do is said in ``Tables``.

    :param server: with the tables.
    :param seal: that of the site's masters.
    """

    dialect = POSTGRESQL
    is_far = True

    def __init__(self, server: Connections, seal: NoSeal) -> None:
        self._server, self.seal = server, seal

    @property
    def place(self) -> str:
        return f"PostgreSQL at {self._server.place}"

    def name(self) -> str:
        return str(self.read(NAME)[0][0])

    def open(self) -> None:
        """Do nothing: an engine without its server waits for it."""

    def read(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        def work(connection: Patient) -> list[tuple[Any, ...]]:
            rows: list[tuple[Any, ...]] = connection.execute(_of_psycopg(query), values).fetchall()
            return rows

        found: list[tuple[Any, ...]] = asked(self._server, work)
        return found

    def run(self, query: str, values: Sequence[Any] = (), durable: bool = False) -> None:
        """``durable`` is that of the server's session."""
        asked(self._server, lambda connection: connection.execute(_of_psycopg(query), values))

    def write(self, work: Callable[[Execute], Result], lease: Any = None, durable: bool = True) -> Result:
        """``durable`` is that of the server's session."""

        def in_lead(connection: Patient) -> Result:
            with connection.transaction():
                if lease is not None:
                    lease.renewed(connection)
                return work(lambda query, values: connection.execute(_of_psycopg(query), values))

        found: Result = asked(self._server, in_lead)
        return found

    def tell(self, execute: Execute, engine: str) -> None:
        execute("SELECT pg_notify(?, ?)", (CHANNEL, engine))

    def boot(self) -> str:
        return ""

    def gaps(self) -> int:
        return 0

    def note_gap(self) -> bool:
        return False


@functools.lru_cache(maxsize=200)
def _of_psycopg(query: str) -> bytes:
    return query.replace("?", "%s").encode()


def asked(server: Connections, work: Callable[[Patient], Any]) -> Any:
    """Return what ``work`` returns, called with a connection. :raises SiteAway: if the server cannot do it now."""
    try:
        return server.run(work)
    except StateError as exc:
        raise SiteAway(str(exc)) from exc


def prepare(connection: Patient) -> None:
    """
    Make the tables if they are missing, and have the session wait for the disk.

    :raises StateError: if they are of another version.
    :raises psycopg.Error: for errors of the server.
    """
    if name_of(connection) is None:
        _make(connection)
    # Otherwise a crash of the server would lose confirmed writes, such as what is about to be published.
    connection.execute(
        "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
    )


def name_of(connection: Patient) -> str | None:
    """Return the site's name; None if there are no tables. Raises as ``prepare``."""
    try:
        found = connection.execute(f"SELECT id, number FROM {SITE}".encode()).fetchone()
    except psycopg.errors.UndefinedTable:
        return None
    if found is None:
        return None
    formats.check(f"The table {SITE}", found[1], FORMAT)
    return str(found[0])


def _make(connection: Patient) -> None:
    with connection.waiting(LONG), connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        # A new statement sees tables that another master has made meanwhile.
        row = connection.execute(f"SELECT to_regclass('{SITE}') IS NOT NULL".encode()).fetchone()
        if row and row[0]:
            return
        for statement in (*statements(POSTGRESQL), _LEASES):
            connection.execute(statement.encode())
        connection.execute(f"INSERT INTO {SITE} (id, number) VALUES (%s, {FORMAT})".encode(), (uuid.uuid4().hex,))
