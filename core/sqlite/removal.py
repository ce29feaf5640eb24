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
#: Most seconds that a transaction should take. After a longer one (busy machine, slow disk) the next are smaller.
LONG = 0.05
#: Records of the smallest transaction: with fewer, each record costs too much.
LEAST = 500
_APART = f"{schema.HIDDEN}removed/"


class Removal:
    """:param database: the file."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._most = MOST

    def remove_older(self, banks: Sequence[str], parent: str, names: Sequence[str], than: float) -> float | None:
        """
        Remove the names that were last written before ``than``: their keys in some banks, and their own ``parent/name``.

        All of one name is removed at once. The caller must not be in a transaction.

        :param than: Unix time.
        :return: a Unix time that is not later than the last write of any name that stays; None if none stays.
        """
        jobs = _Jobs(banks, parent, int(than * 1000))
        sizes, at = self._sizes(parent, names), 0
        kept: list[int] = []
        while at < len(names):
            if at:
                self._database.give_way()
            part = self._part(names[at:], sizes)
            at += len(part)
            kept += self._remove_large(jobs, part[0]) if sizes.get(part[0], 0) >= MOST else self._remove(jobs, part)
            self._adapt()
        return min(kept) / 1000 if kept else None

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
            if count and records + size > self._most:
                break
            records, count = records + size, count + 1
        return list(names[:count])

    def _remove(self, jobs: _Jobs, names: Sequence[str]) -> list[int]:
        """Remove the old ones among some names with few records each. Return when the others were written."""
        kept: dict[str, int] = {}
        while True:
            try:
                with self._database.transaction() as sql:
                    jobs.remove(sql, [name for name in names if name not in kept])
                return list(kept.values())
            except _Young as exc:
                kept.update(exc.written)
                self._database.give_way()

    def _remove_large(self, jobs: _Jobs, name: str) -> list[int]:
        """As ``_remove``, for one name with many records. They are checked first, while others can write."""
        bank = (jobs.bank(name),)
        query = """SELECT banks.id, count(*), max(records.id){} FROM banks JOIN records ON records.bank = banks.id
            WHERE banks.name = ?"""
        while True:
            ((*seen, newest),) = self._database.read(query.format(", max(updated)"), bank)
            if newest is None:  # another process was faster
                return self._remove(jobs, [name])
            if newest >= jobs.than:
                return [newest]
            try:
                with self._database.transaction() as sql:
                    if list(sql.execute(query.format(""), bank).fetchone()) == seen:
                        jobs.remove(sql, [name], apart=seen[0])
                        return []
            except _Young as exc:
                return list(exc.written.values())

    def empty_some(self) -> int:
        """Remove some of the records in hidden banks, and return how many."""
        found = self._database.read("SELECT id FROM banks WHERE name > ? AND name < '/s' LIMIT 1", (_APART,))
        if not found:
            return 0
        with self._database.transaction() as sql:
            still = sql.execute(
                "SELECT 1 FROM banks WHERE id = ? AND name > ? AND name < '/s'", (*found[0], _APART)
            ).fetchone()
            if still is None:
                return 1  # another process was faster, and another bank may have this number by now
            of = f"SELECT id FROM records WHERE bank = ? LIMIT {self._most}"
            count = sql.execute(f"DELETE FROM records WHERE id IN ({of})", found[0]).rowcount
            if count < self._most:
                sql.execute("DELETE FROM banks WHERE id = ?", found[0])
        self._adapt()
        return max(count, 1)

    def _adapt(self) -> None:
        """Remove fewer at a time if the last transaction took long."""
        self._most = max(LEAST, self._most // 2) if self._database.held > LONG else min(MOST, 2 * self._most)


class _Young(Exception):
    """Some names have records that are not old. The transaction must be rolled back."""

    def __init__(self, written: dict[str, int]) -> None:
        super().__init__()
        #: For each name when its newest record was written, in milliseconds of Unix time.
        self.written = written


class _Jobs:
    """Where the records of jobs are, and when they are old: if written before ``than``, in milliseconds of Unix time."""

    def __init__(self, banks: Sequence[str], parent: str, than: int) -> None:
        self.than = than
        self._banks, self._parent = banks, parent

    def bank(self, name: str) -> str:
        """Return the name of a name's own bank."""
        return f"{self._parent}/{name}"

    def remove(self, sql: sqlite3.Connection, names: Sequence[str], apart: int | None = None) -> None:
        """
        Remove some names, all of which are old.

        :param apart: with a single name: the number of its own bank, which is old and too large to be removed here.
        :raises _Young: if a record of a name is not old.
        """
        shared = _numbers(sql, self._banks).values()
        keyed, values = f"bank IN ({_marks(shared)}) AND key IN ({_marks(names)})", (*shared, *names)
        own = {number: bank for bank, number in _numbers(sql, [self.bank(name) for name in names]).items()}
        if apart is not None:
            set_apart(sql, apart)
            own = {}
        numbers, marks = tuple(own), _marks(own)
        # Removed first, then checked: checking a record's time takes as long as removing it. Neighbours in the file are
        # removed together.
        sql.execute(f"DELETE FROM records WHERE bank IN ({marks}) AND updated < ?", (*numbers, self.than))
        sql.execute(f"DELETE FROM records WHERE {keyed} AND updated < ?", (*values, self.than))
        young = sql.execute(f"SELECT key, updated FROM records WHERE {keyed}", values).fetchall()
        query = f"SELECT bank, max(updated) FROM records WHERE bank IN ({marks}) GROUP BY bank"
        start = len(self._parent) + 1
        young += [(own[number][start:], updated) for number, updated in sql.execute(query, numbers)]
        if young:
            written: dict[str, int] = {}
            for name, updated in young:
                written[name] = max(updated, written.get(name, 0))
            raise _Young(written)
        sql.execute(f"DELETE FROM banks WHERE id IN ({marks})", numbers)
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
