"""
What engines keep by name, a row each: how far the log was read for a returner, what notices have reported, which masters
have an engine. All functions raise OSError when the database cannot be used now.
"""

from __future__ import annotations

from saltext.jobs.core.ledger.tables import META, Tables

_TIMES = f"SELECT name, at, {{now}} - at FROM {META} WHERE engine = ? AND name >= ? AND name < ?"


def keep(tables: Tables, engine: str, name: str, body: bytes | None) -> None:
    """Keep a value; None removes it."""
    META.write(tables, {(engine, name): None if body is None else (body,)})


def get(tables: Tables, engine: str, name: str) -> bytes | None:
    """Return a value; None if there is none, or if no master of the site has written it."""
    return next((row[-1] for row in META.read(tables, META.of, (engine, name))), None)


def below(tables: Tables, engine: str, group: str) -> dict[str, tuple[bytes, float, float]]:
    """
    Return the values whose names begin with ``group/``, by the rest of their names; each with the Unix time at which it was
    written, and the seconds since then.
    """
    found = {}
    for name, at, age in tables.read(_TIMES, (engine, f"{group}/", f"{group}0")):
        body = get(tables, engine, name)
        if body is not None:
            found[name.removeprefix(f"{group}/")] = body, float(at), float(age)
    return found
