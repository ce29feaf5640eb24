"""Removes jobs, however many, in short transactions, so that no writer waits long."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from saltext.jobs.core.sqlite import job_index
from saltext.jobs.core.sqlite.database import Database

#: About how many records one transaction removes, which takes some ten milliseconds; a job with more is removed in one of
#: its own. Fewer would cost more, because after each pause the CPU's caches are cold.
MOST = 3300


def remove_older(database: Database, banks: Sequence[str], parent: str, names: Sequence[str], than: float) -> None:
    """
    Remove the names that were last written before ``than``: their keys in some banks, and their own ``parent/name``.

    All of one name is removed at once. The caller must not be in a transaction.

    :param than: Unix time.
    """
    for number, part in enumerate(_parts(names, _sizes(database, parent, names))):
        if number:
            database.give_way()
        with database.transaction() as sql:
            _remove(sql, banks, parent, part, int(than * 1000))


def _sizes(database: Database, parent: str, names: Sequence[str]) -> dict[str, int]:
    """Return the number of records in each of the banks ``parent/name``."""
    query = f"""SELECT banks.name, count(*) FROM banks JOIN records ON records.bank = banks.id
        WHERE banks.name IN ({_marks(names)}) GROUP BY banks.name"""
    found = database.read(query, tuple([f"{parent}/{name}" for name in names]))
    return {row[0][len(parent) + 1 :]: row[1] for row in found}


def _parts(names: Sequence[str], sizes: Mapping[str, int]) -> Iterator[list[str]]:
    part: list[str] = []
    records = 0
    for name in names:
        size = 3 + sizes.get(name, 0)  # a load, a list of minions, a mark
        if part and records + size > MOST:
            yield part
            part, records = [], 0
        part.append(name)
        records += size
    if part:
        yield part


def _remove(sql: sqlite3.Connection, banks: Sequence[str], parent: str, names: Sequence[str], than: int) -> None:
    """Remove the old ones among some names: those without a record that was written at ``than`` or later."""
    shared, own = tuple(_numbers(sql, banks).values()), _numbers(sql, [f"{parent}/{name}" for name in names])
    query = f"SELECT key FROM records WHERE bank IN ({_marks(shared)}) AND key IN ({_marks(names)}) AND updated >= ?"
    young = {row[0] for row in sql.execute(query, (*shared, *names, than))}
    query = f"SELECT DISTINCT bank FROM records WHERE bank IN ({_marks(own)}) AND updated >= ?"
    written = {row[0] for row in sql.execute(query, (*own.values(), than))}
    young |= {bank[len(parent) + 1 :] for bank, number in own.items() if number in written}
    old = [name for name in names if name not in young]
    numbers = [number for bank, number in own.items() if bank[len(parent) + 1 :] not in young]
    sql.execute(f"DELETE FROM records WHERE bank IN ({_marks(numbers)})", numbers)
    sql.execute(f"DELETE FROM banks WHERE id IN ({_marks(numbers)})", numbers)
    sql.execute(f"DELETE FROM records WHERE bank IN ({_marks(shared)}) AND key IN ({_marks(old)})", (*shared, *old))
    job_index.has_removed_jobs(sql, old)


def _numbers(sql: sqlite3.Connection, banks: Sequence[str]) -> dict[str, int]:
    return dict(sql.execute(f"SELECT name, id FROM banks WHERE name IN ({_marks(banks)})", tuple(banks)).fetchall())


def _marks(values: Collection[Any]) -> str:
    return ",".join("?" * len(values))
