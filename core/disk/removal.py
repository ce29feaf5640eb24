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
    banks = dict(database.read(f"SELECT id, name FROM banks WHERE name IN ({_marks(names)})", _in(parent, names)))
    query = f"SELECT bank, count(*) FROM records WHERE bank IN ({_marks(banks)}) GROUP BY bank"
    sizes = {banks[number]: size for number, size in database.read(query, tuple(banks))}
    part: list[str] = []
    records = 0
    for name in names:
        part.append(name)
        records += 3 + sizes.get(f"{parent}/{name}", 0)  # a load, a list of minions, a mark
        if records >= MOST:
            yield part
            part, records = [], 0
    if part:
        yield part


def _remove_older(sql: sqlite3.Connection, banks: Sequence[str], parent: str, names: list[str], than: int) -> list[str]:
    numbers = dict(sql.execute(f"SELECT name, id FROM banks WHERE name IN ({_marks(banks)})", tuple(banks)))
    start = len(parent) + 1
    query = f"SELECT id, name FROM banks WHERE name IN ({_marks(names)})"
    own = {number: name[start:] for number, name in sql.execute(query, _in(parent, names))}
    query = f"SELECT bank, count(*), max(updated) >= ? FROM records WHERE bank IN ({_marks(own)}) GROUP BY bank"
    found = sql.execute(query, (than, *own)).fetchall()
    kept = {own[number] for number, _, is_fresh in found if is_fresh}
    query = f"SELECT key FROM records WHERE bank = ? AND key IN ({_marks(names)}) AND updated >= ?"
    for number in numbers.values():
        kept.update(row[0] for row in sql.execute(query, (number, *names, than)))
    unknown = _of_which_is_nothing(sql, numbers, sorted(set(names).difference(own[number] for number, _, _ in found)))
    kept.update(unknown)
    old = [name for name in names if name not in kept]
    sizes = {**dict.fromkeys(own, 0), **{number: size for number, size, _ in found}}
    take_banks(sql, {number: size for number, size in sizes.items() if own[number] not in kept})
    for bank, number in numbers.items():
        sql.execute(f"DELETE FROM records WHERE bank = ? AND key IN ({_marks(old)})", (number, *old))
        job_index.has_removed(sql, bank, old)
    return unknown


def _of_which_is_nothing(sql: sqlite3.Connection, numbers: dict[str, int], names: list[str]) -> list[str]:
    """Return those of some names that are no key in any of some banks."""
    query = f"SELECT key FROM records WHERE bank = ? AND key IN ({_marks(names)})"
    there = {row[0] for number in numbers.values() for row in sql.execute(query, (number, *names))} if names else set()
    return [name for name in names if name not in there]


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
