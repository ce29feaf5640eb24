"""
The numbers of many minions at once, as this process knows them, so that a publish to all of them asks the file for none.

It must never know a number that was not committed: what is taken back may be another minion's next.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence

from saltext.jobs.core.sqlite import job_index, minion_sets
from saltext.jobs.core.sqlite.database import Database

MANY = 50  # of fewer the file is asked
LISTS = 16  # of many minions, whose sets are known


class MinionNumbers:
    """:param database: the file."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known = _Known()

    def pack(self, sql: sqlite3.Connection, names: Sequence[str], data: bytes) -> bytes:
        """
        Return the set of some minions.

        :param data: the list of them as it is stored: jobs are often for the same ones.
        """
        if len(names) < MANY:
            return minion_sets.pack(job_index.numbers_of(sql, names))
        digest = hashlib.blake2b(data, digest_size=16).digest()
        if not self._known.is_of(sql):
            self._known = _Known()
        found = self._known.sets.get(digest)
        if found is not None:
            return found
        numbers = self._known.of(names)
        if numbers is None:
            self._known = self._known.with_more(self._database)
            numbers = self._known.of(names)
        known = self._known
        if numbers is not None:
            found = minion_sets.pack(numbers)
            known.keep(digest, found)
            return found
        new = [name for name in names if name not in known.numbers]
        numbers = [known.numbers[name] for name in names if name in known.numbers]
        return minion_sets.pack(numbers + job_index.numbers_of(sql, new))


class _Known:
    """The numbers of minions by their names, the last of them, and the sets of some lists by their digests."""

    def __init__(self, numbers: dict[str, int] | None = None, last: tuple[str, int] = ("", 0)) -> None:
        self.numbers, self.sets = numbers or {}, dict[bytes, bytes]()
        self._last = last

    def is_of(self, sql: sqlite3.Connection) -> bool:
        """Tell whether they are those of this file, and not of one that was in its place."""
        name, number = self._last
        return not number or sql.execute("SELECT name FROM minions WHERE id = ?", (number,)).fetchone() == (name,)

    def of(self, names: Sequence[str]) -> list[int] | None:
        """Return the numbers of some minions; None where one of them is not known."""
        try:
            return list(map(self.numbers.__getitem__, names))
        except KeyError:
            return None

    def with_more(self, database: Database) -> _Known:
        """Return also those that were given since."""
        rows = database.committed("SELECT name, id FROM minions WHERE id > ? ORDER BY id", (self._last[1],))
        return _Known({**self.numbers, **dict(rows)}, rows[-1]) if rows else self

    def keep(self, digest: bytes, found: bytes) -> None:
        while len(self.sets) >= LISTS:
            self.sets.pop(next(iter(self.sets)), None)
        self.sets[digest] = found
