"""Rows of ``records`` that are put in as they are, with the time at which they were written; what belongs to them too."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from typing import Any

from saltext.jobs.core.disk.bank_names import plain_bank
from saltext.jobs.core.sqlite import job_index, stored

ADD = "INSERT OR IGNORE INTO records (bank, key, updated, expires, value) VALUES (?, ?, ?, ?, ?)"
#: Keeps what belongs to a value that was stored: gets the bank, the key, the value, and that as it is stored.
HasStored = Callable[[sqlite3.Connection, str, str, Any, bytes], None]


def bank_id(sql: sqlite3.Connection, name: str) -> int:
    """Return the number of a bank, which is made where there is none."""
    found = sql.execute("SELECT id FROM banks WHERE name = ?", (name,)).fetchone()
    if found is not None:
        return int(found[0])
    return int(sql.execute("INSERT INTO banks (name) VALUES (?)", (name,)).lastrowid or 0)


def _has_stored(sql: sqlite3.Connection, bank: str, key: str, value: Any, _data: bytes) -> None:
    job_index.has_stored(sql, bank, key, value)


def add(sql: sqlite3.Connection, rows: Iterable[tuple[Any, ...]], has_stored: HasStored = _has_stored) -> int:
    """Put in (bank, key, updated, expires, value) where there is nothing, and return how many. The caller has begun."""
    count = 0
    for bank, key, *rest in rows:
        name = plain_bank(bank)
        if sql.execute(ADD, (bank_id(sql, name), key, *rest)).rowcount:
            count += 1
            has_stored(sql, name, key, stored.loads(rest[-1]), rest[-1])
    return count
