"""
Reads what can be read of a damaged database of the driver sqlite, and puts it into the one in use.

What is there already stays as it is. It must never write to the damaged file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import salt.payload

from saltext.jobs.core.sqlite.banks import SqliteBanks
from saltext.jobs.core.sqlite.removal import is_apart

_ROWS = 200  # read at a time
_PART = 1000  # written at a time
_COLUMNS = "id, bank, key, updated, expires, value"


class Salvage:
    """
    :param path: of the damaged file.
    :param banks: those in use.
    """

    def __init__(self, path: str, banks: SqliteBanks) -> None:
        self._path, self._banks = path, banks
        #: Records that could be read, those of them that were not there, and the gaps in which nothing could be read.
        self.read = self.written = self.gaps = 0

    def run(self) -> None:
        """
        Bring over what can be read.

        :raises sqlite3.Error: where nothing of the file can be read, or the one in use cannot be written.
        """
        sql = sqlite3.connect(self._path, isolation_level=None)
        try:
            sql.execute("PRAGMA query_only=ON")
            sql.execute("SELECT count(*) FROM sqlite_master").fetchone()
            names = self._names(sql)
            part: list[tuple[Any, ...]] = []
            for _, bank, key, *rest in self._rows(sql, "records", _COLUMNS):
                if bank in names and isinstance(key, str) and _is_whole(rest):
                    self.read += 1
                    part.append((names[bank], key, *rest))
                if len(part) >= _PART:
                    self.written += self._banks.add_rows(part)
                    part.clear()
                    self._banks.give_way()
            self.written += self._banks.add_rows(part)
        finally:
            sql.close()

    def _names(self, sql: sqlite3.Connection) -> dict[int, str]:
        """Return the names of the banks: from their index too, which lies elsewhere in the file."""
        names = dict(self._rows(sql, "banks", "id, name"))
        after = ""
        try:
            while rows := sql.execute(
                f"SELECT name, id FROM banks WHERE name > ? ORDER BY name LIMIT {_ROWS}", (after,)
            ).fetchall():
                names.update((number, name) for name, number in rows)
                after = rows[-1][0]
        except sqlite3.DatabaseError:
            pass
        return {number: name for number, name in names.items() if isinstance(name, str) and not is_apart(name)}

    def _rows(self, sql: sqlite3.Connection, table: str, columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a table; past what cannot be read it goes on from the other side of the gap."""
        forward = f"SELECT {columns} FROM {table} WHERE id >= ? ORDER BY id LIMIT ?"
        backward = f"SELECT {columns} FROM {table} WHERE id < ? AND id >= ? ORDER BY id DESC LIMIT 1"
        at, size, step = 0, _ROWS, 1
        gap: int | None = None  # the first id that could not be read
        while at < 2**62:
            try:
                rows = sql.execute(forward, (at, size)).fetchall()
            except sqlite3.DatabaseError:
                if size > 1:
                    size = 1
                    continue
                if gap is None:
                    gap, step = at, 1
                    self.gaps += 1
                at += step
                step *= 2
                continue
            if gap is not None:
                yield from self._back(sql, backward, gap, rows[0][0] if rows else at)
                gap = None
            if not rows:
                return
            yield from rows
            at, size = rows[-1][0] + 1, min(_ROWS, 2 * size)

    @staticmethod
    def _back(sql: sqlite3.Connection, query: str, low: int, high: int) -> Iterator[tuple[Any, ...]]:
        """Yield the rows before ``high``, from the last one to the first that cannot be read."""
        try:
            while (row := sql.execute(query, (high, low)).fetchone()) is not None:
                yield row
                high = row[0]
        except sqlite3.DatabaseError:
            return


def _is_whole(rest: list[Any]) -> bool:
    updated, expires, value = rest
    if not isinstance(updated, int) or not isinstance(expires, (int, type(None))) or not isinstance(value, bytes):
        return False
    try:
        salt.payload.loads(value)
    except Exception:  # msgpack raises many kinds for a broken value
        return False
    return True
