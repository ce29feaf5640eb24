"""Inserts rows into ``records`` unchanged, with the time at which they were written, and indexes them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from typing import Any

from saltext.jobs.core.banks import plain_bank
from saltext.jobs.core.sqlite import job_index, stored

ADD = "INSERT OR IGNORE INTO records (bank, key, updated, expires, value) VALUES (?, ?, ?, ?, ?)"
#: Indexes a value that was stored: gets the bank, the key, the value, and its stored bytes.
HasStored = Callable[[sqlite3.Connection, str, str, Any, bytes], None]


def bank_id(sql: sqlite3.Connection, name: str) -> int:
    """Return the number of a bank, which is created if it is missing."""
    found = sql.execute("SELECT id FROM banks WHERE name = ?", (name,)).fetchone()
    if found is not None:
        return int(found[0])
    return int(sql.execute("INSERT INTO banks (name) VALUES (?)", (name,)).lastrowid or 0)


def _has_stored(sql: sqlite3.Connection, bank: str, key: str, value: Any, _data: bytes) -> None:
    job_index.has_stored(sql, bank, key, value)


def add(sql: sqlite3.Connection, rows: Iterable[tuple[Any, ...]], has_stored: HasStored = _has_stored) -> int:
    """Insert (bank, key, updated, expires, value) if the place is free; return how many. Call it in a transaction."""
    count = 0
    for bank, key, *rest in rows:
        name = plain_bank(bank)
        if sql.execute(ADD, (bank_id(sql, name), key, *rest)).rowcount:
            count += 1
            has_stored(sql, name, key, stored.loads(rest[-1]), rest[-1])
    return count
