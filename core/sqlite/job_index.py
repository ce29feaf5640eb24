"""
The index of jobs beside their records: jobs are found and listed by it, without reading the records.

===============  ====================================================================================================
table            holds
===============  ====================================================================================================
``jobs``         for each load: its jid, function and user; what else ``jobs.list_jobs`` shows (``shown``: NULL if the load
                 must be read)
``failures``     the returns that tell of a failure
===============  ====================================================================================================

The index is written here, in the transaction that writes the records, and read in ``core/sqlite/job_lookup.py``. A row
says where to look; the records say what is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from saltext.jobs.core import banks
from saltext.jobs.core.banks import LOADS
from saltext.jobs.core.disk.job_summary import has_failed, job_marks, shown_of

if TYPE_CHECKING:  # Python may have been built without it
    import sqlite3

RETURNS = f"{banks.RETURNS}/"

#: Jids that do not begin with a date and time.
UNTIMED = "jid NOT GLOB '" + 14 * "[0-9]" + "*'"
TABLES = (
    "CREATE TABLE jobs (jid TEXT PRIMARY KEY, fun TEXT NOT NULL, usr TEXT NOT NULL, shown BLOB) WITHOUT ROWID",
    "CREATE INDEX jobs_by_mark ON jobs (fun, usr, jid)",
    f"CREATE INDEX jobs_untimed ON jobs (jid) WHERE {UNTIMED}",
    "CREATE TABLE failures (jid TEXT NOT NULL, minion TEXT NOT NULL, PRIMARY KEY (jid, minion)) WITHOUT ROWID",
)


def has_stored(sql: sqlite3.Connection, bank: str, key: str, value: Any, is_new: bool = False) -> None:
    """
    Index a value that was stored.

    :param is_new: whether there was no value in its place.
    """
    if bank == LOADS:
        mark = job_marks(value)
        put = "INSERT OR REPLACE INTO jobs (jid, fun, usr, shown) VALUES (?, ?, ?, ?)"
        # A publish stores its load first. A load that comes later must be compared with what was published.
        shown = None if _is_published(sql, key) else shown_of(key, mark, value)
        sql.execute(put, (key, *mark, shown))
    elif bank.startswith(RETURNS):
        jid = bank[len(RETURNS) :]
        if has_failed(value):
            sql.execute("INSERT OR IGNORE INTO failures (jid, minion) VALUES (?, ?)", (jid, key))
        elif not is_new:
            sql.execute("DELETE FROM failures WHERE jid = ? AND minion = ?", (jid, key))


def has_removed(sql: sqlite3.Connection, bank: str, key: str | None = None) -> None:
    """Remove from the index what was removed from a bank: a value, or all of them."""
    if bank == LOADS:
        sql.execute("DELETE FROM jobs" + ("" if key is None else " WHERE jid = ?"), () if key is None else (key,))
    elif bank.startswith(RETURNS):
        jid = bank[len(RETURNS) :]
        if key is None:
            sql.execute("DELETE FROM failures WHERE jid = ?", (jid,))
        else:
            sql.execute("DELETE FROM failures WHERE jid = ? AND minion = ?", (jid, key))


def has_removed_jobs(sql: sqlite3.Connection, jids: Sequence[str]) -> None:
    """Remove from the index jobs that were removed completely."""
    for table in ("jobs", "failures"):
        sql.execute(f"DELETE FROM {table} WHERE jid IN ({','.join('?' * len(jids))})", tuple(jids))


def _is_published(sql: sqlite3.Connection, jid: str) -> bool:
    of_it = "SELECT 1 FROM records WHERE bank = (SELECT id FROM banks WHERE name = ?) AND key = ?"
    return sql.execute(of_it, (banks.PUBLISHED, jid)).fetchone() is not None
