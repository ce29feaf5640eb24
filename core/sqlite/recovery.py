"""Brings what can be read of a database that was set aside into the one in use: ``job_cache.recover``."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from saltext.jobs.core.banks import plain_bank
from saltext.jobs.core.disk import stored
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.ledger import queue, values
from saltext.jobs.core.ledger.tables import QUEUE, VALUES, Tables

_PART = 1000  # rows read and written at a time
_KINDS: tuple[Any, ...] = (str, str, float, (float, type(None)), bytes)
_VALUES = f"SELECT bank, key, updated, expires, value FROM {VALUES} WHERE rowid >= ? AND rowid < ?"
_QUEUE = f"SELECT kind, jid, minion, body FROM {QUEUE} WHERE rowid >= ? AND rowid < ?"


def recover(path: str, tables: Tables) -> dict[str, int]:
    """
    Store the records of a damaged file, and the rows of its retry queue, that can be read and whose places are free.

    :return: ``read`` and ``written``, the numbers of these.
    :raises StateError: if nothing can be read.
    """
    read = written = 0
    tables.open()  # so that there is a file to copy to
    for part in _parts(path, VALUES, _VALUES):
        whole = list(filter(_is_whole, part))
        read += len(whole)
        written += values.add_rows(tables, whole)
        tables.give_way()
    with contextlib.suppress(StateError):  # nothing of the queue can be read
        for part in _parts(path, str(QUEUE), _QUEUE):
            read += len(part)
            written += queue.add(tables, part)
            tables.give_way()
    return {"read": read, "written": written}


def _parts(path: str, table: str, query: str) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of a table, and leave out ranges that cannot be read. :raises StateError:"""
    with contextlib.closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as sql:
        try:
            ((end,),) = sql.execute(f"SELECT coalesce(max(rowid), 0) + 1 FROM {table}").fetchall()
        except sqlite3.Error as exc:
            raise StateError(f"nothing of {path} can be read: {exc}") from exc
        at, step = 0, _PART
        while at < end:
            try:
                yield sql.execute(query, (at, at + step)).fetchall()
            except sqlite3.DatabaseError:
                if step > 1:
                    step //= 10
                    continue
            at, step = at + step, min(_PART, step * 10)


def _is_whole(row: tuple[Any, ...]) -> bool:
    with contextlib.suppress(Exception):  # msgpack raises many kinds for a broken value
        plain_bank(row[0])
        stored.loads(row[4])
        return all(isinstance(value, kind) for value, kind in zip(row, _KINDS, strict=True))
    return False
