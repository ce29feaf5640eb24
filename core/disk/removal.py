"""
Takes records out of the database in short transactions, so that no writer waits long, however much there is to remove.

A bank with many records is set apart first, under a name that no bank can have: at once nobody sees it any more, and its
records go later, some at a time.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from saltext.jobs.core.disk import job_index
from saltext.jobs.core.disk.database import Database

#: Records that one transaction removes, about: some five milliseconds.
MOST = 1000
#: Seconds between two transactions, in which others write: longer than one, since who waits looks but now and then.
PAUSE = 0.01
_APART = "/removed/"  # no bank's name begins with a slash


def remove_older(database: Database, banks: Sequence[str], parent: str, names: Sequence[str], than: float) -> list[str]:
    """
    Remove the keys ``names`` of some banks, and the banks ``parent/name``, where nothing of a name was written since.

    All of one name goes at once.

    :param than: Unix time.
    :return: those names of which there is nothing with a time.
    """
    unknown: list[str] = []
    for number, part in enumerate(_parts(database, parent, names)):
        if number:
            time.sleep(PAUSE)
        with database.transaction() as sql:
            unknown += _remove_older(sql, banks, parent, part, int(than * 1000))
    return unknown


def _parts(database: Database, parent: str, names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the names in such groups that there are not too many records of one to look at."""
    start = len(parent) + 1
    query = f"""SELECT banks.name, count(*) FROM banks JOIN records ON records.bank = banks.id
        WHERE banks.name IN ({_marks(names)}) GROUP BY banks.name"""
    sizes = {row[0][start:]: row[1] for row in database.read(query, _in(parent, names))}
    part: list[str] = []
    records = 0
    for name in names:
        part.append(name)
        records += 3 + sizes.get(name, 0)  # a load, a list of minions, a mark
        if records >= MOST:
            yield part
            part, records = [], 0
    if part:
        yield part


def _remove_older(sql: sqlite3.Connection, banks: Sequence[str], parent: str, names: list[str], than: int) -> list[str]:
    start = len(parent) + 1
    numbers = [row[0] for row in sql.execute(f"SELECT id FROM banks WHERE name IN ({_marks(banks)})", tuple(banks))]
    query = f"""SELECT banks.name, banks.id, count(records.id), max(records.updated) >= ? FROM banks
        LEFT JOIN records ON records.bank = banks.id WHERE banks.name IN ({_marks(names)}) GROUP BY banks.name"""
    own = {row[0][start:]: row[1:] for row in sql.execute(query, (than, *_in(parent, names)))}
    kept = {name for name, (_, _, is_young) in own.items() if is_young}
    keys = f"FROM records WHERE bank IN ({_marks(numbers)}) AND key IN ({{}})"
    query = f"SELECT key {keys.format(_marks(names))} AND updated >= ?"
    kept.update(row[0] for row in sql.execute(query, (*numbers, *names, than)))
    bare = [name for name in names if name not in own or not own[name][1]]
    there = (
        {row[0] for row in sql.execute(f"SELECT key {keys.format(_marks(bare))}", (*numbers, *bare))} if bare else ()
    )
    unknown = [name for name in bare if name not in there]
    old = [name for name in names if name not in kept and name not in unknown]
    take_banks(sql, dict(own[name][:2] for name in old if name in own))
    sql.execute(f"DELETE {keys.format(_marks(old))}", (*numbers, *old))
    job_index.has_removed(sql, job_index.LOADS, old)
    return unknown


def _in(parent: str, names: Sequence[str]) -> tuple[str, ...]:
    return tuple([f"{parent}/{name}" for name in names])


def take_banks(sql: sqlite3.Connection, sizes: dict[int, int]) -> None:
    """
    Remove some banks with all that is in them, at once for whoever looks.

    :param sizes: how many records there are in each, by its number; that of a bank may be a guess.
    """
    small = [number for number, size in sizes.items() if size < MOST]
    sql.execute(f"DELETE FROM records WHERE bank IN ({_marks(small)})", small)
    sql.execute(f"DELETE FROM banks WHERE id IN ({_marks(small)})", small)
    for number in sizes.keys() - small:
        sql.execute("UPDATE banks SET name = ? WHERE id = ?", (f"{_APART}{number}", number))


def empty_some(database: Database) -> int:
    """Remove some of the records in banks that were set apart, and return how many."""
    found = database.read("SELECT id FROM banks WHERE name > ? AND name < '/s' LIMIT 1", (_APART,))
    if not found:
        return 0
    with database.transaction() as sql:
        still = sql.execute(
            "SELECT 1 FROM banks WHERE id = ? AND name > ? AND name < '/s'", (*found[0], _APART)
        ).fetchone()
        if still is None:
            return 1  # somebody else was faster, and another bank may have its number by now
        of = f"SELECT id FROM records WHERE bank = ? LIMIT {MOST}"
        count = sql.execute(f"DELETE FROM records WHERE id IN ({of})", found[0]).rowcount
        if count < MOST:
            sql.execute("DELETE FROM banks WHERE id = ?", found[0])
    return max(count, 1)


def is_apart(bank: str) -> bool:
    """Tell whether a bank was set apart, to be removed."""
    return bank.startswith(_APART)


def _marks(values: Collection[Any]) -> str:
    return ",".join("?" * len(values))
