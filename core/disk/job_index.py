"""
What is kept beside the records of jobs, so that they are found and listed without reading them.

===================  ================================================================================================
table                holds
===================  ================================================================================================
``jobs``             of each load its jid, function and user, and what ``jobs.list_jobs`` shows of it (``shown``)
``minions``          the ids of minions, a number for each
``jobs_of_minions``  in which seconds a minion was sent a job or returned one: hour and second of the jid. What begins
                     with no such time is in hour 0, with the whole jid as second.
===================  ================================================================================================

It is written here, in the transaction in which the records are written, and read in ``core/disk/job_lookup.py``. A row says
where to look; the records say what is there. Rows of ``jobs`` go with their loads; those of ``jobs_of_minions`` may outlive
their jobs by some hours. The hour comes first, so that what is written at one time lies on few pages.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import salt.payload
import salt.utils.jid

from saltext.jobs.core.disk import packed

LOADS, MINIONS, RETURNS = "jobs/loads", "jobs/minions", "jobs/returns/"

UNDATED = "jid NOT GLOB '" + 8 * "[0-9]" + "*'"
TABLES = (
    "CREATE TABLE jobs (jid TEXT PRIMARY KEY, fun TEXT NOT NULL, user TEXT NOT NULL, shown BLOB) WITHOUT ROWID",
    "CREATE INDEX jobs_by_mark ON jobs (fun, user, jid)",
    f"CREATE INDEX jobs_undated ON jobs (jid) WHERE {UNDATED}",
    "CREATE TABLE minions (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    """CREATE TABLE jobs_of_minions (hour INTEGER NOT NULL, minion INTEGER NOT NULL, second NOT NULL,
        PRIMARY KEY (hour, minion, second)) WITHOUT ROWID""",
)
_PUT_JOB = "INSERT OR REPLACE INTO jobs (jid, fun, user, shown) VALUES (?, ?, ?, ?)"
AT_ONCE = 500  # values in one statement
is_timed = re.compile("[0-9]{14}").match
#: What is shown of a job, in the order in which it is kept; the last one only where there is some.
SHOWN = ("Function", "Arguments", "Target", "Target-type", "User", "Metadata")


# -- writing it, in the transaction in which the records are written ---------------------------------------------------


def has_stored(sql: sqlite3.Connection, bank: str, key: str, value: Any) -> None:
    """Keep what belongs to a value that was stored."""
    if bank == LOADS:
        sql.execute(_PUT_JOB, (key, *job_marks(value), _shown(value)))
    elif bank == MINIONS:
        if isinstance(value, (list, tuple)):
            _add_minions(sql, key, [name for name in value if isinstance(name, str)])
    elif bank.startswith(RETURNS):
        jid = bank[len(RETURNS) :]
        if not _is_known(sql, jid, key):
            _add_minions(sql, jid, [key])


def has_removed(sql: sqlite3.Connection, bank: str, keys: Sequence[str] | None = None) -> None:
    """Remove what belongs to some values that were removed from a bank, or to all of it."""
    if bank != LOADS:
        return
    if keys is None:
        sql.execute("DELETE FROM jobs")
        sql.execute("DELETE FROM jobs_of_minions")
        return
    sql.execute(f"DELETE FROM jobs WHERE jid IN ({','.join('?' * len(keys))})", tuple(keys))
    for key in keys:
        if not is_timed(key):
            sql.execute("DELETE FROM jobs_of_minions WHERE hour = 0 AND second = ?", (key,))


def build(sql: sqlite3.Connection) -> None:
    """Fill the empty tables from the records that there are."""
    query = """SELECT banks.name, records.key, records.value FROM records JOIN banks ON banks.id = records.bank
        WHERE banks.name IN (?, ?)"""
    for bank, key, data in sql.execute(query, (LOADS, MINIONS)):
        try:
            value = packed.loads(data)
        except Exception:  # msgpack raises many kinds for a broken value
            value = None
        has_stored(sql, bank, key, value)
    query = """SELECT banks.name, records.key FROM banks JOIN records ON records.bank = banks.id
        WHERE banks.name > ? AND banks.name < ?"""
    for bank, key in sql.execute(query, (RETURNS, f"{RETURNS[:-1]}0")):
        has_stored(sql, bank, key, None)


def _add_minions(sql: sqlite3.Connection, jid: str, names: Sequence[str]) -> None:
    place = _place(jid)
    for start in range(0, len(names), AT_ONCE):
        part = names[start : start + AT_ONCE]
        marks = ",".join("?" * len(part))
        put = f"""INSERT OR IGNORE INTO jobs_of_minions (hour, minion, second)
            SELECT ?, id, ? FROM minions WHERE name IN ({marks})"""
        if sql.execute(put, (*place, *part)).rowcount == len(part):
            continue
        known = {row[0] for row in sql.execute(f"SELECT name FROM minions WHERE name IN ({marks})", part)}
        if len(known) < len(part):
            new = [(name,) for name in part if name not in known]
            sql.executemany("INSERT OR IGNORE INTO minions (name) VALUES (?)", new)
            sql.execute(put, (*place, *part))


def _place(jid: str) -> tuple[int, int | str]:
    return (int(jid[:10]), int(jid[10:14])) if is_timed(jid) else (0, jid)


def _is_known(sql: sqlite3.Connection, jid: str, name: str) -> bool:
    """Tell whether a minion was sent a job of this second, as it was as a rule when it returns one."""
    query = """SELECT 1 FROM jobs_of_minions WHERE hour = ? AND second = ?
        AND minion = (SELECT id FROM minions WHERE name = ?)"""
    place = _place(jid)
    return bool(sql.execute(query, (*place, name)).fetchall())


def job_marks(load: Any) -> tuple[str, str]:
    """Return the function and the user of a load; of several functions their names with commas between them."""
    if not isinstance(load, Mapping):
        return "", ""
    fun, user = load.get("fun"), load.get("user")
    if isinstance(fun, (list, tuple)):
        fun = ",".join(name for name in fun if isinstance(name, str))
    return fun if isinstance(fun, str) else "", user if isinstance(user, str) else ""


def _shown(load: Any) -> bytes | None:
    """Return what is shown of a load; None where only a look at the load itself can tell."""
    if not isinstance(load, dict) or not load:
        return None
    try:
        found = salt.utils.jid.format_job_instance(load)
        if len(found) - len(SHOWN) not in (0, -1):
            return None
        data: bytes = salt.payload.dumps([found[name] for name in SHOWN[: len(found)]], use_bin_type=True)
    except Exception:  # a load holds whatever it holds
        return None
    return data
