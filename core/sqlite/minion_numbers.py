"""
This process's cache of the numbers of minions, so that a publish to many of them need not query the file.

It must never hold a number that was not committed: after a rollback another minion may get that number.
"""

from __future__ import annotations

import hashlib
import operator
import sqlite3
import zlib
from collections.abc import Sequence
from typing import Any

from saltext.jobs.core.sqlite import job_index, minion_sets
from saltext.jobs.core.sqlite.database import Database

MANY = 50  # the numbers of fewer minions are read from the file
LISTS = 16  # long lists of minions whose sets are cached


class MinionNumbers:
    """:param database: the file."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known = _Known()

    def pack(self, sql: sqlite3.Connection, listed: Sequence[Any], data: bytes) -> bytes:
        """
        Return the set of the minions in a list, which may hold other things too.

        :param data: the list as it is stored. The set is cached under it, because jobs are often for the same minions.
        """
        if len(listed) < MANY:
            return minion_sets.pack(job_index.numbers_of(sql, job_index.ids_in(listed)))
        if not self._known.is_of(sql):
            self._known = _Known()
        found = self._known.set_of(data)
        if found is not None:
            return found
        found = self._known.packed(listed)
        if found is None:
            self._known = self._known.with_more(self._database)
            found = self._known.packed(listed)
        known = self._known
        if found is not None:
            known.keep(data, found)
            return found
        names = job_index.ids_in(listed)
        new = [name for name in names if name not in known.numbers]
        numbers = [known.numbers[name] for name in names if name in known.numbers]
        return minion_sets.pack(numbers + job_index.numbers_of(sql, new))


class _Known:
    """The numbers of minions by their names, the highest of them, and the sets of some lists."""

    def __init__(
        self, numbers: dict[str, int] | None = None, last: tuple[str, int] = ("", 0), forgotten: str = ""
    ) -> None:
        self.numbers = numbers or {}
        #: The highest number with its name, and the name of the number 0, which changes when minions are forgotten.
        self._last, self._forgotten = last, forgotten
        #: ``{checksum of a list: {its digest: its set}}``. The inner dict is empty until the list comes again, as many
        #: come only once.
        self._sets: dict[int, dict[bytes, bytes]] = {}

    def is_of(self, sql: sqlite3.Connection) -> bool:
        """Tell whether the numbers belong to this very file, and no minion was forgotten since."""
        name, number = self._last
        if not number:
            return True
        found = dict(sql.execute("SELECT id, name FROM minions WHERE id IN (0, ?)", (number,)).fetchall())
        return found.get(number) == name and found.get(0, "") == self._forgotten

    def packed(self, listed: Sequence[Any]) -> bytes | None:
        """Return the set of many minions; None if a number is not known, or an item cannot be an id."""
        try:
            numbers = operator.itemgetter(*listed)(self.numbers)  # twice as fast as looking them up one by one
        except (KeyError, TypeError):
            return None
        digits = bytearray(b"0") * (self._last[1] + 1)
        for number in numbers:
            digits[number] = minion_sets.DIGIT
        return minion_sets.of_digits(digits)

    def with_more(self, database: Database) -> _Known:
        """Return a cache that also has the numbers that minions got since."""
        rows = database.committed("SELECT name, id FROM minions WHERE id = 0 OR id > ? ORDER BY id", (self._last[1],))
        forgotten = rows.pop(0)[0] if rows and rows[0][1] == 0 else ""
        return _Known({**self.numbers, **dict(rows)}, rows[-1], forgotten) if rows else self

    def set_of(self, data: bytes) -> bytes | None:
        """Return the cached set of a list; None if there is none."""
        known = self._sets.get(zlib.crc32(data))
        return known.get(_digest(data)) if known else None

    def keep(self, data: bytes, found: bytes) -> None:
        """Cache the set of a list, if the list came before."""
        checksum = zlib.crc32(data)
        known = self._sets.get(checksum)
        if known is not None:
            known[_digest(data)] = found
            return
        while len(self._sets) >= LISTS:
            self._sets.pop(next(iter(self._sets)), None)
        self._sets[checksum] = {}


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
