"""
Makes a partition for each month before the month begins, and removes old rows.

Only tables with a ``<table>_default`` partition, as we make them, get partitions here; in other tables only rows are
removed. It must never keep writers waiting for longer than a few seconds: if it cannot get a lock, it tries later.
"""

from __future__ import annotations

import datetime
from typing import Any

import psycopg

from saltext.jobs.core.postgresql.schema import LOCK, PARTITIONED_BY

#: Rows that one statement removes, and statements in one pass.
_ROWS, _GOES = 5000, 20
#: How long to wait for a lock.
_PATIENCE = "SET LOCAL lock_timeout = '3s'"

_IS_OURS = """
    SELECT pg_get_partkeydef(to_regclass(%s)) = %s AND EXISTS (
        SELECT FROM pg_inherits WHERE inhparent = to_regclass(%s) AND inhrelid = to_regclass(%s))
"""
_PARTITIONS = """
    SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid WHERE i.inhparent = to_regclass(%s)
"""


def is_by_month(connection: psycopg.Connection[Any], table: str) -> bool:
    """Tell whether a table has partitions as we make them."""
    key = f"RANGE ({PARTITIONED_BY[table]})"
    found = connection.execute(_IS_OURS, (table, key, table, f"{table}_default")).fetchone()
    return bool(found and found[0])


def make_months(connection: psycopg.Connection[Any], table: str, now: datetime.datetime) -> None:
    """
    Make the missing partitions of this month and of the next one.

    Rows of such a month may exist already, since a minion can make up a jid of any time. They are moved out of the
    default partition.
    """
    there = set(_names(connection, table))
    for month in (_month(now), _after(_month(now))):
        name = _name(table, month)
        if name not in there:
            _make(connection, table, name, month)


def _make(connection: psycopg.Connection[Any], table: str, name: str, month: datetime.date) -> None:
    column = PARTITIONED_BY[table]
    start, end = _bound(table, month), _bound(table, _after(month))
    with connection.transaction():
        _run(connection, _PATIENCE)
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        if name in _names(connection, table):
            return  # another master has made it
        # Keep others from adding a row of that month in between.
        _run(connection, f"LOCK TABLE {table}_default IN ACCESS EXCLUSIVE MODE")
        _run(connection, f"CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS)")
        _run(
            connection,
            f"WITH moved AS (DELETE FROM {table}_default WHERE {column} >= '{start}' AND {column} < '{end}' RETURNING *) "
            f"INSERT INTO {name} SELECT * FROM moved",
        )
        _run(connection, f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ('{start}') TO ('{end}')")


def remove_old(connection: psycopg.Connection[Any], table: str, before: datetime.datetime) -> bool:
    """
    Remove the partitions of months that ended before a time, and earlier rows that are in no such partition.

    Returns whether all of these are gone; if not, call it again soon.
    """
    if not is_by_month(connection, table):
        return _remove_rows(connection, table, table, before)
    for name in sorted(_names(connection, table)):
        month = _month_in(name, table)
        if month and _after(month) <= before.date():
            with connection.transaction():
                _run(connection, _PATIENCE)
                _run(connection, f"DROP TABLE {name}")
    return _remove_rows(connection, f"{table}_default", table, before)


def _remove_rows(connection: psycopg.Connection[Any], place: str, table: str, before: datetime.datetime) -> bool:
    # The jid has an index, so it is tested first; but not in the default partition of ``salt_returns``, where jids may have
    # no time. ``jids`` has no other column with a time.
    tests = []
    if PARTITIONED_BY[table] == "jid" and place == table:
        tests.append(f"jid < '{before:%Y%m%d%H%M%S}'")
    if table == "jids":
        tests = [f"jid < '{before:%Y%m%d%H%M%S}'"]
    else:
        tests.append(f"alter_time < '{before.isoformat()}'")
    for _ in range(_GOES):
        found = connection.execute(
            f"DELETE FROM {place} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {place} WHERE {' AND '.join(tests)} "
            f"LIMIT {_ROWS}))".encode()
        )
        if found.rowcount < _ROWS:
            return True
    return False


def _names(connection: psycopg.Connection[Any], table: str) -> list[str]:
    return [str(name) for (name,) in connection.execute(_PARTITIONS, (table,)).fetchall()]


def _month(moment: datetime.datetime) -> datetime.date:
    return moment.date().replace(day=1)


def _after(month: datetime.date) -> datetime.date:
    return (month + datetime.timedelta(days=31)).replace(day=1)


def _name(table: str, month: datetime.date) -> str:
    return f"{table}_{month:%Y%m}"


def _month_in(name: str, table: str) -> datetime.date | None:
    try:
        return datetime.datetime.strptime(name, f"{table}_%Y%m").date()
    except ValueError:
        return None


def _bound(table: str, month: datetime.date) -> str:
    return f"{month:%Y%m}" if PARTITIONED_BY[table] == "jid" else f"{month:%Y-%m-%d} 00:00:00+00"


def _run(connection: psycopg.Connection[Any], statement: str) -> None:
    """Run a statement that consists only of our own names and times."""
    connection.execute(statement.encode())
