"""
The tables: missing ones are made, as Salt's pgjsonb documents them, and all are prepared for records that come twice.

A record may come twice after a crash, so each table needs a unique index. Existing tables get one; if that fails,
nothing is stored until an operator fixes it. It must never remove or change a row.
"""

from __future__ import annotations

from typing import Any

import psycopg

from saltext.jobs.core.errors import JobsError

#: The unique key of each table.
KEYS = {"jids": ("jid",), "salt_returns": ("jid", "id"), "salt_events": ("alter_time", "tag", "master_id")}

# jids compare byte by byte, so that times are ranges of jids in every locale of the database.
_COLUMNS = {
    "jids": """
        jid varchar(255) COLLATE "C" NOT NULL, load jsonb NOT NULL""",
    "salt_returns": """
        fun varchar(255) NOT NULL, jid varchar(255) COLLATE "C" NOT NULL, return jsonb NOT NULL, id varchar(255) NOT NULL,
        success varchar(10) NOT NULL, full_ret jsonb NOT NULL, alter_time timestamp with time zone DEFAULT now()""",
    "salt_events": """
        id bigint NOT NULL DEFAULT nextval('seq_salt_events_id'), tag varchar(255) NOT NULL, data jsonb NOT NULL,
        alter_time timestamp with time zone DEFAULT now(), master_id varchar(255) NOT NULL""",
}
#: What else a new table gets. ``jids`` has a primary key, and all have a unique one. Their names are the
#: server's choice: those of Salt may still belong to a table that was renamed.
_MORE = {
    "jids": """
        CREATE INDEX ON jids USING gin (load) WITH (fastupdate=on)""",
    "salt_returns": """
        CREATE INDEX ON salt_returns (id);
        CREATE INDEX ON salt_returns (fun);
        CREATE INDEX ON salt_returns USING gin (return) WITH (fastupdate=on);
        CREATE INDEX ON salt_returns USING gin (full_ret) WITH (fastupdate=on)""",
    "salt_events": """
        CREATE INDEX ON salt_events (id);
        CREATE INDEX ON salt_events (tag);
        CREATE INDEX ON salt_events USING gin (data) WITH (fastupdate=on)""",
}
_BEFORE = {"salt_events": ("CREATE SEQUENCE IF NOT EXISTS seq_salt_events_id",)}

#: The number of the advisory lock under which tables are made: several masters may start at once.
LOCK = 7305805921

_EXISTS = "SELECT to_regclass(%s) IS NOT NULL"
_HAS_INDEX = """
    SELECT EXISTS (
        SELECT FROM pg_index AS i
        WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
        AND (SELECT array_agg(a.attname::text ORDER BY a.attname) FROM unnest(i.indkey::int2[]) AS k
             JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k) = %s::text[])
"""


class SchemaProblem(JobsError):
    """A table cannot be used as it is. The message says what an operator must do."""


def prepare(connection: psycopg.Connection[Any], table: str) -> None:
    """
    Prepare a table, so that it exists and has a unique index. Call it outside of a transaction, with autocommit.

    :raises SchemaProblem: when it cannot be prepared. :raises psycopg.Error: for other errors of the server.
    """

    def run(statement: str, *values: Any) -> Any:
        return connection.execute(statement.encode(), values)

    def is_there(query: str, *values: Any) -> bool:
        return bool(run(query, *values).fetchone()[0])

    name, key = f"saltext_jobs_{table}", ", ".join(KEYS[table])
    # Concurrently, so that other users of the table are not held up.
    index = f"CREATE UNIQUE INDEX CONCURRENTLY {name} ON {table} ({key})"
    try:
        if not is_there(_EXISTS, table):
            with connection.transaction():
                run("SELECT pg_advisory_xact_lock(%s)", LOCK)
                # A new statement sees a table that another master has made meanwhile.
                if not is_there(_EXISTS, table):
                    for statement in (
                        *_BEFORE.get(table, ()),
                        f"CREATE TABLE {table} ({_COLUMNS[table]})",
                        f"ALTER TABLE {table} ADD {'PRIMARY KEY' if table == 'jids' else 'UNIQUE'} ({key})",
                        *_MORE[table].split(";"),
                    ):
                        run(statement)
        if not is_there(_HAS_INDEX, table, sorted(KEYS[table])):
            # An interrupted attempt leaves an invalid index, which is in the way.
            run(f"DROP INDEX IF EXISTS {name}")
            run(index)
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidSchemaName) as exc:
        raise SchemaProblem(
            f"{str(exc).strip()}; make the table {table} and its index as the table's owner: {index}"
        ) from exc
    except psycopg.errors.UniqueViolation as exc:
        run(f"DROP INDEX IF EXISTS {name}")
        raise SchemaProblem(
            f"The table {table} has several rows with the same {key}, so a record that comes twice would not be noticed; "
            f"nothing is stored until only one of each is left: DELETE FROM {table} AS a USING {table} AS b WHERE "
            f"({', '.join(f'a.{each}' for each in KEYS[table])}) = ({', '.join(f'b.{each}' for each in KEYS[table])}) "
            "AND a.ctid > b.ctid"
        ) from exc
    except (psycopg.errors.FeatureNotSupported, psycopg.errors.InvalidTableDefinition) as exc:
        raise SchemaProblem(
            f"The table {table} needs a unique index on ({key}), which can't be made: {str(exc).strip()}"
        ) from exc
