"""
One connection to PostgreSQL that takes many records in one transaction: all of a call or none. A known record changes
nothing, so a caller that is not sure may pass it again.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psycopg

from saltext.jobs.core import lines
from saltext.jobs.core.errors import JobsError
from saltext.jobs.core.options.postgresql import Options
from saltext.jobs.core.postgresql import schema
from saltext.jobs.core.postgresql.connections import Patient, parameters
from saltext.jobs.core.postgresql.rows import EVENT, LOAD, RETURN, rows_of

log = lines.logger(__name__)

#: Seconds that an index on a large table may take.
_INDEXING = 6 * 3600.0
#: Seconds between two removals of old rows; rows that one statement removes, and statements in one pass.
_UPKEEP, _ROWS, _GOES = 600.0, 5000, 20
#: Class of SQLSTATE that blames the data, beside those for which psycopg raises DataError or IntegrityError.
_LIMIT_EXCEEDED = "54"

#: The table for each kind of records, and how they are stored there: in the order of their key, so that two recorders do not
#: deadlock. Events need no order, because their key contains the master.
_INTO = {
    LOAD: (
        "jids",
        """INSERT INTO jids (jid, load)
        SELECT jid, body FROM jsonb_to_recordset(%(rows)s::jsonb) AS r (jid text, body jsonb) ORDER BY jid
        ON CONFLICT (jid) DO NOTHING""",
    ),
    RETURN: (
        "salt_returns",
        """INSERT INTO salt_returns (fun, jid, return, id, success, full_ret, alter_time)
        SELECT fun, jid, coalesce(body->'return', 'null'), minion, success, body, to_timestamp(time)
        FROM jsonb_to_recordset(%(rows)s::jsonb)
            AS r (fun text, jid text, minion text, success text, time double precision, body jsonb)
        ORDER BY jid, minion
        ON CONFLICT (jid, id) DO NOTHING""",
    ),
    EVENT: (
        "salt_events",
        """INSERT INTO salt_events (tag, data, alter_time, master_id)
        SELECT tag, body, to_timestamp(time), %(master)s
        FROM jsonb_to_recordset(%(rows)s::jsonb) AS r (tag text, time double precision, body jsonb)
        ON CONFLICT (alter_time, tag, master_id) DO NOTHING""",
    ),
}
#: The removal of old rows waits for no other session for long.
_NO_WAIT = "SET LOCAL lock_timeout = 500"
# A server that answers before data is on the disk would lose records that count as delivered.
_DURABLE = "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"


class Sink:
    """``master_id``: of the master whose events these are. ``clock`` tells the time, by which old rows are removed."""

    def __init__(self, options: Options, master_id: str, clock: Callable[[], float] = time.time) -> None:
        self._options, self._master_id, self._clock = options, master_id, clock
        self._connection: Patient | None = None
        self._ready: set[str] = set()
        self._upkeep_at = 0.0

    def take(self, records: Sequence[Mapping[str, Any]]) -> dict[int, str]:
        """
        Store records, as ``store_many`` of the returner takes them, in one transaction; return ``{position: reason}`` of
        those that are not JSON.

        :raises psycopg.Error: ``DataError`` and ``IntegrityError`` blame a record.
        :raises ValueError: when PostgreSQL's limits are exceeded, which blames a record too.
        :raises JobsError: when a table needs an operator.
        """
        texts, refused = rows_of(records)
        try:
            connection = self._connected()
            for table in (_INTO[kind][0] for kind in texts):
                self._prepare(connection, table)
            with connection.transaction():
                # the server must give up too, or it would go on while the same records are sent again
                connection.execute(f"SET LOCAL statement_timeout = {int(self._options.timeout * 1000)}".encode())
                connection.execute(_DURABLE)
                for kind in sorted(texts):
                    connection.execute(_INTO[kind][1], {"rows": texts[kind], "master": self._master_id})
            self._upkeep(connection)
        except psycopg.Error as exc:
            blamed = _blamed(exc)
            if not isinstance(blamed, (psycopg.DataError, psycopg.IntegrityError, ValueError)):
                self.close()
            raise blamed from exc
        except BaseException:
            self.close()
            raise
        return refused

    def close(self) -> None:
        """Disconnect. The next call connects and checks the tables again: it may be another server."""
        self._ready.clear()
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.close()
            self._connection = None

    def _connected(self) -> Patient:
        if self._connection is None or self._connection.closed:
            # Nothing is prepared or kept in the session, so a pooler may be in between.
            self._connection = Patient.connect(
                **parameters(self._options),
                application_name="salt job_recorder",
                autocommit=True,
                prepare_threshold=None,
            )
            self._connection.patience = self._options.timeout
        return self._connection

    def _prepare(self, connection: Patient, table: str) -> None:
        if table not in self._ready:
            with connection.waiting(_INDEXING):
                schema.prepare(connection, table)
            self._ready.add(table)

    def _upkeep(self, connection: Patient) -> None:
        """Remove old rows now and then. The records are stored even if that fails."""
        now = self._clock()
        if not self._options.keep_days or now < self._upkeep_at:
            return
        self._upkeep_at = now + _UPKEEP
        than = datetime.datetime.fromtimestamp(now - self._options.keep_days * 86400, datetime.timezone.utc)
        for table in sorted(self._ready):
            try:
                if not _remove_older(connection, table, than):
                    self._upkeep_at = now
            except psycopg.Error as exc:
                log.warning("The table %s cannot be maintained, trying again in %d s: %s", table, _UPKEEP, exc)


def _remove_older(connection: Patient, table: str, than: datetime.datetime) -> bool:
    """Remove old rows, and tell whether all of them are gone."""
    # The jid has an index, so it is tested too; in ``jids`` nothing else has a time.
    tests = [f"jid < '{than:%Y%m%d%H%M%S}' AND jid ~ '^[0-9]{{20}}'"] if "jid" in schema.KEYS[table] else []
    if table != "jids":
        tests.append(f"alter_time < '{than.isoformat()}'")
    key = f"({', '.join(schema.KEYS[table])})"
    old = f"SELECT {', '.join(schema.KEYS[table])} FROM {table} WHERE {' AND '.join(tests)} LIMIT {_ROWS}"
    for _ in range(_GOES):
        with connection.transaction():
            connection.execute(_NO_WAIT)
            if connection.execute(f"DELETE FROM {table} WHERE {key} IN ({old})".encode()).rowcount < _ROWS:
                return True
    return False


def _blamed(exc: psycopg.Error) -> Exception:
    """Return the error to raise; its kind says whether the data is to blame."""
    if (exc.sqlstate or "").startswith(_LIMIT_EXCEEDED):
        return ValueError(str(exc).strip())
    if isinstance(exc, psycopg.errors.CheckViolation) and not exc.diag.constraint_name:
        # An operator makes this table's partitions, and there is none for these rows.
        return JobsError(str(exc).strip())
    error: Exception = exc
    return error
