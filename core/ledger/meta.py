"""
What engines keep by name, a row each, such as how far an engine has read the log.

All functions raise OSError when the database cannot be used now.
"""

from __future__ import annotations

from saltext.jobs.core.ledger.tables import META, Execute, Tables

_OF = "engine = ? AND name = ?"
_PUT = f"""INSERT INTO {META} (engine, name, body, at) VALUES (?, ?, ?, {{now}})
    ON CONFLICT (engine, name) DO UPDATE SET body = excluded.body, at = excluded.at"""
_GET = f"SELECT body FROM {META} WHERE {_OF}"


def put(tables: Tables, execute: Execute, engine: str, name: str, body: bytes) -> None:
    """Keep a value, as a part of a transaction."""
    sealed = tables.seal.put(body, META, engine, name)
    execute(_PUT.format(now=tables.dialect.now), (engine, name, sealed))


def get(tables: Tables, engine: str, name: str) -> bytes | None:
    """Return a value; None if there is none, or if no master of the site has written it."""
    found = tables.read(_GET, (engine, name))
    return tables.seal.take(bytes(found[0][0]), META, engine, name) if found else None
