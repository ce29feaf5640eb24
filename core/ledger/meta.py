"""
What engines keep by name, a row each: how far an engine has read the log, that it is paused, which masters have it.

The bodies are sealed. All functions raise OSError when the database cannot be used now.
"""

from __future__ import annotations

from typing import NamedTuple

from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.ledger.tables import META, Execute, Tables

_OF = "engine = ? AND name = ?"
_PUT = f"""INSERT INTO {META} (engine, name, body, at) VALUES (?, ?, ?, {{now}})
    ON CONFLICT (engine, name) DO UPDATE SET body = excluded.body, at = excluded.at"""
_GET = f"SELECT body FROM {META} WHERE {_OF}"
_BELOW = f"SELECT name, body, at, {{now}} - at FROM {META} WHERE engine = ? AND name >= ? AND name < ? ORDER BY name"
_DELETE = f"DELETE FROM {META} WHERE {_OF}"


class Value(NamedTuple):
    """A value, when it was written in Unix time, and for how many seconds it has stood."""

    body: bytes
    at: float
    age: float


def put(tables: Tables, execute: Execute, engine: str, name: str, body: bytes) -> None:
    """Keep a value, as a part of a transaction."""
    execute(_PUT.format(now=tables.dialect.now), (engine, name, tables.seal.put(body, META, engine, name)))


def keep(
    tables: Tables, engine: str, name: str, body: bytes, lease: Lease | None = None, durable: bool = False
) -> None:
    """Keep a value. :param durable: whether it must survive a power cut when this returns."""
    tables.write(lambda execute: put(tables, execute, engine, name, body), lease, durable)


def get(tables: Tables, engine: str, name: str) -> bytes | None:
    """Return a value; None if there is none, or if no master of the site has written it."""
    found = tables.read(_GET, (engine, name))
    return tables.seal.take(bytes(found[0][0]), META, engine, name) if found else None


def below(tables: Tables, engine: str, group: str) -> dict[str, Value]:
    """Return the values whose names begin with ``group/``, by the rest of their names."""
    found, first = {}, f"{group}/"
    for name, sealed, at, age in tables.read(_BELOW.format(now=tables.dialect.now), (engine, first, f"{group}0")):
        body = tables.seal.take(bytes(sealed), META, engine, name)
        if body is not None:
            found[name.removeprefix(first)] = Value(body, float(at), float(age))
    return found


def drop(tables: Tables, engine: str, name: str, lease: Lease | None = None) -> None:
    """Keep a value no longer."""
    tables.write(lambda execute: execute(_DELETE, (engine, name)), lease, durable=False)
