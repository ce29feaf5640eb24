"""
How far readers of the log are that hand records on, and what they still owe: records of the log before that place, and
notices. A reader is named by its engine and by whom it hands records to, such as ``job_recorder pgjsonb``. All methods raise
OSError when the database cannot be used now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgpack

from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.ledger.log import Position
from saltext.jobs.core.ledger.tables import META, OUTBOX, Tables

_CURSOR = "cursor"

_READY = "reader = ? AND due <= ? ORDER BY due, at LIMIT ?"
_NEWEST_DEAD = "reader = ? AND due IS NULL ORDER BY at DESC, jid, minion LIMIT ?"
_COUNTS = f"""SELECT count(CASE WHEN due = 0 THEN 1 END), count(CASE WHEN due > 0 THEN 1 END), count(*) - count(due),
    min(CASE WHEN due = 0 THEN at END) FROM {OUTBOX} WHERE reader = ?"""
_TRIM = f"""DELETE FROM {OUTBOX} WHERE reader = ? AND due {{0}} NULL AND at <
    (SELECT at FROM {OUTBOX} WHERE reader = ? AND due {{0}} NULL ORDER BY at DESC LIMIT 1 OFFSET ?)"""
_TRIM_DEAD, _TRIM_WAITING = _TRIM.format("IS"), _TRIM.format("IS NOT")
_AGAIN = f"UPDATE {OUTBOX} SET due = 0, tries = 0 WHERE {OUTBOX.of} AND due IS NULL"
_DROP = f"DELETE FROM {OUTBOX} WHERE {OUTBOX.of} AND due IS NULL"


class Key(NamedTuple):
    """Names a row of a reader. ``minion`` is empty for what belongs to a job as a whole."""

    kind: str
    jid: str
    minion: str = ""


class Row(NamedTuple):
    """What is owed. Times are Unix time."""

    key: Key
    at: float  # since when it has been owed
    tries: int = 0  # how often it was refused
    due: float | None = 0.0  # when it is tried again, 0 if it was not refused yet; None for a dead letter
    why: str = ""
    body: bytes | None = None  # its content, if it is nowhere else


class Counts(NamedTuple):
    """How many rows of a reader were not refused yet, are tried again, and are dead letters."""

    fresh: int = 0
    parked: int = 0
    dead: int = 0
    oldest: float | None = None  # ``at`` of the oldest that was not refused yet


class Outbox:
    """What one reader of the log owes, and how far it is."""

    def __init__(self, tables: Tables, reader: str, lease: Lease | None = None) -> None:
        self.tables, self._reader, self._lease = tables, reader, lease

    def cursor(self) -> Position | None:
        """Return how far the reader is; None if it is a new one."""
        found = META.get(self.tables, self._reader, _CURSOR)
        return Position(**msgpack.unpackb(found)) if found else None

    def add(self, rows: Sequence[Row], cursor: Position | None = None) -> None:
        """Store rows, unless they are there, and note how far the reader is: all of it or nothing."""

        def work() -> None:
            OUTBOX.add(self.tables, {(self._reader, *row.key): row[1:] for row in rows})
            if cursor is not None:
                META.keep(self.tables, self._reader, _CURSOR, msgpack.packb(cursor._asdict()))

        self.tables.together(work, self._lease)

    def keep(self, changes: Mapping[Key, Row | None]) -> None:
        """Store rows, and remove those that are None: all of it or nothing."""
        rows = {(self._reader, *key): None if row is None else row[1:] for key, row in changes.items()}
        self.tables.together(lambda: OUTBOX.write(self.tables, rows), self._lease)

    def push(self, rows: Sequence[Row], most: int) -> int:
        """As ``add``. If more than ``most`` rows then wait, remove the oldest, and return how many."""

        def work() -> int:
            self.add(rows)
            return self._each(_TRIM_WAITING, [(self._reader, most - 1)])

        return self.tables.together(work, self._lease)

    def ready(self, now: float, most: int) -> list[Row]:
        """Return rows that are due: first those that were not refused yet, the oldest of them. A load precedes returns."""
        return sorted(self._rows(_READY, now, most), key=lambda row: (row.due or 0.0, *row.key[1:]))

    def dead(self, most: int) -> list[Row]:
        """Return the newest dead letters, oldest first."""
        return self._rows(_NEWEST_DEAD, most)[::-1]

    def counts(self) -> Counts:
        return Counts(*self.tables.read(_COUNTS, (self._reader,))[0])

    def trim_dead(self, most: int) -> int:
        """Remove the oldest dead letters, if there are more than ``most``, and return how many."""
        return self._each(_TRIM_DEAD, [(self._reader, most - 1)])

    def again(self, keys: Sequence[Key]) -> int:
        """Have dead letters handed over again, and return how many these were."""
        return self._each(_AGAIN, keys)

    def drop(self, keys: Sequence[Key]) -> int:
        """Remove dead letters, and return how many these were."""
        return self._each(_DROP, keys)

    def _each(self, statement: str, values: Sequence[Sequence[Any]]) -> int:
        def work() -> int:
            return sum(max(0, self.tables.changed(statement, (self._reader, *its))) for its in values)

        return self.tables.together(work, self._lease, durable=True)

    def _rows(self, where: str, *values: Any) -> list[Row]:
        found = OUTBOX.read(self.tables, where, (self._reader, *values))
        return [Row(Key(*key), at, tries, due, why, body) for _, *key, at, tries, due, why, body in found]
