"""The database of a master in SQLite: copied as a backup, and filled with the readable rows of one that was set aside."""

from __future__ import annotations

import bisect
import contextlib
import os
import sqlite3
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from saltext.jobs.core.errors import Refused, StateError, check_format
from saltext.jobs.core.ledger import stored
from saltext.jobs.core.ledger.tables import FORMAT, QUEUE, VALUES, Tables, marks_of
from saltext.jobs.core.sqlite.tables import SqliteTables

_PART = 1000  # rows read and written at a time
#: The types of the columns of each table: damage may show in a type.
_TYPES: dict[str, tuple[Any, ...]] = {
    VALUES: (str, str, float, (float, type(None)), (str, type(None)), bytes),
    str(QUEUE): (int, str, str, bytes),
}


def backup(tables: Tables, path: Any) -> dict[str, Any]:
    """Copy the file as it is at this moment, and return path and bytes of the copy. :raises Refused:"""
    found = _of_file(tables, "backup")
    if not (isinstance(path, str) and os.path.isabs(path) and os.path.isdir(os.path.dirname(path))):
        raise Refused(f"path is {path!r}; accepted is the absolute path of a file in a directory that is there")
    try:
        found.database.backup(path)
    except FileExistsError as exc:
        raise Refused(f"{exc.filename2 or exc.filename} is there already; name a file that does not exist") from exc
    except Exception as exc:  # SQLite and the disk raise many kinds
        raise Refused(f"The copy cannot be made: {exc}") from exc
    return {"path": path, "bytes": os.stat(path).st_size}


def recover(tables: Tables, path: Any) -> dict[str, int]:
    """
    Store the records of a damaged file, and the rows of its retry queue, that can be read and whose places are free. Returns
    ``read`` and ``written``, the numbers of these. :raises Refused: also if nothing can be read.
    """
    found = _of_file(tables, "recover")
    named = isinstance(path, str) and os.path.isfile(path) and path
    if not named or os.path.realpath(named) == os.path.realpath(found.place):
        raise Refused(f"path is {path!r}; accepted is the path of a file that was set aside")
    try:
        return _recovered(found, path)
    except Exception as exc:  # SQLite and the disk raise many kinds
        raise Refused(f"{path} cannot be brought back: {exc}") from exc


def _of_file(tables: Tables, what: str) -> SqliteTables:
    if not isinstance(tables, SqliteTables):
        raise Refused(f"job_cache.{what} is for a file of SQLite; for {tables.place} use the server's own means")
    return tables


def _recovered(tables: Tables, path: str) -> dict[str, int]:
    read = written = 0
    tables.open()  # so that there is a file to copy to
    with contextlib.closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as sql:
        check_format(path, sql.execute("PRAGMA user_version").fetchone()[0], FORMAT)
        for table, types in _TYPES.items():
            put = f"INSERT INTO {table} VALUES ({marks_of(types)}) ON CONFLICT DO NOTHING"
            for part in _parts(sql, table):
                read += len(part)
                written += tables.together(lambda: sum(tables.changed(put, row) for row in part))  # noqa: B023
                tables.give_way()
    if not read:
        raise StateError(f"nothing of {path} can be read")
    return {"read": read, "written": written}


def _parts(sql: sqlite3.Connection, table: str) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of a table, and leave out ranges and values that cannot be read."""
    at, step = 0, _PART
    try:
        ((end,),) = sql.execute(f"SELECT coalesce(max(rowid), 0) + 1 FROM {table}").fetchall()
    except sqlite3.Error:  # the last page is damaged: its rows, and what is beyond, cannot be read
        end = bisect.bisect_left(range(sys.maxsize), True, key=lambda first: not _has_after(sql, table, first))
    while at < end:
        try:
            found = sql.execute(f"SELECT * FROM {table} WHERE rowid >= ? AND rowid < ?", (at, at + step)).fetchall()
            yield [row for row in found if _is_whole(table, row)]
        except sqlite3.DatabaseError:
            if step > 1:
                step //= 10
                continue
        at, step = at + step, min(_PART, step * 10)


def _has_after(sql: sqlite3.Connection, table: str, first: int) -> bool:
    with contextlib.suppress(sqlite3.Error):
        return bool(sql.execute(f"SELECT 1 FROM {table} WHERE rowid >= ? LIMIT 1", (first,)).fetchall())
    return False


def _is_whole(table: str, row: tuple[Any, ...]) -> bool:
    with contextlib.suppress(Exception):  # msgpack raises many kinds for a broken value
        if table == VALUES:
            stored.loads(row[-1])
        return all(isinstance(value, kind) for value, kind in zip(row, _TYPES[table], strict=True))
    return False
