"""How the file of a master is marked as ours, and begun. Its tables are those of ``core/ledger/tables.py``."""

from __future__ import annotations

import secrets
import sqlite3

from saltext.jobs.core.ledger.tables import SITE, SQLITE, statements

APPLICATION = 0x53614A42  # in the header of the file: it is ours
VERSION = 13  # of the tables, and of the form of values in them
#: SQLite writes whole pages, and rows of some hundred bytes would leave much of a smaller page empty.
PAGE_BYTES = 2048


def create(sql: sqlite3.Connection) -> None:
    """Make the tables in an empty file, and mark the file as ours. Call it in a transaction."""
    for statement in statements(SQLITE):
        sql.execute(statement)
    sql.execute(f"INSERT INTO {SITE} (id, number) VALUES (?, ?)", (secrets.token_hex(8), VERSION))
    sql.execute(f"PRAGMA application_id={APPLICATION}")
    sql.execute(f"PRAGMA user_version={VERSION}")
