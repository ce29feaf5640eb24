"""
Removes records, however many, in short transactions, so that no writer waits long.

A bank with many records is first renamed to a name that no bank can have, which hides it at once. Its records are removed
later, some at a time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from saltext.jobs.core.sqlite import job_index, schema
from saltext.jobs.core.sqlite.database import Database

#: About how many records one transaction removes, which takes some ten milliseconds. Fewer would cost more, because after
#: each pause the CPU's caches are cold.
MOST = 3300
_APART = f"{schema.HIDDEN}removed/"


class Removal:
    """:param database: the file."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def remove_older(self, banks: Sequence[str], parent: str, names: Sequence[str], than: float) -> None:
        """
        Remove the names that were last written before ``than``: their keys in some banks, and their own ``parent/name``.

        All of one name is removed at once. The caller must not be in a transaction.

        :param than: Unix time.
        """
        jobs = _Jobs(banks, parent, int(than * 1000))
        sizes, at = self._sizes(parent, names), 0
        while at < len(names):
            if at:
                self._database.give_way()
            part = self._part(names[at:], sizes)
            at += len(part)
            self._remove(jobs, part, sizes.get(part[0], 0) >= MOST)

    def _sizes(self, parent: str, names: Sequence[str]) -> dict[str, int]:
        """Return the number of records in each of the banks ``parent/name``."""
        query = f"""SELECT banks.name, count(*) FROM banks JOIN records ON records.bank = banks.id
            WHERE banks.name IN ({_marks(names)}) GROUP BY banks.name"""
        found = self._database.read(query, tuple([f"{parent}/{name}" for name in names]))
        return {row[0][len(parent) + 1 :]: row[1] for row in found}

    def _part(self, names: Sequence[str], sizes: Mapping[str, int]) -> list[str]:
        """Return as many of the first names as fit into one transaction; a name with many records comes alone."""
        records = count = 0
        for name in names:
            size = 3 + sizes.get(name, 0)  # a load, a list of minions, a mark
            if count and records + size > MOST:
                break
            records, count = records + size, count + 1
        return list(names[:count])

    def _remove(self, jobs: _Jobs, names: Sequence[str], apart: bool) -> None:
        """Remove the old ones among some names, as ``_Jobs.remove``."""
        kept: set[str] = set()
        while True:
            try:
                with self._database.transaction() as sql:
                    jobs.remove(sql, [name for name in names if name not in kept], apart)
                return
            except _Young as exc:
                kept |= exc.names
                self._database.give_way()

    def empty_some(self) -> int:
        """Remove some of the records in hidden banks, and return how many."""
        with self._database.transaction() as sql:
            found = sql.execute("SELECT id FROM banks WHERE name > ? AND name < '/s' LIMIT 1", (_APART,)).fetchone()
            if found is None:
                return 0
            of = f"SELECT id FROM records WHERE bank = ? LIMIT {MOST}"
            count = sql.execute(f"DELETE FROM records WHERE id IN ({of})", found).rowcount
            if count < MOST:
                sql.execute("DELETE FROM banks WHERE id = ?", found)
        return max(count, 1)


class _Young(Exception):
    """Some names have records that are not old. The transaction must be rolled back."""

    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self.names = names


class _Jobs:
    """Where the records of jobs are, and when they are old: if written before ``than``, in milliseconds of Unix time."""

    def __init__(self, banks: Sequence[str], parent: str, than: int) -> None:
        self.than = than
        self._banks, self._parent = banks, parent

    def bank(self, name: str) -> str:
        """Return the name of a name's own bank."""
        return f"{self._parent}/{name}"

    def remove(self, sql: sqlite3.Connection, names: Sequence[str], apart: bool) -> None:
        """
        Remove some names, all of which are old.

        :param apart: whether their own banks are too large to be emptied here, and only hidden.
        :raises _Young: if a record of a name is not old.
        """
        shared = _numbers(sql, self._banks).values()
        keyed, values = f"bank IN ({_marks(shared)}) AND key IN ({_marks(names)})", (*shared, *names)
        own = {number: bank for bank, number in _numbers(sql, [self.bank(name) for name in names]).items()}
        numbers, marks = tuple(own), _marks(own)
        # Removed first, then checked: checking a record's time takes as long as removing it. Neighbours in the file are
        # removed together.
        if not apart:
            sql.execute(f"DELETE FROM records WHERE bank IN ({marks}) AND updated < ?", (*numbers, self.than))
        sql.execute(f"DELETE FROM records WHERE {keyed} AND updated < ?", (*values, self.than))
        young = {key for (key,) in sql.execute(f"SELECT key FROM records WHERE {keyed}", values)}
        query = f"SELECT DISTINCT bank FROM records WHERE bank IN ({marks}) AND updated >= ?"
        start = len(self._parent) + 1
        young |= {own[number][start:] for (number,) in sql.execute(query, (*numbers, self.than))}
        if young:
            raise _Young(young)
        for number in numbers if apart else ():
            set_apart(sql, number)
        sql.execute(f"DELETE FROM banks WHERE id IN ({marks}) AND NOT ?", (*numbers, apart))
        job_index.has_removed_jobs(sql, names)


def _numbers(sql: sqlite3.Connection, banks: Sequence[str]) -> dict[str, int]:
    return dict(sql.execute(f"SELECT name, id FROM banks WHERE name IN ({_marks(banks)})", tuple(banks)).fetchall())


def take_banks(sql: sqlite3.Connection, sizes: Mapping[int, int]) -> None:
    """
    Remove some banks with all that is in them. For readers they are gone at once.

    :param sizes: the number of records in each bank, by the bank's number.
    """
    small = [number for number, size in sizes.items() if size < MOST]
    sql.execute(f"DELETE FROM records WHERE bank IN ({_marks(small)})", small)
    sql.execute(f"DELETE FROM banks WHERE id IN ({_marks(small)})", small)
    for number in sizes.keys() - small:
        set_apart(sql, number)


def set_apart(sql: sqlite3.Connection, number: int) -> None:
    """Hide a bank; its records are removed later."""
    sql.execute("UPDATE banks SET name = ? WHERE id = ?", (f"{_APART}{number}", number))


def _marks(values: Collection[Any]) -> str:
    return ",".join("?" * len(values))
