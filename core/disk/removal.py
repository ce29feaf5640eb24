"""
Takes records out of the database in short transactions, so that no writer waits long, however much there is to remove.

What is to go is looked up before a transaction, and in it once more only if somebody has written since. A bank with many
records is set apart first, under a name that no bank can have: at once nobody sees it any more, and its records go later,
some at a time.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from saltext.jobs.core.disk import job_index
from saltext.jobs.core.disk.database import Database, moment

#: Records that one transaction removes, about: some five milliseconds.
MOST = 2000
#: Names that are looked up together.
AT_ONCE = 250
#: Seconds between two transactions, in which others write: longer than one, since who waits looks but now and then.
PAUSE = 0.01
_APART = "/removed/"  # no bank's name begins with a slash

_Ask = Callable[[str, tuple[Any, ...]], list[tuple[Any, ...]]]


@dataclass(frozen=True)
class _Found:
    """What there is of some names."""

    #: The numbers of the banks that have them as keys.
    numbers: tuple[int, ...]
    #: The number of the bank of each name that has one, and how many records are in it.
    own: dict[str, tuple[int, int]]
    #: Names of which something is too young, and those of which there is nothing with a time.
    young: set[str]
    unknown: set[str]


def remove_older(database: Database, banks: Sequence[str], parent: str, names: Sequence[str], than: float) -> list[str]:
    """
    Remove the keys ``names`` of some banks, and the banks ``parent/name``, where nothing of a name was written since.

    All of one name goes at once.

    :param than: Unix time.
    :return: those names of which there is nothing with a time.
    """
    unknown: list[str] = []
    is_first = True
    for start in range(0, len(names), AT_ONCE):
        some = names[start : start + AT_ONCE]
        before = database.moment()
        found = _look(database.read, banks, parent, some, than)
        unknown += [name for name in some if name in found.unknown]
        for part in _parts(found, some):
            if not is_first:
                time.sleep(PAUSE)
            is_first = False
            with database.transaction() as sql:
                if moment(sql) != before:
                    found = _look(_asking(sql), banks, parent, part, than)
                _remove(sql, found, [name for name in part if name not in found.young and name not in found.unknown])
    return unknown


def _asking(sql: sqlite3.Connection) -> _Ask:
    return lambda query, values: sql.execute(query, values).fetchall()


def _look(ask: _Ask, banks: Sequence[str], parent: str, names: Sequence[str], than: float) -> _Found:
    at, start = int(than * 1000), len(parent) + 1
    numbers = tuple(row[0] for row in ask(f"SELECT id FROM banks WHERE name IN ({_marks(banks)})", tuple(banks)))
    query = f"""SELECT banks.name, banks.id, count(records.id), max(records.updated) >= ? FROM banks
        LEFT JOIN records ON records.bank = banks.id WHERE banks.name IN ({_marks(names)}) GROUP BY banks.name"""
    own = {row[0][start:]: row[1:] for row in ask(query, (at, *(f"{parent}/{name}" for name in names)))}
    young = {name for name, (_, _, is_young) in own.items() if is_young}
    known = {name for name, (_, size, _) in own.items() if size}
    query = f"SELECT key, updated >= ? FROM records WHERE bank IN ({_marks(numbers)}) AND key IN ({_marks(names)})"
    for key, is_young in ask(query, (at, *numbers, *names)):
        known.add(key)
        if is_young:
            young.add(key)
    return _Found(numbers, {name: (number, size) for name, (number, size, _) in own.items()}, young, set(names) - known)


def _parts(found: _Found, names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the names that are to go in such groups that there are not too many records of one."""
    part: list[str] = []
    records = 0
    for name in names:
        if name in found.young or name in found.unknown:
            continue
        part.append(name)
        records += 3 + found.own.get(name, (0, 0))[1]  # a load, a list of minions, a mark
        if records >= MOST:
            yield part
            part, records = [], 0
    if part:
        yield part


def _remove(sql: sqlite3.Connection, found: _Found, names: list[str]) -> None:
    take_banks(sql, dict(found.own[name] for name in names if name in found.own))
    query = f"DELETE FROM records WHERE bank IN ({_marks(found.numbers)}) AND key IN ({_marks(names)})"
    sql.execute(query, (*found.numbers, *names))
    job_index.has_removed(sql, job_index.LOADS, names)


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
