"""
The tables of a master's database.

``records`` holds every value. The other tables are an index of the jobs among them, by which jobs are found and listed
without reading them; see ``core/sqlite/job_index.py``. ``core/ledger/tables.py`` has those of the engines and the log.
"""

from __future__ import annotations

import secrets
import sqlite3

from saltext.jobs.core.ledger.tables import SITE, SQLITE, statements
from saltext.jobs.core.sqlite import job_index

APPLICATION = 0x53614A42  # in the header of the file: it is ours
VERSION = 9  # of the tables, and of the form of values in them
#: SQLite writes whole pages, and rows of some hundred bytes would leave much of a smaller page empty.
PAGE_BYTES = 2048

_RECORDS = (
    "CREATE TABLE banks (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    # updated and expires in milliseconds of Unix time
    """CREATE TABLE records (id INTEGER PRIMARY KEY, bank INTEGER NOT NULL, key TEXT NOT NULL, updated INTEGER NOT NULL,
        expires INTEGER, value BLOB NOT NULL, UNIQUE (bank, key))""",
)


def create(sql: sqlite3.Connection) -> None:
    """Make the tables in an empty file, and mark the file as ours. Call it in a transaction."""
    for statement in (*_RECORDS, *job_index.TABLES, *statements(SQLITE)):
        sql.execute(statement)
    sql.execute(f"INSERT INTO {SITE} (id, number) VALUES (?, ?)", (secrets.token_hex(8), VERSION))
    sql.execute(f"PRAGMA application_id={APPLICATION}")
    sql.execute(f"PRAGMA user_version={VERSION}")
