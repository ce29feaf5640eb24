"""
The table that ``cache: postgresql`` keeps, and its version.

One row is one value with its key and its bank. The fields by which jobs are found and listed are in the row of their
value, so the two always agree:

=====================  =============================================================================================
bank                   additional columns
=====================  =============================================================================================
``jobs/loads``         ``fun``, ``usr``; ``shown``: what else ``jobs.list_jobs`` shows (core/disk/job_summary.py), NULL
                       if the load itself must be read
``jobs/minions``       ``minions``: the ids in it, NULL if it is no list of ids
``jobs/returns/<jid>`` ``failed``: whether the return tells of a failure
=====================  =============================================================================================

Texts compare byte by byte, as they do in Python, whatever the language of the database.
"""

from __future__ import annotations

import psycopg

from saltext.jobs.core import formats
from saltext.jobs.core.banks import LOADS
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.postgresql.connections import LONG, Patient

#: The format of the tables: see ``core/formats.py``.
FORMAT = 1
TABLE = "salt_cache"
#: The number of the advisory lock under which the tables are made: several masters may start at once.
_LOCK = 7305805922
#: Jids that do not begin with a date.
UNDATED = "key !~ '^[0-9]{8}'"

_STATEMENTS = (
    f"""CREATE TABLE {TABLE} (
        bank text COLLATE "C" NOT NULL, key text COLLATE "C" NOT NULL,
        updated timestamptz NOT NULL DEFAULT clock_timestamp(), expires timestamptz,
        fun text COLLATE "C", usr text COLLATE "C", shown bytea, failed boolean, minions text[],
        value bytea NOT NULL, PRIMARY KEY (bank, key))""",
    f"CREATE INDEX {TABLE}_expires ON {TABLE} (bank, expires) WHERE expires IS NOT NULL",
    f"CREATE INDEX {TABLE}_marks ON {TABLE} (fun, usr, key) WHERE bank = '{LOADS}'",
    f"CREATE INDEX {TABLE}_undated ON {TABLE} (key) WHERE bank = '{LOADS}' AND {UNDATED}",
    f"CREATE INDEX {TABLE}_failed ON {TABLE} (bank) WHERE failed",
    f"CREATE TABLE {TABLE}_format (number integer NOT NULL)",
    f"INSERT INTO {TABLE}_format VALUES ({FORMAT})",
)
_LOOK = f"""SELECT number, current_setting('synchronous_commit'), current_setting('server_encoding')
    FROM {TABLE}_format"""


def prepare(connection: Patient, keeps_commit: bool) -> None:
    """
    Make the table if it is missing, and have the session wait for the disk.

    :param keeps_commit: leave ``synchronous_commit`` as it is, because the configuration sets it.
    :raises StateError: if the table is of another version, or the database cannot hold Salt's values.
    :raises psycopg.Error: for errors of the server.
    """
    try:
        found = connection.execute(_LOOK.encode()).fetchone()
    except psycopg.errors.UndefinedTable:
        found = None
    if found is None:
        _make(connection)
        found = connection.execute(_LOOK.encode()).fetchone() or (FORMAT, "", "")
    number, commit, encoding = found
    formats.check(f"The table {TABLE}", number, FORMAT)
    if encoding not in ("UTF8", ""):
        raise StateError(
            f"the database has the encoding {encoding}, which cannot hold every id; make one with ENCODING 'UTF8'"
        )
    if commit == "off" and not keeps_commit:
        # Otherwise a crash of the server would lose confirmed writes, and a claimed job could be claimed again.
        connection.execute("SET synchronous_commit = on")


def _make(connection: Patient) -> None:
    with connection.waiting(LONG), connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        # A new statement sees tables that another master has made meanwhile.
        row = connection.execute(f"SELECT to_regclass('{TABLE}_format')".encode()).fetchone()
        if row and row[0] is not None:
            return
        for statement in _STATEMENTS:
            connection.execute(statement.encode())
