"""
The tables of a site: masters whose engines work as one, on one PostgreSQL server.

=========================  =========================================================================================
``saltext_jobs_site``      one row: the site's unique name, the format of these tables, the place in the log of its newest
                           record, and of the newest one that was removed
``saltext_jobs_masters``   the ids of the masters that have written to the log
``saltext_jobs_leases``    one row per engine: which process leads, in which epoch, and until when
``saltext_jobs_files``     the engines' files, each in one or more parts
``saltext_jobs_log``       what the masters did, in one order; ``body`` is NULL where records are missing
=========================  =========================================================================================

A place in the log is a time in microseconds, so a place that was lost in a crash of the server is never used again. Only
the server's clock decides until when a lease lasts.
"""

from __future__ import annotations

import uuid

import psycopg

from saltext.jobs.core import formats
from saltext.jobs.core.postgresql.connections import LONG, Patient

#: The format of the tables: see ``core/formats.py``.
FORMAT = 1
SITE, MASTERS, LEASES, FILES, LOG = (f"saltext_jobs_{name}" for name in ("site", "masters", "leases", "files", "log"))
#: The number of the advisory lock under which the tables are made: several masters may start at once.
_LOCK = 7305805923

_STATEMENTS = (
    f"CREATE TABLE {MASTERS} (id text PRIMARY KEY)",
    f"""CREATE TABLE {LEASES} (
        engine text PRIMARY KEY, session text NOT NULL, epoch bigint NOT NULL, leader bytea NOT NULL,
        until timestamptz NOT NULL, alive timestamptz NOT NULL)""",
    f"""CREATE TABLE {FILES} (
        engine text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL, part bigint NOT NULL, body bytea NOT NULL,
        modified timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (engine, name, part))""",
    f"""CREATE TABLE {LOG} (
        place bigint PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(), body bytea)""",
    f"""CREATE TABLE {SITE} (
        id text NOT NULL, number integer NOT NULL, last bigint NOT NULL DEFAULT 0, removed bigint NOT NULL DEFAULT 0)""",
)


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
        for statement in _STATEMENTS:
            connection.execute(statement.encode())
        connection.execute(f"INSERT INTO {SITE} (id, number) VALUES (%s, {FORMAT})".encode(), (uuid.uuid4().hex,))
