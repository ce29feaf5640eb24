"""What tests do to the database of a master behind the back of those who use it."""

from __future__ import annotations

import contextlib
import sqlite3

import salt.payload

from saltext.jobs.core.site import site_of


@contextlib.contextmanager
def database_of(opts):
    """A connection of its own to the database of a master; what the block does is one transaction."""
    with contextlib.closing(sqlite3.connect(site_of(opts).place, timeout=30)) as sql, sql:
        yield sql


def change_batch(opts, jid, **columns):
    """Have columns of the row of a batch be others; ``minion``: the body of that of a minion."""
    with database_of(opts) as sql:
        if "minion" in columns:
            query = "INSERT OR REPLACE INTO saltext_jobs_parts VALUES (?, 'a', ?)"
            sql.execute(query, (jid, columns.pop("minion")))
        for name, value in columns.items():
            assert sql.execute(f"UPDATE saltext_jobs_batches SET {name} = ? WHERE jid = ?", (value, jid)).rowcount


def begin_another_log(opts):
    """Have the log be another one, which has nothing of the former."""
    with database_of(opts) as sql:
        sql.execute("UPDATE saltext_jobs_site SET id = 'another'")
        sql.execute("DELETE FROM saltext_jobs_log")


def replies_in(opts, engine):
    """The replies of an engine that wait for those who asked."""
    query = "SELECT body FROM saltext_jobs_requests WHERE engine = ? AND state = 2 ORDER BY id"
    with database_of(opts) as sql:
        return [salt.payload.loads(body) for (body,) in sql.execute(query, (engine,))]
