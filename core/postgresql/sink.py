"""
One connection to PostgreSQL that takes many records in one transaction: all of a call or none. A known record changes
nothing, so a caller that is not sure may pass it again.

A record may come twice after a crash, so each table needs a unique index. Tables that are missing are made as Salt's pgjsonb
documents them, and existing ones get that index; if this fails, nothing is stored until an operator fixes it. But for
``keep_days`` no row is ever removed or changed.

The rows of a transaction are sent as one array of JSON. They are checked for what PostgreSQL cannot hold before that: a
record that is not JSON is left out, with the reason, and the others are stored.
"""

from __future__ import annotations

import datetime
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import psycopg
import salt.utils.data

from saltext.jobs.core import lines
from saltext.jobs.core.errors import JobsError
from saltext.jobs.core.functions import function_of, retcode_of
from saltext.jobs.core.options.postgresql import Options
from saltext.jobs.core.postgresql.connections import Connections, Patient, parameters

log = lines.logger(__name__)

LOAD, RETURN, EVENT = "load", "return", "event"
#: Seconds that an index on a large table may take.
_INDEXING = 6 * 3600.0
#: Seconds between two removals of old rows; and rows that are removed at once: while there are more, after each call.
_UPKEEP, _ROWS = 600.0, 5000
#: Class of SQLSTATE that blames the data, beside those for which psycopg raises DataError or IntegrityError.
_LIMIT_EXCEEDED = "54"
#: The removal of old rows waits for no other session for long.
_NO_WAIT = "SET LOCAL lock_timeout = 500"
# A server that answers before data is on the disk would lose records that count as delivered.
_DURABLE = "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
#: The number of the advisory lock under which tables are made: several masters may start at once.
_LOCK = 7305805921
# It reads a table, so that a session learns what others have committed since its transaction began.
_EXISTS = "SELECT count(*) FROM pg_class WHERE oid = to_regclass(%s)"
_HAS_INDEX = """
    SELECT EXISTS (
        SELECT FROM pg_index AS i
        WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
        AND (SELECT array_agg(a.attname::text ORDER BY a.attname) FROM unnest(i.indkey::int2[]) AS k
             JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k) = %s::text[])
"""


class Table(NamedTuple):
    """
    A table. New ones get the unique key and some indexes, whose names are the server's choice: those of Salt may still
    belong to a table that was renamed. ``insert`` stores rows in the order of their key, so that two recorders do not
    deadlock; events need no order, because their key contains the master. jids compare byte by byte, so that times are
    ranges of jids in every locale of the database.
    """

    name: str
    key: tuple[str, ...]
    columns: str
    indexes: tuple[str, ...]
    insert: str


_FAST = "WITH (fastupdate=on)"
_TABLES = {
    LOAD: Table(
        "jids",
        ("jid",),
        'jid varchar(255) COLLATE "C" NOT NULL, load jsonb NOT NULL',
        (f"USING gin (load) {_FAST}",),
        """INSERT INTO jids (jid, load)
        SELECT jid, body FROM jsonb_to_recordset(%(rows)s::jsonb) AS r (jid text, body jsonb) ORDER BY jid
        ON CONFLICT (jid) DO NOTHING""",
    ),
    RETURN: Table(
        "salt_returns",
        ("jid", "id"),
        """fun varchar(255) NOT NULL, jid varchar(255) COLLATE "C" NOT NULL, return jsonb NOT NULL, id varchar(255) NOT NULL,
        success varchar(10) NOT NULL, full_ret jsonb NOT NULL, alter_time timestamp with time zone DEFAULT now()""",
        ("(id)", "(fun)", f"USING gin (return) {_FAST}", f"USING gin (full_ret) {_FAST}"),
        """INSERT INTO salt_returns (fun, jid, return, id, success, full_ret, alter_time)
        SELECT fun, jid, coalesce(body->'return', 'null'), minion, success, body, to_timestamp(time)
        FROM jsonb_to_recordset(%(rows)s::jsonb)
            AS r (fun text, jid text, minion text, success text, time double precision, body jsonb)
        ORDER BY jid, minion
        ON CONFLICT (jid, id) DO NOTHING""",
    ),
    EVENT: Table(
        "salt_events",
        ("alter_time", "tag", "master_id"),
        """id bigserial, tag varchar(255) NOT NULL, data jsonb NOT NULL,
        alter_time timestamp with time zone DEFAULT now(), master_id varchar(255) NOT NULL""",
        ("(id)", "(tag)", f"USING gin (data) {_FAST}"),
        """INSERT INTO salt_events (tag, data, alter_time, master_id)
        SELECT tag, body, to_timestamp(time), %(master)s
        FROM jsonb_to_recordset(%(rows)s::jsonb) AS r (tag text, time double precision, body jsonb)
        ON CONFLICT (alter_time, tag, master_id) DO NOTHING""",
    ),
}


class Sink:
    """``master_id``: of the master whose events these are. ``clock`` tells the time, by which old rows are removed."""

    def __init__(self, options: Options, master_id: str, clock: Callable[[], float] = time.time) -> None:
        self._options, self._master_id, self._clock = options, master_id, clock
        self._ready: set[str] = set()
        self._upkeep_at = 0.0
        # Nothing is prepared or kept in the session, so a pooler may be in between.
        its = {**parameters(options), "application_name": "salt job_recorder", "prepare_threshold": None}
        self._server = Connections(its, options.timeout)
        self.close = self._server.close

    def take(self, records: Sequence[Mapping[str, Any]]) -> dict[int, str]:
        """
        Store records, as ``store_many`` of the returner takes them, in one transaction; return ``{position: reason}`` of
        those that are not JSON.

        :raises psycopg.Error: ``DataError`` and ``IntegrityError`` blame a record.
        :raises ValueError: when PostgreSQL's limits are exceeded, which blames a record too.
        :raises JobsError: when a table needs an operator.
        """
        texts, refused = _rows_of(records)
        try:
            with self._server.lend() as connection:
                for kind in sorted(texts.keys() - self._ready):
                    with connection.waiting(_INDEXING):
                        _prepare(connection, _TABLES[kind])
                    self._ready.add(kind)
                with connection.transaction():
                    # the server must give up too, or it would go on while the same records are sent again
                    connection.execute(f"SET LOCAL statement_timeout = {int(self._options.timeout * 1000)}".encode())
                    connection.execute(_DURABLE)
                    for kind in sorted(texts):
                        connection.execute(_TABLES[kind].insert, {"rows": texts[kind], "master": self._master_id})
                self._upkeep(connection)
        except psycopg.Error as exc:
            self._ready.clear()  # it may be another server from now on, or a table may be gone
            raise _blamed(exc) from exc
        return refused

    def _upkeep(self, connection: Patient) -> None:
        """Remove old rows now and then. The records are stored even if that fails."""
        now = self._clock()
        if not self._options.keep_days or now < self._upkeep_at:
            return
        self._upkeep_at = now + _UPKEEP
        than = datetime.datetime.fromtimestamp(max(0, now - self._options.keep_days * 86400), datetime.timezone.utc)
        for table in (_TABLES[kind] for kind in sorted(self._ready)):
            try:
                if not _remove_older(connection, table, than):
                    self._upkeep_at = now
            except psycopg.Error as exc:
                log.warning("The table %s cannot be maintained, trying again in %d s: %s", table.name, _UPKEEP, exc)


def _prepare(connection: Patient, table: Table) -> None:
    """
    Prepare a table, so that it exists and has a unique index, outside of a transaction. :raises JobsError: when an operator
    must do something first. :raises psycopg.Error: for other errors of the server.
    """

    def run(statement: str, *values: Any) -> Any:
        return connection.execute(statement.encode(), values)

    def is_there(query: str, *values: Any) -> bool:
        return bool(run(query, *values).fetchone()[0])

    name, key, own = table.name, ", ".join(table.key), f"saltext_jobs_{table.name}"
    # Concurrently, so that other users of the table are not held up.
    index = f"CREATE UNIQUE INDEX CONCURRENTLY {own} ON {name} ({key})"
    try:
        if not is_there(_EXISTS, name):
            with connection.transaction():
                run("SELECT pg_advisory_xact_lock(%s)", _LOCK)
                # A new statement sees a table that another master has made meanwhile.
                if not is_there(_EXISTS, name):
                    run(f"CREATE TABLE {name} ({table.columns}, PRIMARY KEY ({key}))")
                    for each in table.indexes:
                        run(f"CREATE INDEX ON {name} {each}")
        if not is_there(_HAS_INDEX, name, sorted(table.key)):
            # An interrupted attempt leaves an invalid index, which is in the way.
            run(f"DROP INDEX IF EXISTS {own}")
            run(index)
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidSchemaName) as exc:
        told = f"{str(exc).strip()}; make the table {name} and its index as the table's owner: {index}"
        raise JobsError(told) from exc
    except psycopg.errors.UniqueViolation as exc:
        run(f"DROP INDEX IF EXISTS {own}")
        raise JobsError(
            f"The table {name} has several rows with the same {key}, so a record that comes twice would not be noticed; "
            f"nothing is stored until only one of each is left: DELETE FROM {name} AS a USING {name} AS b WHERE "
            f"({', '.join(f'a.{each}' for each in table.key)}) = ({', '.join(f'b.{each}' for each in table.key)}) "
            "AND a.ctid > b.ctid"
        ) from exc
    except (psycopg.errors.FeatureNotSupported, psycopg.errors.InvalidTableDefinition) as exc:
        raise JobsError(
            f"The table {name} needs a unique index on ({key}), which can't be made: {str(exc).strip()}"
        ) from exc


def _remove_older(connection: Patient, table: Table, than: datetime.datetime) -> bool:
    """Remove old rows, and tell whether all of them are gone."""
    # The jid has an index, so it is tested too; in ``jids`` nothing else has a time.
    tests = [f"jid < '{than:%Y%m%d%H%M%S}' AND jid ~ '^[0-9]{{20}}'"] if "jid" in table.key else []
    if "alter_time" in table.columns:
        tests.append(f"alter_time < '{than.isoformat()}'")
    key = ", ".join(table.key)
    old = f"SELECT {key} FROM {table.name} WHERE {' AND '.join(tests)} LIMIT {_ROWS}"
    with connection.transaction():
        connection.execute(_NO_WAIT)
        done = connection.execute(f"DELETE FROM {table.name} WHERE ({key}) IN ({old})".encode())
    return bool(done.rowcount < _ROWS)


def _blamed(exc: psycopg.Error) -> Exception:
    """Return the error to raise; its kind says whether the data is to blame."""
    if (exc.sqlstate or "").startswith(_LIMIT_EXCEEDED):
        return ValueError(str(exc).strip())
    if isinstance(exc, psycopg.errors.CheckViolation) and not exc.diag.constraint_name:
        # An operator makes this table's partitions, and there is none for these rows.
        return JobsError(str(exc).strip())
    error: Exception = exc
    return error


# -- the rows as JSON ---------------------------------------------------------------------------------------------------

#: An escaped NUL in JSON, which jsonb cannot hold; not an escaped backslash before ``u0000``.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _rows_of(records: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], dict[int, str]]:
    """Return JSON arrays of rows, by the kind of their records, and ``{position: reason}`` of records without a row."""
    rows, refused = dict[str, dict[Any, tuple[int, dict[str, Any]]]](), dict[int, str]()
    for position, record in enumerate(records):
        try:
            name = record["jid"] if record["kind"] == LOAD else position  # a load may come twice
            rows.setdefault(record["kind"], {})[name] = position, _row(record)
        except Exception as exc:  # a minion may send anything
            refused[position] = _why(exc)
    arrays = {kind: _array(list(found.values()), refused) for kind, found in rows.items()}
    return {kind: text for kind, text in arrays.items() if text}, refused


def _array(rows: Sequence[tuple[int, dict[str, Any]]], refused: dict[int, str]) -> str:
    """Return the JSON array of rows, empty if there is none; note in ``refused`` which are left out."""
    try:
        return _checked(_encode([row for _, row in rows]))  # in half the time that it takes row by row
    except Exception:
        texts = list[str]()
    for position, row in rows:
        try:
            texts.append(_text(row))
        except Exception as exc:
            refused[position] = _why(exc)
    return f"[{','.join(texts)}]" if texts else ""


def _why(exc: Exception) -> str:
    return f"{type(exc).__name__}: {exc}"[:1000]


def _row(record: Mapping[str, Any]) -> dict[str, Any]:
    kind, data = record["kind"], record["data"]
    if kind == LOAD:
        return {"jid": record["jid"], "body": data}
    if kind == RETURN:
        return {
            "fun": function_of(data),
            "jid": record["jid"],
            "minion": record["minion"],
            "success": "true" if _has_succeeded(data) else "false",
            "time": record["time"],
            "body": data,
        }
    if kind == EVENT:
        return {"tag": record["tag"], "time": record["time"], "body": data}
    raise ValueError(f"a record of the kind {kind!r} is unknown")


def _has_succeeded(data: Mapping[str, Any]) -> bool:
    said = data.get("success")
    return said if isinstance(said, bool) else retcode_of(data) == 0


def _text(row: dict[str, Any]) -> str:
    try:
        text = _encode(row)
    except TypeError:
        # Bytes, or keys that JSON does not have. Salt's pgjsonb decodes everything, which takes ten times as long.
        text = _encode(salt.utils.data.decode(row, to_str=True))
    return _checked(text)


def _checked(text: str) -> str:
    if "\\u0000" in text and _NUL.search(text):
        raise ValueError("PostgreSQL's jsonb can't hold a NUL character")
    text.encode()  # raises for half a surrogate pair
    return text
