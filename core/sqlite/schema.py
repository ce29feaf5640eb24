"""
The tables of the database that ``cache: sqlite`` keeps, and how a file of an earlier version gets them.

``records`` holds every value. The other tables are an index of the jobs among them, by which jobs are found and listed
without reading them; see ``core/sqlite/job_index.py``.
"""

from __future__ import annotations

import sqlite3

from saltext.jobs.core.sqlite import job_index

APPLICATION = 0x53614A42  # in the header of the file: it is ours
VERSION = 5  # of the tables, and of the form of values in them
_INDEX_SINCE = 4  # the first version with the present index
#: SQLite writes whole pages, and rows of some hundred bytes would leave much of a smaller page empty.
PAGE_BYTES = 2048
#: The names of hidden banks begin with this; no other name does.
HIDDEN = "/"

_RECORDS = (
    "CREATE TABLE banks (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    # updated and expires in milliseconds of Unix time
    """CREATE TABLE records (id INTEGER PRIMARY KEY, bank INTEGER NOT NULL, key TEXT NOT NULL, updated INTEGER NOT NULL,
        expires INTEGER, value BLOB NOT NULL, UNIQUE (bank, key))""",
)


def begin(sql: sqlite3.Connection) -> None:
    """Lay out an empty file, before anything is written."""
    sql.execute(f"PRAGMA page_size={PAGE_BYTES}")
    sql.execute("PRAGMA auto_vacuum=INCREMENTAL")


def create(sql: sqlite3.Connection) -> None:
    """Make the tables in an empty file, and mark the file as ours. Call it in a transaction."""
    for statement in (*_RECORDS, *job_index.TABLES):
        sql.execute(statement)
    sql.execute(f"PRAGMA application_id={APPLICATION}")
    sql.execute(f"PRAGMA user_version={VERSION}")


def upgrade(sql: sqlite3.Connection) -> None:
    """
    Upgrade a file of an earlier version, unless that is done already. Call it in a transaction.

    Before version 4 the index was another one, so it is made again. Version 1 kept the function and the user of a load in
    the columns ``fun`` and ``user`` of ``records``. They stay, unused: removing them would write every row again. Before
    version 5 no value was compressed, which needs no change.
    """
    version = sql.execute("PRAGMA user_version").fetchone()[0]
    if version < _INDEX_SINCE:
        _rebuild_index(sql)
    if version < VERSION:
        sql.execute(f"PRAGMA user_version={VERSION}")


def _rebuild_index(sql: sqlite3.Connection) -> None:
    for name in ("records_by_fun", "records_undated", "records_by_user"):
        sql.execute(f"DROP INDEX IF EXISTS {name}")
    for name in job_index.NAMES:
        sql.execute(f"DROP TABLE IF EXISTS {name}")
    for statement in job_index.TABLES:
        sql.execute(statement)
    job_index.build(sql)
